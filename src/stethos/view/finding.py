"""What is wrong with a run, for every screen: findings with their proofs and actions, and whom they mark.

The values are `diagnose`'s own: `Diagnosis`, its `conclusion`, and `Finding`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from stethos.diagnose.diagnosis import Conclusion, Diagnosis
from stethos.diagnose.finding import Finding, Severity
from stethos.diagnose.followup import completed
from stethos.diagnose.life import read_diagnosis
from stethos.diagnose.version import usual_version

if TYPE_CHECKING:
    from stethos.diagnose.detector import Detector
    from stethos.store.run import Run


@dataclass(frozen=True, slots=True)
class ClientMark:
    """Why a client is marked: the gravest finding that names it.

    `is_accused`: it is a problem, and this client's own. Otherwise detectors only remark it, or it suffers from
    another one's fault.
    """

    client: str
    finding: Finding
    is_accused: bool

    @property
    def kind(self) -> str:
        return self.finding.kind

    @property
    def severity(self) -> Severity:
        return self.finding.severity

    @property
    def confidence(self) -> float:
        return self.finding.confidence

    @property
    def is_over(self) -> bool:
        return not self.finding.is_open

    @property
    def text(self) -> str:
        """`label-flip, 99 %, since round 4, proved`."""
        one = self.finding
        proof = "" if one.proof is None else one.proof.verdict
        sure = f"{one.confidence:.0%}".replace("%", " %") if one.is_problem else ""
        return ", ".join(filter(None, (one.kind, sure, when_text(one), proof)))


def findings_of(run: Run, detectors: Sequence[Detector] | None = None) -> Diagnosis:
    """What is wrong with a run, with proofs and actions.

    Of a run that is over the diagnosis that was kept, if it is of these rows and these detectors (default: those of
    `stethos.toml`); else it is made now. Nothing is written.
    """
    usual = usual_version(run) if detectors is None and not run.is_live else None
    if usual is not None and (known := read_diagnosis(run.path, usual)) is not None:
        return completed(known, run)
    from stethos.diagnose.api import configured_detectors, look, version_of  # all detectors, which lists do not need

    detectors = configured_detectors() if detectors is None else detectors
    kept = None if run.is_live else read_diagnosis(run.path, version_of(run, detectors))
    return completed(kept or look(run, detectors), run)


def conclusion_of(directory: Path) -> Conclusion:
    """What the last diagnosis that was kept says of a run; for lists, which look at no rows."""
    kept = read_diagnosis(directory)
    return Conclusion() if kept is None else kept.conclusion


def client_marks(findings: Iterable[Finding], federation: str | None = None) -> dict[str, ClientMark]:
    """The clients that findings name, by name: accused first, then those that are only remarked.

    Nothing else marks a client on a screen. With a `federation`, only what is about it.
    """
    marks: list[ClientMark] = []
    for root in findings:
        for one in (root, *root.consequences):
            if federation is None or one.subject.federation in (None, federation):
                is_own = one is root or bool(set(one.subject.clients) & set(root.subject.clients))
                marks += [ClientMark(client, one, one.is_problem and is_own) for client in one.subject.clients]
    marks.sort(key=lambda mark: (not mark.is_accused, mark.is_over, -mark.severity, -mark.confidence))
    first: dict[str, ClientMark] = {}
    for mark in marks:
        first.setdefault(mark.client, mark)
    return first


def when_text(one: Finding) -> str:
    """`since round 3`, or `rounds 3 to 5` of what is over."""
    subject = one.subject
    if subject.first is None:
        return ""
    if one.is_open:
        return f"since {subject.unit} {subject.first:,}"
    if subject.last is None:
        return f"{subject.unit} {subject.first:,}, over now"
    if subject.first == subject.last:
        return f"{subject.unit} {subject.first:,} only"
    return f"{subject.unit}s {subject.first:,} to {subject.last:,}"
