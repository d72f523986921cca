"""A TCP proxy on loopback that can swallow what goes through it."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable

_CHUNK = 1 << 14


class Proxy:
    """Passes connections on to a port until `is_cut()`; from then on `more_bytes` upstream, and nothing any more.

    Connections stay open and new ones are taken: to both ends it looks as if the other one is slow.
    """

    def __init__(self, target: int, is_cut: Callable[[], bool], more_bytes: int = 0) -> None:
        self._target = target
        self._is_cut = is_cut
        self._left = more_bytes
        self._sockets: list[socket.socket] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                here, _ = self._listener.accept()
                there = socket.create_connection(("127.0.0.1", self._target))
            except OSError:  # closed, or the other side has ended
                return
            self._sockets += [here, there]
            for source, sink, is_up in ((here, there, True), (there, here, False)):
                threading.Thread(target=self._pass, args=(source, sink, is_up), daemon=True).start()

    def _pass(self, source: socket.socket, sink: socket.socket, is_up: bool) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(_CHUNK):
                if self._is_cut():
                    if not is_up:
                        continue
                    data, self._left = data[: self._left], max(self._left - len(data), 0)
                if data:
                    sink.sendall(data)
            sink.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        for one in (self._listener, *self._sockets):
            with contextlib.suppress(OSError):
                one.close()
