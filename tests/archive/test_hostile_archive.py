"""What may go wrong with an archive from outside: names, foreign files, bad rows of the list, other clocks."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from builders import RunBuilder

import stethos
from stethos.archive.address import parse_address
from stethos.archive.catalogue import Catalogue
from stethos.archive.committer import archive_run
from stethos.archive.delta import DeltaFile, DeltaLog
from stethos.archive.maintain import compact_run, remove_run
from stethos.archive.place import ArchivedRun
from stethos.cli.main import main
from stethos.errors import ArchiveError, UsageError
from stethos.record.place import RunPlace, write_facts


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def ended(run: RunBuilder) -> RunBuilder:
    process = run.process("p0", is_alive=False)
    process.steps(7)
    process.finish()
    return run


def count_in(target: Path) -> int:
    with stethos.open_run(str(target)) as run:
        return int(run.rows("SELECT count(*) FROM steps").values[0][0])


# Places and names ---------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["s3:/bucket/path", "S3:bucket", "file:/tmp/x", "gs:/x", "a%20b", "s3://bucket/100%"])
def test_a_mistyped_address_makes_no_directory(
    ended: RunBuilder, text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    before = set(tmp_path.iterdir())
    assert main(["archive", "-t", str(ended.path), "--to", text]) == 2
    assert set(tmp_path.iterdir()) == before


@pytest.mark.parametrize(
    "words", [["archive", "--all", "--to"], ["ls"], ["query", "SELECT 1", "--over"], ["diagnose", "--over"]]
)
def test_an_address_that_is_empty_is_not_the_directory_one_is_in(
    ended: RunBuilder, words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    before = {*tmp_path.rglob("*")}
    for text in ("", " "):
        assert main([*words, text]) == 2
    assert {*tmp_path.rglob("*")} == before


@pytest.mark.parametrize("place", ["runs", "runs/demo", "runs/demo/inside"])
def test_an_archive_where_its_runs_were_recorded_is_refused(
    ended: RunBuilder, place: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Their files would be those of the run, and `stethos rm` of the one would delete the other."""
    (tmp_path / "train.py").write_text("")
    before = {*tmp_path.rglob("*")}
    assert main(["archive", "--all", "--to", str(tmp_path / place)]) == 2
    assert {*tmp_path.rglob("*")} == before
    run = ["run", "--name", "second", "--archive", str(tmp_path / "runs"), str(tmp_path / "train.py")]
    assert main(run) == 2
    assert capsys.readouterr().err.count("cannot be where its runs were recorded") == 2
    assert not (tmp_path / "runs" / "second").exists()


@pytest.mark.parametrize("target", ["s3://bucket", "s3://bucket/", "file:///", "s3://bucket/_catalogue"])
def test_what_is_no_run_is_not_deleted(target: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["rm", target, "--yes"]) == 2
    assert "which run?" in capsys.readouterr().err


