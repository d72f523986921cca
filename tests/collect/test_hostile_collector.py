"""A collector that tries to raise a site's level or to make a client act; `make collectattack` tries it more often."""

from __future__ import annotations

import random

import pytest
from attack.hostile import an_answer, attack, is_harmless

from stethos.collect.answer import MOST_ANSWER_BYTES, read_answer


def test_no_answer_over_the_wire_raises_a_level_or_makes_a_client_act() -> None:
    found = attack(100, seed=1)
    assert is_harmless(found) and found["tries"] == 100 and found["left"] == 0, found


@pytest.mark.parametrize("change", [{"acts": ["exec"]}, {"level": "L4"}, {"site changed": True}, {"written down": 1}])
def test_what_would_be_harm_is_seen_as_harm(change: dict[str, object]) -> None:
    fine = {"tries": 5, "written down": 5, "acts": [], "level": "L1", "site changed": False}
    assert is_harmless(fine) and not is_harmless({**fine, **change})


def test_every_try_says_something_beyond_and_a_plain_answer_nothing() -> None:
    chance = random.Random(3)
    assert all(read_answer(*an_answer(chance)).beyond for _ in range(1000))
    plain = [(200, b'{"stored": true}'), (429, b'{"error": "e", "hint": "", "wait_s": 60}'), (503, b""), (404, b"{}")]
    assert not any(read_answer(status, [("Retry-After", "7")], body).beyond for status, body in plain)


@pytest.mark.parametrize("body", [b"[]", b"7", b"{" * 9000, b"\x80\x04", b"{" + b" " * MOST_ANSWER_BYTES + b"}"])
def test_what_is_no_answer_is_written_down_short(body: bytes) -> None:
    found = read_answer(200, [], body)
    assert found.wait_s is None and set(found.beyond) == {"body"} and len(found.beyond["body"]) <= 302
