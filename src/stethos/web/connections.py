"""Keeps the way to the server free: connections that have shown no token are few, and not for long.

A connection costs its sender nothing, and one that sends nothing, or half a
handshake, or half a request, would stay. When there are too many, the address with
the most of them loses its oldest, so that a newcomer gets in. The owner of a token is
known by the first request and stays.
"""

from __future__ import annotations

import contextlib
import gc
import ipaddress
import socket
import time
from asyncio import sslproto
from collections import Counter
from typing import Any

MOST_UNKNOWN = 128
MOST_KNOWN = 256
UNKNOWN_S = 15.0
WAITING = 4096  # connections that the kernel keeps until they are accepted; it may allow fewer
BUFFER_BYTES = 32 << 10
_COLLECT_AFTER = 1024  # closed connections: asyncio leaves the buffer of each in a cycle of references


def network_of(host: str) -> str:
    """The address of a peer, or its network where one user has many addresses: /64 in IPv6."""
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host
    if isinstance(address, ipaddress.IPv6Address):
        return str(address.ipv4_mapped or ipaddress.IPv6Network((address, 64), strict=False))
    return str(address)


def use_small_buffers() -> None:
    """Have asyncio take 32 kB for a TLS connection of this process instead of 256.

    It fills them with zeros for each connection: 15 % of what a collector spent on a batch, and most of its memory.
    """
    sslproto.SSLProtocol.max_size = BUFFER_BYTES


class _Connection(socket.socket):
    """Tells its listener when it is closed."""

    listener: BoundedListener
    peer: tuple[str, int]
    network: str
    since: float

    def close(self) -> None:
        super().close()
        self.listener.forget(self)
        self.listener.closed += 1
        if self.listener.closed % _COLLECT_AFTER == 0:
            gc.collect()

    def cut(self) -> None:
        """End it; whoever reads from it finds its end, and closes it."""
        self.listener.forget(self)
        with contextlib.suppress(OSError):
            self.shutdown(socket.SHUT_RDWR)


class BoundedListener(socket.socket):
    """A listening socket with a bound on what it has accepted; used by the event loop's thread alone."""

    def __init__(self, family: int, most_unknown: int | None = None) -> None:
        super().__init__(family, socket.SOCK_STREAM)
        self._most_unknown = most_unknown
        self._unknown: dict[tuple[str, int], _Connection] = {}  # the oldest first
        self._known: dict[tuple[str, int], _Connection] = {}
        self.closed = 0

    def listen(self, backlog: int = 0, /) -> None:
        """Let the kernel keep `WAITING` connections, whatever asyncio asks for.

        One that finds no place asks again after 1, 3, 7, 15 s: clients of a busy collector waited for that, not for it.
        """
        super().listen(WAITING)

    def accept(self) -> tuple[socket.socket, Any]:
        plain, address = super().accept()
        connection = _Connection(fileno=plain.detach())
        connection.listener, connection.peer = self, tuple(address[:2])
        connection.network, connection.since = network_of(address[0]), time.monotonic()
        self._unknown[connection.peer] = connection
        if len(self._unknown) > (self._most_unknown or MOST_UNKNOWN):
            ((largest, _),) = Counter(one.network for one in self._unknown.values()).most_common(1)
            next(one for one in self._unknown.values() if one.network == largest).cut()
        return connection, address

    def trust(self, peer: tuple[str, int]) -> None:
        """A connection has shown a valid token."""
        connection = self._unknown.pop(peer, None)
        if connection is not None:
            self._known[peer] = connection
            if len(self._known) > MOST_KNOWN:
                next(iter(self._known.values())).cut()

    def renew(self, peer: tuple[str, int]) -> None:
        """A connection without a token has sent something that is signed: its time begins anew."""
        connection = self._unknown.pop(peer, None)
        if connection is not None:
            connection.since = time.monotonic()
            self._unknown[peer] = connection

    async def cut_late(self) -> None:
        """End connections that have shown no token, and sent nothing that is signed, for too long."""
        latest = time.monotonic() - UNKNOWN_S
        for connection in [one for one in self._unknown.values() if one.since < latest]:
            connection.cut()

    def forget(self, connection: _Connection) -> None:
        for kept in (self._unknown, self._known):
            if kept.get(connection.peer) is connection:
                del kept[connection.peer]
