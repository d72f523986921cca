"""Archives in a directory: what is there after each step, and what is refused."""

from __future__ import annotations

import itertools
import json
import shutil
import subprocess
import sys
from pathlib import Path

import deltalake
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from builders import RunBuilder

import stethos
from stethos.archive.address import parse_address
from stethos.archive.cache import open_archived
from stethos.archive.committer import archive_run
from stethos.archive.delta import DeltaLog
from stethos.archive.maintain import compact_run
from stethos.cli.main import main
from stethos.errors import ArchiveError, QueryError, RunNotFoundError, UsageError
from stethos.record.place import RunPlace
from stethos.store.run import Run
from stethos.web.version import look_at

QUERY = "SELECT step, loss, lr, process FROM steps ORDER BY process, step"


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def ended(run: RunBuilder) -> RunBuilder:
    """A run of two processes and three sealed files each, that is over."""
    for name in ("p0", "p1"):
        process = run.process(name, is_alive=False)
        for _ in range(3):
            process.steps(7)
            process.seal()
        process.metric("accuracy", 0.5)
        process.log("hello")
        process.finish()
    return run


def rows_of(target: object) -> list[dict[str, object]]:
    with stethos.open_run(str(target)) as run:
        return list(run.arrow(QUERY).to_pylist())


def objects_in(archive: Path) -> set[str]:
    return {str(path.relative_to(archive)) for path in archive.rglob("*") if path.is_file()}


def test_an_archived_run_answers_as_the_directory_does(ended: RunBuilder, tmp_path: Path) -> None:
    archive = tmp_path / "archive"
    assert main(["archive", "-t", str(ended.path), "--to", str(archive)]) == 0
    here, there = rows_of(ended.path), rows_of(archive / "demo")
    assert len(there) == 42 and there == here
    with stethos.open_run(f"file://{archive}/demo") as run:
        assert run.sql("SELECT count(*) AS n FROM steps").to_pylist() == [{"n": 42}]
        assert run.summary()["state"] == "ended" and not run.place.is_ours()
        assert run.rows("SELECT path FROM runs").values == [(str(archive / "demo"),)]
    assert stethos.diagnose(str(archive / "demo")).checked == stethos.diagnose(ended.path).checked


def test_a_run_is_the_same_version_whether_its_files_are_fetched_or_not(run: RunBuilder, tmp_path: Path) -> None:
    """A dashboard asks for every panel again when the version changes."""
    process = run.process("p0")
    process.steps(5)
    process.seal()
    archive = parse_address(tmp_path / "a")
    archive_run(run.place, archive)
    with Run(open_archived(archive / "demo")) as there:
        before = look_at(there.path)
        assert there.rows("SELECT count(*) FROM steps").values == [(5,)]
        assert [*there.path.glob("*/*.parquet")] and look_at(there.path) == before
    process.steps(5)
    process.finish()
    archive_run(run.place, archive)
    assert look_at(open_archived(archive / "demo").path).rows != before.rows


def test_files_are_archived_byte_for_byte(ended: RunBuilder, tmp_path: Path) -> None:
    outcome = archive_run(ended.place, parse_address(tmp_path / "a"))
    local = sorted(path.read_bytes() for path in ended.path.glob("*/*.parquet"))
    there = sorted(path.read_bytes() for path in (tmp_path / "a" / "demo").glob("[a-z]*/*.parquet"))
    assert local == there and outcome.bytes == sum(map(len, local))


def test_other_tools_read_the_tables(ended: RunBuilder, tmp_path: Path) -> None:
    archive_run(ended.place, parse_address(tmp_path / "a"))
    table = deltalake.DeltaTable(str(tmp_path / "a" / "demo" / "steps"))
    assert table.to_pyarrow_table().num_rows == 42
    files = list((tmp_path / "a" / "demo" / "steps").glob("*.parquet"))  # without the log
    assert pa.concat_tables(pq.read_table(file) for file in files).num_rows == 42


