"""Batches that are signed and whole, and made to hurt whoever reads them."""

from __future__ import annotations

import os
import random
import resource
import struct
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from builders import RunBuilder
from collecting import STORED, HandMadeClient, blocks_of, leave_behind, metric_rows, rows_after, send
from made_up import made_up, rows_of
from processes import wait_until

from stethos.cli.main import main
from stethos.collect.batch import MOST_BLOCKS, BatchError, blocks_in, decode_batch
from stethos.collect.enrolment import Enrolment
from stethos.collect.inbox import Inbox
from stethos.collect.receiver import Receiver
from stethos.collect.ride import InboxWriter
from stethos.collect.stored_process import StoredProcess
from stethos.diagnose.api import diagnose
from stethos.record.arrow import serialize_batch
from stethos.record.segment import FLAG_LAST, FLAG_SCHEMA, MAGIC, encode_block
from stethos.schema import CLIENT_REPORTS, COLLECTIVES, GAPS, HOST, INSPECTIONS, METRICS, RECORDED, SPANS, STEPS, Table
from stethos.store.health import examine
from stethos.store.run import open_run
from stethos.web.line_process import LineProcess

IS_LONG = bool(os.environ.get("LONG_TESTS"))
ROWS = metric_rows([1])
DROPPED = "SELECT rows_stored, rows_dropped, drops FROM processes"


def block(flags: int, rows: int, payload: bytes) -> bytes:
    return b"".join(encode_block(METRICS.number, flags, rows, 0, 0, 0, payload))


def with_schema(*names: str) -> bytes:
    """Integers in columns of these names."""
    columns = [pa.array([1], pa.int64())] * len(names)
    return blocks_of(METRICS, pa.RecordBatch.from_arrays(columns, names=list(names)))


POISON: dict[str, bytes] = {
    "no message": block(FLAG_LAST, 1, b""),
    "the end of a stream": block(FLAG_LAST, 1, b"\xff\xff\xff\xff\0\0\0\0"),
    "no schema": block(FLAG_SCHEMA, 0, b"") + block(FLAG_LAST, 1, b"\0" * 8),
    "a schema instead of rows": block(FLAG_LAST, 1, ROWS.schema.serialize().to_pybytes()),
    "a column twice": with_schema("value", "value"),
    "nothing that is known": with_schema("x", "y"),
}


@pytest.mark.parametrize("raw", POISON.values(), ids=POISON)
def test_a_collector_starts_again_whatever_it_has_acknowledged(
    tmp_path: Path, enrolment: Enrolment, client: HandMadeClient, monkeypatch: pytest.MonkeyPatch, raw: bytes
) -> None:
    """It is killed before it writes the runs, so it finds the batch when it starts again."""
    other = HandMadeClient(enrolment, "b")
    with monkeypatch.context() as killed:
        killed.setattr("stethos.collect.run_writer.RunWriter.start", lambda self: None)
        first = Receiver(tmp_path / "runs", enrolment)
        assert send(first, client.signed(raw, 1, 1), other.batch(1, [7])) == [STORED] * 2
        leave_behind(first)
    second = Receiver(tmp_path / "runs", enrolment)
    assert send(second, client.signed(raw, 1, 2), client.batch(3, [8])) == [STORED] * 2
    assert [value for value in rows_after(second) if value is not None] == [7, 8]


