"""The training benchmark asks for what the detectors can find."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from stethos.diagnose.detectors import DETECTORS

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.trainbench.faulty import FAULTS
from benchmarks.trainbench.healthy import HEALTHY
from benchmarks.trainbench.unseen import UNSEEN_FAULTS, UNSEEN_HEALTHY


def test_it_is_as_large_as_promised() -> None:
    assert len(FAULTS) >= 24 and len(HEALTHY) >= 30
    assert not set(FAULTS) & set(UNSEEN_FAULTS) and not set(HEALTHY) & set(UNSEEN_HEALTHY)


@pytest.mark.parametrize("case", [*FAULTS, *UNSEEN_FAULTS])
def test_every_fault_names_detectors_that_exist(case: str) -> None:
    names = {detector.name for detector in DETECTORS.values()}
    assert {*FAULTS, *UNSEEN_FAULTS} and set({**FAULTS, **UNSEEN_FAULTS}[case].names) <= names


def test_every_detector_has_a_fault() -> None:
    asked = {name for fault in FAULTS.values() for name in fault.names}
    ours = {detector.name for code, detector in DETECTORS.items() if code.startswith(("NUM", "CON"))}
    assert ours - asked == set()