def test_a_cache_that_cannot_be_written_is_an_error_in_words(
    ended: RunBuilder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    archive_run(ended.place, parse_address(tmp_path / "a"))
    (tmp_path / "file").write_text("")
    for place in (tmp_path / "file", Path("/proc/nowhere")):
        monkeypatch.setenv("XDG_CACHE_HOME", str(place))
        for words in (["-t", str(tmp_path / "a" / "demo"), "query"], ["query", "--over", str(tmp_path / "a")]):
            assert main([*words, "SELECT count(*) FROM steps"]) == 8
            said = capsys.readouterr().err
            assert f"cannot be kept in {place}" in said and "XDG_CACHE_HOME" in said


def test_runs_are_archived_before_old_ones_are_deleted_and_those_not_again(
    ended: RunBuilder, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One command for every night."""
    words = ["archive", "--all", "--to", str(tmp_path / "a"), "--retain"]
    assert main([*words, "900000d"]) == 0
    assert "archived demo" in capsys.readouterr().out and count_in(tmp_path / "a" / "demo") == 7
    assert main([*words, "0s"]) == 0
    assert capsys.readouterr().out.startswith("deleted demo")
    assert main([*words, "0s"]) == 0
    assert capsys.readouterr().out == "no run ended longer than 0s ago\n"


@pytest.mark.parametrize("name", ["../out", "_catalogue", "a/b", "..", "/abs", "a b"])
def test_a_run_that_says_an_odd_name_of_itself_is_not_archived(ended: RunBuilder, tmp_path: Path, name: str) -> None:
    write_facts(ended.path / "run.json", {**ended.place.facts(), "run": name})
    before = {path for path in tmp_path.rglob("*") if path.is_file()}
    with pytest.raises(UsageError, match="not a usable run name"):
        archive_run(ended.place, parse_address(tmp_path / "deep" / "a"))
    assert {path for path in tmp_path.rglob("*") if path.is_file()} == before


def test_an_archived_run_is_not_archived_without_its_rows(ended: RunBuilder, tmp_path: Path) -> None:
    archive_run(ended.place, parse_address(tmp_path / "a"))
    assert main(["archive", "-t", str(tmp_path / "a" / "demo"), "--to", str(tmp_path / "b")]) == 2
    assert not (tmp_path / "b").exists()
    shutil.copytree(tmp_path / "a" / "demo", tmp_path / "b" / "demo")  # what the hint says
    assert main(["archive", "--to", str(tmp_path / "b"), "--compact"]) == 0
    assert count_in(tmp_path / "b" / "demo") == 7 and len(stethos.archive(tmp_path / "b").runs()) == 1


def test_a_log_that_names_files_elsewhere_deletes_none(ended: RunBuilder, tmp_path: Path) -> None:
    archive = parse_address(tmp_path / "a")
    archive_run(ended.place, archive)
    precious = tmp_path / "precious.parquet"
    precious.write_text("mine")
    for table in ("demo/_state", "demo/steps", "_catalogue"):
        log = DeltaLog(archive / table)
        schema = pa.schema([("x", pa.int64())])
        log.commit([DeltaFile(str(precious), 4, 1), DeltaFile("../../../precious.parquet", 4, 1)], schema=schema)
    for attempt in (
        lambda: archive_run(ended.place, archive), lambda: compact_run(archive / "demo"),
        lambda: Catalogue(archive).merge(), lambda: ArchivedRun(archive / "demo").snapshot(),
    ):  # fmt: skip
        with pytest.raises(ArchiveError, match="names files elsewhere"):
            attempt()
    assert precious.read_text() == "mine"


# Deleting -------------------------------------------------------------------------------------------


def test_what_is_not_ours_is_not_deleted(ended: RunBuilder, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An archive in a bucket's root: a run may have the name of something that is there."""
    run = tmp_path / "a" / "demo"
    names = ("notes.txt", "steps/mine.parquet", "data/x-000001.parquet", "own/_delta_log/0.json")
    foreign = [run / name for name in names]
    for path in foreign:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("mine")
    (run / "linked").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "elsewhere" / "steps").mkdir(parents=True)
    (tmp_path / "elsewhere" / "steps" / "p0-000001-00000000.parquet").write_text("mine")
    archive_run(ended.place, parse_address(tmp_path / "a"))
    assert main(["rm", str(run), "--yes"]) == 0
    assert "other files" in capsys.readouterr().err
    assert all(path.read_text() == "mine" for path in foreign) and not (run / "_state").exists()
    assert (tmp_path / "elsewhere" / "steps" / "p0-000001-00000000.parquet").exists()
    assert not list(run.glob("*/p0-*.parquet")) and not list(run.glob("steps/_delta_log/*"))
    archive_run(ended.place, parse_address(tmp_path / "a"))
    assert count_in(run) == 7


def test_a_damaged_run_can_be_deleted(ended: RunBuilder, tmp_path: Path) -> None:
    archive_run(ended.place, parse_address(tmp_path / "a"))
    for path in (tmp_path / "a" / "demo" / "_state").glob("*.parquet"):
        path.write_bytes(b"damaged")
    remove_run(parse_address(tmp_path / "a" / "demo"))
    assert not (tmp_path / "a" / "demo").exists() and stethos.archive(tmp_path / "a").runs() == []


def test_the_last_word_counts_whatever_the_clocks_say(
    ended: RunBuilder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run is archived by a machine whose clock is ahead, deleted and archived again by one that is right."""
    archive = parse_address(tmp_path / "a")
    archive_run(ended.place, archive)
    catalogue = Catalogue(archive)
    (row,) = catalogue.rows()
    catalogue.put({**row, "archived_ns": row["archived_ns"] + 10**15})
    remove_run(archive / "demo")
    assert stethos.archive(tmp_path / "a").runs() == []
    archive_run(ended.place, archive)
    assert [row["run"] for row in stethos.archive(tmp_path / "a").runs()] == ["demo"]


def test_another_run_of_the_same_name_is_not_mixed_with_what_is_kept_of_the_first(
    ended: RunBuilder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive = parse_address(tmp_path / "a")
    archive_run(ended.place, archive)
    assert count_in(tmp_path / "a" / "demo") == 7
    kept = tmp_path / "cache"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "another machine"))
    remove_run(archive / "demo")
    with RunBuilder(tmp_path / "other" / "demo", started_ns=1) as other:
        process = other.process("p9", is_alive=False)
        process.steps(3)
        process.finish()
        archive_run(other.place, archive)
    monkeypatch.setenv("XDG_CACHE_HOME", str(kept))
    assert count_in(tmp_path / "a" / "demo") == 3


# The list -------------------------------------------------------------------------------------------

_ODD: list[dict[str, Any]] = [
    {"started_ns": -1}, {"started_ns": 2**62 + 1}, {"duration_s": float("nan")}, {"duration_s": float("inf")},
    {"hyperparameters": "not json"}, {"hyperparameters": "[" * 100_000}, {"hyperparameters": "[1]"},
    {"last_values": "3"}, {"findings": "x"}, {"findings": "[3]"}, {"members": "{}"}, {"members": "[3]"},
    {"files": "x"}, {"files": "{}"}, {"files": "[[]]"}, {"state": None, "verdict": None, "size_bytes": None},
    {"files": '[["steps/a/../../x", "steps", 1, 1, null]]'}, {"verdict": "a\nb\x1b[2J"},
]  # fmt: skip


@pytest.mark.parametrize("odd", _ODD, ids=str)
def test_one_bad_run_hides_no_other(
    ended: RunBuilder, tmp_path: Path, odd: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    archive = str(tmp_path / "a")
    archive_run(ended.place, parse_address(archive))
    catalogue = Catalogue(parse_address(archive))
    (row,) = catalogue.rows()
    catalogue.put({**row, "run": "bad", "archived_ns": 1, **odd})
    assert main(["ls", archive]) == 0
    said = capsys.readouterr().out
    assert "demo" in said and "bad" in said and "\x1b[2J" not in said
    assert main(["ls", archive, "--json"]) == 0
    assert {one["run"] for one in json.loads(capsys.readouterr().out)} == {"demo", "bad"}
    for table in ("runs", "findings", "processes"):
        sql = f"SELECT count(*) AS n FROM {table} WHERE run = 'demo'"
        assert main(["query", "--over", archive, "--json", sql]) == 0
        capsys.readouterr()
    assert main(["archive", "--to", archive, "--retain", "99999d"]) == 0


def test_a_run_that_cannot_be_read_keeps_no_other_from_being_listed_anew(
    ended: RunBuilder, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    archive = tmp_path / "a"
    archive_run(ended.place, parse_address(archive))
    shutil.copytree(archive / "demo", archive / "abroken")
    for path in (archive / "abroken" / "_state").glob("*.parquet"):
        path.write_bytes(b"damaged")
    shutil.rmtree(archive / "_catalogue")
    assert main(["archive", "--to", str(archive), "--compact"]) == 8
    said = capsys.readouterr()
    assert "listed demo" in said.out and "abroken" in said.err
    assert [row["run"] for row in stethos.archive(archive).runs()] == ["demo"]


def test_what_is_merged_is_still_on_the_list(run: RunBuilder, tmp_path: Path) -> None:
    """A query over many runs must not look into each of them."""
    process = run.process("p0", is_alive=False)
    for _ in range(3):
        process.steps(5)
        process.seal()
    process.finish()
    archive = parse_address(tmp_path / "a")
    archive_run(run.place, archive)
    compact_run(archive / "demo")
    (row,) = Catalogue(archive).rows()
    assert [rows for _, table, rows, *_ in json.loads(row["files"]) if table == "steps"] == [15]


def test_a_place_without_an_archive_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for more in (["--compact"], ["--retain", "1d"]):
        assert main(["archive", "--to", str(tmp_path / "nowhere"), *more]) == 3
        assert "no archive at" in capsys.readouterr().err
    assert main(["archive", "--all", "--dir", str(tmp_path / "none"), "--to", str(tmp_path / "a")]) == 3
    assert "no runs in" in capsys.readouterr().err


def test_a_run_whose_end_was_never_archived_is_old_one_day(ended: RunBuilder, tmp_path: Path) -> None:
    archive = parse_address(tmp_path / "a")
    archive_run(ended.place, archive)
    (row,) = Catalogue(archive).rows()
    Catalogue(archive).put({**row, "state": "running"})
    assert main(["archive", "--to", str(tmp_path / "a"), "--retain", "1d"]) == 0
    assert len(Catalogue(archive).rows()) == 1
    Catalogue(archive).replace([{**row, "state": "running", "archived_ns": row["archived_ns"] - 3 * 86400 * 10**9}])
    assert main(["archive", "--to", str(tmp_path / "a"), "--retain", "1d"]) == 0
    assert Catalogue(archive).rows() == []


def test_a_directory_of_runs_with_one_bad_run_is_archived(
    ended: RunBuilder, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bad = ended.path.parent / "abad"
    shutil.copytree(ended.path, bad)
    write_facts(bad / "run.json", {**RunPlace(bad).facts(), "run": "../x"})
    assert main(["archive", "--all", "--dir", str(ended.path.parent), "--to", str(tmp_path / "a")]) == 2
    assert "abad" in capsys.readouterr().err and len(stethos.archive(tmp_path / "a").runs()) == 1