def test_a_batch_at_which_we_fail_waits_and_holds_up_nobody(
    receiver: Receiver, client: HandMadeClient, enrolment: Enrolment, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = StoredProcess.store

    def failing(self: StoredProcess, batch: Any, names: Any) -> int:
        if batch.header.number == 2:
            raise KeyError("a mistake of ours")
        return store(self, batch, names)

    with monkeypatch.context() as broken:
        broken.setattr(StoredProcess, "store", failing)
        assert send(receiver, *(client.batch(number, [number]) for number in (1, 2, 3))) == [STORED] * 3
        assert rows_after(receiver) == [1, 3]
    assert rows_after(Receiver(receiver.directory, enrolment)) == [1, 2, 3]


def test_what_rides_along_and_makes_us_fail_holds_up_nobody(
    tmp_path: Path, client: HandMadeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = StoredProcess.store

    def failing(self: StoredProcess, batch: Any, names: Any) -> int:
        if self.client == "17":
            raise KeyError("a mistake of ours")
        return store(self, batch, names)

    with RunBuilder(tmp_path / "r") as run:
        run.process("server")
        writer = InboxWriter(run.place.path)
        writer.put("17", [client.batch(1, [1])])
        writer.put("18", [b"no batch", client.batch(1, [2])])
        monkeypatch.setattr(StoredProcess, "store", failing)
        inbox = Inbox(run.place)
        inbox.visit()
        inbox.end()
        with open_run(run.place.path) as found:
            assert found.rows("SELECT value FROM metrics").values == [(2.0,)]


def many_rows() -> tuple[bytes, int]:
    """A bit for each row, of a table whose rows take a hundred bytes."""
    rows = 4 << 20
    bits = pa.Array.from_buffers(pa.bool_(), rows, [None, pa.py_buffer(bytes(rows // 8))])
    return blocks_of(STEPS, pa.RecordBatch.from_arrays([bits], names=["skipped"])), rows // 8


BOMBS: dict[str, Callable[[], tuple[bytes, int]]] = {
    "many rows in few bytes": many_rows,
    "what looks like blocks": lambda: (MAGIC * (1 << 18), 1),
    "many blocks": lambda: (block(FLAG_LAST, 1, b"") * (1 << 15), 1 << 15),
}


@pytest.mark.parametrize("made", BOMBS.values(), ids=BOMBS)
def test_what_unfolds_to_more_than_it_says_is_not_unfolded(
    receiver: Receiver, client: HandMadeClient, made: Callable[[], tuple[bytes, int]]
) -> None:
    raw, rows = made()
    data = client.signed(raw, rows, 1)
    assert len(data) < 100_000 and sum(1 for _ in blocks_in(decode_batch(data))) <= MOST_BLOCKS
    tracemalloc.start()
    try:
        assert send(receiver, data) == [STORED]
        found = rows_after(receiver, DROPPED)
        assert found == [(0, rows, f'{{"unreadable": {rows}}}')] and tracemalloc.get_traced_memory()[1] < 16 << 20
    finally:
        tracemalloc.stop()


def test_a_batch_counts_for_what_it_unfolds_to(client: HandMadeClient) -> None:
    batch = decode_batch(client.signed(bytes(8 << 20), 1, 1))
    assert len(batch.data) < 10_000 and batch.cost_bytes == 2 << 20
    with pytest.raises(BatchError, match="more rows than bytes"):
        decode_batch(client.signed(b"x", 2**61, 1))


# Nonsense that is signed, whole and well packed ------------------------------------------------------------

DEEP: list[Any] = []
for _ in range(400):
    DEEP = [DEEP]
ODD: tuple[Any, ...] = (
    None, True, -1, 0, 2**62, 2**63, 10**400, 1e308, float("inf"), float("nan"), "", "\ud800", "\0", "../..", "\x1b[2J",
    [], {}, {"\ud800": 1}, {"": {}}, "a" * 5000, DEEP, {"x": DEEP},
)  # fmt: skip
NAMES = [
    "rank", "world_size", "versions", "callbacks", "started_ns", "ended_ns", "error", "traceback", "command", "cwd",
    "config", "host", "pid", "process", "children", "produced", "lost", "drops", "withheld", "steps", "state", "t_ns",
    "spent_ns", "counters", "layers",
]  # fmt: skip


def nonsense(chance: random.Random) -> dict[str, Any]:
    told = {chance.choice(NAMES): chance.choice(ODD) for _ in range(chance.randint(0, 5))}
    return {**told, "counters": nonsense(chance)} if chance.random() < 0.2 else told


def spoilt(content: bytes, chance: random.Random) -> bytes:
    changed = bytearray(content)
    for _ in range(chance.choice((0, 0, 1, 1, 3, 8))):
        at = chance.randrange(len(changed))
        match chance.randrange(4):
            case 0:
                changed[at : at + 8] = struct.pack("<q", chance.choice((-1, 2**31, 2**40, -(2**63), 7)))
            case 1:
                del changed[at + 1 :]
            case _:
                changed[at] = chance.randrange(256)
    return bytes(changed)


def nonsensical(client: HandMadeClient, number: int, chance: random.Random) -> bytes:
    raw, rows = b"", 0
    for _ in range(chance.randint(0, 3)):
        table, count = chance.choice(list(RECORDED.values())), chance.randint(1, 5)
        batch = made_up(table, count, chance)
        content = spoilt(bytes(serialize_batch(batch)), chance)
        schema = spoilt(batch.schema.serialize().to_pybytes(), chance) if chance.random() < 0.2 else b""
        raw += b"".join((
            *encode_block(table.number, FLAG_SCHEMA, 0, 0, 0, 0, schema or batch.schema.serialize().to_pybytes()),
            *encode_block(table.number, chance.choice((FLAG_LAST, 0, 9, 16)), count, 0, 0, 0, content),
        ))  # fmt: skip
        rows += count
    told = {name: nonsense(chance) for name in ("facts", "ended", "books", "withholds") if chance.random() < 0.4}
    return client.signed(raw, rows, number, **told)


def test_signed_nonsense_is_stored_as_far_as_it_can_be_read(
    receiver: Receiver, client: HandMadeClient, enrolment: Enrolment, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing of it is set aside, which is where what makes us fail goes, and the run can be read afterwards."""
    monkeypatch.setattr("stethos.collect.shares.BURST_BATCHES", 1e9)
    batches = 5000 if IS_LONG else 150
    chance = random.Random(batches)
    for number in range(batches):
        send(receiver, nonsensical(client, number, chance))
    assert send(receiver, HandMadeClient(enrolment, "b").batch(1, [7])) == [STORED]
    receiver.close()
    assert not list((receiver.directory / ".collector" / "unwritten").glob("*.journal"))
    with open_run(receiver.directory / "r") as run:
        assert run.processes() and examine(run).checks
        for table in RECORDED.values() if IS_LONG else (METRICS, STEPS, CLIENT_REPORTS):
            run.rows(f"SELECT * FROM {table.name}")
        assert (7.0,) in run.rows("SELECT value FROM metrics").values


def test_what_cannot_be_meant_takes_no_command_and_no_detector_from_others(
    receiver: Receiver, client: HandMadeClient, capsys: pytest.CaptureFixture[str]
) -> None:
    """Rows of a client without a round, a step or a time, that took for ever, and whose JSON is none."""
    turns = {"round": [None, 1], "duration_ms": [float("inf"), -1.0], "status": ["ok"] * 2}
    odd: dict[Table, dict[str, list[Any]]] = {
        CLIENT_REPORTS: {"client": ["a"] * 2, **turns},
        SPANS: {"client": ["a"], "name": ["client"], "duration_ms": [float("inf")]},
        HOST: {"cpu_share": [float("nan")], "rss_bytes": [-1.0]},
        INSPECTIONS: {"phase": ["training", "helper"], "detail": ["{", "[1]"]},
        GAPS: {"client": ["a"], "what": ["layers"]},  # as L1 makes them
        COLLECTIVES: {"t_ns": [5]},
    }
    batches = [(table, rows_of(table, columns, len(next(iter(columns.values()))))) for table, columns in odd.items()]
    raw = b"".join(blocks_of(table, batch) for table, batch in batches)
    assert send(receiver, client.signed(raw, sum(batch.num_rows for _, batch in batches), 1)) == [STORED]
    query = "SELECT duration_ms, t_ns > 0 FROM client_reports UNION ALL SELECT cpu_share, rss_bytes IS NULL FROM host"
    assert rows_after(receiver, query) == [(None, True)] * 3
    run = receiver.directory / "r"
    assert not [one for one in diagnose(run).not_checked if "itself failed" in one.reason]
    for words in ("clients", "rounds", "collectives", "doctor", "diagnose --json"):
        assert main([*words.split(), "-t", str(run)]) in (0, 1), capsys.readouterr().err
    assert main(["report", "-t", str(run), "--format", "md", "-o", str(receiver.directory / "r.md")]) == 0


@pytest.fixture
def thousands_of_files() -> Iterator[None]:
    """Every descriptor from here on is one that `select` does not know."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(4096, hard), hard))
    opened = [os.open("/dev/null", os.O_RDONLY) for _ in range(1100)]
    yield
    for descriptor in opened:
        os.close(descriptor)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_the_dashboard_answers_beside_thousands_of_open_files(
    receiver: Receiver, client: HandMadeClient, thousands_of_files: None
) -> None:
    assert send(receiver, client.batch(1, [7])) == [STORED]
    wait_until(lambda: not receiver._runs.waiting_bytes, "the row")
    process = LineProcess("stethos.web.query_process")
    job = {"run": str(receiver.directory / "r"), "sql": "SELECT value FROM metrics", "timeout_s": 60.0}
    try:
        assert b"[[7.0]]" in process.ask(job, 90.0)
    finally:
        process.close()
    assert rows_after(receiver) == [7]  # which has a time limit of its own
