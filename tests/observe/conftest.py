"""Recordings of this very process; whatever fails inside them fails the test."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest
import torch
from ticking import begin_ticking, end_ticking

from stethos.observe import inspection, step_recorder, torch_hooks

assert torch_hooks  # and with it all that look at the clock


@pytest.fixture(autouse=True)
def known_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same random numbers for every test, and nothing compiled by another one."""
    torch.manual_seed(0)
    frames = sys.modules.get("torch._dynamo.convert_frame")
    if frames is not None:
        monkeypatch.setattr(frames, "FRAME_COUNTER", 0)


@pytest.fixture
def every_step(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Decide on samples after every step, by a clock that knows nothing of the machine."""
    begin_ticking(monkeypatch.setattr)
    monkeypatch.setattr(step_recorder, "ACCOUNT_NS", 0)
    yield
    end_ticking()


@pytest.fixture
def unhurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Looks at backwards may take what they take: how many there are does not depend on the machine."""
    monkeypatch.setattr(inspection, "_ALLOWED_NS", 1 << 60)
