"""Federations whose global model, name or rounds change while a run lasts."""

from __future__ import annotations

import concurrent.futures
import multiprocessing
from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
from processes import DEADLINE_S
from recording import Recording
from torch import nn

import stethos
from stethos.errors import UpdateMismatchError
from stethos.federate.federation import Federation

Record = Callable[..., Recording]
State = dict[str, torch.Tensor]
CLIENTS = ("a", "b", "c", "d", "e")


class Growing:
    """A global model that gets wider."""

    def __init__(self) -> None:
        self.net = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3))

    def grow(self) -> None:
        self.net = nn.Sequential(nn.Linear(4, 9), nn.ReLU(), nn.Linear(9, 3))

    def state(self) -> Mapping[str, Any]:
        return self.net.state_dict()


def moved(state: Mapping[str, Any], client: str, number: int) -> State:
    chance = torch.Generator().manual_seed(1000 * number + ord(client))
    return {name: value + 0.01 + 0.01 * torch.randn(value.shape, generator=chance) for name, value in state.items()}


def turns(fed: Federation, rounds: int, grown: Growing, *, at: int, is_before: bool) -> None:
    """A loop whose model grows in a round, before or after its clients."""
    for rnd in fed.rounds(rounds):
        if rnd.number == at and is_before:
            grown.grow()
        for client in CLIENTS:
            with rnd.client(client) as site:
                site.update(moved(grown.state(), client, rnd.number), samples=10)
        rnd.screen()
        grown.net.load_state_dict(rnd.aggregate())
        if rnd.number == at and not is_before:
            grown.grow()


@pytest.mark.parametrize("is_before", [True, False])
def test_a_global_model_may_get_other_layers(record: Record, is_before: bool) -> None:
    recording, grown = record(), Growing()
    with stethos.federation("growing", model=grown.state, progress=False) as fed:
        turns(fed, 5, grown, at=3, is_before=is_before)
    sizes = dict(recording.rows("SELECT round, max(size) FROM updates WHERE client IS NOT NULL GROUP BY round"))
    small, large = 4 * 6 + 6 + 6 * 3 + 3, 4 * 9 + 9 + 9 * 3 + 3
    is_large = {number: number >= 3 + (not is_before) for number in range(1, 6)}
    assert sizes == {number: large if wide else small for number, wide in is_large.items()}
    # The change of a model that has other layers afterwards is no number; its updates are compared all the same.
    drifts = dict(recording.rows("SELECT round, drift FROM rounds"))
    assert [number for number, drift in drifts.items() if drift is None] == ([] if is_before else [3])
    compared = recording.column("SELECT cos_centre IS NOT NULL FROM updates WHERE layer IS NULL AND client IS NOT NULL")
    assert compared == [True] * 25
    # Nothing is compared with updates of the smaller model.
    first = 3 + (not is_before)
    assert recording.column(f"SELECT count(cos_self) FROM updates WHERE round = {first}") == [0]
    assert recording.column(f"SELECT count(cos_self) > 0 FROM updates WHERE round = {first + 1}") == [True]
    assert recording.column("SELECT reason LIKE '%other layers%' FROM gaps WHERE what = 'updates'") == [True]


def test_a_client_of_another_architecture_is_still_refused(record: Record) -> None:
    record()
    grown, other = Growing(), Growing()
    other.grow()
    with stethos.federation("one", model=grown.state, progress=False) as fed, fed.round(1) as rnd:
        with pytest.raises(UpdateMismatchError, match=r"'a' sent layer '0\.weight'"), rnd.client("a") as site:
            site.update(moved(other.state(), "a", 1))
        for client in CLIENTS[1:]:
            with rnd.client(client) as site:
                site.update(moved(grown.state(), client, 1))
        assert [one.client for one in rnd.updates] == list(CLIENTS[1:])


# Clients that train in a pool of processes --------------------------------------------------------------


def learn(steps: int, *, fails: bool = False) -> None:
    model = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.ones(3, 4)).square().mean().backward()
        optimizer.step()
    if fails:
        raise ValueError("try again")


