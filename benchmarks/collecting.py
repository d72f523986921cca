"""How fast a collector acknowledges: many clients, each with a key of its own, a new TLS connection for every batch."""

from __future__ import annotations

import asyncio
import json
import ssl
import subprocess
import sys
import time
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
from stethos.web.keys import Keys, open_keys

_EVERY_S = 30.0
_ROWS = 50
_P99_TARGET_MS, _RSS_TARGET_MB = 1000.0, 500.0
_ANSWER_S = 60.0


@dataclass(slots=True)
class Measured:
    """What the clients have seen."""

    waits_ms: list[float] = field(default_factory=list)
    late_ms: list[float] = field(default_factory=list)  # of the clients themselves: behind their schedule
    failures: int = 0


def measure(scale: Scale, scratch: Path) -> list[Grid]:
    clients, rounds = (500, 2) if scale.is_quick else (10_000, 2)
    keys = open_keys(scratch / "keys")
    say(f"collect: {clients:,} clients, a batch each every {_EVERY_S:g} s")
    own = [Ed25519PrivateKey.generate() for _ in range(clients)]
    write_json(keys.directory / "clients.json", {f"c{n}": {"key": public_hex(key)} for n, key in enumerate(own)})
    with subprocess.Popen(
        [sys.executable, "-m", "stethos.cli.main", "collect", "--dir", str(scratch / "runs"), "--keys",
         str(keys.directory), "--listen", "127.0.0.1:0"],
        stderr=subprocess.PIPE, text=True,
    ) as server:  # fmt: skip
        assert server.stderr is not None
        port = int(server.stderr.readline().partition("127.0.0.1:")[2].partition(",")[0])
        process = psutil.Process(server.pid)
        cpu_before, began = sum(process.cpu_times()[:2]), time.monotonic()
        seen = asyncio.run(_send_all(own, rounds, port, keys))
        wall_s, cpu_s = time.monotonic() - began, sum(process.cpu_times()[:2]) - cpu_before
        rss_mb = process.memory_info().rss / 1e6
        server.terminate()
    return [_grid(clients, rounds, seen, wall_s, cpu_s, rss_mb, _stored(scratch / "runs" / "r"))]


def _stored(path: Path) -> int:
    with open_run(path) as run:
        return int(run.rows("SELECT count(*) FROM metrics").values[0][0])


def _grid(clients: int, rounds: int, seen: Measured, wall_s: float, cpu_s: float, rss_mb: float, stored: int) -> Grid:
    waits = sorted(seen.waits_ms)
    p50, p99 = waits[len(waits) // 2], waits[int(len(waits) * 0.99)]
    sent = clients * rounds
    rows = [
        ["acknowledgement, median, ms", f"{p50:.0f}", "", ""],
        ["acknowledgement, 99 %, ms", f"{p99:.0f}", f"{_P99_TARGET_MS:.0f}", verdict(p99, _P99_TARGET_MS)],
        ["the slowest, ms", f"{waits[-1]:.0f}", "", ""],
        ["batches/s", f"{len(waits) / wall_s:.0f}", f"{clients / _EVERY_S:.0f}", ""],
        ["not acknowledged", f"{seen.failures}", "0", verdict(seen.failures, 0)],
        ["rows stored of those sent", f"{stored:,} of {sent * _ROWS:,}", "", ""],
        ["collector's CPU, share of a core", f"{cpu_s / wall_s:.2f}", "1", verdict(cpu_s / wall_s, 1.0)],
        ["rows/s for a whole core", f"{len(waits) * _ROWS / cpu_s:,.0f}", "", ""],
        ["collector's memory, MB", f"{rss_mb:.0f}", f"{_RSS_TARGET_MB:.0f}", verdict(rss_mb, _RSS_TARGET_MB)],
        ["clients behind their schedule, 99 %, ms", f"{sorted(seen.late_ms)[int(len(waits) * 0.99)]:.0f}", "", ""],
    ]
    notes = [
        f"Every client has a key and a process of its own; each batch of {_ROWS} rows is signed and sent over a new "
        "TLS 1.3 connection, checked, written to the journal and synced before it is acknowledged, and then written "
        "into the run. "
        "The clients are one process on the same machine. The wait is from the connection's start to the answer."
    ]  # fmt: skip
    return Grid(f"A collector with {clients:,} clients", ["", "measured", "target", "reached"], rows, notes)


async def _send_all(own: list[Ed25519PrivateKey], rounds: int, port: int, keys: Keys) -> Measured:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version, context.check_hostname, context.verify_mode = ssl.TLSVersion.TLSv1_3, False, ssl.CERT_NONE
    seen, raw = Measured(), _blocks()
    body = compress(raw)
    began = time.monotonic()
    tasks = []
    for number in range(1, rounds + 1):
        for place, key in enumerate(own):
            due = began + (number - 1 + place / len(own)) * _EVERY_S
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            seen.late_ms.append((time.monotonic() - due) * 1e3)
            data = _batch(f"c{place}", number, key, raw, body)
            tasks.append(asyncio.create_task(_post(data, port, context, seen)))
    await asyncio.gather(*tasks)
    return seen


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
            head = (
                f"POST {BATCH_PATH} HTTP/1.1\r\nHost: localhost\r\nOrigin: https://localhost\r\nConnection: close\r\n"
            )
            writer.write(f"{head}Content-Length: {len(data)}\r\n\r\n".encode() + data)
            answer = await reader.read()
            writer.close()
        is_stored = json.loads(answer.partition(b"\r\n\r\n")[2]) == {"stored": True}
    except (OSError, TimeoutError, ValueError):
        is_stored = False
    if is_stored:
        seen.waits_ms.append((time.monotonic() - began) * 1e3)
    else:
        seen.failures += 1
