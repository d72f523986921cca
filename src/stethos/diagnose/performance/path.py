"""Rounds and steps of a window, taken apart once for all detectors, and bottlenecks as findings."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from stethos.diagnose.finding import Evidence, Finding, Severity, Subject
from stethos.diagnose.window import Window
from stethos.profile.bottleneck import Bottleneck
from stethos.profile.round_time import ROUND_COLUMNS, RoundTime, round_times
from stethos.profile.step_time import STEP_COLUMNS, StepTime, step_times
from stethos.profile.trip import TURN_COLUMNS

if TYPE_CHECKING:
    from stethos.diagnose.detector import Detector

ROUNDS_READ = {"rounds": ROUND_COLUMNS, "client_rounds": TURN_COLUMNS}
STEPS_READ = {"steps": STEP_COLUMNS}


def rounds_in(window: Window) -> list[RoundTime]:
    """The window's rounds, taken apart."""
    return window.derive(_rounds)


def steps_in(window: Window) -> list[StepTime]:
    """The window's steps, added up by process."""
    return window.derive(_steps)


def _rounds(window: Window) -> list[RoundTime]:
    return round_times(window.frame("rounds"), window.frame("client_rounds"))


def _steps(window: Window) -> list[StepTime]:
    return step_times(window.frame("steps"))


def finding_of(
    detector: Detector, one: Bottleneck, *, first: int | None, unit: str, confidence: float = 0.9, **evidence: Any
) -> Finding:
    """A bottleneck as a finding; `evidence` are the series to draw."""
    subject = Subject(one.clients, one.ranks, one.layers, one.process, first, unit=unit)
    return Finding(
        detector.code,
        detector.name,
        detector.name if one.kind in ("slow-link", "slow-client", "more-data") else one.kind,
        Severity.INFO,
        one.verdict,
        subject,
        confidence=confidence,
        evidence=(Evidence(one.evidence, one.sql, **evidence),),
        next_step=one.next_step,
        detail={"share": one.share, **one.detail},
    )
