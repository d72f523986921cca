"""Who may come in: every request is refused unless host, origin and token are right.

A browser reaches a server on this machine from any page that a user has open,
and a name can be made to point here. So the Host header must name this machine,
the Origin must be the page's own, and the token travels in a header that no
other page can set. Only the empty page itself, which holds no data, needs no token.
"""

from __future__ import annotations

import ipaddress
import json
import secrets
import socket
from collections.abc import Callable, Iterable, MutableMapping
from typing import Any

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

READING = ("GET", "HEAD")
SECURITY_HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
}


def new_token() -> str:
    """A token that cannot be guessed."""
    return secrets.token_urlsafe(32)


class Door:
    """Stands before the application; `is_public` says which paths hold no data."""

    def __init__(self, app: ASGIApp, token: str, is_public: Callable[[str], bool], names: Iterable[str] = ()) -> None:
        self.app = app
        self._token = token.encode()
        self._is_public = is_public
        self._names = {"localhost", socket.gethostname().lower(), *(name.lower() for name in names)}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        if scope["type"] != "http":  # a refusal before the handshake
            await send({"type": "websocket.close", "code": 1008})
            return
        refused = self._refusal(scope["method"], scope["path"], Headers(scope=scope))
        if refused is not None:
            await _refuse(send, *refused, is_head=scope["method"] == "HEAD")
            return

        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                _add_headers(message)
            await send(message)

        await self.app(scope, receive, guarded)

    def _refusal(self, method: str, path: str, headers: Headers) -> tuple[int, str, str] | None:
        """Status, message and hint of a refusal; None to let the request pass."""
        host = headers.getlist("host")
        if len(host) != 1 or not self._is_ours(host[0]):
            return 421, "this server does not answer to that name", "use the address that `stethos serve` printed"
        origin = headers.get("origin")
        if origin is None and method not in READING:
            return 403, "a request that asks for more than reading needs an Origin", "send `Origin: http://HOST:PORT`"
        if origin is not None and origin not in (f"http://{host[0]}", f"https://{host[0]}"):
            return 403, "requests of other pages are refused", "use the address that `stethos serve` printed"
        if self._is_public(path) and method in READING:
            return None
        if headers.get("sec-fetch-site", "none") not in ("none", "same-origin"):
            return 403, "requests of other pages are refused", "use the address that `stethos serve` printed"
        scheme, _, given = headers.get("authorization", "").partition(" ")
        is_known = secrets.compare_digest(given.strip().encode("latin-1", "replace"), self._token)
        if scheme.lower() != "bearer" or not is_known:
            return 401, "the token is missing or wrong", "open the address that `stethos serve` printed, token included"
        return None

    def _is_ours(self, host: str) -> bool:
        """Whether a Host header names this machine: a name of ours, or an address, which no foreign name stands for."""
        name = host.rpartition(":")[0] if host.rpartition(":")[2].isdigit() and not host.endswith("]") else host
        name = name.lower()
        if name in self._names:
            return True
        try:
            ipaddress.ip_address(name.removeprefix("[").removesuffix("]"))
        except ValueError:
            return False
        return True


def _add_headers(message: MutableMapping[str, Any]) -> None:
    headers = MutableHeaders(scope=message)
    for name, value in SECURITY_HEADERS.items():
        headers[name] = value
    headers.setdefault("cache-control", "no-store")


async def _refuse(send: Send, status: int, error: str, hint: str, *, is_head: bool) -> None:
    body = json.dumps({"error": error, "hint": hint}).encode()
    message: dict[str, Any] = {
        "type": "http.response.start",
        "status": status,
        "headers": [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())],
    }
    if status == 401:
        message["headers"].append((b"www-authenticate", b"Bearer"))
    _add_headers(message)
    await send(message)
    await send({"type": "http.response.body", "body": b"" if is_head else body})
