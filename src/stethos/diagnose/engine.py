"""Runs detectors over a window, folds what belongs together, and says what could not be checked."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from stethos.diagnose.detector import CannotTell, Detector
from stethos.diagnose.finding import Finding, Severity
from stethos.diagnose.fold import fold
from stethos.diagnose.window import Window
from stethos.guard import Guard


@dataclass(frozen=True, slots=True)
class NotChecked:
    """A detector that could not work, and why."""

    code: str
    name: str
    reason: str


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """What was found, most severe first, and what was not looked for."""

    findings: tuple[Finding, ...] = ()
    checked: tuple[str, ...] = ()
    not_checked: tuple[NotChecked, ...] = ()

    @property
    def worst(self) -> Severity | None:
        return max((finding.severity for finding in self.findings if finding.is_open), default=None)

    @property
    def exit_code(self) -> int:
        """0: nothing wrong; 1: an open finding of severity warning or above."""
        return 1 if self.worst is not None and self.worst >= Severity.WARNING else 0


def _checked(detector: Detector, window: Window) -> list[Finding] | str:
    """What a detector finds, or why it cannot tell."""
    reason = ["the detector itself failed"]

    def check() -> list[Finding] | str:
        try:
            with np.errstate(all="ignore"), warnings.catch_warnings():
                warnings.simplefilter("ignore", RuntimeWarning)  # NaN and infinities are what we are here for
                return list(detector.check(window))
        except CannotTell as answer:
            return str(answer)

    found = Guard(lambda _, words: reason.append(words)).run(detector.code, check)
    return ": ".join(reason) if found is None else found


def needs_of(detectors: Iterable[Detector]) -> dict[str, frozenset[str]]:
    """All tables and columns that some detector reads."""
    needs: dict[str, frozenset[str]] = {}
    for detector in detectors:
        for source in (detector.needs, detector.reads):
            for table, columns in source.items():
                needs[table] = needs.get(table, frozenset()) | columns
    return needs


def examine(window: Window, detectors: Sequence[Detector]) -> Diagnosis:
    """Let each detector look at the window. One that fails is reported as not checked, with its error."""
    findings: list[Finding] = []
    checked: list[str] = []
    not_checked: list[NotChecked] = []
    for detector in detectors:
        reason = next(filter(None, (window.missing(table, columns) for table, columns in detector.needs.items())), "")
        if reason:
            not_checked.append(NotChecked(detector.code, detector.name, reason))
            continue
        found = _checked(detector, window)
        if isinstance(found, str):
            not_checked.append(NotChecked(detector.code, detector.name, found))
            continue
        checked.append(detector.code)
        findings.extend(found)
    explains = {detector.name: detector.explains for detector in detectors}
    return Diagnosis(tuple(fold(findings, explains)), tuple(checked), tuple(not_checked))
