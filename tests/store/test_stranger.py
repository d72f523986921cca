"""A run directory from a stranger: it is read as far as it can be, nothing outside changes, nothing in it changes."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from builders import RunBuilder

from stethos.cli.main import main
from stethos.errors import RecordingError, StethosError
from stethos.record.border import checked_json, open_file, origin_of
from stethos.record.drainer import Drainer
from stethos.record.layout import HeaderWord
from stethos.record.place import MANIFEST_COPY, MANIFEST_FILE, RunPlace, host_key
from stethos.store.findings import keep_findings, read_findings, read_kept_diagnosis, read_proofs
from stethos.store.health import examine
from stethos.store.labels import Labels, read_labels
from stethos.store.run import Run
from stethos.store.silences import read_silences
from stethos.store.stack_file import read_stacks
from stethos.web.run_cache import RunCache
from stethos.web.run_table import RunTable


@pytest.fixture
def mailed(tmp_path: Path) -> Path:
    """A copy of a run whose process has ended, with rows in its segment and rows in its ring."""
    with RunBuilder(tmp_path / "theirs" / "run") as run:
        process = run.process("100-200", is_alive=False)
        process.steps(10)
        process.layers(["a", "b"], step=1)
        process.drain()
        process.seal()
        process.steps(5)
        process.drain()
        process.steps(3)
        process.metric("only in the ring", 1.5)
    for lock in run.path.glob("*.lock"):
        lock.unlink()
    shutil.copytree(run.path, tmp_path / "mine" / "run")
    return tmp_path / "mine" / "run"


def state_of(directory: Path) -> dict[str, tuple[int, ...]]:
    """Everything below a directory, with what changes when it is written."""
    found = {}
    for root, directories, files in os.walk(directory):
        for name in (*directories, *files):
            facts = os.lstat(Path(root) / name)
            found[os.path.relpath(Path(root) / name, directory)] = (
                facts.st_ino, facts.st_size, facts.st_mtime_ns, facts.st_mode,
            )  # fmt: skip
    return found


def change(path: Path, **values: Any) -> None:
    content = json.loads(path.read_text(encoding="utf-8"))
    content.pop("crc32", None)
    for file in (path, path.with_name(MANIFEST_COPY)) if path.name == MANIFEST_FILE else (path,):
        file.write_bytes(checked_json({**content, **values}))


def test_a_copy_is_read_completely_and_not_changed(mailed: Path) -> None:
    before = state_of(mailed)
    run = Run(RunPlace(mailed))
    assert run.rows("SELECT count(*), max(step) FROM steps").values == [(18, 17)]
    assert run.rows("SELECT name, value FROM metrics").values == [("only in the ring", 1.5)]
    summary = run.summary()
    assert summary["rows_waiting"] == 0 and summary["rows_produced"] == summary["rows_stored"] == 21
    examine(run, verify=True)
    with pytest.raises(RecordingError, match="not recorded by this user"):
        keep_findings(mailed, {}, (), time.time_ns())
    assert read_findings(mailed) == []
    time.sleep(0.3)  # for a drainer, were there one
    assert state_of(mailed) == before


def test_a_run_of_ours_is_ours_and_no_copy_is(mailed: Path, tmp_path: Path) -> None:
    assert RunPlace(tmp_path / "theirs" / "run").is_ours()
    assert not RunPlace(mailed).is_ours()
    (tmp_path / "theirs" / "run").rename(tmp_path / "elsewhere")
    assert RunPlace(tmp_path / "elsewhere").is_ours()


def test_who_only_reads_makes_no_key(mailed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "home").mkdir()
    for name in ("HOME", "XDG_CONFIG_HOME", "XDG_RUNTIME_DIR"):
        monkeypatch.setenv(name, str(tmp_path / "home"))
    assert not RunPlace(mailed).is_ours()
    assert Run(RunPlace(mailed)).summary()["rows_stored"] == 21
    assert list((tmp_path / "home").iterdir()) == []


@pytest.mark.parametrize("whose", ["directory", "key"])
def test_a_key_that_another_user_has_put_there_makes_no_run_ours(
    mailed: Path, own_registry: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, whose: str
) -> None:
    """In /tmp anyone may make our registry before us, and a run for the key in it."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "none"))
    key = own_registry / "origin.key"
    own_registry.mkdir(mode=0o755)
    key.write_bytes(b"k" * 32)
    change(mailed / "run.json", origin=origin_of(mailed))
    assert RunPlace(mailed).is_ours()
    os.chown(own_registry if whose == "directory" else key, 12345, 12345)
    before = state_of(mailed)
    assert origin_of(mailed) is None and not RunPlace(mailed).is_ours()
    assert Run(RunPlace(mailed)).rows("SELECT count(*) FROM steps").values == [(18,)]
    assert state_of(mailed) == before


