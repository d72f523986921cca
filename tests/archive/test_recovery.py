"""What is lost or damaged in an archive is made anew, or the state before it counts."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from builders import RunBuilder
from deltalake import DeltaTable

import stethos
from stethos.archive import catalogue
from stethos.archive.address import parse_address
from stethos.archive.catalogue import Catalogue
from stethos.archive.committer import archive_run
from stethos.archive.delta import DeltaLog
from stethos.archive.maintain import compact_run, remove_run
from stethos.archive.place import ArchivedRun
from stethos.archive.snapshot import Snapshot
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


def test_files_that_somebody_has_deleted_are_archived_again(run: RunBuilder, tmp_path: Path) -> None:
    process = run.process("p0", is_alive=False)
    for _ in range(3):
        process.steps(5)
        process.seal()
    process.finish()
    address = parse_address(tmp_path / "a")
    archive_run(run.place, address)
    first, second, _ = sorted((tmp_path / "a" / "demo" / "steps").glob("*.parquet"))
    first.unlink()
    assert archive_run(run.place, address).new_files == 1
    assert count_in(tmp_path / "a" / "demo") == 15
    shutil.rmtree(second.parent)  # with its log
    assert archive_run(run.place, address).new_files == 3
    assert archive_run(run.place, address).new_files == 0
    assert count_in(tmp_path / "a" / "demo") == 15 == DeltaTable(str(second.parent)).to_pyarrow_table().num_rows


def test_a_run_that_is_deleted_elsewhere_while_it_is_archived_can_be_archived_again(
    run: RunBuilder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No lock is shared with other machines, and the snapshot of the archiver comes after the deletion."""
    address = parse_address(tmp_path / "a")
    process = run.process("p0", is_alive=False)
    process.steps(7)
    process.seal()
    archive_run(run.place, address)
    process.steps(5)
    process.finish()
    commit = ArchivedRun.commit

    def deleted_before(there: ArchivedRun, snapshot: Snapshot) -> None:
        with monkeypatch.context() as patch:
            patch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
            remove_run(address / "demo")
        commit(there, snapshot)

    with monkeypatch.context() as patch, pytest.raises(ArchiveError, match="cannot write"):
        patch.setattr(ArchivedRun, "commit", deleted_before)
        archive_run(run.place, address)
    assert archive_run(run.place, address).rows == 12
    assert count_in(tmp_path / "a" / "demo") == 12 and len(stethos.archive(tmp_path / "a").runs()) == 1
    assert DeltaTable(str(tmp_path / "a" / "demo" / "steps")).to_pyarrow_table().num_rows == 12


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


def test_a_list_of_any_length_is_of_files_that_can_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catalogue, "_LARGEST_FILE", 10_000)
    address = parse_address(tmp_path / "a")
    for count in range(40):
        row = {"run": f"run-{count:02d}", "sequence": 1, "archived_ns": 1, "state": "ended", "files": "x" * 3_000}
        catalogue.Catalogue(address).put(row)
    made = catalogue.Catalogue(address)
    sizes = [file.rows for file in DeltaLog(address / "_catalogue").files()]
    assert sum(sizes) == 40 and max(sizes) == 4 and len(sizes) < 25
    assert {row["run"] for row in made.rows()} == {f"run-{count:02d}" for count in range(40)}
    assert [made.sequence_of(f"run-{count:02d}") for count in range(41)] == [1] * 40 + [None]


def test_a_list_whose_file_is_lost_says_how_to_make_it_anew(run: RunBuilder, tmp_path: Path) -> None:
    run.process("p0", is_alive=False).finish()
    archive = parse_address(tmp_path / "a")
    archive_run(run.place, archive)
    for file in (tmp_path / "a" / "_catalogue").glob("*.parquet"):
        file.unlink()
    with pytest.raises(ArchiveError, match="missing") as caught:
        stethos.archive(tmp_path / "a").runs()
    assert "--compact" in caught.value.hint
