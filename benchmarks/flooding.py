"""How long clients wait for a collector while another one asks a hundred times as often as it may."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Sequence
from contextlib import suppress
from multiprocessing import get_context
from pathlib import Path

import psutil
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from benchmarks.collecting import EVERY_S, HEAD, batches_of, collector, send_all, set_apart, share_of, trusting
from benchmarks.report import Grid, say
from benchmarks.scale import Scale
from stethos.collect.shares import RATE_BATCHES

_TARGET_TIMES = 2.0
_BATCHES_S, _CONNECTIONS = 100 * RATE_BATCHES, 16
_ROUNDS = 2
_KINDS = ("keeps its connections", "a new connection for each")


def measure(scale: Scale, scratch: Path) -> list[Grid]:
    clients = 50 if scale.is_quick else 500
    say(f"flood: one client that sends {_BATCHES_S:.0f} batches/s beside {clients} others")
    own = [Ed25519PrivateKey.generate() for _ in range(clients + 1)]
    batches = batches_of(own[:-1], _ROUNDS * (len(_KINDS) + 1))
    per_phase = clients * _ROUNDS
    rows, calm_99 = [], 0.0
    with collector(scratch / "flood", own) as (server, port):
        set_apart(server)
        flood = batches_of(own[-1:], int(_BATCHES_S), first=clients)
        for phase, kind in enumerate((None, *_KINDS)):
            mine = batches[phase * per_phase : (phase + 1) * per_phase]
            flooder = get_context("fork").Process(target=_flood, args=(flood, port, kind), daemon=True)
            if kind is not None:
                flooder.start()
                time.sleep(2.0)  # what it has saved up is gone
            cpu_before, began = sum(server.cpu_times()[:2]), time.monotonic()
            seen = asyncio.run(send_all(mine, clients / EVERY_S, port))
            share = (sum(server.cpu_times()[:2]) - cpu_before) / (time.monotonic() - began)
            asked = ""
            if kind is not None:
                spent = sum(psutil.Process(flooder.pid).cpu_times()[:2])
                asked = f"{spent / (time.monotonic() - began):.2f}"
                flooder.kill()
            p50, p99 = share_of(seen.waits_ms, 0.5), share_of(seen.waits_ms, 0.99)
            calm_99 = calm_99 or p99
            rows.append([kind or "nobody", f"{p50:.1f}", f"{p99:.1f}", f"{p99 / calm_99:.2f}", f"{seen.failures}",
                         f"{share:.2f}", asked])  # fmt: skip
    titles = ["beside them", "median, ms", "99 %, ms", f"times (target {_TARGET_TIMES:g})", "not acknowledged",
              "collector, share of a core", "flooder, share of a core"]  # fmt: skip
    note = (f"It may send {RATE_BATCHES:g} batches/s and asks for {_BATCHES_S:.0f}, over {_CONNECTIONS} connections "
            "at a time, in a process of its own. What is more than its share is answered with 429.")  # fmt: skip
    return [Grid(f"{clients} clients, a batch each every {EVERY_S:g} s, beside one that floods", titles, rows, [note])]


def _flood(batches: Sequence[bytes], port: int, kind: str) -> None:
    """In a process of its own, behind the others on their core: ask without end."""
    os.nice(10)
    is_kept = kind == _KINDS[0]

    async def ask(place: int) -> None:
        while True:
            with suppress(OSError, EOFError):  # a connection without a token is cut after a while
                reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=trusting())
                began = time.monotonic()
                while True:
                    data = batches[place % len(batches)]
                    writer.write(HEAD.format(more="", size=len(data)).encode() + data)
                    place += _CONNECTIONS
                    if is_kept:
                        head = (await reader.readuntil(b"\r\n\r\n")).lower()
                        await reader.readexactly(int(head.partition(b"content-length: ")[2].split(b"\r")[0]))
                    else:
                        await writer.drain()
                    await asyncio.sleep(max(0.0, began + _CONNECTIONS / _BATCHES_S - time.monotonic()))
                    began = time.monotonic()
                    if not is_kept:
                        writer.transport.abort()  # without waiting for the answer
                        break

    async def ask_all() -> None:
        await asyncio.gather(*map(ask, range(_CONNECTIONS)))

    asyncio.run(ask_all())