def test_a_kept_diagnosis_of_a_stranger_is_not_believed(mailed: Path, tmp_path: Path) -> None:
    ours = tmp_path / "theirs" / "run"
    keep_findings(ours, {}, (), time.time_ns(), ("version", '{"findings": []}'))
    assert read_kept_diagnosis(ours) == ("version", '{"findings": []}')
    with sqlite3.connect(ours / "findings.db") as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    shutil.copy(ours / "findings.db", mailed / "findings.db")
    assert read_kept_diagnosis(mailed) is None
    (ours / "findings.db").rename(tmp_path / "other.db")
    (ours / "findings.db").symlink_to(tmp_path / "other.db")
    assert read_kept_diagnosis(ours) is None


def test_a_proof_of_a_stranger_is_not_believed(mailed: Path, tmp_path: Path) -> None:
    columns = {"code": "FED001", "state": "open", "clients": '["c1"]', "proof": "proved", "proof_detail": "[]"}
    for run in (tmp_path / "theirs" / "run", mailed):
        with sqlite3.connect(run / "findings.db") as connection:
            connection.execute(f"CREATE TABLE findings (finding INTEGER PRIMARY KEY, key, {', '.join(columns)})")
            connection.execute("INSERT INTO findings VALUES (1, 'k', ?, ?, ?, ?, ?)", [*columns.values()])
        connection.close()
    ours = tmp_path / "theirs" / "run"
    assert [row["proof"] for row in read_findings(ours)] == ["proved"] and list(read_proofs(ours)) == ["k"]
    assert [row["proof"] for row in read_findings(mailed)] == [None] and read_proofs(mailed) == {}


def test_doctor_says_that_a_copy_is_only_read(mailed: Path, tmp_path: Path) -> None:
    found = [
        check.found
        for path in (mailed, tmp_path / "theirs" / "run")
        for check in examine(Run(RunPlace(path))).checks
        if check.what == "directory"
    ]
    assert ["only read" in text for text in found] == [True, False]


Tamper = Callable[[Path, Path], None]


def segment_link(process: Path, victim: Path) -> None:
    (process / "000002.seg").unlink()
    (process / "000002.seg").symlink_to(victim / "bashrc")


def next_segment_link(process: Path, victim: Path) -> None:
    (process / "000003.seg").symlink_to(victim / "bashrc")


def sealed_path(process: Path, victim: Path) -> None:
    entry = {"file": str(victim / "bashrc"), "table": "layers", "rows": 1, "bytes": 10**12}
    change(process / "manifest.json", sealed=[entry])
    change(process.parent / "run.json", limit_bytes=1)


def scratch_elsewhere(process: Path, victim: Path) -> None:
    change(process / "process.json", scratch=str(victim))


def ring_link(process: Path, victim: Path) -> None:
    shutil.copy(process / "ring", victim / "ring")
    (process / "ring").unlink()
    (process / "ring").symlink_to(victim / "ring")


def ring_hard_link(process: Path, victim: Path) -> None:
    shutil.copy(process / "ring", victim / "ring")
    (process / "ring").unlink()
    os.link(victim / "ring", process / "ring")


def lock_link(process: Path, victim: Path) -> None:
    (process.parent / f"drainer-{host_key()}.lock").symlink_to(victim / "new-file")


