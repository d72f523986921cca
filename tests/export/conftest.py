"""A federation made by hand for the tests of all formats."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from federated_rows import build_federation

from stethos.store.run import Run, open_run


@pytest.fixture(scope="session")
def federation_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("runs") / "wards-1"
    build_federation(path)
    return path


@pytest.fixture
def federation(federation_path: Path) -> Iterator[Run]:
    with open_run(federation_path) as run:
        yield run
