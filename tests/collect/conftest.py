"""A collector inside the test, and a client of it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from collecting import HandMadeClient

from stethos.collect.enrolment import Enrolment
from stethos.collect.receiver import Receiver


@pytest.fixture
def enrolment(tmp_path: Path) -> Enrolment:
    (tmp_path / "keys").mkdir()
    return Enrolment(tmp_path / "keys")


@pytest.fixture
def receiver(tmp_path: Path, enrolment: Enrolment) -> Iterator[Receiver]:
    made = Receiver(tmp_path / "runs", enrolment)
    yield made
    made.close()


@pytest.fixture
def client(enrolment: Enrolment) -> HandMadeClient:
    return HandMadeClient(enrolment, "a")
