"""An archive that somebody else made: it is read as far as it can be, and holds nobody up."""

from __future__ import annotations

import json
import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from attack.tampered_files import change_nodes
from builders import RunBuilder

from stethos.archive.address import parse_address
from stethos.archive.cache import open_archived
from stethos.archive.committer import archive_run
from stethos.archive.snapshot import Snapshot
from stethos.errors import ArchiveError, StethosError
from stethos.store.run import Run


@pytest.fixture
def archive(run: RunBuilder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    process = run.process("p0", is_alive=False)
    process.steps(7)
    process.finish()
    archive_run(run.place, parse_address(tmp_path / "archive"))
    return tmp_path / "archive" / "demo"


def state_in(archive: Path) -> Path:
    return sorted((archive / "_state").glob("*.parquet"))[-1]


def pipe(archive: Path) -> None:
    state = state_in(archive)
    state.unlink()
    os.mkfifo(state)


def device(archive: Path) -> None:
    state = state_in(archive)
    state.unlink()
    state.symlink_to("/dev/zero")


def terabyte(archive: Path) -> None:
    os.truncate(state_in(archive), 1 << 40)


def pipe_in_log(archive: Path) -> None:
    os.mkfifo(archive / "_state" / "_delta_log" / "00000000000000000009.json")


def device_in_log(archive: Path) -> None:
    (archive / "_state" / "_delta_log" / "00000000000000000009.json").symlink_to("/dev/zero")


def terabyte_in_log(archive: Path) -> None:
    log = max((archive / "_state" / "_delta_log").glob("*.json"))
    os.truncate(log, 1 << 40)


def unfolding(archive: Path) -> None:
    many = pa.DictionaryArray.from_arrays(pa.array([0] * 3_000_000, pa.int32()), pa.array(["x" * 10_000]))
    pq.write_table(pa.table({"sequence": [1] * len(many), "content": many}), state_in(archive), compression="zstd")


@pytest.mark.timeout(240)  # it waits for ever
@pytest.mark.parametrize(
    "tamper",
    [pipe, device, terabyte, pipe_in_log, device_in_log, terabyte_in_log, unfolding],
    ids=lambda one: one.__name__,
)
def test_what_an_archive_holds_makes_nobody_wait(archive: Path, tamper: Callable[[Path], None]) -> None:
    tamper(archive)
    with pytest.raises(ArchiveError):
        open_archived(parse_address(archive))


def test_an_index_that_says_anything_is_an_error_of_ours(archive: Path, tmp_path: Path) -> None:
    (tmp_path / "victim").mkdir()
    state = state_in(archive)
    content = json.loads(pq.read_table(state).to_pylist()[0]["content"])
    chance = random.Random(1)
    for _ in range(30):
        odd = change_nodes(json.loads(json.dumps(content)), chance, tmp_path / "victim")
        pq.write_table(pa.table({"sequence": [1], "content": [json.dumps(odd)]}), state)
        shutil.rmtree(tmp_path / "cache", ignore_errors=True)
        try:
            with Run(open_archived(parse_address(archive))) as run:
                run.rows("SELECT * FROM steps, runs, processes")
        except StethosError:
            continue
    assert not list((tmp_path / "victim").iterdir())


@pytest.mark.parametrize("name", ["sequence", "archived_ns"])
@pytest.mark.parametrize("number", ["Infinity", "NaN", "1e999", "-1", "1" + "0" * 30, "null"])
def test_a_number_of_a_snapshot_that_cannot_be_is_an_error_of_ours(name: str, number: str) -> None:
    content = json.loads(Snapshot("demo", "identity", 1, 1).to_json())
    assert Snapshot.from_json(json.dumps(content), "here").run == "demo"
    text = json.dumps({**content, name: "PLACE"}).replace('"PLACE"', number)
    with pytest.raises(ArchiveError, match="here is not an archived run"):
        Snapshot.from_json(text, "here")
