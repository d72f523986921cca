"""What another tool's file says, whatever the tool."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple


class LoggedNumber(NamedTuple):
    """A number under a name."""

    name: str
    step: int
    t_ns: int
    value: float


class LoggedMedia(NamedTuple):
    """A text or an image, as `media` keeps it."""

    name: str
    kind: str
    step: int
    t_ns: int
    content: str


class LoggedSetting(NamedTuple):
    """A hyperparameter."""

    name: str
    value: Any


Logged = LoggedNumber | LoggedMedia | LoggedSetting


@dataclass(slots=True)
class Damage:
    """What could not be read: records by themselves, and bytes between them."""

    records: int = 0
    bytes: int = 0

    def __str__(self) -> str:
        said = [f"{self.records:,} damaged records"] if self.records else []
        return " and ".join([*said, f"{self.bytes:,} damaged bytes"] if self.bytes else said)
