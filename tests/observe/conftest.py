"""Recordings of this very process; whatever fails inside them fails the test."""

from __future__ import annotations

import sys

import pytest
import torch

from stethos.observe import stepwatch


@pytest.fixture(autouse=True)
def known_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same random numbers for every test, and nothing compiled by another one."""
    torch.manual_seed(0)
    frames = sys.modules.get("torch._dynamo.convert_frame")
    if frames is not None:
        monkeypatch.setattr(frames, "FRAME_COUNTER", 0)


@pytest.fixture
def every_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """Decide on samples after every step, however short it is."""
    monkeypatch.setattr(stepwatch, "KEEP_HOUSE_NS", 0)
