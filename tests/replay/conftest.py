"""One recorded federation of the lab and one of a hand-written loop, for all tests of this directory."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).resolve().parent))

import own_loop
from processes import drainers_of, wait_until

from stethos import lab
from stethos.replay.bundle import Bundle, open_bundle


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def lab_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Eight rounds of six clients; one ruins the model from round 3 on."""
    fault = lab.Fault("sign-flip", clients=own_loop.GUILTY, start=3, strength=6.0)
    result = lab.federate(
        "digits", rounds=8, clients=6, faults=[fault], capture="all", dir=tmp_path_factory.mktemp("lab"), run="lab",
        progress=False,
    )  # fmt: skip
    assert result.path is not None
    return packed(result.path)


@pytest.fixture(scope="session")
def own_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three rounds of a loop of the user's own, which draws from all global generators."""
    return packed(own_loop.federate(tmp_path_factory.mktemp("own"), "own", capture="all"))


def packed(path: Path) -> Path:
    """A run whose drainer has done all it does: nothing in it changes any more."""
    wait_until(lambda: not drainers_of(path), "the end of packing", deadline_s=240)
    return path


@pytest.fixture
def bundle(lab_path: Path) -> Bundle:
    return open_bundle(lab_path)
