"""Rounds and steps of a window, taken apart once for all detectors."""

from __future__ import annotations

from stethos.diagnose.window import Window
from stethos.profile.round_time import ROUND_COLUMNS, RoundTime, round_times
from stethos.profile.step_time import STEP_COLUMNS, StepTime, step_times
from stethos.profile.trip import TURN_COLUMNS

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
