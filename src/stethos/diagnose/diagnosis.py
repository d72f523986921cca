"""What a diagnosis says of a run: findings, what could not be checked, and the one conclusion for every screen."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

from stethos.diagnose.finding import Finding, Severity, finding_from, over_since

State = Literal["problem", "problem, over", "nothing found", "nothing could be checked", "not diagnosed"]
Colour = Literal["red", "amber", "green", "grey"]


@dataclass(frozen=True, slots=True)
class NotChecked:
    """A detector that could not work, and why."""

    code: str
    name: str
    reason: str


@dataclass(frozen=True, slots=True)
class Conclusion:
    """The one answer to "what is wrong with this run": a state, its words, a colour, and how many of each there are."""

    state: State = "not diagnosed"
    text: str = "not diagnosed"
    colour: Colour = "grey"
    problems: int = 0  # that go on
    over: int = 0
    infos: int = 0
    first: str = ""  # the title of the first problem, one that goes on before one that is over


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """What was found, most severe first, and what was not looked for.

    `has_training`: some detector saw steps, rounds, clients or layers. `version` tells which rows were looked at.
    """

    findings: tuple[Finding, ...] = ()
    checked: tuple[str, ...] = ()
    not_checked: tuple[NotChecked, ...] = ()
    has_training: bool = True
    version: str = ""

    @property
    def worst(self) -> Severity | None:
        return max((finding.severity for finding in self.findings if finding.is_open), default=None)

    @property
    def exit_code(self) -> int:
        """0: nothing wrong; 1: an open finding of severity warning or above."""
        return int(any(one.is_open and one.is_problem for one in self.findings))

    @property
    def conclusion(self) -> Conclusion:
        """What every screen says first."""
        problems = [one for one in self.findings if one.is_problem]
        over = [one for one in problems if not one.is_open]
        counts = len(problems) - len(over), len(over), len(self.findings) - len(problems)
        first = next((one.title for one in (*(one for one in problems if one.is_open), *over)), "")
        if counts[0]:
            text = _count(counts[0]) + (f", {len(over)} more {over_since(*over)}" if over else "")
            return Conclusion("problem", text, "red" if self.worst == Severity.ERROR else "amber", *counts, first)
        if over:
            return Conclusion("problem, over", f"{_count(len(over))}, {over_since(*over)}", "amber", *counts, first)
        if not self.checked or not self.has_training:
            return Conclusion("nothing could be checked", "nothing could be checked", "grey", *counts)
        return Conclusion("nothing found", "nothing found", "green", *counts)

    def _repr_html_(self) -> str:
        from stethos.store.html import table_html

        rows = [
            (one.code, one.severity.word, one.title, one.state, f"{one.confidence:.0%}", one.next_step)
            for one in self.findings
        ]
        headings = ("code", "severity", "what is wrong", "state", "sure", "next")
        checked = f"{len(self.checked)} checks made, {len(self.not_checked)} not possible"
        return table_html(headings if rows else (), rows, self.conclusion.text, checked)

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "exit_code": self.exit_code,
            "worst": None if self.worst is None else self.worst.word,
            "conclusion": asdict(self.conclusion),
            "findings": [finding.as_dict() for finding in self.findings],
            "checked": list(self.checked),
            "not_checked": [asdict(one) for one in self.not_checked],
            "has_training": self.has_training,
        }


def diagnosis_from(facts: Mapping[str, Any], version: str = "") -> Diagnosis:
    """A diagnosis from its `as_dict`; proofs and actions are read anew."""
    not_checked = tuple(NotChecked(**one) for one in facts["not_checked"])
    findings = tuple(map(finding_from, facts["findings"]))
    return Diagnosis(findings, tuple(facts["checked"]), not_checked, facts["has_training"], version)


def _count(problems: int) -> str:
    return f"{problems:,} problem{'s' if problems > 1 else ''}"