def findings_link(process: Path, victim: Path) -> None:
    with sqlite3.connect(victim / "other.db") as connection:
        connection.execute("CREATE TABLE mine (x)")
    connection.close()
    (process.parent / "findings.db").symlink_to(victim / "other.db")


def process_link(process: Path, victim: Path) -> None:
    shutil.copytree(process, victim / "100-200")
    shutil.rmtree(process)
    process.symlink_to(victim / "100-200")


def manifest_link(process: Path, victim: Path) -> None:
    shutil.move(process / "manifest.json", victim / "bashrc")
    (process / "manifest.json").symlink_to(victim / "bashrc")


def temporary_link(process: Path, victim: Path) -> None:
    for name in (".manifest.json", ".process.json", ".000002.steps.parquet", ".000003.steps.parquet"):
        (process / name).symlink_to(victim / "bashrc")
        (process / f"{name}.{os.getpid()}").symlink_to(victim / "bashrc")


def log_link(process: Path, victim: Path) -> None:
    (process.parent / "drainer.log").symlink_to(victim / "bashrc")
    (process / "ring").write_bytes(b"\0" * 100)


def capture_link(process: Path, victim: Path) -> None:
    (process.parent / "capture").symlink_to(victim)


TAMPERINGS = [
    segment_link, next_segment_link, sealed_path, scratch_elsewhere, ring_link, ring_hard_link, lock_link,
    findings_link, process_link, manifest_link, temporary_link, log_link, capture_link,
]  # fmt: skip


def victim_in(tmp_path: Path) -> Path:
    victim = tmp_path / "victim"
    victim.mkdir()
    for name in ("bashrc", "ring", "000001.seg", "notes.seg"):
        (victim / name).write_text("dear to me", encoding="utf-8")
    return victim


@pytest.mark.parametrize("tamper", TAMPERINGS, ids=lambda tamper: tamper.__name__)
def test_reading_writes_and_deletes_nothing_outside(mailed: Path, tmp_path: Path, tamper: Tamper) -> None:
    victim = victim_in(tmp_path)
    tamper(mailed / "100-200", victim)
    outside, inside = state_of(victim), state_of(mailed)
    contents = {path: path.read_bytes() for path in victim.rglob("*") if path.is_file()}
    try:
        run = Run(RunPlace(mailed))
        run.rows("SELECT count(*) FROM steps")
        run.rows("SELECT count(*) FROM findings")
        examine(run, verify=True)
    except StethosError:
        pass
    assert state_of(victim) == outside and state_of(mailed) == inside
    assert {path: path.read_bytes() for path in victim.rglob("*") if path.is_file()} == contents


@pytest.mark.parametrize("tamper", TAMPERINGS, ids=lambda tamper: tamper.__name__)
def test_even_a_drainer_stays_inside(mailed: Path, tmp_path: Path, tamper: Tamper) -> None:
    """Were one started there all the same."""
    victim = victim_in(tmp_path)
    tamper(mailed / "100-200", victim)
    contents = {path: path.read_bytes() for path in victim.rglob("*") if path.is_file()}
    drainer = Drainer(RunPlace(mailed))
    for turn in range(4):
        drainer.visit(time.monotonic() + turn)
    drainer.is_stopping = True
    drainer.serve()
    assert {path: path.read_bytes() for path in victim.rglob("*") if path.is_file()} == contents


@pytest.mark.parametrize("name", ["run.json", "launcher-1.json", "100-200/000002.seg", "100-200/ring", "findings.db",
                                  "100-200/process.json", "100-200/manifest.json", "stacks.jsonl"])  # fmt: skip
@pytest.mark.parametrize("kind", ["pipe", "device", "directory"])
def test_what_is_not_a_file_does_not_make_a_reader_wait(mailed: Path, name: str, kind: str) -> None:
    path = mailed / name
    path.unlink(missing_ok=True)
    match kind:
        case "pipe":
            os.mkfifo(path)
        case "device":
            path.symlink_to("/dev/zero")
        case "directory":
            path.mkdir()
    program = (
        "import sys; from pathlib import Path; from stethos.store.run import Run\n"
        "from stethos.errors import StethosError; from stethos.record.place import RunPlace\n"
        "run = Run(RunPlace(Path(sys.argv[1])))\n"
        "for table in ('steps', 'findings', 'processes', 'runs', 'stacks'):\n"
        "    try: run.rows(f'SELECT count(*) FROM {table}')\n"
        "    except StethosError: pass\n"
    )
    subprocess.run([sys.executable, "-c", program, mailed], check=True, timeout=60)


