"""Shared fixtures; `builders` is importable from every test."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent))

from builders import RunBuilder


@pytest.fixture(autouse=True)
def own_registry(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """No test sees, or leaves, registered processes of anybody else."""
    directory = tmp_path_factory.mktemp("runtime")
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(directory))
    return directory / "stethos"


@pytest.fixture
def runs_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty directory for runs, which commands use by default."""
    directory = tmp_path / "runs"
    directory.mkdir()
    monkeypatch.setenv("STETHOS_DIR", str(directory))
    return directory


@pytest.fixture
def run(runs_dir: Path) -> Iterator[RunBuilder]:
    """A run named `demo` without processes yet."""
    with RunBuilder(runs_dir / "demo") as builder:
        yield builder
