"""An HTTP POST that cannot be turned against the network it is sent from.

The host is resolved once, every address it has must be public (unless private ones are allowed), the connection
goes to the address that was checked, and redirects are not followed.
"""

from __future__ import annotations

import contextlib
import errno
import http.client
import ipaddress
import json
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from stethos.act.alert_rule import WebhookSink
from stethos.errors import StethosError

_UNICAST = ipaddress.IPv6Network("2000::/3")
_EXAMPLES = ipaddress.IPv6Network("3fff::/20")
_RELAYS = (ipaddress.IPv4Network("192.0.0.0/24"), ipaddress.IPv4Network("192.88.99.0/24"))  # of the network one is in
_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")


class DeliveryError(StethosError):
    """A message did not reach its sink."""


def post(sink: WebhookSink, body: dict[str, Any]) -> None:
    """Send a body as JSON; DeliveryError unless the answer is a success."""
    try:
        parts = urlsplit(sink.url)
    except ValueError:
        raise DeliveryError("not a webhook address: its host is not whole", hint="it begins with https://") from None
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise DeliveryError(f"not a webhook address: {sink.url!r}", hint="it begins with https://")
    try:
        port = parts.port or (443 if parts.scheme == "https" else 80)
    except ValueError:
        raise DeliveryError(f"not a webhook address: {sink.url!r}", hint="the port is not a number") from None
    deadline = time.monotonic() + sink.timeout_s
    address = _address(parts.hostname, port, is_private_fine=sink.allow_private)
    headers = {"Content-Type": "application/json", "User-Agent": "stethos", "Connection": "close"} | _extra(sink)
    connection = _Connection(parts.hostname, port, address, deadline, is_tls=parts.scheme == "https")
    at_deadline = threading.Timer(sink.timeout_s, connection.cut)  # a server that sends a byte now and then
    at_deadline.start()
    try:
        path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        connection.request("POST", path, json.dumps(body).encode(), headers)
        answer = connection.getresponse()
        status = answer.status
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise DeliveryError(f"{parts.hostname}: {str(error) or type(error).__name__}") from None
    finally:
        at_deadline.cancel()
        connection.close()
    if not 200 <= status < 300:
        extra = "; redirects are not followed" if 300 <= status < 400 else ""
        raise DeliveryError(f"{parts.hostname} answered {status}{extra}")


def _address(host: str, port: int, *, is_private_fine: bool) -> tuple[Any, ...]:
    """Where to connect to: family and address; DeliveryError if the name stands for any address that is not public."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise DeliveryError(f"{host} cannot be resolved: {error}") from None
    for _, _, _, _, address in found:
        if not is_private_fine and not _is_public(str(address[0])):
            resolved = "" if host == address[0] else f"{address[0]}, which is "
            raise DeliveryError(
                f"{host} is {resolved}not a public address",
                hint="set allow_private = true in the sink if it is meant",
            )
    family, _, _, _, address = found[0]
    return family, address


def _is_public(text: str) -> bool:
    """Whether an address, and every IPv4 address inside it, belongs to the internet at large.

    Of IPv6 only 2000::/3 does, beside public IPv4 addresses in ::ffff:0:0/96 (mapped) and 64:ff9b::/96 (NAT64).
    """
    address = ipaddress.ip_address(text.partition("%")[0])
    if isinstance(address, ipaddress.IPv6Address):
        if address.ipv4_mapped is not None or address in _NAT64:
            address = ipaddress.IPv4Address(int(address) & 0xFFFF_FFFF)
        elif address not in _UNICAST or address in _EXAMPLES or not all(map(_is_unicast, _inside(address))):
            return False
    return _is_unicast(address)


def _is_unicast(address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> bool:
    """Whether it is one host of the internet at large."""
    return address.is_global and not address.is_multicast and not any(address in network for network in _RELAYS)


def _inside(address: ipaddress.IPv6Address) -> Iterator[ipaddress.IPv4Address]:
    """The IPv4 addresses to which 6to4, Teredo or ISATAP would carry a packet for this one."""
    if address.sixtofour is not None:
        yield address.sixtofour
    yield from address.teredo or ()
    if int(address) >> 32 & 0xFDFF_FFFF == 0x5EFE:
        yield ipaddress.IPv4Address(int(address) & 0xFFFF_FFFF)


def secret_in(file: str) -> str:
    """What a file of the user's holds, without white space around it; OSError if it cannot be read, or is not text."""
    try:
        return Path(file).expanduser().read_text(encoding="utf-8").strip()
    except UnicodeDecodeError:
        raise OSError(errno.EILSEQ, "it is not text") from None


def _extra(sink: WebhookSink) -> dict[str, str]:
    if not sink.header_file:
        return {}
    try:
        name, colon, value = secret_in(sink.header_file).partition(":")
    except OSError as error:
        raise DeliveryError(f"{sink.header_file} cannot be read: {error}") from None
    if not colon or "\n" in value:
        raise DeliveryError(f"{sink.header_file} does not hold a header", hint="one line: Name: value")
    return {name.strip(): value.strip()}


class _Connection(http.client.HTTPConnection):
    """To an address that was checked, whatever the name resolves to by now; cut at the deadline."""

    def __init__(self, host: str, port: int, address: tuple[Any, ...], deadline: float, *, is_tls: bool) -> None:
        super().__init__(host, port, timeout=max(0.1, deadline - time.monotonic()))
        self._address = address
        self._is_tls = is_tls

    def cut(self) -> None:
        """End it now, from another thread."""
        with contextlib.suppress(OSError, AttributeError):
            self.sock.shutdown(socket.SHUT_RDWR)

    def connect(self) -> None:
        family, address = self._address
        plain = socket.socket(family, socket.SOCK_STREAM)
        plain.settimeout(self.timeout)
        plain.connect(address)
        self.sock = (
            ssl.create_default_context().wrap_socket(plain, server_hostname=self.host) if self._is_tls else plain
        )