def test_findings_that_are_computed_are_refused_in_time(mailed: Path) -> None:
    loop = "WITH RECURSIVE c(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM c) SELECT n AS finding FROM c"
    for statement in (
        f"CREATE VIEW findings AS {loop}",
        "CREATE TABLE findings (finding, big AS (zeroblob(1000000000)))",
        "CREATE TABLE findings (x); CREATE TRIGGER t AFTER INSERT ON findings BEGIN DELETE FROM findings; END",
    ):
        (mailed / "findings.db").unlink(missing_ok=True)
        connection = sqlite3.connect(mailed / "findings.db")
        connection.executescript(statement)
        connection.close()
        began = time.monotonic()
        with pytest.raises(StethosError, match=r"findings\.db cannot be read"):
            read_findings(mailed)
        assert time.monotonic() - began < 20


@pytest.mark.parametrize(
    ("file", "values"),
    [
        ("manifest.json", {"sealed": None}), ("manifest.json", {"rows": None}), ("manifest.json", {"segment": -1}),
        ("manifest.json", {"names": [1, None]}), ("manifest.json", {"counters": {"drops": []}}),
        ("manifest.json", {"ended": {"t_ns": "x"}}), ("manifest.json", {"ended": {}, "counters": {"state": 99}}),
        ("manifest.json", {"retired": {"steps": "many"}}), ("manifest.json", {"segment": 10**30}),
        ("manifest.json", {"sealed": [{"file": "../../x", "table": "steps", "rows": 1, "bytes": 1}]}),
        ("process.json", {"rank": -(2**70)}), ("process.json", {"rank": 2**31}), ("process.json", {"rank": 1.5}),
        ("process.json", {"pid": "one"}), ("process.json", {"scratch": 5}), ("process.json", {"started_ns": 10**40}),
        ("process.json", {"config": [1], "versions": 7, "command": {"a": 1}}), ("process.json", {"error": ["x"]}),
        ("process.json", {"overhead_budget": "x"}), ("process.json", {"callbacks": [1], "preset": {}, "torch": 2}),
        ("process.json", {"world_size": True}), ("process.json", {"daemon_of": "x"}),
        ("../run.json", {"limit_bytes": -1, "started_ns": None}), ("../run.json", {"run": 3, "command": 1}),
        ("../launcher-1.json", {"pid": None, "exit_code": "x", "started_ns": "y", "child_pid": []}),
    ],
)  # fmt: skip
def test_values_of_another_kind_are_as_if_they_were_not_there(mailed: Path, file: str, values: dict[str, Any]) -> None:
    path = mailed / "100-200" / file
    if not path.exists():
        path.write_text("{}", encoding="utf-8")
    change(path, **values)
    run = Run(RunPlace(mailed))
    for table in ("steps", "processes", "runs"):
        run.rows(f"SELECT * FROM {table}")
    run.summary()
    examine(run)


@pytest.mark.parametrize("number", ["Infinity", "-Infinity", "NaN", "1e999", "9" * 5000, "null", '"x"', "[]"])
def test_what_people_noted_beside_a_run_is_left_out_where_it_is_no_number(mailed: Path, number: str) -> None:
    (mailed / "labels.json").write_text(f'{{"version": {number}, "title": "x"}}', encoding="utf-8")
    (mailed / "silences.json").write_text(
        f'{{"key": {{"state": "silenced", "note": "", "t_ns": {number}}}}}', encoding="utf-8"
    )
    assert read_labels(mailed) == Labels() and read_silences(mailed) == {}
    table = RunTable(RunCache(mailed.parent))
    try:
        assert [row["run"] for row in table.rows()] == [mailed.name]
    finally:
        table.close()


