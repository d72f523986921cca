"""One root cause, with what follows from it."""

from __future__ import annotations

from dataclasses import replace

from stethos.diagnose.engine import fold
from stethos.diagnose.finding import Finding, Severity, Subject

EXPLAINS = {"cause": frozenset({"effect"}), "effect": frozenset({"last"})}


def finding(name: str, first: int = 1, **more: object) -> Finding:
    made = Finding(name[:1], name, name, Severity.WARNING, name, Subject(first=first))
    return replace(made, **more)  # type: ignore[arg-type]


def test_a_chain_goes_to_its_first_cause() -> None:
    (one,) = fold([finding("last", 3), finding("effect", 2), finding("cause", 1)], EXPLAINS)
    assert (one.name, {effect.name for effect in one.consequences}) == ("cause", {"effect", "last"})


def test_what_came_before_does_not_follow() -> None:
    assert len(fold([finding("effect", 1), finding("cause", 2)], EXPLAINS)) == 2


def test_a_cause_is_as_grave_as_what_follows_and_lasts_as_long() -> None:
    effect = finding("effect", 2, severity=Severity.ERROR)
    (one,) = fold([finding("cause", is_open=False), effect], EXPLAINS)
    assert one.is_open and one.severity is Severity.ERROR
    (one,) = fold([finding("cause", is_open=False), replace(effect, is_open=False)], EXPLAINS)
    assert not one.is_open


def test_a_crash_that_came_after_nan_stands_behind_it_and_one_before_it_does_not() -> None:
    crash = finding("process-failure", 400, severity=Severity.ERROR, confidence=1.0)
    broken = finding("non-finite-loss", 300, severity=Severity.ERROR, confidence=0.98)
    assert [one.name for one in fold([crash, broken], {})] == ["non-finite-loss", "process-failure"]
    late = replace(broken, subject=Subject(first=500))  # of another process, say
    assert [one.name for one in fold([crash, late], {})] == ["process-failure", "non-finite-loss"]
    over = replace(broken, is_open=False)
    assert [one.name for one in fold([crash, over], {})] == ["process-failure", "non-finite-loss"]


def test_what_a_client_does_follows_from_what_that_client_has_and_nobody_else() -> None:
    def of(name: str, client: str, first: int = 1) -> Finding:
        return finding(name, subject=Subject(clients=(client,), first=first))

    found = fold([of("cause", "c2"), of("cause", "c7", 2), of("effect", "c7", 3)], EXPLAINS)
    assert [[effect.name for effect in one.consequences] for one in found] == [[], ["effect"]]
    assert len(fold([of("cause", "c2"), of("effect", "c7", 3)], EXPLAINS)) == 2
    (one,) = fold([of("cause", "c2"), of("non-finite-loss", "c7", 3)], {"cause": frozenset({"non-finite-loss"})})
    assert one.subject.clients == ("c2",)
