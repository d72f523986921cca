"""Who may ask what: a request is refused unless host, origin and token are right, and the token allows the route.

A browser reaches a server on this machine from any page that a user has open,
and a name can be made to point here. So the Host header must name this machine,
the Origin must be the page's own, and the token travels in a header that no
other page can set. Only the empty page itself, which holds no data, needs no token.
"""

from __future__ import annotations

import ipaddress
import secrets
import socket
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from typing import Any

from anyio import sleep
from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Match, Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from stethos.web.connections import network_of
from stethos.web.keys import INCLUDED, Capability

READING = ("GET", "HEAD")
FORGET_S = 60.0  # without a wrong token from an address
WAIT_S, LONGEST_WAIT_S = 0.1, 5.0  # for each wrong token before
_MOST_NETWORKS = 10_000
_USE_PRINTED = "use the address that `stethos serve` printed"
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

LINK = "link"  # who holds a token that was shared, not one of the server's own


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a request is refused; `is_guess` if it showed a token that is not one."""

    status: int
    error: str
    hint: str
    is_guess: bool = False


class GuardedRoute(Route):
    """A route and the capability that it needs; None where it holds no data and everybody may read it."""

    def __init__(
        self, path: str, endpoint: Callable[[Request], Awaitable[Response]], needs: Capability | None,
        method: str = "GET",
    ) -> None:  # fmt: skip
        super().__init__(path, endpoint, methods=[method])
        self.needs = needs


class AccessControl:
    """Stands before the application and its routes.

    `tokens` says what each token allows; `allows` is asked about one that is none of them, as that of a link. A
    request that passes has its capability in its scope, and as its holder that or LINK; its peer is handed to
    `on_pass`. A refused one is handed to `on_refusal` (peer, path, reason, wrong tokens so far).
    """

    def __init__(
        self, app: ASGIApp, routes: Sequence[GuardedRoute], tokens: Mapping[str, Capability],
        names: Iterable[str] = (), on_pass: Callable[[tuple[str, int]], None] | None = None,
        on_refusal: Callable[[str, str, str, int], Awaitable[None]] | None = None,
        allows: Callable[[bytes], Capability | None] | None = None,
    ) -> None:  # fmt: skip
        self.app = app
        self.routes = routes
        self._tokens = {token.encode(): capability for token, capability in tokens.items()}
        self._names = {"localhost", socket.gethostname().lower(), *(name.lower() for name in names)}
        self._on_pass = on_pass
        self._on_refusal = on_refusal
        self._allows = allows
        self._guesses: dict[str, tuple[int, float]] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        if scope["type"] != "http":  # a refusal before the handshake
            await send({"type": "websocket.close", "code": 1008})
            return

        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                _add_headers(message)
            await send(message)

        decided = self._decide(scope, Headers(scope=scope))
        if isinstance(decided, Refusal):
            answer = await self._refuse(scope, decided)
            await answer(scope, receive, guarded)
            return
        scope["stethos.capability"] = decided
        if decided is not None and self._on_pass is not None and scope.get("client"):
            self._on_pass(tuple(scope["client"]))
        await self.app(scope, receive, guarded)

    def _decide(self, scope: Scope, headers: Headers) -> Refusal | Capability | None:
        """What the request's token allows, None if the route needs no token; or why it is refused."""
        method, host, origin = scope["method"], headers.getlist("host"), headers.get("origin")
        if len(host) != 1 or not self._is_ours(host[0]):
            return Refusal(421, "this server does not answer to that name", _USE_PRINTED)
        if origin is None and method not in READING:
            return Refusal(403, "a request that does more than read needs an Origin", "send `Origin: http://HOST:PORT`")
        if origin is not None and origin not in (f"http://{host[0]}", f"https://{host[0]}"):
            return Refusal(403, "requests of other pages are refused", _USE_PRINTED)
        needs = self._needed(scope)
        if needs is None:
            return None
        if headers.get("sec-fetch-site", "none") not in ("none", "same-origin"):
            return Refusal(403, "requests of other pages are refused", _USE_PRINTED)
        scheme, _, given = headers.get("authorization", "").partition(" ")
        shown = given.strip().encode("latin-1", "replace") if scheme.lower() == "bearer" else None
        held = self._held(shown) if shown is not None else None
        scope["stethos.holder"] = held
        if held is None and shown is not None and self._allows is not None:
            held, scope["stethos.holder"] = self._allows(shown), LINK
        if held is None:
            hint = "open the address that `stethos serve` printed, token included, or see --token-file"
            return Refusal(401, "the token is missing or wrong", hint, is_guess="authorization" in headers)
        if needs not in INCLUDED[held]:
            return Refusal(403, f"this token may {held}, not {needs}", f"use a token for {needs}, as {needs}.token")
        return held

    def _needed(self, scope: Scope) -> Capability | None:
        """What the request's route needs; a request without a route has to show that it may read."""
        route = next((route for route in self.routes if route.matches(scope)[0] is Match.FULL), None)
        return route.needs if route is not None else "read"

    def _held(self, given: bytes) -> Capability | None:
        """What one of the server's own tokens allows; as slow for a wrong one."""
        held: Capability | None = None
        for token, capability in self._tokens.items():
            if secrets.compare_digest(given, token):
                held = capability
        return held

    def _is_ours(self, host: str) -> bool:
        """Whether a Host header names this machine: a name of ours, or an address, which no foreign name stands for."""
        name = host.rpartition(":")[0] if host.rpartition(":")[2].isdecimal() and not host.endswith("]") else host
        name = name.lower()
        if name in self._names:
            return True
        try:
            ipaddress.ip_address(name.removeprefix("[").removesuffix("]"))
        except ValueError:
            return False
        return True

    async def _refuse(self, scope: Scope, refusal: Refusal) -> JSONResponse:
        """The answer to a refused request; each wrong token from a network is answered later than the one before."""
        host = (scope.get("client") or ("",))[0]
        guesses = self._count_guess(network_of(host), time.monotonic()) if refusal.is_guess else 0
        if self._on_refusal is not None:
            await self._on_refusal(host, scope["path"], refusal.error, guesses)
        await sleep(min(WAIT_S * guesses, LONGEST_WAIT_S))
        headers = {"www-authenticate": "Bearer"} if refusal.status == 401 else None
        return JSONResponse({"error": refusal.error, "hint": refusal.hint}, refusal.status, headers)

    def _count_guess(self, network: str, now: float) -> int:
        """How many wrong tokens a network has shown, until it has shown none for a while."""
        count, last = self._guesses.get(network, (0, now))
        if len(self._guesses) > _MOST_NETWORKS:
            self._guesses.clear()
        self._guesses[network] = (count if now - last < FORGET_S else 0) + 1, now
        return self._guesses[network][0]


def _add_headers(message: MutableMapping[str, Any]) -> None:
    headers = MutableHeaders(scope=message)
    for name, value in SECURITY_HEADERS.items():
        headers[name] = value
    headers.setdefault("cache-control", "no-store")
