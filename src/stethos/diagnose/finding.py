"""What a detector finds."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import Any


class Severity(IntEnum):
    """How bad it is; from `WARNING` on a diagnosis ends with exit code 1."""

    INFO = 1
    WARNING = 2
    ERROR = 3

    @property
    def word(self) -> str:
        return self.name.lower()


@dataclass(frozen=True, slots=True)
class Subject:
    """Who or what a finding is about, and since when; empty or None where it does not apply.

    `first` and `last` are rounds of a federated training, steps of another one;
    `last` is None while it goes on. `federation` is told where a run has several.
    """

    clients: tuple[str, ...] = ()
    ranks: tuple[int, ...] = ()
    layers: tuple[str, ...] = ()
    process: str | None = None
    first: int | None = None
    last: int | None = None
    unit: str = "round"
    federation: str | None = None

    @property
    def key(self) -> tuple[object, ...]:
        """What stays the same while a finding lasts."""
        known = self.clients, self.ranks, self.layers[:1], self.process
        return known if self.federation is None else (*known, self.federation)


@dataclass(frozen=True, slots=True)
class Evidence:
    """One observation in words, the numbers to draw, and the SQL that shows them."""

    text: str
    sql: str = ""
    series: tuple[float, ...] = ()
    others: tuple[float, ...] = ()  # the same series of the typical client or of the time before, to compare


@dataclass(frozen=True, slots=True)
class Finding:
    """A diagnosed problem.

    `kind` is the detector's name, or for a detector that names kinds of faults
    the kind. `confidence` is calibrated: of findings with 0.9, nine in ten are
    right on the benchmark. `consequences` are findings that follow from it.
    """

    code: str
    name: str
    kind: str
    severity: Severity
    title: str
    subject: Subject = Subject()
    confidence: float = 1.0
    evidence: tuple[Evidence, ...] = ()
    next_step: str = ""
    detail: dict[str, Any] = field(default_factory=dict)
    consequences: tuple[Finding, ...] = ()
    is_open: bool = True

    @property
    def key(self) -> tuple[object, ...]:
        """The same problem seen again has the same key."""
        return self.code, self.kind, self.subject.key

    def with_consequences(self, *more: Finding) -> Finding:
        return replace(self, consequences=(*self.consequences, *more))

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        subject = self.subject
        return {
            "code": self.code,
            "name": self.name,
            "kind": self.kind,
            "severity": self.severity.word,
            "title": self.title,
            "clients": list(subject.clients),
            "ranks": list(subject.ranks),
            "layers": list(subject.layers),
            "process": subject.process,
            "federation": subject.federation,
            "first": subject.first,
            "last": subject.last,
            "unit": subject.unit,
            "confidence": round(self.confidence, 4),
            "evidence": [
                {"text": one.text, "sql": one.sql, "series": list(one.series), "others": list(one.others)}
                for one in self.evidence
            ],
            "next_step": self.next_step,
            "detail": self.detail,
            "consequences": [one.as_dict() for one in self.consequences],
            "open": self.is_open,
        }