def test_a_stack_of_halves_of_characters_is_shown(mailed: Path) -> None:
    lines = [{"process": "\ud800", "depth": 10**400}, {"thread": "a\udc80b"}]
    (mailed / "stacks.jsonl").write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
    rows = Run(RunPlace(mailed)).rows("SELECT process, thread FROM stacks").values
    assert rows == [("?", None), (None, "a?b")]


def test_a_batch_that_would_unfold_or_lies_about_itself_is_refused(tmp_path: Path) -> None:
    import pyarrow as pa

    from stethos.record.arrow import checked_batch, checked_schema, segment_schema
    from stethos.schema import METRICS

    schema = segment_schema(METRICS)
    batch = pa.RecordBatch.from_arrays([pa.nulls(1000, field.type) for field in schema], schema=schema)
    assert checked_batch(memoryview(batch.serialize()), schema, 1000).num_rows == 1000
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as writer:
        writer.write_batch(batch)
    messages = pa.ipc.MessageReader.open_stream(sink.getvalue())
    messages.read_next_message()
    squeezed = messages.read_next_message().serialize()
    with pytest.raises(pa.ArrowInvalid, match="compressed"):
        checked_batch(memoryview(squeezed), schema, 1000)
    with pytest.raises(pa.ArrowInvalid, match="rows instead of"):
        checked_batch(memoryview(batch.serialize()), schema, 999)
    odd = pa.schema([("x", pa.list_(pa.int32()))]).serialize()
    with pytest.raises(pa.ArrowInvalid, match="columns of type"):
        checked_schema(memoryview(odd))


def test_a_file_of_another_user_is_read_and_never_written(tmp_path: Path) -> None:
    path = tmp_path / "theirs"
    path.write_text("x", encoding="utf-8")
    os.chown(path, 12345, 12345)
    os.close(open_file(path))
    for flags in (os.O_RDWR, os.O_WRONLY | os.O_CREAT, os.O_WRONLY | os.O_APPEND):
        with pytest.raises(PermissionError):
            open_file(path, flags)


@pytest.mark.parametrize("name", ["\udcff\udc80", "a\nb", "\x1b[2J"])
def test_a_process_with_a_name_that_none_of_ours_has_is_not_there(mailed: Path, name: str) -> None:
    shutil.copytree(mailed / "100-200", mailed / name)
    run = Run(RunPlace(mailed))
    assert run.rows("SELECT count(*) FROM steps").values == [(18,)]
    assert [row["process"] for row in run.processes()] == ["100-200"]