def test_a_second_time_only_what_is_new_is_copied(run: RunBuilder, tmp_path: Path) -> None:
    process = run.process("p0")
    process.steps(5)
    process.seal()
    archive = parse_address(tmp_path / "a")
    first = archive_run(run.place, archive)
    assert (first.new_files, first.rows, first.is_complete) == (1, 5, False)
    before = objects_in(tmp_path / "a")
    assert archive_run(run.place, archive).new_files == 0
    assert objects_in(tmp_path / "a") == before
    process.steps(5)
    process.finish()
    last = archive_run(run.place, archive)
    assert (last.new_files, last.rows, last.is_complete) == (1, 10, True)
    assert len(rows_of(tmp_path / "a" / "demo")) == 10


def test_rows_that_the_run_has_retired_stay_in_the_archive(run: RunBuilder, tmp_path: Path) -> None:
    process = run.process("p0")
    process.layers(["fc1"])
    process.seal()
    archive = parse_address(tmp_path / "a")
    archive_run(run.place, archive)
    process.collector.retire(process.collector.manifest["sealed"][0])
    process.finish()
    assert not list(run.path.glob("*/*.layers.parquet"))
    archive_run(run.place, archive)
    with stethos.open_run(str(tmp_path / "a" / "demo")) as there:
        assert there.rows("SELECT count(*) FROM layers").values == [(1,)]
        assert there.summary()["rows_dropped"] == 0


def test_without_its_log_a_run_can_still_be_read(ended: RunBuilder, tmp_path: Path) -> None:
    archive_run(ended.place, parse_address(tmp_path / "a"))
    here = rows_of(ended.path)
    for log in (tmp_path / "a" / "demo").glob("*/_delta_log"):
        shutil.rmtree(log)
    assert rows_of(tmp_path / "a" / "demo") == here


def test_compaction_keeps_every_row_and_their_order(ended: RunBuilder, tmp_path: Path) -> None:
    archive = parse_address(tmp_path / "a")
    archive_run(ended.place, archive)
    here = rows_of(tmp_path / "a" / "demo")
    before, after = compact_run(archive / "demo")
    assert before == 10 and after == 6
    assert rows_of(tmp_path / "a" / "demo") == here
    table = deltalake.DeltaTable(str(tmp_path / "a" / "demo" / "steps"))
    assert table.to_pyarrow_table().num_rows == 42 and len(table.file_uris()) == 2
    assert compact_run(archive / "demo") == (6, 6)
    assert archive_run(ended.place, archive).new_files == 0  # what was merged is not copied again
    assert rows_of(tmp_path / "a" / "demo") == here


