"""What is lost or damaged in an archive is made anew, or the state before it counts."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from builders import RunBuilder

import stethos
from stethos.archive.address import parse_address
from stethos.archive.catalogue import Catalogue
from stethos.archive.committer import archive_run
from stethos.archive.delta import DeltaLog
from stethos.archive.maintain import compact_run
from stethos.errors import ArchiveError


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def count_in(target: object) -> int:
    with stethos.open_run(str(target)) as run:
        return int(run.rows("SELECT count(*) FROM steps").values[0][0])


@pytest.mark.parametrize("is_compacted", [True, False], ids=["by a compaction", "by the next archiver"])
def test_a_lost_log_is_made_anew_with_every_file(run: RunBuilder, tmp_path: Path, is_compacted: bool) -> None:
    archive = parse_address(tmp_path / "a")
    process = run.process("p0")
    for _ in range(2):
        process.steps(5)
        process.seal()
    archive_run(run.place, archive)
    shutil.rmtree(tmp_path / "a" / "demo" / "steps" / "_delta_log")
    if is_compacted:
        compact_run(archive / "demo")
    process.steps(5)
    process.finish()
    archive_run(run.place, archive)
    assert sum(file.rows for file in DeltaLog(archive / "demo" / "steps").files()) == 15
    assert count_in(tmp_path / "a" / "demo") == 15


def test_of_a_damaged_snapshot_the_one_before_is_left(run: RunBuilder, tmp_path: Path) -> None:
    archive = parse_address(tmp_path / "a")
    process = run.process("p0")
    for _ in range(2):
        process.steps(5)
        process.seal()
        archive_run(run.place, archive)
    newest = max((tmp_path / "a" / "demo" / "_state").glob("*.parquet"))
    newest.write_bytes(b"PAR1 no more")
    with pytest.raises(ArchiveError, match="damaged") as caught:
        stethos.open_run(f"file://{tmp_path}/a/demo")
    assert str(newest) in caught.value.message and "delete this file" in caught.value.hint
    newest.unlink()
    assert count_in(f"file://{tmp_path}/a/demo") == 5
    process.finish()
    archive_run(run.place, archive)
    assert count_in(f"file://{tmp_path}/a/demo") == 10


def test_a_list_that_is_merged_while_it_is_read_is_read_again(run: RunBuilder, tmp_path: Path) -> None:
    run.process("p0", is_alive=False).finish()
    archive = parse_address(tmp_path / "a")
    archive_run(run.place, archive)
    reader, merger = Catalogue(archive), Catalogue(archive)
    merger.put({**merger.rows()[0], "run": "another"})
    merger.merge()
    assert {row["run"] for row in reader.rows()} == {"demo", "another"}


def test_a_list_whose_file_is_lost_says_how_to_make_it_anew(run: RunBuilder, tmp_path: Path) -> None:
    run.process("p0", is_alive=False).finish()
    archive = parse_address(tmp_path / "a")
    archive_run(run.place, archive)
    for file in (tmp_path / "a" / "_catalogue").glob("*.parquet"):
        file.unlink()
    with pytest.raises(ArchiveError, match="missing") as caught:
        stethos.archive(tmp_path / "a").runs()
    assert "--compact" in caught.value.hint
