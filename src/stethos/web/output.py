"""What a command of ours says, up to a limit: how much that is, may be up to the author of a run."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from asyncio.subprocess import Process

import anyio

_PIECE_BYTES = 1 << 16


async def output_of(
    process: Process, most_bytes: int, limit_s: float, sent: bytes | None = None
) -> tuple[bytes, bytes]:
    """Its output and its complaints, each with one byte more than allowed if it was too much: then it is killed.

    It has to lead a process group. TimeoutError if it takes too long; it has ended whenever this returns or raises.
    """
    try:
        async with asyncio.timeout(limit_s):
            out, err, _ = await asyncio.gather(
                _read(process, process.stdout, most_bytes), _read(process, process.stderr, most_bytes),
                _send(process, sent),
            )  # fmt: skip
            await process.wait()
    finally:
        if process.returncode is None:
            _kill(process)
        with anyio.CancelScope(shield=True):  # a pipe that is left open is complained about when the loop has ended
            await process.wait()
            for stream in (process.stdout, process.stderr):
                while stream is not None and await stream.read(_PIECE_BYTES):
                    pass
    return out, err


async def _read(process: Process, stream: asyncio.StreamReader | None, most_bytes: int) -> bytes:
    assert stream is not None
    found = bytearray()
    while part := await stream.read(_PIECE_BYTES):
        found += part
        if len(found) > most_bytes:
            _kill(process)
            break
    return bytes(found[: most_bytes + 1])


async def _send(process: Process, sent: bytes | None) -> None:
    if process.stdin is not None:
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # it has ended without reading all
            process.stdin.write(sent or b"")
            await process.stdin.drain()
        process.stdin.close()


def _kill(process: Process) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
