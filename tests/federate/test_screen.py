"""Verdicts before aggregation, responses to made inputs, and the global model's weights at the start."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from loop import average, make_clients, make_model, run_observed
from recording import Recording
from torch import nn

import stethos
from stethos.diagnose.engine import needs_of
from stethos.diagnose.federated.cohort import COLUMNS, cohorts_of
from stethos.diagnose.federated.faulty_client import FaultyClient
from stethos.diagnose.window import RunWindow

Record = Callable[..., Recording]


def test_a_client_that_turns_its_sign_is_told_before_it_is_averaged(record: Record) -> None:
    record()
    model, clients = make_model(), make_clients(8)
    told: dict[int, list[tuple[str, str]]] = {}
    with stethos.federation("toy", model=model, progress=False) as fed:
        for rnd in fed.rounds(6):
            base, states = copy.deepcopy(model.state_dict()), []
            for client in clients:
                with rnd.client(client.name) as site:
                    state = client.train(model)
                    if client.name == "c5":
                        state = {name: 2 * base[name] - value for name, value in state.items()}
                    site.update(state, samples=len(client.x))
                    states.append(state)
            told[rnd.number] = [(one.client, one.kind) for one in rnd.screen()]
            model.load_state_dict(average(states, [1] * len(states)))
    assert told[6] == [("c5", "sign-flip")]


def test_nan_is_told_at_once_and_honest_clients_are_left_alone(record: Record) -> None:
    record()
    model, clients = make_model(), make_clients(5)
    with stethos.federation("toy", model=model, progress=False) as fed:
        for rnd in fed.rounds(2):
            for client in clients:
                with rnd.client(client.name) as site:
                    state = client.train(model)
                    if (rnd.number, client.name) == (2, "c1"):
                        state["0.weight"][0, 0] = torch.nan
                    site.update(state)
            found = [(one.client, one.kind, one.first) for one in rnd.screen()]
            assert found == ([] if rnd.number == 1 else [("c1", "nan", 2)])


def test_a_cohort_is_the_same_from_memory_and_from_tables(tmp_path: Path) -> None:
    """With a client that is away for a round, one whose update is all NaN, and one that reports nothing."""
    model, clients = make_model(with_norm=True), make_clients(6)
    with stethos.federation("toy", model=model, dir=tmp_path, progress=False, correct="on") as fed:
        for rnd in fed.rounds(4):
            for client in clients:
                if (rnd.number, client.name) == (2, "c2"):
                    continue
                with rnd.client(client.name) as site:
                    if client.name != "c3":
                        site.confusion(client.y, model(client.x).argmax(1))
                    state = client.train(model)
                    if (rnd.number, client.name) == (3, "c1"):
                        state = {name: value * torch.nan for name, value in state.items()}
                    site.update(state, samples=None if client.name == "c3" else len(client.x))
            screened = rnd.screened()
            model.load_state_dict(rnd.aggregate())
    assert screened is not None and fed.path is not None
    with stethos.open_run(fed.path) as run:
        ((_, table),) = cohorts_of(RunWindow(run, needs_of([FaultyClient()])))
    held = screened.cohort
    assert (
        (held.rounds, held.clients) == (table.rounds, table.clients) == ((1, 2, 3, 4), tuple(c.name for c in clients))
    )
    for name in COLUMNS:
        np.testing.assert_allclose(held.values[name], table.values[name], rtol=1e-5, atol=1e-9, err_msg=name)
    assert np.isnan(held.norm).sum() == 2 and np.isnan(held.samples[:, 3]).all() and held.odd[2, 1] > 0


def test_a_flip_shows_in_the_responses_as_the_largest_pair(record: Record) -> None:
    recording = record()
    torch.manual_seed(1)
    centres = 3 * torch.randn(4, 10)
    generator = torch.Generator().manual_seed(2)
    model = nn.Sequential(nn.Linear(10, 16), nn.ReLU(), nn.Linear(16, 4))
    random_before = torch.get_rng_state()
    is_training = model.training
    with stethos.federation("toy", model=model, progress=False, respond_to=(10,)) as fed:
        for rnd in fed.rounds(5):
            states = []
            for number in range(5):
                y = torch.randint(4, (80,), generator=generator)
                x = centres[y] + torch.randn(80, 10, generator=generator)
                labels = torch.where(y == 2, torch.tensor(0), y) if number == 3 else y
                local = copy.deepcopy(model)
                optimizer = torch.optim.SGD(local.parameters(), lr=0.1)
                for _ in range(8):
                    optimizer.zero_grad()
                    nn.functional.cross_entropy(local(x), labels).backward()
                    optimizer.step()
                states.append(local.state_dict())
                with rnd.client(f"c{number}") as site:
                    site.update(local.state_dict())
            model.load_state_dict(average(states, [1] * 5))
    assert torch.equal(torch.get_rng_state(), random_before) and model.training is is_training
    texts = dict(
        recording.rows("SELECT client, response FROM updates WHERE round = 5 AND layer IS NULL AND client IS NOT NULL")
    )
    tables = {client: np.array(json.loads(text)) for client, text in texts.items()}
    others = np.median([table for client, table in tables.items() if client != "c3"], axis=0)
    excess = tables["c3"] - others
    assert np.unravel_index(excess.argmax(), excess.shape) == (2, 0)  # inputs like class 2 are answered with 0


def test_the_weights_of_the_global_model_are_recorded_at_the_start(record: Record) -> None:
    recording = record()
    model = make_model()
    before = {name: float(value.detach().norm()) for name, value in model.named_parameters()}
    run_observed(model, make_clients(2), 1)
    rows = dict(
        recording.rows("SELECT layer, norm FROM layers WHERE client IS NULL AND round IS NULL AND kind = 'weight'")
    )
    assert rows.keys() == before.keys() and all(abs(rows[name] - before[name]) < 1e-5 for name in before)
