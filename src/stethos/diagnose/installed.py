"""Detectors of other packages, found by the entry point group `stethos.detectors`."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import is_dataclass
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from stethos.diagnose.configuration import ENTRY_POINTS
from stethos.diagnose.detector import Detector
from stethos.diagnose.finding import Severity
from stethos.guard import tried


def installed_detectors(ours: Mapping[str, type[Detector]]) -> dict[str, type[Detector]]:
    """By code; one that cannot be loaded or used is left out, with a warning that names its package."""
    found: dict[str, type[Detector]] = {}
    for point in sorted(entry_points(group=ENTRY_POINTS), key=lambda one: one.name):
        detector, error = tried(point.load)
        fault = f"{type(error).__name__}: {error}" if error is not None else _fault(detector, {**ours, **found})
        if fault:
            warnings.warn(f"detector {point.name!r} of {_package(point)} is left out: {fault}", stacklevel=2)
        else:
            made: type[Detector] = detector  # type: ignore[assignment]
            found[made.code] = made
    return found


def _fault(detector: Any, known: Mapping[str, type[Detector]]) -> str:
    """What keeps an object from being used as a detector; "" if nothing does."""
    if not isinstance(detector, type) or not is_dataclass(detector):
        return "not a dataclass"
    kinds = {"code": str, "name": str, "severity": Severity, "needs": Mapping, "reads": Mapping, "explains": frozenset}
    for name, kind in kinds.items():
        if not isinstance(getattr(detector, name, None), kind):
            return f"its {name!r} is not a {kind.__name__}"
    if not callable(getattr(detector, "check", None)) or not detector.__doc__:
        return "it has no method check, or no docstring"
    taken = {*known, *(one.name for one in known.values())}
    return next((f"{key!r} is taken" for key in (detector.code, detector.name) if key in taken), "")  # type: ignore[attr-defined]


def _package(point: EntryPoint) -> str:
    return point.dist.name if point.dist is not None else point.value
