"""Routes that run a command for somebody on another machine, who may read or act.

A command runs in a process of its own, with the rights of the user who started the
server, and is killed at its limits. Who asked what is written down before it is done.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import time
from functools import partial
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Any

import psutil
from anyio import to_thread
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from stethos.errors import LiveError, StethosError, UsageError
from stethos.redact import redact
from stethos.settings import gateway_environment
from stethos.web.access import GuardedRoute
from stethos.web.body import read_object
from stethos.web.keys import INCLUDED
from stethos.web.line_process import PROCESS_MEMORY_BYTES, rss_bytes
from stethos.web.remote_command import REMOTE_COMMANDS, CommandCall, checked_call
from stethos.wiring import command_line

LARGEST_REQUEST = 1 << 20
LARGEST_OUTPUT = 16 << 20
COMMAND_S = 120.0
MOST_AT_ONCE = 4
_LOOK_S = 0.05


class AuditLog:
    """Who asked what, as lines of JSON in a file that this user alone can read."""

    def __init__(self, path: Path) -> None:
        self.path = path

    async def write(self, **facts: Any) -> None:
        """Add one line, on disk when this returns; OSError if that is not possible."""
        await to_thread.run_sync(self._write, json.dumps({"t_ns": time.time_ns(), **facts}, default=str) + "\n")

    async def refused(self, peer: str, path: str, why: str, guesses: int) -> None:
        """A request that was not let in; of many guesses in a row the first, second, fourth, eighth ..."""
        if guesses & (guesses - 1) == 0:
            with contextlib.suppress(OSError):
                await self.write(peer=peer, path=path[:200], outcome="refused", why=why, guesses=guesses)

    def _write(self, line: str) -> None:
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        descriptor = os.open(self.path, flags, 0o600)
        try:
            os.write(descriptor, line.encode("ascii"))
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


class Commands:
    """Runs remote commands over one directory of runs."""

    def __init__(self, directory: Path, audit: AuditLog) -> None:
        self._directory = directory.absolute()
        self._audit = audit
        self._turns = {one: asyncio.Semaphore(MOST_AT_ONCE) for one in INCLUDED}  # who reads keeps nobody from acting

    def routes(self) -> list[GuardedRoute]:
        """One for each command, with the capability that the command needs."""
        return [
            GuardedRoute(f"/api/commands/{name}", partial(self._answer, name), command.needs, "POST")
            for name, command in REMOTE_COMMANDS.items()
        ]

    async def _answer(self, name: str, request: Request) -> Response:
        peer, capability = request.client.host if request.client else "", request.scope["stethos.capability"]
        about: dict[str, Any] = {"peer": peer, "capability": capability, "command": name}
        began = time.monotonic()
        try:
            call = _call_in(name, await read_object(request, LARGEST_REQUEST))
            about |= {"target": call.target, "options": call.options, "text": redact(call.text or "")[:4000]}
            try:
                await self._audit.write(**about, outcome="asked")
            except OSError as error:
                raise LiveError(f"not done: the audit could not be written first ({error.strerror})") from None
            async with self._turns[REMOTE_COMMANDS[name].needs]:
                reply = await self._run(call, f"gateway {capability}@{peer}", request)
        except StethosError as error:
            with contextlib.suppress(OSError):
                await self._audit.write(**about, outcome="refused", why=error.message)
            raise
        with contextlib.suppress(OSError):
            ms = round((time.monotonic() - began) * 1e3)
            await self._audit.write(**about, outcome="done", status=reply["status"], ms=ms)
        return JSONResponse(reply)

    async def _run(self, call: CommandCall, who: str, request: Request) -> dict[str, Any]:
        with TemporaryFile() as given, TemporaryFile() as out, TemporaryFile() as err:
            given.write((call.text or "").encode())
            given.seek(0)
            process = await asyncio.create_subprocess_exec(
                *command_line(), *call.command_line(), stdin=given, stdout=out, stderr=err,
                env=gateway_environment(who, self._directory), start_new_session=True,
            )  # fmt: skip
            try:
                is_cut = await _watch(process, (out, err), request)
            finally:
                if process.returncode is None:
                    with contextlib.suppress(ProcessLookupError):
                        os.killpg(process.pid, signal.SIGKILL)
                    await process.wait()
            texts = {"out": _text_in(out), "err": _text_in(err)}
        return {"status": process.returncode, **texts, "is_cut": is_cut}


async def _watch(process: asyncio.subprocess.Process, outputs: tuple[IO[bytes], ...], request: Request) -> bool:
    """Wait for the end of a command; whether its output was too large. LiveError at any other limit."""
    deadline = time.monotonic() + COMMAND_S
    ended = asyncio.ensure_future(process.wait())
    with contextlib.suppress(psutil.NoSuchProcess):
        seen = psutil.Process(process.pid)
        while not (await asyncio.wait([ended], timeout=_LOOK_S))[0]:
            if rss_bytes(seen) > PROCESS_MEMORY_BYTES:
                raise LiveError(
                    f"the command needs more than {PROCESS_MEMORY_BYTES >> 20} MB of memory",
                    hint="ask for less at a time, or run it on the machine itself",
                )
            if time.monotonic() > deadline:
                raise LiveError(f"the command took longer than {COMMAND_S:g} s", hint="ask for less at a time")
            if await request.is_disconnected():
                raise LiveError("the client has hung up")
            if any(os.fstat(output.fileno()).st_size > LARGEST_OUTPUT for output in outputs):
                return True
    await ended
    return any(os.fstat(output.fileno()).st_size > LARGEST_OUTPUT for output in outputs)


def _text_in(output: IO[bytes]) -> str:
    output.seek(0)
    return output.read(LARGEST_OUTPUT).decode("utf-8", "replace")


def _call_in(name: str, content: dict[str, Any]) -> CommandCall:
    words, target, text = content.get("words", []), content.get("target"), content.get("text")
    if not (
        isinstance(words, list)
        and all(isinstance(word, str) for word in words)
        and isinstance(target, str | None)
        and isinstance(text, str | None)
    ):
        raise UsageError("the request is not a call of a command")
    return checked_call(name, target, words, text)
