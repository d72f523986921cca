"""A client that asks too often: answered late and cheaply, and nobody else pays for it."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from collecting import HandMadeClient
from starlette.requests import Request
from starlette.responses import Response

from stethos.collect.enrolment import Enrolment, NotEnrolledError
from stethos.collect.receiver import Receiver
from stethos.collect.routes import CollectRoutes
from stethos.collect.sender import BATCH_PATH
from stethos.collect.shares import LATE_S, MOST_LATE_OF_ONE, BusyError, Shares


@pytest.fixture
def enrolment(tmp_path: Path) -> Enrolment:
    (tmp_path / "keys").mkdir()
    return Enrolment(tmp_path / "keys")


@pytest.fixture
def receiver(tmp_path: Path, enrolment: Enrolment, monkeypatch: pytest.MonkeyPatch) -> Iterator[Receiver]:
    """One whose clients may send three batches, and then hardly any."""
    monkeypatch.setattr("stethos.collect.shares.RATE_BATCHES", 1e-3)
    monkeypatch.setattr("stethos.collect.shares.BURST_BATCHES", 3.0)
    made = Receiver(tmp_path / "runs", enrolment)
    yield made
    made.close()


def posted(data: bytes) -> Request:
    async def body() -> dict[str, object]:
        return {"type": "http.request", "body": data, "more_body": False}

    return Request({"type": "http", "method": "POST", "path": BATCH_PATH, "headers": []}, body)


def test_who_asks_too_often_is_told_when_to_come_again(receiver: Receiver, enrolment: Enrolment) -> None:
    client = HandMadeClient(enrolment, "a")
    route, *_ = CollectRoutes(receiver, enrolment).routes()

    async def ask() -> list[Response]:
        return [await route.endpoint(posted(client.batch(number, [number]))) for number in range(1, 5)]

    began = time.monotonic()
    found = asyncio.run(ask())
    assert [one.status_code for one in found] == [200, 200, 200, 429]
    told = json.loads(bytes(found[-1].body))
    assert int(found[-1].headers["retry-after"]) == 60 == told["wait_s"] and "connection" not in found[-1].headers
    assert time.monotonic() - began >= LATE_S


def test_a_batch_beyond_the_share_costs_no_look_at_its_signature(
    receiver: Receiver, enrolment: Enrolment, monkeypatch: pytest.MonkeyPatch
) -> None:
    client, checked = HandMadeClient(enrolment, "a"), []
    check = enrolment.check
    monkeypatch.setattr(enrolment, "check", lambda batch: checked.append(batch) or check(batch))
    monkeypatch.setattr("stethos.collect.shares.LATE_S", 0.01)

    async def ask() -> list[object]:
        return [(await asyncio.gather(receiver.take(client.batch(number, [number])), return_exceptions=True))[0]
                for number in range(1, 50)]  # fmt: skip

    found = asyncio.run(ask())
    assert len(checked) == 3 and sum(isinstance(one, BusyError) for one in found) == 46


def test_nobody_uses_up_the_share_of_another(receiver: Receiver, enrolment: Enrolment) -> None:
    client, other = HandMadeClient(enrolment, "a"), HandMadeClient(enrolment, "b")

    async def ask() -> tuple[list[object], dict[str, object]]:
        forged = [receiver.take(other.batch(number, [1], client="a")) for number in range(1, 30)]
        refused = await asyncio.gather(*forged, return_exceptions=True)
        return refused, await receiver.take(client.batch(1, [1]))

    refused, stored = asyncio.run(ask())
    assert {type(one) for one in refused} == {NotEnrolledError} and stored == {"stored": True}


def test_only_so_many_answers_are_held() -> None:
    shares = Shares()

    async def ask() -> tuple[list[BusyError], float]:
        for _ in range(1000):
            try:
                shares.take("a", 1)
            except BusyError:
                break
        began = time.monotonic()
        asked = asyncio.gather(*(shares.knock("a", 65 << 20) for _ in range(200)), return_exceptions=True)
        await asyncio.sleep(0)
        await shares.knock("b", 1)  # at once: it has sent nothing yet
        took_s = time.monotonic() - began
        return [one for one in await asked if isinstance(one, BusyError)], took_s

    found, took_s = asyncio.run(ask())
    assert len(found) == 200 and sum(not one.ends for one in found) == MOST_LATE_OF_ONE
    assert took_s < 0.5 and shares._late == 0
