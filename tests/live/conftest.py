"""Live trainings to look into, one of each kind for a whole module."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from living import Living


def living(kind: str, factory: pytest.TempPathFactory) -> Iterator[Living]:
    training = Living(kind, factory.mktemp(kind))
    try:
        training.wait_for_steps(3)
        yield training
    finally:
        training.close()


@pytest.fixture(scope="module")
def with_globals(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Living]:
    yield from living("globals", tmp_path_factory)


@pytest.fixture(scope="module")
def with_main(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Living]:
    yield from living("main", tmp_path_factory)


@pytest.fixture(params=["globals", "main"])
def training(request: pytest.FixtureRequest) -> Living:
    """Each of the two."""
    found: Living = request.getfixturevalue(f"with_{request.param}")
    return found


@pytest.fixture
def here(with_main: Living, monkeypatch: pytest.MonkeyPatch) -> Path:
    """In this process, too, the training's registry is the user's."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(with_main.runtime))
    monkeypatch.setenv("STETHOS_DIR", str(with_main.runs))
    monkeypatch.chdir(with_main.directory)
    return with_main.directory
