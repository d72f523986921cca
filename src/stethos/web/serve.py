"""Runs the server: one process, one port, a token of its own, and TLS where it has keys."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
import socket
import tempfile
import webbrowser
from collections.abc import Callable, Sequence
from html import escape
from pathlib import Path

import uvicorn

from stethos.errors import UsageError
from stethos.record.memory import return_freed_memory
from stethos.web.access import GuardedRoute
from stethos.web.app import make_app
from stethos.web.connections import BoundedListener, use_small_buffers
from stethos.web.keys import Keys, new_token

DEFAULT_PORT = 8780
_NICE = 5
_LOOPBACK = ("127.0.0.1", "localhost", "::1")


class _Server(uvicorn.Server):
    """Says when it answers."""

    def __init__(self, config: uvicorn.Config, announce: Callable[[], None]) -> None:
        super().__init__(config)
        self._announce = announce

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            self._announce()


def listen(host: str, port: int | None, most_unknown: int | None = None, option: str = "--port") -> BoundedListener:
    """A socket at that address; without a port the usual one, or any other if that is taken. `option` names ports."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    for tried in (DEFAULT_PORT, 0) if port is None else (port,):
        listener = BoundedListener(family, most_unknown)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((host, tried))
        except OSError as error:
            listener.close()
            if port is not None or tried == 0:
                raise UsageError(
                    f"cannot listen at {host}:{tried}: {error.strerror}", hint=f"choose another port with {option}"
                ) from None
            continue
        return listener
    raise AssertionError("one of the ports was bound or refused")


def address_of(listener: socket.socket) -> str:
    """HOST:PORT of the server, as a client on this machine writes it."""
    host, port = listener.getsockname()[:2]
    if host in ("0.0.0.0", "::"):
        host = "127.0.0.1"
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def is_open_to_others(host: str) -> bool:
    """Whether other machines can reach a server that listens there."""
    return host not in _LOOPBACK


def serve(
    directory: Path, listener: BoundedListener, *, keys: Keys | None = None, names: tuple[str, ...] = (),
    ready: Callable[[str], None], opens: bool = False, routes: Sequence[GuardedRoute] = (),
    edits: bool = False, own_file: Path | None = None, token: str | None = None,
) -> None:  # fmt: skip
    """Serve until interrupted; `ready` is called with the address, token included, once the server answers.

    With `edits` those who have that address may label and delete runs; `own_file` has panels of the user's own; a
    `token` of the user's is used instead of a new one.

    `routes` are further ones, beside the dashboard's.

    The process lowers its priority a little, so that a training on the same machine goes first.
    """
    os.nice(_NICE)
    return_freed_memory()
    use_small_buffers()
    token = token or new_token()
    config = uvicorn.Config(
        make_app(
            directory,
            {token: "edit" if edits else "read"},
            keys=keys,
            names=names,
            on_pass=listener.trust,
            more=routes,
            own_file=own_file,
            is_ending=lambda: server.should_exit,
        ),
        http="h11",
        log_level="error",
        access_log=False,
        server_header=False,
        proxy_headers=False,
        backlog=64,  # as many are accepted in a row, before others have their turn
        timeout_graceful_shutdown=1,
        timeout_keep_alive=30,
        callback_notify=listener.cut_late,
        timeout_notify=1,
    )
    config.load()
    gc.collect()
    gc.freeze()  # what is there now stays: looking through it at every collection takes 40 ms
    config.ssl = keys.server_context() if keys is not None else None
    url = f"{'http' if keys is None else 'https'}://{address_of(listener)}/#token={token}"
    server = _Server(config, lambda: _announce(url, ready, opens))
    logging.getLogger("uvicorn.error").addFilter(lambda _: not server.should_exit)  # requests that its end cuts off
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # uvicorn raises it again when it has stopped
    try:
        asyncio.run(server.serve(sockets=[listener]))
    finally:
        gc.unfreeze()  # DuckDB complains at length about what the process keeps at its end
    if server.should_exit:  # Ctrl-C, which asyncio passes on only if it comes to its turn before the server's end
        raise KeyboardInterrupt


def _announce(url: str, ready: Callable[[str], None], opens: bool) -> None:
    ready(url)
    if opens:
        webbrowser.open(_redirect_page(url).as_uri())


def _redirect_page(url: str) -> Path:
    """A private file that leads to the page: a token on a command line could be read by every user of the machine."""
    descriptor, name = tempfile.mkstemp(prefix="stethos-", suffix=".html")
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(f'<!doctype html><meta charset=utf-8><meta http-equiv=refresh content="0; url={escape(url)}">')
    return Path(name)
