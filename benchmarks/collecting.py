"""How fast a collector acknowledges: many clients, each with a key of its own, a new TLS connection for every batch."""

from __future__ import annotations

import asyncio
import json
import os
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pyarrow as pa
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from benchmarks.report import Grid, say, verdict
from benchmarks.scale import Scale
from stethos.collect.batch import BatchHeader, compress, digest_of, encode_batch
from stethos.collect.sender import BATCH_PATH
from stethos.collect.site import public_hex
from stethos.record.arrow import segment_schema, serialize_batch
from stethos.record.place import write_json
from stethos.record.segment import FLAG_LAST, FLAG_SCHEMA, encode_block
from stethos.schema import METRICS
from stethos.store.run import open_run
from stethos.web.keys import open_keys

EVERY_S = 30.0
_ROWS = 50
_P99_TARGET_MS, _RSS_TARGET_MB = 1000.0, 500.0
_ANSWER_S = 60.0
_IDLE_S = 3.0
HEAD = (
    f"POST {BATCH_PATH} HTTP/1.1\r\nHost: localhost\r\nOrigin: https://localhost\r\n"
    "{more}Content-Length: {size}\r\n\r\n"
)


@dataclass(slots=True)
class Measured:
    """What the clients have seen."""

    waits_ms: list[float] = field(default_factory=list)
    late_ms: list[float] = field(default_factory=list)  # of the clients themselves: behind their schedule
    failures: int = 0


@dataclass(frozen=True, slots=True)
class Used:
    """What the collector took."""

    wall_s: float
    behind_s: float
    cpu_s: float
    rss_mb: float


def measure(scale: Scale, scratch: Path) -> list[Grid]:
    clients, rounds = (500, 2) if scale.is_quick else (10_000, 3)
    say(f"collect: {clients:,} clients, a batch each every {EVERY_S:g} s")
    own = [Ed25519PrivateKey.generate() for _ in range(clients)]
    batches = batches_of(own, rounds)
    with collector(scratch, own) as (server, port):
        is_apart = set_apart(server)
        cpu_before, began = sum(server.cpu_times()[:2]), time.monotonic()
        seen = asyncio.run(send_all(batches, clients / EVERY_S, port))
        wall_s = time.monotonic() - began
        behind_s = _written_after(server)
        cpu_s = sum(server.cpu_times()[:2]) - cpu_before
        rss_mb = _highest_mb(server.pid)
    where = "The collector has one core to itself, the clients have the others." if is_apart else "All share one core."
    used = Used(wall_s, behind_s, cpu_s, rss_mb)
    return [_grid(clients, rounds, seen, used, _stored(scratch / "runs" / "r"), where)]


@contextmanager
def collector(scratch: Path, own: Sequence[Ed25519PrivateKey]) -> Iterator[tuple[psutil.Process, int]]:
    """A collector in a process of its own with these clients `c0`, `c1`, ...; the process, and its port."""
    keys = open_keys(scratch / "keys")
    write_json(keys.directory / "clients.json", {f"c{n}": {"key": public_hex(key)} for n, key in enumerate(own)})
    with subprocess.Popen(
        [sys.executable, "-m", "stethos.cli.main", "collect", "--dir", str(scratch / "runs"), "--keys",
         str(keys.directory), "--listen", "127.0.0.1:0"],
        stderr=subprocess.PIPE, text=True,
    ) as server:  # fmt: skip
        assert server.stderr is not None
        port = int(server.stderr.readline().partition("127.0.0.1:")[2].partition(",")[0])
        try:
            yield psutil.Process(server.pid), port
        finally:
            server.terminate()


def set_apart(server: psutil.Process) -> bool:
    """Give the collector one core and the clients the others, where there are several."""
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        return False
    for thread in server.threads():
        os.sched_setaffinity(thread.id, cores[-1:])
    os.sched_setaffinity(0, cores[:-1])
    return True


def _written_after(server: psutil.Process) -> float:
    """How long the collector goes on working once everything is acknowledged: it writes the runs."""
    began = time.monotonic()
    while True:
        before = sum(server.cpu_times()[:2])
        time.sleep(_IDLE_S)
        if sum(server.cpu_times()[:2]) - before < 0.02 * _IDLE_S:
            return time.monotonic() - began - _IDLE_S


