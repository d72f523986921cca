"""A buggy program and what counts as its diagnosis; all of them by name, in two halves."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import dataclass

Program = Callable[[bool], None]  # given whether the bug is in it


def seed_of(run: str) -> int:
    """The seed of a run of this name: always the same, and another for a twin."""
    return zlib.crc32(run.encode()) % 1000


@dataclass(frozen=True, slots=True)
class Case:
    """`causes` name the bug itself, `symptoms` what follows from it: a detector, or `detector:kind`.

    Both are written down with the program, before its first run.
    """

    name: str
    family: str  # port, pattern, mutation
    program: Program
    causes: tuple[str, ...]
    symptoms: tuple[str, ...]
    source: str = ""

    @property
    def half(self) -> str:
        """`dev` or `held`, by a checksum of the name: nobody chooses."""
        return ("dev", "held")[zlib.crc32(self.name.encode()) >> 7 & 1]


CASES: dict[str, Case] = {}

# What any training that does not learn may be said to have.
STUCK = (
    "plateau", "slow-progress", "implausible-loss", "frozen-layers", "detached-loss", "learning-rate-too-low",
    "update-to-weight-ratio", "lost-gradients",
)  # fmt: skip
BLOWN_UP = (
    "divergence", "oscillation", "exploding-gradients", "weight-explosion", "non-finite-loss", "non-finite-gradients",
    "non-finite-weights", "learning-rate-too-high", "series-anomaly", "plateau", "slow-progress", "dead-units",
)  # fmt: skip


def case(
    *causes: str, symptoms: tuple[str, ...] = STUCK, family: str = "pattern", source: str = ""
) -> Callable[[Program], Program]:
    """Put a program into the table, under its own name."""

    def enter(program: Program) -> Program:
        name = program.__name__.replace("_", "-")
        assert name not in CASES, name
        CASES[name] = Case(name, family, program, causes, symptoms, source)
        return program

    return enter
