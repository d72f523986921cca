"""Nobody comes in without the right host, origin and token: every route, every method."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from stethos.web.app import Dashboard, make_app
from stethos.web.bundle import Asset, Bundle
from stethos.web.door import SECURITY_HEADERS

TOKEN = "right-token"
HOST = "127.0.0.1:8780"
METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "PROPFIND")
PUBLIC = {"/", "/icon.svg", "/assets/page.js", "/assets/page.css"}


class FakeBundle(Bundle):
    """A page that needs no build."""

    assets = {address: Asset(b"shell", "text/html") for address in PUBLIC}  # type: ignore[assignment]  # noqa: RUF012


def addresses() -> Iterator[str]:
    """Every route of the table with something in its places, and some that do not exist."""
    for route in Dashboard(Path("/nowhere"), FakeBundle()).routes():
        yield route.path.format(run="r", panel="summary", parameter="client")
    yield from ("/nothing", "/api", "/api/", "/assets/../secret", "/assets/other.js", "/%2e%2e/etc/passwd")


ADDRESSES = sorted(set(addresses()))


def all_asked(requests: Iterable[tuple[str, str]], **headers: str) -> dict[tuple[str, str], httpx.Response]:
    """Answers by method and address, with the right Host unless told otherwise."""

    async def ask() -> dict[tuple[str, str], httpx.Response]:
        transport = httpx.ASGITransport(app=make_app(Path("/nowhere"), TOKEN, bundle=FakeBundle()))
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


def test_there_are_routes_to_test() -> None:
    assert len(ADDRESSES) > 12 and any("/sql" in address for address in ADDRESSES)


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
    assert {one for one in allowed if one[0] not in ("GET", "HEAD")} == {("POST", "/api/runs/r/sql")}


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
            app = make_app(Path("/nowhere"), TOKEN, names=names, bundle=FakeBundle())
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
    asyncio.run(make_app(Path("/nowhere"), TOKEN, bundle=FakeBundle())(scope, receive, send))
    assert sent == [{"type": "websocket.close", "code": 1008}]
