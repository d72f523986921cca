"""Recordings of this very process; whatever fails inside them fails the test."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterator

import pytest
import torch

from stethos.native import NATIVE
from stethos.observe import stepwatch, torchwatch

_START_NS, _TICK_NS = 10**12, 30_011
assert torchwatch  # imported here, so that `ticking` finds all that look at the clock


@pytest.fixture(autouse=True)
def known_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same random numbers for every test, and nothing compiled by another one."""
    torch.manual_seed(0)
    frames = sys.modules.get("torch._dynamo.convert_frame")
    if frames is not None:
        monkeypatch.setattr(frames, "FRAME_COUNTER", 0)


@pytest.fixture
def ticking(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A clock that goes on by a tick at each look: what samples cost, and so which are taken, is always the same."""
    now_ns = itertools.count(_START_NS, _TICK_NS).__next__
    if NATIVE is not None:
        NATIVE.let_tick(_START_NS, _TICK_NS)
        now_ns = NATIVE.now_ns
    for name, module in list(sys.modules.items()):
        if name.startswith("stethos.") and hasattr(module, "monotonic_ns"):
            monkeypatch.setattr(module, "monotonic_ns", now_ns)
    yield
    if NATIVE is not None:
        NATIVE.let_tick(0, 0)


@pytest.fixture
def every_step(ticking: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Decide on samples after every step, by a clock of our own."""
    monkeypatch.setattr(stepwatch, "KEEP_HOUSE_NS", 0)
