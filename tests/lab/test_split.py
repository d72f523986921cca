"""How samples are dealt out."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stethos.errors import UsageError
from stethos.lab.split import IID, LEAST, Dirichlet, Index, QuantitySkew, Shards, Split, deal, split_of

LABELS = np.repeat(np.arange(10), 140)
ALL: list[Split] = [IID(), Dirichlet(1.0), Dirichlet(0.1), Shards(2), QuantitySkew(0.3)]


def dealt(split: Split, clients: int = 10, seed: int = 0, labels: Index = LABELS) -> list[Index]:
    return deal(split, labels, clients, np.random.default_rng(seed))


def classes_held(parts: list[Index]) -> float:
    return float(np.mean([len(np.unique(LABELS[part])) for part in parts]))


@settings(max_examples=40, deadline=None)
@given(split=st.sampled_from(ALL), clients=st.integers(1, 100), seed=st.integers(0, 1000))
def test_every_client_has_a_few_samples_and_no_sample_is_dealt_twice(split: Split, clients: int, seed: int) -> None:
    parts = dealt(split, clients, seed)
    assert len(parts) == clients and min(map(len, parts)) >= LEAST
    everything = np.concatenate(parts)
    assert len(np.unique(everything)) == len(everything) == len(LABELS)


@pytest.mark.parametrize("split", ALL, ids=str)
def test_the_generator_alone_decides(split: Split) -> None:
    one, same, other = dealt(split, seed=1), dealt(split, seed=1), dealt(split, seed=2)
    assert all(np.array_equal(a, b) for a, b in zip(one, same, strict=True))
    assert not all(np.array_equal(a, b) for a, b in zip(one, other, strict=True))


def test_iid_parts_are_of_equal_size() -> None:
    sizes = [len(part) for part in dealt(IID(), 9)]
    assert max(sizes) - min(sizes) <= 1


def test_a_smaller_alpha_leaves_a_client_fewer_classes() -> None:
    assert classes_held(dealt(Dirichlet(0.1))) < classes_held(dealt(Dirichlet(1.0))) < classes_held(dealt(IID()))


def test_shards_give_a_client_about_as_many_classes_as_shards() -> None:
    assert all(len(np.unique(LABELS[part])) <= 4 for part in dealt(Shards(2)))


def test_quantity_skew_changes_sizes_and_leaves_the_mixture() -> None:
    parts = dealt(QuantitySkew(0.5))
    sizes = sorted(map(len, parts))
    assert sizes[-1] > 3 * sizes[0]
    biggest = np.bincount(LABELS[max(parts, key=len)], minlength=10)
    assert biggest.min() > 0.5 * biggest.max()


def test_too_many_clients_is_an_error_that_says_how_many_are_possible() -> None:
    with pytest.raises(UsageError, match="1400 training samples are too few for 400 clients") as caught:
        dealt(IID(), 400)
    assert "clients=350" in caught.value.hint


@pytest.mark.parametrize("make", [lambda: Dirichlet(0), lambda: Shards(0), lambda: QuantitySkew(float("nan"))])
def test_a_parameter_that_makes_no_sense_is_an_error(make: type[Dirichlet]) -> None:
    with pytest.raises(UsageError, match="not above 0"):
        make()


def test_an_unknown_split_is_an_error_with_the_nearest_names() -> None:
    with pytest.raises(UsageError, match="did you mean dirichlet"):
        split_of("dirichelt")


def test_a_split_of_the_callers_is_checked() -> None:
    with pytest.raises(UsageError, match="twice"):
        dealt(lambda labels, clients, generator: [np.array([0, 1])] * clients)
    with pytest.raises(UsageError, match="0 non-empty parts for 10 clients"):
        dealt(lambda labels, clients, generator: [])
