"""For tests of detectors: their answers to hand-made windows, which are those of the docs."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tools"))

import detector_cases as cases

from stethos.diagnose.detectors import DETECTORS
from stethos.diagnose.finding import Finding
from stethos.diagnose.window import Window

__all__ = ["cases", "found", "of_turns"]


def found(code: str, window: Window, **thresholds: float) -> list[Finding]:
    """What one detector finds."""
    return list(DETECTORS[code](**thresholds).check(window))


def of_turns(change: Any, **options: Any) -> Window:
    """A window of client turns that differ from healthy ones by `change`."""
    return Window({"client_rounds": cases.turns(change, **options)})
