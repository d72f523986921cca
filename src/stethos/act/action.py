"""What a correction is made of: its mode and bounds, the treatment of an update, and the action that is recorded."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from stethos.errors import UsageError

Mode = Literal["off", "dry-run", "on"]
What = Literal[
    "drop-update", "clip-update", "quarantine", "down-weight", "robust-aggregate", "roll-back", "skip-step",
    "clip-gradient", "lower-rate",
]  # fmt: skip
ActionState = Literal["proposed", "active", "over", "undone", "refused"]
MODES: tuple[Mode, ...] = get_args(Mode)


def parse_mode(value: object) -> Mode:
    """The mode of a correction; UsageError if there is none of that name."""
    for mode in MODES:
        if value == mode:
            return mode
    raise UsageError(f"correct={value!r}", hint=f"one of {', '.join(map(repr, MODES))}")


@dataclass(frozen=True, slots=True)
class CorrectionLimits:
    """How far corrections may go, however sure they are.

    `clients` and `weight` are the largest shares of a round's clients and of
    their weight that may be left out or weighed down; `agree` is in how many
    rounds a client must have been accused, of the last `within`; `probability` how
    sure each accusation must be. `new_per_round` is the share of clients on which
    new actions may begin in a round. `rollbacks` are allowed in a run, and `skips` of any hundred steps.
    """

    clients: float = 1 / 3
    weight: float = 0.5
    agree: int = 2
    within: int = 3
    probability: float = 0.9
    new_per_round: float = 1 / 3
    rollbacks: int = 3
    skips: int = 20
    rate_cuts: int = 3


@dataclass(frozen=True, slots=True)
class Treatment:
    """What happens to one update: its weight times `weight`, its change times `scale`."""

    weight: float = 1.0
    scale: float = 1.0


@dataclass(slots=True)
class Action:
    """Something that was done, or with `dry-run` would have been; the row of `actions`.

    `first` and `last` are rounds, or steps where `unit` says so.
    """

    number: int
    what: What
    mode: Mode
    state: ActionState
    reason: str
    first: int
    last: int
    client: str | None = None
    kind: str = ""
    unit: str = "round"
    times: int = 1
    evidence: Mapping[str, Any] = field(default_factory=dict)
    norm_before: float | None = None
    norm_after: float | None = None
    effect: str = ""
