"""Nothing is answered without the right host, origin and token: every route, every method."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import httpx
import pytest

from stethos.web.access import FORGET_S, SECURITY_HEADERS, AccessControl
from stethos.web.app import make_app
from stethos.web.keys import INCLUDED, Capability, Keys
from stethos.web.page_files import Asset, PageFiles

TOKEN, WRITE_TOKEN, ACT_TOKEN = "right-token", "write-token", "act-token"
HOST = "127.0.0.1:8780"
METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "PROPFIND")
PUBLIC = {"/", "/icon.svg", "/assets/page.js", "/assets/page.css"}


class FakeBundle(PageFiles):
    """A page that needs no build."""

    assets = {address: Asset(b"shell", "text/html") for address in PUBLIC}  # type: ignore[assignment]  # noqa: RUF012


def application() -> AccessControl:
    """With every route there is, also those of a server with keys."""
    keys = Keys(Path("/nowhere/keys"), "", {ACT_TOKEN: "act"})
    return make_app(Path("/nowhere"), {TOKEN: "read", WRITE_TOKEN: "write"}, keys=keys, bundle=FakeBundle())


ROUTES = {route.path.format(run="r", panel="summary", parameter="client"): route for route in application().routes}
ADDRESSES = sorted(
    {*ROUTES, "/nothing", "/api", "/api/", "/assets/../secret", "/assets/other.js", "/%2e%2e/etc/passwd"}
    | {"/api/commands/rm", "/api/commands/eval/", "/api/commands/EVAL", "/api/commands//eval", "/api/commands/%65val"}
)


def all_asked(requests: Iterable[tuple[str, str]], **headers: str) -> dict[tuple[str, str], httpx.Response]:
    """Answers by method and address, with the right Host unless told otherwise."""

    async def ask() -> dict[tuple[str, str], httpx.Response]:
        transport = httpx.ASGITransport(app=application())
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8780") as client:
            given = {"host": HOST, **headers}
            return {one: await client.request(*one, headers=given) for one in requests}

    return asyncio.run(ask())


def asked(method: str, address: str, **headers: str) -> httpx.Response:
    return all_asked([(method, address)], **headers)[method, address]


EVERYTHING = [(method, address) for address in ADDRESSES for method in METHODS]
AUTHORIZED = {"authorization": f"Bearer {TOKEN}"}
OWN = {"origin": f"http://{HOST}"}
WRONG: dict[str, dict[str, str]] = {
    "no token": OWN,
    "wrong token": {**OWN, "authorization": "Bearer wrong"},
    "empty token": {**OWN, "authorization": "Bearer "},
    "token of another scheme": {**OWN, "authorization": f"Basic {TOKEN}"},
    "token as a cookie": {**OWN, "cookie": f"token={TOKEN}"},
    "foreign host": {**AUTHORIZED, "host": "evil.example", "origin": "http://evil.example"},
    "host that only begins like ours": {**AUTHORIZED, "host": "127.0.0.1.evil.example"},
    "foreign origin": {**AUTHORIZED, "origin": "http://evil.example"},
    "null origin": {**AUTHORIZED, "origin": "null"},
    "other port's origin": {**AUTHORIZED, "origin": "http://127.0.0.1:9999"},
    "cross-site fetch": {**AUTHORIZED, "sec-fetch-site": "cross-site"},
}


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Wrong tokens are answered at once here; how long they would have waited."""
    waits: list[float] = []

    async def wait(seconds: float) -> None:
        waits.append(seconds)

    monkeypatch.setattr("stethos.web.access.sleep", wait)
    return waits


def test_there_are_routes_to_test() -> None:
    assert {"/api/runs/r/sql", "/api/commands/eval", "/api/commands/query"} < ROUTES.keys()
    assert {address for address, route in ROUTES.items() if route.needs is None} == PUBLIC


@pytest.mark.parametrize(("token", "held"), [(TOKEN, "read"), (WRITE_TOKEN, "write"), (ACT_TOKEN, "act")])
def test_a_token_opens_what_its_capability_includes_and_nothing_else(token: str, held: Capability) -> None:
    closed = [
        (method, address)
        for method, address in EVERYTHING
        if (route := ROUTES.get(address)) is not None and method in route.methods
        if route.needs is not None and route.needs not in INCLUDED[held]
    ]
    answers = all_asked(closed, **OWN, authorization=f"Bearer {token}")
    assert {answer.status_code for answer in answers.values()} <= {403}
    assert (len(closed) > 0) == (held != "act")
    opened = [(method, address) for address, route in ROUTES.items() for method in route.methods or ()]
    for one, answer in all_asked(set(opened) - set(closed), **OWN, authorization=f"Bearer {token}").items():
        assert answer.status_code not in (401, 403, 421), one


