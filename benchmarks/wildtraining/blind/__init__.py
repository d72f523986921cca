"""36 training programs with a bug and their corrected twins, and 14 healthy ones, written without knowing the rules.

They were written on 18 November 2026 from 05:20 to 06:30 UTC and kept apart since. Their author had seen the programs
beside this package, and with them the names of findings that these expect, but no detector, no page about one and no
figure. So no finding is named here: beside each program stands its cause as one plain sentence, and words of which a
right statement would have to use some. Somebody reads what was said (`python -m benchmarks.wildtraining --said`) and
judges.

Each bug is the mechanism of a public report, whose address stands beside it. A program returns a measure of how badly
its model does in the end, and `good` is what the twin has to stay below (`python -m benchmarks.wildtraining.blind`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from benchmarks.wildtraining.case import Case

Measured = Callable[[bool], float]  # given whether the bug is in it; how badly the model does in the end


@dataclass(frozen=True, slots=True)
class BlindCase(Case):
    """A program that somebody judges by reading; `keywords` are words of a right statement, some of which it needs."""

    cause: str = ""
    keywords: tuple[str, ...] = ()
    good: float = 0.0  # the twin's measure stays below

    @property
    def judged_by(self) -> list[str]:
        return [f"Words: {', '.join(self.keywords)}"]


BLIND: dict[str, BlindCase] = {}


def bug(cause: str, *keywords: str, source: str, good: float) -> Callable[[Measured], Measured]:
    """Put a program with a bug into the table, under its own name."""
    return _enter("blind", cause, keywords, source, good)


def healthy(what: str, good: float) -> Callable[[Measured], Measured]:
    """Put a program without a bug into the table; nothing in it is to be accused."""
    return _enter("healthy", what, (), "", good)


def _enter(family: str, cause: str, keywords: tuple[str, ...], source: str, good: float) -> Callable:
    def enter(program: Measured) -> Measured:
        name = program.__name__.replace("_", "-")
        assert name not in BLIND, name
        BLIND[name] = BlindCase(name, family, program, (), (), source, cause, keywords, good)
        return program

    return enter
