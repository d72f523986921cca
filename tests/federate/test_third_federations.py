"""The third set of `benchmarks/wild`: every fault is one, every federation can be drawn, and honest clients learn."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch

from benchmarks.wild.families import DEVELOPMENT, HELD_OUT, OPENED, THIRD
from benchmarks.wild.third.check import cases_with, learnt, shift_of
from benchmarks.wild.third.data import samples_of
from benchmarks.wild.third.fault import FAMILY
from benchmarks.wild.third.loop import case_of
from benchmarks.wild.third.split import parts_of

_INSTALLED = frozenset({"titanic", "chess", "eeg", "glyphs", "terrain", "names"})  # no wheel to fetch
_LEAST_SHIFT = 0.1


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def test_every_fault_has_a_family_and_no_other_set_has_it() -> None:
    assert list(FAMILY) == list(THIRD.faults)
    assert not set(THIRD.faults) & {*DEVELOPMENT.faults, *OPENED.faults, *HELD_OUT.faults}


@pytest.mark.parametrize("fault", THIRD.faults)
def test_a_fault_changes_what_its_client_sends(fault: str) -> None:
    case = cases_with(fault, 1, _INSTALLED)[0]
    assert shift_of(case._replace(clients=4, rounds=4)) > _LEAST_SHIFT


@pytest.mark.parametrize("split", THIRD.splits)
def test_no_row_is_dealt_twice(split: str) -> None:
    parts = parts_of(split, samples_of("glyphs"), 6, 10, 200, np.random.default_rng(1))
    rows = np.concatenate(parts)
    assert len(parts) == 10 and min(map(len, parts)) >= 12
    assert len(np.unique(rows)) == len(rows)


def test_two_in_five_are_clean_and_three_in_twenty_have_two_faulty() -> None:
    faulty = [case_of(seed).faulty for seed in range(200)]
    assert [faulty.count(number) for number in (0, 1, 2)] == [80, 90, 30]


def test_honest_clients_learn() -> None:
    case = next(one for one in map(case_of, range(1000)) if one.data == "chess" and one.algorithm == "fedavg")
    before, after = learnt(case._replace(fault=None, faulty=0, split="iid", clients=4))
    assert after < 0.8 * before
