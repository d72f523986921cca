"""Fixtures for recordings of this very process; whatever fails inside them fails the test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from recording import Recording, nothing_is_left_behind


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
