"""The guard swallows our own failures, counts them, and lets what is not ours pass."""

from __future__ import annotations

from typing import NoReturn

import pytest

from stethos.guard import LIMIT, Guard, attempt, outcome_of, text_of, tried


class Told(list[tuple[str, str]]):
    def __call__(self, place: str, reason: str) -> None:
        self.append((place, reason))


def fail(error: BaseException) -> NoReturn:
    raise error


def test_the_first_failure_and_the_switching_off_are_told_and_no_other() -> None:
    told = Told()
    guard = Guard(told)
    for number in range(LIMIT + 5):
        assert guard.run("loss", fail, ValueError(f"number {number}")) is None
    assert told == [
        ("loss", "ValueError: number 0"),
        ("loss", f"ValueError: number {LIMIT - 1}; switched off after {LIMIT} failures"),
    ]
    assert guard.failures == {"loss": LIMIT}


def test_a_place_that_is_off_is_not_called_and_others_go_on() -> None:
    guard = Guard()
    calls: list[str] = []

    def note(name: str) -> None:
        calls.append(name)
        raise ValueError

    wrapped = guard.wrap("one", note)
    for _ in range(LIMIT + 5):
        wrapped("one")
        guard.run("two", note, "two")
    assert (calls.count("one"), calls.count("two")) == (LIMIT, LIMIT)
    assert guard.is_off("one") and guard.run("three", lambda: 7) == 7


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, GeneratorExit])
def test_what_is_meant_for_the_program_passes(error: type[BaseException]) -> None:
    guard = Guard()
    with pytest.raises(error):
        guard.run("loss", fail, error())
    with pytest.raises(error):
        guard.wrap("loss", fail)(error())
    assert not guard.failures


def test_a_report_that_fails_is_dropped_and_counted() -> None:
    guard = Guard(lambda place, reason: fail(OSError("disk full")))
    assert guard.run("loss", fail, ValueError()) is None
    assert guard.failures == {"loss": 1, "guard": 1}


def test_an_error_without_words_is_told_all_the_same() -> None:
    class Mute(Exception):
        def __str__(self) -> str:
            raise RuntimeError

    told = Told()
    Guard(told).run("loss", fail, Mute())
    assert told == [("loss", "Mute: (a Mute that cannot be put into words)")]


def test_a_strict_guard_raises() -> None:
    with pytest.raises(ValueError, match="ours"):
        Guard(strict=True).run("loss", fail, ValueError("ours"))


def test_code_of_the_users_own_is_tried_without_blame() -> None:
    error = ValueError()
    assert attempt(fail, error) is None and attempt(int, "7") == 7
    assert tried(fail, error) == (None, error) and tried(int, "7") == (7, None)
    assert text_of(7) == "7" and text_of(b"x", bytes.decode) == "x"


def test_code_that_was_typed_may_exit_but_ctrl_c_is_the_trainings() -> None:
    left = SystemExit(3)
    assert outcome_of(fail, left) is left and outcome_of(int, "7") == 7
    with pytest.raises(KeyboardInterrupt):
        outcome_of(fail, KeyboardInterrupt())