def test_each_wrong_token_of_a_network_is_answered_later(no_waiting: list[float]) -> None:
    all_asked([("GET", "/api/runs")] * 1, authorization="Bearer wrong")
    guesses = [("GET", f"/api/runs?{number}") for number in range(80)]
    no_waiting.clear()
    all_asked(guesses, authorization="Bearer wrong")
    assert no_waiting[:3] == pytest.approx([0.1, 0.2, 0.3]) and no_waiting[-1] == 5.0
    no_waiting.clear()
    all_asked([("GET", "/api/runs")])  # a page that was opened without its token is told at once
    assert no_waiting == [0.0]


def test_wrong_tokens_are_forgotten_after_a_while() -> None:
    count = application()._count_guess
    assert [count("10.0.0.1", float(second)) for second in range(3)] == [1, 2, 3]
    assert count("10.0.0.2", 3.0) == 1
    assert count("10.0.0.1", 2.0 + FORGET_S) == 1


@pytest.mark.parametrize("what", WRONG)
def test_no_route_lets_a_wrong_request_in(what: str) -> None:
    passed = []
    for (method, address), answer in all_asked(EVERYTHING, **WRONG[what]).items():
        is_shell = address in PUBLIC and method in ("GET", "HEAD") and ("token" in what or "cross-site" in what)
        if is_shell:
            assert answer.status_code == 200  # the empty page, which holds no data
        elif answer.status_code not in (401, 403, 421):
            passed.append((method, address, answer.status_code))
    assert passed == []


def test_a_writing_method_needs_an_origin() -> None:
    assert [asked(method, "/api/runs", **AUTHORIZED).status_code for method in ("POST", "PUT", "DELETE")] == [403] * 3


def test_only_asking_is_possible_with_the_token() -> None:
    answers = all_asked(EVERYTHING, **AUTHORIZED, **OWN)
    allowed = {one for one, answer in answers.items() if answer.status_code not in (404, 405)}
    writing = {address for method, address in allowed if method not in ("GET", "HEAD")}
    reading = {address for address, route in ROUTES.items() if route.needs == "read" and "POST" in route.methods}
    changing = {name for name, route in ROUTES.items() if route.needs in ("edit", "act") and "POST" in route.methods}
    acting = changing | {"/api/commands/%65val"}
    assert writing == reading | acting
    assert {answers["POST", address].status_code for address in acting} == {403}


def test_every_answer_has_the_security_headers() -> None:
    for address, headers in (("/", {}), ("/api/runs", AUTHORIZED), ("/api/runs", {}), ("/nothing", AUTHORIZED)):
        answer = asked("GET", address, **headers)
        for name, value in SECURITY_HEADERS.items():
            assert answer.headers[name] == value, address
        assert "unsafe" not in answer.headers["content-security-policy"]
        assert "access-control-allow-origin" not in answer.headers
        assert "set-cookie" not in answer.headers


@pytest.mark.parametrize("host", ["localhost:8780", "127.0.0.1", "[::1]:8780", "10.1.2.3:8780", "LOCALHOST"])
def test_names_and_addresses_of_this_machine_are_answered(host: str) -> None:
    assert asked("GET", "/api/runs", **AUTHORIZED, host=host).status_code == 200


def test_a_further_name_must_be_given() -> None:
    def status(*names: str) -> int:
        async def ask() -> httpx.Response:
            app = make_app(Path("/nowhere"), {TOKEN: "read"}, names=names, bundle=FakeBundle())
            async with httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://gpu1:80") as client:
                return await client.get("/api/runs", headers=AUTHORIZED)

        return asyncio.run(ask()).status_code

    assert (status(), status("GPU1")) == (421, 200)


def test_a_web_socket_is_refused() -> None:
    sent: list[dict[str, Any]] = []

    async def send(message: Any) -> None:
        sent.append(message)

    async def receive() -> Any:
        return {"type": "websocket.connect"}

    scope = {"type": "websocket", "path": "/api/runs", "headers": [(b"host", HOST.encode())]}
    asyncio.run(application()(scope, receive, send))
    assert sent == [{"type": "websocket.close", "code": 1008}]