def test_merged_files_have_few_row_groups_packed_as_sealed_files_are(
    run: RunBuilder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Layers have other names in each file, so that each file has a dictionary of its own."""
    monkeypatch.setattr("stethos.archive.maintain.GROUP_ROWS", 8)
    archive = parse_address(tmp_path / "a")
    process = run.process("p0", is_alive=False)
    for number in range(5):
        process.layers([f"fc{number}.{place}" for place in range(5)])
        process.seal()
    process.finish()
    archive_run(run.place, archive)
    asked = "SELECT * EXCLUDE (t_ns) FROM layers"
    with stethos.open_run(str(tmp_path / "a" / "demo")) as there:
        before = there.rows(asked).values
    compact_run(archive / "demo")
    with stethos.open_run(str(tmp_path / "a" / "demo")) as there:
        assert len(before) == 25 and there.rows(asked).values == before
    (merged,) = (tmp_path / "a" / "demo" / "layers").glob("*.parquet")
    found = pq.ParquetFile(merged).metadata
    assert [found.row_group(place).num_rows for place in range(found.num_row_groups)] == [8, 8, 8, 1]
    group = found.row_group(0)
    columns = {group.column(place).path_in_schema: group.column(place).encodings for place in range(group.num_columns)}
    assert "RLE_DICTIONARY" in columns["layer"] and "BYTE_STREAM_SPLIT" in columns["norm"]


def test_a_killed_compaction_doubles_no_row_in_the_log(
    run: RunBuilder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has changed the log but not the snapshot; more files follow, and the next one merges them all."""
    archive = parse_address(tmp_path / "a")
    process = run.process("p0")
    for _ in range(3):
        process.steps(5)
        process.seal()
    archive_run(run.place, archive)
    with monkeypatch.context() as patch:
        patch.setattr("stethos.archive.place.ArchivedRun.commit", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            compact_run(archive / "demo")
    process.steps(5)
    process.finish()
    archive_run(run.place, archive)
    compact_run(archive / "demo")
    table = deltalake.DeltaTable(str(tmp_path / "a" / "demo" / "steps"))
    assert table.to_pyarrow_table().num_rows == len(rows_of(tmp_path / "a" / "demo")) == 20
    assert len(list((tmp_path / "a" / "demo" / "steps").glob("*.parquet"))) == 1


def test_the_list_says_what_is_in_the_archive(
    ended: RunBuilder, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    archive_run(ended.place, parse_address(tmp_path / "a"))
    assert main(["ls", str(tmp_path / "a"), "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert row["run"] == "demo" and row["state"] == "ended" and row["steps"] == 42
    assert row["last_values"] == {"accuracy": 0.5} and row["hyperparameters"] == {"lr": 0.1}
    assert row["verdict"] and stethos.archive(tmp_path / "a").runs()[0]["run"] == "demo"


def test_a_deleted_run_is_gone_and_can_be_archived_again(ended: RunBuilder, tmp_path: Path, own_cache: Path) -> None:
    archive = tmp_path / "a"
    archive_run(ended.place, parse_address(archive))
    assert len(rows_of(archive / "demo")) == 42 and list(own_cache.rglob("*.steps.parquet"))
    assert main(["rm", str(archive / "demo"), "--yes"]) == 0
    assert not list(own_cache.rglob("*.parquet")) and not list(own_cache.rglob("demo"))
    assert stethos.archive(archive).runs() == [] and not (archive / "demo").exists()
    with pytest.raises(RunNotFoundError):
        stethos.open_run(f"file://{archive}/demo")
    archive_run(ended.place, parse_address(archive))
    assert len(rows_of(archive / "demo")) == 42 and len(stethos.archive(archive).runs()) == 1


def test_a_run_that_was_deleted_elsewhere_is_forgotten_when_it_is_asked_for(
    ended: RunBuilder, tmp_path: Path, own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive = tmp_path / "a"
    archive_run(ended.place, parse_address(archive))
    assert len(rows_of(archive / "demo")) == 42
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache of another machine"))
    assert main(["rm", str(archive / "demo"), "--yes"]) == 0
    monkeypatch.setenv("XDG_CACHE_HOME", str(own_cache))
    assert list(own_cache.rglob("*.parquet"))
    with pytest.raises(RunNotFoundError):
        stethos.open_run(f"file://{archive}/demo")
    assert not list(own_cache.rglob("demo"))


def test_retention_deletes_old_runs_only(ended: RunBuilder, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    archive_run(ended.place, parse_address(tmp_path / "a"))
    assert main(["archive", "--to", str(tmp_path / "a"), "--retain", "30d"]) == 0
    assert capsys.readouterr().out == "no run ended longer than 30d ago\n"
    assert len(stethos.archive(tmp_path / "a").runs()) == 1
    assert main(["archive", "--to", str(tmp_path / "a"), "--retain", "0s"]) == 0
    assert stethos.archive(tmp_path / "a").runs() == []
    assert main(["archive", "--to", str(tmp_path / "a"), "--retain", "soon"]) == 2
    capsys.readouterr()


def test_another_run_of_the_same_name_is_refused(ended: RunBuilder, tmp_path: Path) -> None:
    archive = parse_address(tmp_path / "a")
    archive_run(ended.place, archive)
    with RunBuilder(tmp_path / "other" / "demo", started_ns=1) as other:
        other.process("p0", is_alive=False).finish()
        with pytest.raises(ArchiveError, match="another run called demo"):
            archive_run(other.place, archive)


def test_of_two_archivers_one_is_refused(ended: RunBuilder, tmp_path: Path) -> None:
    archive_run(ended.place, parse_address(tmp_path / "a"))
    address = parse_address(tmp_path / "a") / "demo" / "steps"
    mine, theirs = DeltaLog(address), DeltaLog(address)
    schema = pa.schema([("step", pa.int64())])
    theirs.commit([], schema=schema)
    with pytest.raises(ArchiveError, match="another archiver"):
        mine.commit([], schema=schema)


def test_an_archiver_waits_for_nobody(ended: RunBuilder, tmp_path: Path) -> None:
    from stethos.archive.committer import alone

    archive = parse_address(tmp_path / "a")
    with alone(archive / "demo"), pytest.raises(ArchiveError, match="another archiver"):
        archive_run(ended.place, archive)
    archive_run(ended.place, archive)


def test_many_archivers_share_one_list(runs_dir: Path, tmp_path: Path) -> None:
    for name in ("one", "two", "three"):
        with RunBuilder(runs_dir / name) as run:
            process = run.process("p0", is_alive=False)
            process.steps(3)
            process.finish()
    code = (
        "import sys; from pathlib import Path; from stethos.archive.address import parse_address;"
        "from stethos.archive.committer import archive_run; from stethos.record.place import RunPlace;"
        "archive_run(RunPlace(Path(sys.argv[1])), parse_address(sys.argv[2]))"
    )
    children = [
        subprocess.Popen([sys.executable, "-c", code, str(runs_dir / name), str(tmp_path / "a")])
        for name in ("one", "two", "three")
    ]
    assert [child.wait() for child in children] == [0, 0, 0]
    assert {row["run"] for row in stethos.archive(tmp_path / "a").runs()} == {"one", "two", "three"}


def test_a_foreign_delta_table_is_not_touched(ended: RunBuilder, tmp_path: Path) -> None:
    foreign = tmp_path / "a" / "demo" / "steps"
    deltalake.write_deltalake(str(foreign), pa.table({"x": [1]}))
    before = objects_in(foreign)
    with pytest.raises(ArchiveError, match="did not make"):
        archive_run(ended.place, parse_address(tmp_path / "a"))
    assert {name for name in objects_in(foreign) if name.startswith("_delta_log")} == {
        name for name in before if name.startswith("_delta_log")
    }


def test_a_foreign_table_in_the_place_of_the_list_is_not_read(
    ended: RunBuilder, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    deltalake.write_deltalake(str(tmp_path / "a" / "_catalogue"), pa.table({"x": [1]}))
    for words in (["ls", str(tmp_path / "a")], ["archive", "-t", str(ended.path), "--to", str(tmp_path / "a")]):
        assert main(words) == 8
        assert "did not make" in capsys.readouterr().err


def test_a_lost_list_is_made_anew(ended: RunBuilder, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    archive_run(ended.place, parse_address(tmp_path / "a"))
    before = stethos.archive(tmp_path / "a").runs()
    shutil.rmtree(tmp_path / "a" / "_catalogue")
    with pytest.raises(RunNotFoundError):
        stethos.archive(tmp_path / "a").runs()
    assert main(["archive", "--to", str(tmp_path / "a"), "--compact"]) == 0
    assert "listed demo" in capsys.readouterr().out
    (row,) = stethos.archive(tmp_path / "a").runs()
    same = ("run", "state", "verdict", "steps", "last_loss", "hyperparameters", "last_values")
    assert {name: row[name] for name in same} == {name: before[0][name] for name in same}


@pytest.mark.parametrize("damage", [b"", b"not json\n", b'{"add": 5}\n'])
def test_a_damaged_log_is_an_error_in_words(ended: RunBuilder, tmp_path: Path, damage: bytes) -> None:
    archive_run(ended.place, parse_address(tmp_path / "a"))
    for entry in (tmp_path / "a" / "demo" / "_state" / "_delta_log").glob("*.json"):
        entry.write_bytes(damage)
    with pytest.raises((ArchiveError, RunNotFoundError)) as caught:
        stethos.open_run(f"file://{tmp_path}/a/demo")
    assert caught.value.hint


@pytest.mark.parametrize(
    ("path", "name"), [("steps/../../evil.parquet", None), (None, "../../evil.parquet"), (None, "/etc/evil")]
)
def test_a_snapshot_that_names_other_places_is_refused(
    ended: RunBuilder, tmp_path: Path, path: str | None, name: str | None
) -> None:
    from dataclasses import replace

    from stethos.archive.place import ArchivedRun

    archive_run(ended.place, parse_address(tmp_path / "a"))
    there = ArchivedRun(parse_address(tmp_path / "a" / "demo"))
    snapshot = there.snapshot()
    assert snapshot is not None
    first = snapshot.files[0]
    snapshot.files = [replace(first, path=path or first.path, name=name or first.name)]
    snapshot.sequence += 1
    there.commit(snapshot)
    with pytest.raises(ArchiveError, match="not an archived run"):
        stethos.open_run(str(tmp_path / "a" / "demo"))


def test_a_damaged_file_is_noticed(ended: RunBuilder, tmp_path: Path) -> None:
    archive_run(ended.place, parse_address(tmp_path / "a"))
    victim = next((tmp_path / "a" / "demo" / "steps").glob("p0-*.parquet"))
    content = bytearray(victim.read_bytes())
    content[len(content) // 2] ^= 0xFF
    victim.write_bytes(content)
    with stethos.open_run(str(tmp_path / "a" / "demo")) as there:
        assert len(there.verify()) == 1


def test_a_missing_file_is_named(ended: RunBuilder, tmp_path: Path) -> None:
    archive_run(ended.place, parse_address(tmp_path / "a"))
    next((tmp_path / "a" / "demo" / "steps").glob("p0-*.parquet")).unlink()
    with stethos.open_run(str(tmp_path / "a" / "demo")) as there, pytest.raises(ArchiveError, match="missing"):
        there.rows("SELECT count(*) FROM steps")
    with stethos.open_run(str(tmp_path / "a" / "demo")) as there, pytest.raises(QueryError, match="missing"):
        there.sql("SELECT count(*) FROM steps")


@pytest.mark.parametrize(
    "text",
    ["s3://KEY:hush-hush@bucket/path", "s3://bucket/path?secret=hush-hush", "s3://bucket?endpoint=http://u:hush-hush@h",
     "gs://bucket/hush-hush", "s3://-/hush-hush", "file://host/hush-hush", "s3://bucket/path?endpoint=hush-hush",
     "https://bucket.s3.amazonaws.com/path?X-Amz-Signature=hush-hush"],
)  # fmt: skip
def test_an_address_with_a_secret_or_without_sense_is_refused_and_not_repeated(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_address(text)
    assert "hush-hush" not in str(caught.value)


def test_a_run_directory_cannot_name_an_archive(run: RunBuilder) -> None:
    """Only what lies in the cache is fetched from elsewhere."""
    run.process("p0").steps(1)
    (run.path / "archive.json").write_text(json.dumps({"address": "s3://evil/run", "objects": {}}))
    with stethos.open_run(str(run.path)) as one:
        assert type(one.examiner).__name__ == "SealChecker"


def test_without_deltalake_the_command_says_what_to_install(
    ended: RunBuilder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "deltalake", None)
    assert main(["archive", "-t", str(ended.path), "--to", str(tmp_path / "a")]) == 2
    assert "stethos[archive]" in capsys.readouterr().err
    assert not (tmp_path / "a").exists()


def test_an_archived_run_is_served(ended: RunBuilder, tmp_path: Path) -> None:
    archive_run(ended.place, parse_address(tmp_path / "a"))
    words = ["-t", str(tmp_path / "a" / "demo"), "serve", "--port", "0", "--json"]
    server = subprocess.Popen([sys.executable, "-m", "stethos.cli.main", *words], stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        lines = iter(server.stdout.readline, "")
        said = json.loads("".join([*itertools.takewhile(lambda line: line != "}\n", lines), "}"]))
        assert (Path(said["directory"]) / "demo" / "run.json").exists() and said["url"].startswith("http")
    finally:
        server.kill()
        server.communicate()


def test_a_run_that_is_listed_as_an_archive_is_pointed_out(
    ended: RunBuilder, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    archive_run(ended.place, parse_address(tmp_path / "a"))
    assert main(["ls", f"file://{tmp_path}/a/demo"]) == 3
    assert f"its archive is {tmp_path}/a" in capsys.readouterr().err


def test_an_archive_that_is_named_as_a_run_is_pointed_out(
    ended: RunBuilder, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    archive_run(ended.place, parse_address(tmp_path / "a"))
    assert main(["-t", f"file://{tmp_path}/a", "query", "SELECT 1"]) == 3
    assert f"see `stethos ls {tmp_path}/a`" in capsys.readouterr().err


def test_no_archive_no_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ls", str(tmp_path / "nothing")]) == 3
    assert main(["-t", f"file://{tmp_path}/nothing/demo", "query", "SELECT 1"]) == 3
    assert main(["rm", f"file://{tmp_path}/nothing/demo", "--yes"]) == 3
    capsys.readouterr()
    assert RunPlace(tmp_path / "nothing").exists() is False