def test_what_steps_in_a_pool_tell_of_a_turn_is_part_of_it(record: Record) -> None:
    recording = record()
    context = multiprocessing.get_context("fork")
    with (
        stethos.federation("pooled", progress=False) as fed,
        concurrent.futures.ProcessPoolExecutor(1, mp_context=context) as pool,
    ):
        for rnd in fed.rounds(2):
            with rnd.client("a"):
                with pytest.raises(ValueError, match="try again"):
                    pool.submit(learn, 2, fails=True).result(DEADLINE_S)
                pool.submit(learn, 5).result(DEADLINE_S)
            with rnd.client("b"):
                pool.submit(len, "no steps").result(DEADLINE_S)
    rows = recording.rows("SELECT round, client, status, error, steps, entry_loss > 0 FROM client_rounds ORDER BY ALL")
    assert rows == [
        row for number in (1, 2) for row in ((number, "a", "ok", None, 5, True), (number, "b", "ok", None, None, None))
    ]


# Several federations in a run ------------------------------------------------------------------------


def train(fed: Federation, model: nn.Module, rounds: int, names: tuple[str, ...] = CLIENTS) -> list[int]:
    """A few rounds without any training; the numbers that the loop saw."""
    seen = []
    for rnd in fed.rounds(rounds):
        seen.append(rnd.number)
        for client in names:
            with rnd.client(client) as site:
                site.update(moved(model.state_dict(), client[-1], rnd.number), samples=10)
    return seen


def test_federations_of_one_name_are_told_apart(record: Record) -> None:
    """As those of a program that trains with one seed after the other."""
    recording, model = record(), Growing().net
    for _ in range(3):
        with stethos.federation("digits", model=model, progress=False) as fed:
            assert train(fed, model, 2) == [1, 2]
    assert recording.rows("SELECT federation, round FROM rounds ORDER BY ALL") == [
        (name, number) for name in ("digits", "digits-2", "digits-3") for number in (1, 2)
    ]
    counts = recording.rows("SELECT federation, count(*) FROM client_rounds GROUP BY 1 ORDER BY 1")
    assert counts == [("digits", 10), ("digits-2", 10), ("digits-3", 10)]


@pytest.mark.parametrize("is_kept", [True, False])
def test_an_edge_server_counts_on_from_its_earlier_rounds(record: Record, is_kept: bool) -> None:
    """Whether the loop makes its federation anew in each round of the root or keeps it."""
    recording, model = record(), Growing().net
    edges = ("edge-x", "edge-y")
    kept = {edge: stethos.federation(edge, model=model, progress=False) for edge in edges * is_kept}
    with stethos.federation("root", model=model, progress=False) as root:
        for rnd in root.rounds(3):
            for edge in edges:
                with rnd.client(edge) as site:
                    fed = kept.get(edge) or stethos.federation(edge, model=model, progress=False)
                    assert train(fed, model, 2, (f"{edge}-a", f"{edge}-b")) == [1, 2]
                    fed.end_round()
                    if not is_kept:
                        fed.close()
                    site.update(moved(model.state_dict(), edge[-1], rnd.number), samples=20)
    for fed in kept.values():
        fed.close()
    assert recording.rows("SELECT federation, round FROM rounds ORDER BY ALL") == [
        *((edge, number) for edge in edges for number in range(1, 7)),
        *(("root", number) for number in (1, 2, 3)),
    ]
    rows = recording.rows("SELECT federation, client, count(*), count(DISTINCT round) FROM client_rounds GROUP BY 1, 2")
    below = [(edge, f"{edge}-{letter}", 6, 6) for edge in edges for letter in "ab"]
    assert sorted(rows) == [*below, *(("root", edge, 3, 3) for edge in edges)]


def test_rounds_that_are_asked_for_by_number_keep_it(record: Record) -> None:
    recording, model = record(), Growing().net
    with stethos.federation("one", model=model, progress=False) as fed:
        for start, count in ((1, 3), (3, 2)):  # the third round is repeated
            for rnd in fed.rounds(count, start=start):
                rnd.note(duration_ms=float(start))
    assert recording.rows("SELECT round, duration_ms FROM rounds ORDER BY ALL") == [
        (1, 1.0), (2, 1.0), (3, 1.0), (3, 3.0), (4, 3.0),
    ]  # fmt: skip
