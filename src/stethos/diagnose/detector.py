"""What a detector is."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import field
from typing import ClassVar, Protocol, TypeAlias, TypeVar

from stethos.diagnose.finding import Finding, Severity
from stethos.diagnose.window import Window

Needs: TypeAlias = Mapping[str, frozenset[str]]  # columns by table
Number = TypeVar("Number", int, float)


class CannotTell(Exception):  # noqa: N818  # it is an answer, not a failure
    """Raised by a detector's `check` when the rows are there but too few to judge; the message says why."""


def threshold(default: Number, meaning: str) -> Number:
    """A field of a detector that users can set; its page shows what the number counts or compares with."""
    return field(default=default, metadata={"meaning": meaning})


class Detector(Protocol):
    """One trouble and how it is recognised: a frozen dataclass in a file of its own.

    Its docstring is the user's page: a sentence, then paragraphs that begin
    with "What it looks at:", "Why it matters:", "Not a fault when:", "Next
    step:". Thresholds are fields, each a `threshold` with its meaning. `needs` are the tables and
    columns without which it cannot work, `reads` those that it uses if they are
    there. `explains` are names of other detectors whose findings follow from its
    own when they come later. `check` keeps nothing and raises nothing on purpose but
    `CannotTell`.
    """

    code: ClassVar[str]
    name: ClassVar[str]
    severity: ClassVar[Severity]
    needs: ClassVar[Needs]
    reads: ClassVar[Needs]
    explains: ClassVar[frozenset[str]]

    def check(self, window: Window) -> Iterator[Finding]: ...
