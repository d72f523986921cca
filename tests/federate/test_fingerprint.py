"""Fingerprints made of several updates at once are those made of one; so are comparisons of few and of many clients."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from loop import fingerprint_of

from stethos.federate import comparison, fingerprint
from stethos.federate.comparison import History, compare
from stethos.federate.fingerprint import GLOBAL, Fingerprint, UpdateBuffer, global_row
from stethos.federate.sketch import SketchPlan
from stethos.federate.structure import Structure

SHAPES = {"a.weight": (40, 30), "a.bias": (40,), "n.mean": (40,), "out.weight": (7, 40), "out.bias": (7,)}
OUTPUTS = SHAPES["a.weight"][0]
VECTORS = ("norms", "nan", "inf", "sketch", "signs", "inputs", "input_gram")


def states(count: int, seed: int = 0) -> Iterator[dict[str, torch.Tensor]]:
    generator = torch.Generator().manual_seed(seed)
    common = {name: torch.randn(shape, generator=generator) for name, shape in SHAPES.items()}
    for _ in range(count):
        yield {name: one + 0.3 * torch.randn(one.shape, generator=generator) for name, one in common.items()}


@pytest.fixture
def plan() -> SketchPlan:
    return SketchPlan(Structure.of(next(states(1)), frozenset({"n.mean"})))


@pytest.fixture
def base(plan: SketchPlan) -> np.ndarray:
    return global_row(plan, next(states(1, seed=9)))


def odd_ones() -> list[tuple[str, dict[str, torch.Tensor], bool]]:
    """Whole updates and changes, one without a buffer, one with NaN, one with infinity, one of zeros."""
    made = [(str(number), state, number % 3 == 0) for number, state in enumerate(states(12))]
    del made[1][1]["n.mean"]
    made[2][1]["a.bias"][3] = torch.nan
    made[4][1]["out.weight"][2, 2] = -torch.inf
    made[6] = ("6", {name: torch.zeros(shape) for name, shape in SHAPES.items()}, True)
    return made


@pytest.mark.parametrize("rows", [1, 5, 64])
def test_updates_read_together_have_the_fingerprints_of_each(
    plan: SketchPlan, base: np.ndarray, monkeypatch: pytest.MonkeyPatch, rows: int
) -> None:
    monkeypatch.setattr(fingerprint, "_WAITING_ELEMENTS", rows * plan.read)
    together = UpdateBuffer(plan)
    alone = []
    for client, state, is_delta in odd_ones():
        together.add(state, client, None if is_delta else base)
        alone.append(fingerprint_of(plan, None if is_delta else base, state, client))
    assert [one.client for one in together.prints()] == [str(number) for number in range(12)]
    for found, expected in zip(together.prints(), alone, strict=True):
        same(found, expected)
    assert [one.is_finite for one in together.prints()].count(False) == 2
    assert together.prints()[1].missing == (4,)


def same(found: Fingerprint, expected: Fingerprint) -> None:
    for name in VECTORS:
        mine, other = getattr(found, name), getattr(expected, name)
        assert (mine is None) == (other is None), name
        if mine is not None:
            np.testing.assert_allclose(mine, other, rtol=1e-4, atol=1e-5, err_msg=name)
    assert found.missing == expected.missing
    assert found.output_rows is not None and expected.output_rows is not None
    np.testing.assert_allclose(found.output_rows, expected.output_rows, rtol=1e-5, atol=1e-6)


def test_the_global_models_change_is_no_update(plan: SketchPlan, base: np.ndarray) -> None:
    first, new = states(2, seed=3)
    buffer = UpdateBuffer(plan)
    buffer.add(first, "a", base)
    change = buffer.change_of(global_row(plan, new), base, new)
    same(change, fingerprint_of(plan, base, new, GLOBAL))
    assert [one.client for one in buffer.prints()] == ["a"]


def test_what_waits_is_not_what_the_caller_holds(plan: SketchPlan, base: np.ndarray) -> None:
    """One model is often used for all clients: it has changed by the time that fingerprints are made."""
    (state,) = states(1, seed=4)
    expected = fingerprint_of(plan, base, state, "a")
    buffer = UpdateBuffer(plan)
    buffer.add(state, "a", base)
    for value in state.values():
        value.zero_()
    same(buffer.prints()[0], expected)


def test_rows_are_used_again_but_not_by_two_at_once(plan: SketchPlan, base: np.ndarray) -> None:
    first, second, late = states(3, seed=8)
    one, other = UpdateBuffer(plan), UpdateBuffer(plan)
    one.add(first, "a", base)
    other.add(second, "b", base)
    same(one.prints()[0], fingerprint_of(plan, base, first, "a"))
    same(other.prints()[0], fingerprint_of(plan, base, second, "b"))
    one.close()
    (memory,) = plan.spare_memory
    following = UpdateBuffer(plan)
    following.add(second, "c", base)
    assert not plan.spare_memory
    one.add(late, "d", base)  # after the round's end
    same(following.prints()[0], fingerprint_of(plan, base, second, "c"))
    same(one.prints()[1], fingerprint_of(plan, base, late, "d"))
    following.close()
    assert plan.spare_memory == [memory]


def test_reading_parameters_leaves_no_trace_in_their_graph(plan: SketchPlan, base: np.ndarray) -> None:
    (state,) = states(1, seed=2)
    parameters = {name: torch.nn.Parameter(value) for name, value in state.items()}
    buffer = UpdateBuffer(plan)
    buffer.add(parameters, "a", base)
    buffer.add(state, "b", base)
    assert torch.is_grad_enabled() and all(value.grad_fn is None for value in parameters.values())
    same(buffer.prints()[0], buffer.prints()[1])


def test_a_global_model_that_is_not_finite_is_no_fault_of_the_update(plan: SketchPlan, base: np.ndarray) -> None:
    base[7] = np.nan
    (state,) = states(1, seed=2)
    buffer = UpdateBuffer(plan)
    buffer.add(state, "a", base)
    same(buffer.prints()[0], fingerprint_of(plan, base, state, "a"))
    assert buffer.prints()[0].is_finite


def test_many_clients_are_compared_as_few_are(
    plan: SketchPlan, base: np.ndarray, monkeypatch: pytest.MonkeyPatch
) -> None:
    buffer = UpdateBuffer(plan)
    for number, state in enumerate(states(23, seed=5)):
        buffer.add(state, f"c{number}", base)
    history = History()
    history.add(buffer.prints()[3].sketch, buffer.prints()[:9])
    few = compare(plan, buffer.prints(), history)
    monkeypatch.setattr(comparison, "_MOST_PAIRWISE", 0)
    monkeypatch.setattr(comparison, "_AT_ONCE", 4)
    many = compare(plan, buffer.prints(), history)
    for name in few:
        np.testing.assert_allclose(many[name], few[name], rtol=1e-6, atol=1e-9, err_msg=name)
    assert np.isnan(few["cos_self"]).sum() == 14 and not np.isnan(few["cos_last"]).any()


def test_directions_are_the_same_without_torch(
    plan: SketchPlan, base: np.ndarray, monkeypatch: pytest.MonkeyPatch
) -> None:
    prints = [fingerprint_of(plan, base, state, str(number)) for number, state in enumerate(states(9, seed=6))]
    weights = np.full(9, 1 / 9)
    found = comparison._spread_over_directions(prints, weights, OUTPUTS)
    monkeypatch.delitem(comparison.sys.modules, "torch")
    np.testing.assert_allclose(found, comparison._spread_over_directions(prints, weights, OUTPUTS), atol=1e-4)


@pytest.mark.parametrize("clients", [6, 8, 12])
def test_a_first_layer_of_one_output_says_nothing_of_directions(clients: int) -> None:
    """Others who change in fewer directions than there are leave more of them to whom is left out with fewer."""
    generator = torch.Generator().manual_seed(8)
    made = [{"w": torch.randn((1, 12), generator=generator)} for _ in range(clients + 1)]
    one = SketchPlan(Structure.of(made[0]))
    row = global_row(one, made[0])
    prints = [fingerprint_of(one, row, state, f"c{number}") for number, state in enumerate(made[1:])]
    found = compare(one, prints, History())
    assert np.isnan(found["input_tail"]).all() and np.isfinite(found["input_cos"]).all()


def test_an_update_too_large_for_single_precision_does_not_spoil_the_others(plan: SketchPlan, base: np.ndarray) -> None:
    made = list(states(5, seed=7))
    made[2] = {name: torch.full(shape, 3e38) for name, shape in SHAPES.items()}
    prints = [fingerprint_of(plan, base, state, str(number)) for number, state in enumerate(made)]
    compared = compare(plan, prints, History())
    others = [0, 1, 3, 4]
    assert np.isfinite(compared["cos_centre"][others, -1]).all()
    alone = compare(plan, [prints[place] for place in others], History())
    np.testing.assert_allclose(compared["cos_centre"][others], alone["cos_centre"], rtol=1e-4, atol=1e-4)
