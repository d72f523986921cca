"""Files of other tools that say what cannot be: it is left out and counted, and nothing else is."""

from __future__ import annotations

import json
import os
import resource
import struct
import time
import zlib
from pathlib import Path

import pytest
from torch.utils.tensorboard import SummaryWriter

from stethos.cli.main import main
from stethos.store.foreign import wandb_file
from stethos.store.foreign.event_file import _masked_crc
from stethos.store.foreign.find import foreign_runs
from stethos.store.foreign.protobuf import fields_of
from stethos.store.foreign.value import Damage
from stethos.store.run import open_run


def field(number: int, value: int | bytes) -> bytes:
    """A field of a protobuf message."""
    if isinstance(value, int):
        return bytes([number << 3 & 127 | 128, number >> 4, value])
    return bytes([number << 3 & 127 | 130, number >> 4, len(value) & 127 | 128, len(value) >> 7]) + value


def wandb_content(*records: bytes, kind: int = 1) -> bytes:
    heads = (struct.pack("<IHB", zlib.crc32(one, zlib.crc32(bytes([kind]))), len(one), kind) for one in records)
    return b":W&B\0\0\0" + b"".join(head + one for head, one in zip(heads, records, strict=True))


def item(name: str, content: str) -> bytes:
    return field(1, field(1, name.encode()) + field(16, content.encode()))


@pytest.mark.parametrize(
    "odd",
    [
        field(2, item("x", "1" + "0" * 400)), field(2, field(1, field(2, 7) + field(16, b"1"))), field(2, 7),
        field(2, item("x", '"\\ud800"') + item("y", '{"\\ud800": 1}')), field(5, item("x", '{"\\ud800": "\\ud800"}')),
        field(5, item("x", "[" * 900 + "]" * 900)), field(5, item("x", '{"a":' * 400 + "1" + "}" * 400)),
        field(5, item("x", "1" + "0" * 4000)), field(2, item("x", "[" * 2000)), field(17, field(4, 7)),
    ],
)  # fmt: skip
def test_an_offline_run_that_says_what_cannot_be_is_imported_without_that(tmp_path: Path, odd: bytes) -> None:
    (tmp_path / "x.wandb").write_bytes(wandb_content(field(2, item("loss", "0.5")), odd))
    assert main(["import", str(tmp_path), "--dir", str(tmp_path / "runs"), "--name", "x"]) == 0
    with open_run(tmp_path / "runs" / "x") as run:
        assert ("loss", 0.5) in run.rows("SELECT name, value FROM metrics").values
        run.rows("SELECT * FROM processes")


def test_an_event_with_a_number_where_a_text_belongs_is_left_out(tmp_path: Path) -> None:
    damage = Damage()
    event = field(5, field(1, field(1, b"x") + field(8, field(8, 7))))
    head = struct.pack("<Q", len(event))
    crcs = [struct.pack("<I", _masked_crc(one)) for one in (head, event)]
    (tmp_path / "x.tfevents.1").write_bytes(head + crcs[0] + event + crcs[1])
    assert list(foreign_runs(tmp_path)[0].read(damage)) == [] and damage.records == 1


def test_hyperparameters_of_event_files_are_imported(tmp_path: Path) -> None:
    with SummaryWriter(str(tmp_path / "logs")) as writer:
        given = {"lr": 0.03, "layers": 4, "optimizer": "adam", "nesterov": True, "bias": False}
        writer.add_hparams(given, {"hparam/accuracy": 0.9}, run_name=".")
    assert main(["import", str(tmp_path / "logs"), "--dir", str(tmp_path / "runs"), "--name", "x"]) == 0
    with open_run(tmp_path / "runs" / "x") as run:
        assert json.loads(run.processes()[0]["config"]) == given
        assert run.rows("SELECT name, value FROM metrics").values == [("hparam/accuracy", pytest.approx(0.9))]


def test_a_record_that_is_too_large_is_passed_over_without_reading_it(tmp_path: Path) -> None:
    """Its length is believed as its checksum is right; the file is one of holes."""
    size = 40 << 30
    event = field(5, field(1, field(1, b"x") + bytes([2 << 3 | 5]) + struct.pack("<f", 0.5)))
    path = tmp_path / "x.tfevents.1"
    with path.open("wb") as file:
        for place, length, content in ((0, size, b""), (size + 16, len(event), event)):
            head = struct.pack("<Q", length)
            file.seek(place)
            file.write(head + struct.pack("<I", _masked_crc(head)) + content)
            file.write(struct.pack("<I", _masked_crc(content)) if content else b"")
    damage, began = Damage(), time.process_time()
    assert [one.value for one in foreign_runs(tmp_path)[0].read(damage)] == [0.5] and damage.records == 1
    assert time.process_time() - began < 5 and resource.getrusage(resource.RUSAGE_SELF).ru_maxrss < 4 << 20


def test_a_message_of_millions_of_fields_is_refused() -> None:
    with pytest.raises(ValueError, match="too many"):
        fields_of(bytes(2_000_000))


def test_what_was_never_written_is_not_read_to_its_end(tmp_path: Path) -> None:
    path = tmp_path / "x.wandb"
    path.write_bytes(wandb_content(field(2, item("loss", "0.5"))))
    os.truncate(path, 1 << 40)
    assert len(list(foreign_runs(path)[0].read(Damage()))) == 1


def test_a_record_that_never_ends_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wandb_file, "_LARGEST_RECORD", 1_000)
    (tmp_path / "x.wandb").write_bytes(wandb_content(*[b"x" * 100] * 11, kind=3))
    damage = Damage()
    assert list(foreign_runs(tmp_path)[0].read(damage)) == [] and damage.records == 1
