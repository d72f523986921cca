"""Runs the server: one process, one port, a token of its own."""

from __future__ import annotations

import asyncio
import os
import socket
import tempfile
import webbrowser
from collections.abc import Callable
from html import escape
from pathlib import Path

import uvicorn

from stethos.errors import UsageError
from stethos.web.app import make_app
from stethos.web.door import new_token

DEFAULT_PORT = 8780
_STEPS_BACK = 5
_LOOPBACK = ("127.0.0.1", "localhost", "::1")


def listen(host: str, port: int | None) -> socket.socket:
    """A socket at that address; without a port the usual one, or any other if that is taken."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    for tried in (DEFAULT_PORT, 0) if port is None else (port,):
        listener = socket.socket(family, socket.SOCK_STREAM)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((host, tried))
        except OSError as error:
            listener.close()
            if port is not None or tried == 0:
                raise UsageError(
                    f"cannot listen at {host}:{tried}: {error.strerror}", hint="choose another port with --port P"
                ) from None
            continue
        return listener
    raise AssertionError("one of the ports was bound or refused")


def address_of(listener: socket.socket) -> str:
    """What a browser on this machine calls the server."""
    host, port = listener.getsockname()[:2]
    if host in ("0.0.0.0", "::"):
        host = "127.0.0.1"
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def is_open_to_others(host: str) -> bool:
    """Whether other machines can reach a server that listens there."""
    return host not in _LOOPBACK


def serve(
    directory: Path, listener: socket.socket, *, names: tuple[str, ...] = (), token: str | None = None,
    ready: Callable[[str], None], opens: bool = False,
) -> None:  # fmt: skip
    """Serve until interrupted; `ready` is called with the address, token included, once the server answers.

    The process steps back a little, so that a training on the same machine goes first.
    """
    os.nice(_STEPS_BACK)
    token = token or new_token()
    config = uvicorn.Config(
        make_app(directory, token, names=names),
        log_level="warning",
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=1,
        timeout_keep_alive=30,
        limit_concurrency=400,
    )
    url = f"{address_of(listener)}/#token={token}"
    server = uvicorn.Server(config)
    asyncio.run(_serve(server, listener, lambda: _announce(url, ready, opens)))
    if server.should_exit:  # Ctrl-C, which asyncio passes on only if it comes to its turn before the server's end
        raise KeyboardInterrupt


async def _serve(server: uvicorn.Server, listener: socket.socket, announce: Callable[[], None]) -> None:
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    while not server.started and not serving.done():
        await asyncio.sleep(0.01)
    if server.started:
        announce()
    await serving


def _announce(url: str, ready: Callable[[str], None], opens: bool) -> None:
    ready(url)
    if opens:
        webbrowser.open(_doorway(url).as_uri())


def _doorway(url: str) -> Path:
    """A private file that leads to the page: a token on a command line could be read by every user of the machine."""
    descriptor, name = tempfile.mkstemp(prefix="stethos-", suffix=".html")
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(f'<!doctype html><meta charset=utf-8><meta http-equiv=refresh content="0; url={escape(url)}">')
    return Path(name)
