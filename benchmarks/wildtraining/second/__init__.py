"""40 training programs with a bug and their corrected twins, and 20 healthy ones of unusual kinds, written unseen.

They were written on 2026-11-18, 12:05 to 12:36 UTC, before any of them was run under Stethos. Their author had not read
the diagnosis, what it observes, its pages or the other lists of programs, except two programs of `blind`, as examples
of the form. The author knew what is planned for the diagnosis (a list of kinds of bugs) and the names of some twenty
findings, which `wildtraining/case.py` and `wildtraining/play.py` mention.

No finding is named here. Beside each program stand its cause in one sentence, what a statement has to say to have
named it, and what counts as a symptom only; somebody reads what was said and judges (`python -m benchmarks.wildtraining
--second --said FILE`). A twin differs from its program in just the bug. Nothing is to be accused in twins and healthy
programs.

Each bug is the mechanism of a public report, whose address stands beside it. A program returns a measure of how badly
its model does on data held back, and `good` is what the twin has to stay below. What both measured without Stethos is
in `plain.json` (`python -m benchmarks.wildtraining.second --write`, 2026-11-18 13:09 UTC, on two cores shared with
others at a load of about 10): all 40 bugs make the measure worse, by a factor of at least 1.6.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from benchmarks.wildtraining.blind import BlindCase, Measured


@dataclass(frozen=True, slots=True)
class SecondCase(BlindCase):
    """A program that somebody judges by reading, with what it takes to have named the cause or a symptom of it."""

    must_say: str = ""
    symptom: str = ""

    @property
    def judged_by(self) -> list[str]:
        return [f"Named if it says: {self.must_say}", f"Symptom only: {self.symptom}"]


SECOND: dict[str, SecondCase] = {}


def bug(*, cause: str, must_say: str, symptom: str, source: str, good: float) -> Callable[[Measured], Measured]:
    """Put a program with a bug into the table, under its own name."""
    return _enter("blind", cause, must_say, symptom, source, good)


def healthy(what: str, good: float) -> Callable[[Measured], Measured]:
    """Put a program without a bug into the table; nothing in it is to be accused."""
    return _enter("healthy", what, "", "", "", good)


def _enter(family: str, cause: str, must_say: str, symptom: str, source: str, good: float) -> Callable:
    def enter(program: Measured) -> Measured:
        name = program.__name__.replace("_", "-")
        assert name not in SECOND, name
        SECOND[name] = SecondCase(
            name, family, program, (), (), source, cause, good=good, must_say=must_say, symptom=symptom
        )
        return program

    return enter
