"""Recordings of this very process; whatever fails inside them fails the test."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from recording import Recording, nothing_is_left_behind

from stethos.observe import hotpath


@pytest.fixture(autouse=True)
def known_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same random numbers for every test, and nothing compiled by another one."""
    torch.manual_seed(0)
    frames = sys.modules.get("torch._dynamo.convert_frame")
    if frames is not None:
        monkeypatch.setattr(frames, "FRAME_COUNTER", 0)


@pytest.fixture
def record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> Iterator[Callable[..., Recording]]:
    """Begin a recording; at the end of the test everything is as it was."""
    monkeypatch.setenv("STETHOS_STRICT", "0" if "forgiving" in request.fixturenames else "1")
    count = 0

    def begin(model: torch.nn.Module | None = None, **options: object) -> Recording:
        nonlocal count
        count += 1
        return Recording(tmp_path / f"run-{count}", model, **options)

    with nothing_is_left_behind():
        yield begin


@pytest.fixture
def forgiving() -> None:
    """Failures of ours are swallowed by `record`, as they are outside of tests."""


@pytest.fixture
def every_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """Decide on samples after every step, however short it is."""
    monkeypatch.setattr(hotpath, "KEEP_HOUSE_NS", 0)