def _highest_mb(pid: int) -> float:
    """The most memory that a process ever had at once."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:")) * 1024 / 1e6


def _stored(path: Path) -> int:
    with open_run(path) as run:
        return int(run.rows("SELECT count(*) FROM metrics").values[0][0])


def share_of(values: Sequence[float], share: float) -> float:
    return sorted(values)[int(len(values) * share)]


def _grid(clients: int, rounds: int, seen: Measured, used: Used, stored: int, where: str) -> Grid:
    waits, late = seen.waits_ms, seen.late_ms
    p50, p99 = share_of(waits, 0.5), share_of(waits, 0.99)
    sent, share = clients * rounds, used.cpu_s / used.wall_s
    rows = [
        ["acknowledgement, median, ms", f"{p50:.0f}", "", ""],
        ["acknowledgement, 99 %, ms", f"{p99:.0f}", f"{_P99_TARGET_MS:.0f}", verdict(p99, _P99_TARGET_MS)],
        ["the slowest, ms", f"{max(waits):.0f}", "", ""],
        ["batches/s", f"{len(waits) / used.wall_s:.0f}", f"{clients / EVERY_S:.0f}", ""],
        ["not acknowledged", f"{seen.failures}", "0", verdict(seen.failures, 0)],
        ["rows stored of those sent", f"{stored:,} of {sent * _ROWS:,}", "", ""],
        ["in their runs after the last acknowledgement, s", f"{used.behind_s:.0f}", "", ""],
        ["collector's CPU, share of a core", f"{share:.2f}", "1", verdict(share, 1.0)],
        ["collector's CPU, ms per batch", f"{used.cpu_s / len(waits) * 1e3:.2f}", "", ""],
        ["rows/s for a whole core", f"{len(waits) * _ROWS / used.cpu_s:,.0f}", "", ""],
        ["collector's memory at most, MB", f"{used.rss_mb:.0f}", f"{_RSS_TARGET_MB:.0f}",
         verdict(used.rss_mb, _RSS_TARGET_MB)],
        ["clients behind their schedule, 99 %, ms", f"{share_of(late, 0.99):.0f}", "", ""],
    ]  # fmt: skip
    notes = [
        f"Every client has a key and a process of its own; each batch of {_ROWS} rows is signed and sent over a new "
        "TLS 1.3 connection, checked, written to the journal and synced before it is acknowledged, and then written "
        "into the run. "
        f"The clients are one process on the same machine. {where} The wait is from the connection's start to the "
        "answer. No stock OpenTelemetry receiver installs from PyPI, Debian 12 or npm, so none stands beside it."
    ]  # fmt: skip
    return Grid(f"A collector with {clients:,} clients", ["", "measured", "target", "reached"], rows, notes)


async def send_all(batches: Sequence[bytes], rate: float, port: int) -> Measured:
    """Send so many a second, whether those before are acknowledged or not."""
    context, seen = trusting(), Measured()
    began = time.monotonic()
    tasks = []
    for place, data in enumerate(batches):
        due = began + place / rate
        wait_s = due - time.monotonic()
        if wait_s > 0:
            await asyncio.sleep(wait_s)
        seen.late_ms.append((time.monotonic() - due) * 1e3)
        tasks.append(asyncio.create_task(_post(data, port, context, seen)))
    await asyncio.gather(*tasks)
    return seen


def trusting() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version, context.check_hostname, context.verify_mode = ssl.TLSVersion.TLSv1_3, False, ssl.CERT_NONE
    return context


def batches_of(own: Sequence[Ed25519PrivateKey], rounds: int, first: int = 0) -> list[bytes]:
    """All that is sent, made and signed before: the clients are to take no time from the collector."""
    raw = _blocks()
    body = compress(raw)
    return [
        _batch(f"c{place}", number, key, raw, body)
        for number in range(1, rounds + 1)
        for place, key in enumerate(own, first)
    ]


def _batch(name: str, number: int, key: Ed25519PrivateKey, raw: bytes, body: bytes) -> bytes:
    header = BatchHeader(
        client=name, run="r", process="p", epoch="e", lane=1, number=number, rows=_ROWS, raw_bytes=len(raw),
        digest=digest_of(body), t_ns=time.time_ns(), books={"produced": number * _ROWS},
    )  # fmt: skip
    return encode_batch(header, body, key.sign)


def _blocks() -> bytes:
    schema = segment_schema(METRICS)
    given = {"name": ["loss"] * _ROWS, "value": [0.5 * i for i in range(_ROWS)], "step": list(range(_ROWS))}
    rows = pa.RecordBatch.from_pydict({one.name: given.get(one.name, [None] * _ROWS) for one in schema}, schema=schema)
    head = encode_block(METRICS.number, FLAG_SCHEMA, 0, 0, 0, 0, schema.serialize().to_pybytes())
    return b"".join((*head, *encode_block(METRICS.number, FLAG_LAST, _ROWS, 0, 0, 0, serialize_batch(rows))))


async def _post(data: bytes, port: int, context: ssl.SSLContext, seen: Measured) -> None:
    began = time.monotonic()
    try:
        async with asyncio.timeout(_ANSWER_S):
            reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
            writer.write(HEAD.format(more="Connection: close\r\n", size=len(data)).encode() + data)
            answer = await reader.read()
            writer.close()
        is_stored = json.loads(answer.partition(b"\r\n\r\n")[2]) == {"stored": True}
    except (OSError, TimeoutError, ValueError):
        is_stored = False
    if is_stored:
        seen.waits_ms.append((time.monotonic() - began) * 1e3)
    else:
        seen.failures += 1
