"""Clients whose own privacy filter ruins their update: over-filtered, not faulty. Faults of sending stay faults."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from nvflare.apis.dxo import DXO, DataKind, MetaKey, from_shareable
from nvflare.apis.fl_context import FLContext
from nvflare.app_common.filters.percentile_privacy import PercentilePrivacy
from test_evidence import State, federate

import stethos
from stethos.diagnose.federated.filtered_update import filters_seen
from stethos.diagnose.federated.inside_evidence import InsideEvidence


def _flat(state: State) -> torch.Tensor:
    return torch.cat([value.flatten() for value in state.values()])


def _change(state: State, base: State) -> State:
    return {key: state[key] - base[key] for key in state}


def percentile(_name: str, number: int, state: State, base: State) -> State:
    """NVFlare's own filter, as a site configures it."""
    change = {key: value.numpy() for key, value in _change(state, base).items()}
    dxo = DXO(DataKind.WEIGHT_DIFF, data=change, meta={MetaKey.NUM_STEPS_CURRENT_ROUND: 1})
    kept = from_shareable(PercentilePrivacy(percentile=95, gamma=0.005).process(dxo.to_shareable(), FLContext())).data
    return {key: base[key] + torch.as_tensor(kept[key]).float() for key in state}


def local_privacy(_name: str, number: int, state: State, base: State) -> State:
    """As Flower's LocalDpMod: clipped to a length, then noise of one size."""
    change, chance = _change(state, base), torch.Generator().manual_seed(number)
    scale = min(1.0, 0.05 / float(_flat(change).norm()))
    return {
        key: base[key] + value * scale + 0.05 * torch.randn(value.shape, generator=chance)
        for key, value in change.items()
    }


def clipped(_name: str, number: int, state: State, base: State) -> State:
    change = _change(state, base)
    scale = min(1.0, 0.01 / float(_flat(change).norm()))
    return {key: base[key] + value * scale for key, value in change.items()}


def noisy(_name: str, number: int, state: State, base: State) -> State:
    """A fault: noise that follows the update's size."""
    change, chance = _change(state, base), torch.Generator().manual_seed(number)
    noise = {key: torch.randn(value.shape, generator=chance) for key, value in change.items()}
    scale = 2 * float(_flat(change).norm()) / float(_flat(noise).norm())
    return {key: state[key] + noise[key] * scale for key in state}


def turned(_name: str, number: int, state: State, base: State) -> State:
    return {key: 2 * base[key] - state[key] for key in state}


def found_in(directory: Path, spoil: Callable[..., State]) -> set[tuple[str, str]]:
    run, _ = federate(directory, rounds=8, spoil=spoil)
    assert run is not None
    named = [one for one in stethos.diagnose(run).findings if one.name in ("faulty-client", "over-filtered")]
    return {(one.name, one.subject.clients[0]) for one in named}


@pytest.mark.parametrize("spoil", [percentile, local_privacy, clipped])
def test_a_filter_that_leaves_nothing_is_named_and_its_client_is_not_called_faulty(
    tmp_path: Path, spoil: Callable[..., State]
) -> None:
    assert found_in(tmp_path, spoil) == {("over-filtered", "c3")}


@pytest.mark.parametrize("spoil", [noisy, turned])
def test_a_fault_of_sending_is_no_filter(tmp_path: Path, spoil: Callable[..., State]) -> None:
    assert found_in(tmp_path, spoil) == {("faulty-client", "c3")}


def test_who_sends_all_that_moved_filters_nothing() -> None:
    """Rows of an embedding that nobody uses stay as they are; what is sent of the rest is of another round."""
    facts = {"sent_sent": 1.4, "way_sent": 0.3, "kept": 1.0, "way": 1.3, "trained": 400}
    turns = {f"c{place}": {number: {**facts, "way": 1 + 0.1 * number} for number in range(1, 7)} for place in range(3)}
    assert not filters_seen(InsideEvidence(tuple(turns), turns, {}))
    for rounds in turns.values():
        for one in rounds.values():
            one |= {"kept": 0.2, "sent_sent": 0.2, "way_sent": 0.2}
    assert set(filters_seen(InsideEvidence(tuple(turns), turns, {}))) == set(turns)
