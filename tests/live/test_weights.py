"""Files of weights are described without running anything that is in them."""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import struct
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from stethos.cli.main import main
from stethos.errors import RecordingError
from stethos.live.checkpoint import load_checkpoint
from stethos.live.weights import WeightsFile, read_weights

NAN, INF = float("nan"), float("inf")


class Evil:
    """Runs a command when it is unpickled the usual way."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, (f"touch {self.path}",)


def odd(found: WeightsFile) -> dict[str, tuple[int | None, int | None]]:
    return {one.name: (one.nan, one.inf) for one in found.tensors}


@pytest.mark.parametrize("kind", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
def test_odd_elements_are_counted_as_torch_counts_them(tmp_path: Path, kind: torch.dtype) -> None:
    torch.manual_seed(0)
    values = torch.randn(1000).to(kind)
    values[::7], values[1::11], values[2::13] = NAN, INF, -INF
    expected = int(values.isnan().sum()), int(values.isinf().sum())
    save_file({"w": values.reshape(10, 100)}, tmp_path / "a.safetensors", {"step": "12"})
    torch.save({"w": values.reshape(10, 100), "part": values[100:110]}, tmp_path / "a.pt")
    torch.save({"w": values.reshape(10, 100)}, tmp_path / "old.pth", _use_new_zipfile_serialization=False)
    assert odd(read_weights(tmp_path / "a.safetensors")) == {"w": expected}
    part = int(values[100:110].isnan().sum()), int(values[100:110].isinf().sum())
    assert odd(read_weights(tmp_path / "a.pt")) == {"w": expected, "part": part}
    assert odd(read_weights(tmp_path / "old.pth")) == {"w": expected}


def test_a_whole_checkpoint_is_described(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = torch.nn.Linear(3, 2)
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.randn(4, 3)).sum().backward()
    optimizer.step()
    content = {
        "global_step": 7,
        "model": model.state_dict(),
        "parameter": model.bias,
        "optimizer": optimizer.state_dict(),
    }
    torch.save(content, tmp_path / "c.pt")
    found = read_weights(tmp_path / "c.pt")
    assert found.step == 7 and found.keys == tuple(content) and found.imports == ()
    shapes = {one.name: one.shape for one in found.tensors}
    assert shapes["model.weight"] == (2, 3) and shapes["optimizer.state.0.exp_avg"] == (2, 3)
    assert shapes["parameter"] == (2,)
    assert main(["inspect", str(tmp_path / "c.pt")]) == 0 and "step 7" in capsys.readouterr().out
    model.weight.data[0, 0] = NAN
    torch.save(model.state_dict(), tmp_path / "n.pt")
    assert main(["inspect", str(tmp_path / "n.pt")]) == 1 and "not finite: 1 NaN" in capsys.readouterr().out


@pytest.mark.parametrize("how", ["zip", "legacy", "plain", "whole module"])
def test_nothing_in_a_pickle_is_run(tmp_path: Path, how: str) -> None:
    touched = tmp_path / "touched"
    content: Any = {"step": 3, "w": torch.ones(2), "evil": Evil(touched)}
    path = tmp_path / "evil.pt"
    if how == "plain":
        path.write_bytes(pickle.dumps({"step": 3, "evil": Evil(touched)}))
    elif how == "whole module":
        module = torch.nn.Linear(2, 2)
        module.evil = Evil(touched)  # type: ignore[assignment]
        torch.save(module, path)
    else:
        torch.save(content, path, _use_new_zipfile_serialization=how == "zip")
    found = read_weights(path)
    assert not touched.exists()
    assert any("system" in name for name in found.imports)
    if how != "whole module":
        assert found.step == 3


def hostile_pickles() -> list[bytes]:
    nested = b"\x80\x04]" + b"\x94" + b"]\x94" * 3
    laughs = b"\x80\x02]q\x00" + b"".join(
        b"](" + b"h" + bytes([level]) + b"q" + bytes([level + 1]) for level in range(3)
    )
    return [
        b"cos\nsystem\n(S'touch touched'\ntR.", b"\x80\x04\x8c\x08builtins\x8c\x04eval\x93\x8c\x011\x85R.",
        b"\x80\x02c__builtin__\nexec\nq\x00X\x01\x00\x00\x001q\x01\x85q\x02Rq\x03.", b"\x80\x05\x96" + b"\xff" * 8,
        b"\x80\x04\x95" + b"\xff" * 8, nested, laughs, b"\x80\x02\x82\x01.", b"\x80\x02(" * 1000,
        b"\x80\x02" + b"(l" * 2000 + b".",
        b"\x80\x02}(X\x01\x00\x00\x00a" + b"\x8a\xff" + b"\x00" * 300 + b"u.",
    ]  # fmt: skip


@pytest.mark.parametrize("number", range(len(hostile_pickles())))
def test_hostile_pickles_are_described_or_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    monkeypatch.chdir(tmp_path)
    body = hostile_pickles()[number]
    (tmp_path / "plain.pt").write_bytes(b"\x80\x02." if body[:1] != b"\x80" else body)
    with zipfile.ZipFile(tmp_path / "zip.pt", "w") as archive:
        archive.writestr("archive/data.pkl", body)
    for name in ("plain.pt", "zip.pt"):
        with contextlib.suppress(RecordingError):  # and no other
            read_weights(tmp_path / name)
    assert not (tmp_path / "touched").exists()


@pytest.mark.parametrize(
    "body",
    [b"", b"hello world, this is text", struct.pack("<Q", 1 << 60) + b"{}",
     struct.pack("<Q", 60) + b'{"w":{"dtype":"F32","shape":[9],"data_offsets":[0,99999]}}  ',
     struct.pack("<Q", 60) + b'{"w":{"dtype":"F32","shape":[9],"data_offsets":[0,4]}}      ' + bytes(4),
     struct.pack("<Q", 40) + b"{" * 40, b"PK\x03\x04" + bytes(50)],
)  # fmt: skip
def test_damaged_files_are_refused_in_words(tmp_path: Path, body: bytes, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "x.safetensors"
    path.write_bytes(body)
    assert main(["inspect", str(path)]) == 5
    assert str(path) in capsys.readouterr().err


def test_a_file_without_tensors_is_none_the_worse(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "x.safetensors"
    path.write_bytes(struct.pack("<Q", 2) + b"{}")
    assert main(["inspect", str(path)]) == 0
    assert "0 tensors" in capsys.readouterr().out
    assert main(["inspect", str(tmp_path / "missing.pt")]) == 5


def test_tensors_in_the_same_place_are_not_read_again_and_again(tmp_path: Path) -> None:
    whole = torch.zeros(1_000)
    torch.save({f"w{number}": whole.view(-1) for number in range(50)}, tmp_path / "w.pt")
    found = read_weights(tmp_path / "w.pt").tensors
    assert len(found) == 50 and {one.nan for one in found} == {0, None} and found[0].nan == 0
    about = {"dtype": "F32", "shape": [1_000], "data_offsets": [0, 4_000]}
    header = json.dumps({f"w{number}": about for number in range(2_000)}).encode()
    (tmp_path / "w.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + bytes(4_000))
    with pytest.raises(RecordingError, match="same place"):
        read_weights(tmp_path / "w.safetensors")


def test_what_was_packed_by_somebody_else_is_not_unfolded(tmp_path: Path) -> None:
    torch.save({"w": torch.zeros(100_000)}, tmp_path / "w.pt")
    with (
        zipfile.ZipFile(tmp_path / "w.pt") as old,
        zipfile.ZipFile(tmp_path / "p.pt", "w", zipfile.ZIP_DEFLATED) as new,
    ):
        for name in old.namelist():
            new.writestr(name, old.read(name))
    assert [one.nan for one in read_weights(tmp_path / "w.pt").tensors] == [0]
    assert [one.nan for one in read_weights(tmp_path / "p.pt").tensors] == [None]


@pytest.mark.parametrize(
    "changes",
    [
        {"plain": None}, {"plain": "["}, {"plain": "[]"}, {"plain": "[" * 100_000}, {"step": "x"}, {"step": None},
        {"plain": '{"optimizer.state.x.y": 1}'}, {"param_groups": "{"}, {"format": "other"},
    ],
)  # fmt: skip
def test_a_checkpoint_of_a_stranger_is_an_error_of_ours(tmp_path: Path, changes: dict[str, str | None]) -> None:
    facts = {"format": "stethos-checkpoint-1", "step": "3", "plain": "{}", "param_groups": "[]"}
    path = tmp_path / "a.safetensors"
    save_file({"model.w": torch.ones(2)}, path, facts)
    assert load_checkpoint(path)["step"] == 3
    save_file({"model.w": torch.ones(2)}, path, {k: v for k, v in (facts | changes).items() if v is not None})
    with pytest.raises(RecordingError, match="not a Stethos checkpoint"):
        load_checkpoint(path)


def test_an_empty_file_is_no_checkpoint(tmp_path: Path) -> None:
    (tmp_path / "a.safetensors").touch()
    with pytest.raises(RecordingError):
        load_checkpoint(tmp_path / "a.safetensors")
