"""What a detector finds, with what was proved and done about it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
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

    def __str__(self) -> str:
        return self.word


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
    """One observation in words, the numbers to draw with their names, and the SQL that shows them."""

    text: str
    sql: str = ""
    series: tuple[float, ...] = ()
    others: tuple[float, ...] = ()  # the same series of the typical client or of the time before, to compare
    names: tuple[str, ...] = ()  # of `series` and `others`; by default the client or rank, and the others


@dataclass(frozen=True, slots=True)
class ProofResult:
    """What `stethos prove` said of a finding; values are mean, low and high of a measure such as accuracy."""

    verdict: str  # proved, refuted or undecided
    words: str = ""
    measure: str = "accuracy"
    before: tuple[float, ...] = ()
    without: tuple[float, ...] = ()
    control: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class ActionTaken:
    """A correction: what was done about a fault, or in a dry run would have been."""

    action: int
    what: str
    state: str
    mode: str = "on"
    client: str | None = None
    kind: str | None = None
    first: int | None = None
    last: int | None = None
    unit: str = "round"
    times: int | None = None
    reason: str = ""
    effect: str = ""
    federation: str | None = None

    @property
    def text(self) -> str:
        """`quarantine c5, rounds 4 to 9: active`."""
        who = f" {self.client}" if self.client is not None else ""
        when = f"{self.unit} {self.first}" if self.first == self.last else f"{self.unit}s {self.first} to {self.last}"
        return f"{self.what}{who}, {when}: {self.state}"


@dataclass(frozen=True, slots=True)
class Finding:
    """A diagnosed problem, or below `WARNING` a remark that is no fault.

    `kind` is the detector's name, or for a detector that names kinds of faults
    the kind. `confidence` is calibrated: of findings with 0.9, nine in ten are
    right on the benchmark. `consequences` are findings that follow from it. `proof` and
    `actions` are added when it is shown: detectors do not know them.
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
    proof: ProofResult | None = None
    actions: tuple[ActionTaken, ...] = ()

    @property
    def is_problem(self) -> bool:
        """Whether it is a fault; remarks, as those about speed, are not."""
        return self.severity >= Severity.WARNING

    @property
    def state(self) -> str:
        """`problem`, or `problem, over since round 179`; of a remark `info`."""
        return f"{'problem' if self.is_problem else 'info'}{'' if self.is_open else f', {over_since(self)}'}"

    def _repr_html_(self) -> str:
        from stethos.store.html import table_html

        about = self.subject
        who = ", ".join([*about.clients, *(f"rank {rank}" for rank in about.ranks), *about.layers])
        facts = {
            "what": f"{self.kind} ({self.code}), {self.state}",
            "who": who,
            "since": "" if about.first is None else f"{about.unit} {about.first}",
            "sure": f"{self.confidence:.0%}",
            "proof": "" if self.proof is None else f"{self.proof.verdict}: {self.proof.words}",
            "seen": "\n".join(one.text for one in self.evidence),
            "so": "\n".join(one.title for one in self.consequences),
            "next": self.next_step,
        }
        return table_html(("", ""), [one for one in facts.items() if one[1]], self.title)

    @property
    def key(self) -> tuple[object, ...]:
        """The same problem seen again has the same key."""
        return self.code, self.kind, self.subject.key

    def with_consequences(self, *more: Finding) -> Finding:
        return replace(self, consequences=(*self.consequences, *more))

    def series_names(self, evidence: Evidence) -> tuple[str, str]:
        """What the two curves of an evidence are called."""
        if evidence.names:
            return evidence.names[0], evidence.names[-1]
        if self.subject.clients:
            return self.subject.clients[0] if len(self.subject.clients) == 1 else "these", "others"
        if self.subject.ranks:
            return f"rank {self.subject.ranks[0]}", "others"
        return ("it", "to compare") if len(evidence.others) > 1 else ("", "")

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        subject = self.subject
        return {
            "key": json.dumps(self.key),
            "code": self.code,
            "name": self.name,
            "kind": self.kind,
            "severity": self.severity.word,
            "state": self.state,
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
            "evidence": [{**asdict(one), "names": self.series_names(one)} for one in self.evidence],
            "proof": None if self.proof is None else asdict(self.proof),
            "actions": [{**asdict(one), "text": one.text} for one in self.actions],
            "next_step": self.next_step,
            "detail": self.detail,
            "consequences": [one.as_dict() for one in self.consequences],
            "open": self.is_open,
        }


def finding_from(facts: Mapping[str, Any]) -> Finding:
    """A finding from its `as_dict`, but for its proof and actions, which are read anew."""
    clients, ranks, layers = (tuple(facts[name]) for name in ("clients", "ranks", "layers"))
    rest = {name: facts[name] for name in ("process", "first", "last", "unit", "federation")}
    subject = Subject(clients, ranks, layers, **rest)
    numbers = [{name: tuple(map(float, one[name])) for name in ("series", "others")} for one in facts["evidence"]]
    return Finding(
        **{name: facts[name] for name in ("code", "name", "kind", "title", "confidence", "next_step", "detail")},
        severity=Severity[facts["severity"].upper()],
        subject=subject,
        evidence=tuple(
            Evidence(one["text"], one["sql"], **curves, names=tuple(one["names"]))
            for one, curves in zip(facts["evidence"], numbers, strict=True)
        ),
        consequences=tuple(map(finding_from, facts["consequences"])),
        is_open=facts["open"],
    )


def over_since(*findings: Finding) -> str:
    """`over since round 179`: when the last of them was seen last; `over` where nobody knows."""
    known = [one.subject for one in findings if one.subject.last is not None]
    if not known:
        return "over"
    last = max(known, key=lambda subject: subject.last or 0)
    return f"over since {last.unit} {last.last:,}"