def test_a_tower_of_directories_is_passed_over_and_deleted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`os.walk` and `shutil.rmtree` call themselves for each level of it."""
    with RunBuilder(tmp_path / "runs" / "tower") as run:
        run.process("100-200", is_alive=False).steps(3)
    for below in ("", "100-200"):
        descriptor = os.open(run.path / below, os.O_RDONLY)
        for _ in range(1500):
            os.mkdir("d", dir_fd=descriptor)
            inner = os.open("d", os.O_RDONLY, dir_fd=descriptor)
            os.close(descriptor)
            descriptor = inner
        os.symlink(tmp_path, "link", dir_fd=descriptor)
        os.close(descriptor)
    for words in (
        ["ls"],
        ["doctor", "tower"],
        ["diagnose", "tower"],
        ["export", "-t", "tower", "--to", "csv", "-o", "c"],
    ):
        words[-1] = str(tmp_path / "c") if words[-1] == "c" else words[-1]
        assert main([*words, "--dir", str(tmp_path / "runs")]) in (0, 1), words
    assert main(["import", str(run.path), "--dir", str(tmp_path / "more")]) == 2
    assert main(["rm", "tower", "--yes", "--dir", str(tmp_path / "runs")]) == 0
    assert os.listdir(tmp_path / "runs") == [] and tmp_path.exists()


@pytest.mark.parametrize("tail", [2**63 - 1, 2**63 - 9000, -1, -(2**63)])
def test_a_ring_that_begins_where_none_can_is_no_traceback(tmp_path: Path, tail: int) -> None:
    with RunBuilder(tmp_path / "run") as run:
        run.process("100-200", is_alive=False).steps(3)
        with (run.path / "100-200" / "ring").open("r+b") as ring:
            ring.seek(8 * HeaderWord.SLOTS_TAIL)
            ring.write(tail.to_bytes(8, "little", signed=True))
        with Run(run.place) as one:
            assert one.rows("SELECT count(*) FROM steps").values == [(0 if tail > 0 else 3,)]


def varint(content: bytearray, at: int) -> tuple[int, int]:
    """A number as SQLite writes it, and where it ends."""
    value = 0
    while content[at] & 0x80:
        value, at = value << 7 | content[at] & 0x7F, at + 1
    return value << 7 | content[at], at + 1


def share_a_text(path: Path, rows: int) -> int:
    """Findings that each say that their title is the pages of the first one's, a megabyte; how long all are."""
    small, page, least = 20_000, 4_096, 489
    large = small + 240 * (page - 4)  # of both equally much lies in the row itself, the rest on pages of its own
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE findings (finding INTEGER PRIMARY KEY, title, key)")
        titles = ["B" * large, *["s" * small] * rows]
        connection.executemany("INSERT INTO findings (title) VALUES (?)", [(title,) for title in titles])
    connection.close()
    content, cells = bytearray(path.read_bytes()), []
    for leaf in range(page, len(content), page):
        count = int.from_bytes(content[leaf + 3 : leaf + 5], "big") if content[leaf] == 13 else 0
        pointers = [leaf + 8 + 2 * number for number in range(count)]
        cells += [leaf + int.from_bytes(content[pointer : pointer + 2], "big") for pointer in pointers]
    cells = [cell for cell in cells if varint(content, cell)[0] > small]
    first = next(cell for cell in cells if varint(content, cell)[0] > large)
    inside = least + (varint(content, first)[0] - least) % (page - 4) + 4
    behind = varint(content, varint(content, first)[1])[1]
    for cell in cells:
        row = varint(content, varint(content, cell)[1])[1]
        content[row : row + inside] = content[behind : behind + inside]
        content[cell : cell + 3] = content[first : first + 3]
    path.write_bytes(content)
    return large * len(cells)


def test_findings_that_have_their_texts_in_common_fill_no_memory(mailed: Path) -> None:
    assert share_a_text(mailed / "findings.db", rows=300) == 301 * 1_002_080
    assert (mailed / "findings.db").stat().st_size < 10 << 20
    with sqlite3.connect(mailed / "findings.db") as connection:
        assert connection.execute("SELECT sum(length(title)) FROM findings").fetchone() == (301 * 1_002_080,)
    connection.close()
    with pytest.raises(StethosError, match="more than 128 MB"):
        read_findings(mailed)


def test_a_file_of_stacks_has_as_many_rows_as_a_run_may_have(mailed: Path) -> None:
    row = json.dumps({"process": "100-200", "depth": 0})
    (mailed / "stacks.jsonl").write_text("7\n" * 499_990 + f"{row}\n" * 20 + "{}\n" * 1_000_000, encoding="utf-8")
    assert [found["process"] for found in read_stacks(mailed)] == ["100-200"] * 10


@pytest.mark.parametrize(("whose", "is_ended"), [("mine", True), ("theirs", False)])
def test_a_command_computes_for_a_strangers_run_only_so_long(
    mailed: Path, tmp_path: Path, whose: str, is_ended: bool
) -> None:
    code = (
        "import sys, threading, time\n"
        "from stethos.cli.task import target\n"
        "from stethos.store.run import Run\n"
        "target._LONGEST_S, target._LOOK_EACH_S = 0.3, 0.05\n"
        "def summary(run):\n"
        "    ends_s = time.process_time() + 2\n"
        "    while time.process_time() < ends_s: pass\n"
        "Run.summary = summary\n"
        "with target.open_target(type('', (), {'target': sys.argv[1], 'dir': None})) as run: run.summary()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / whose / "run")], capture_output=True, text=True, check=False
    )
    assert (done.returncode, "of the processor's time" in done.stderr) == ((4, True) if is_ended else (0, False))
