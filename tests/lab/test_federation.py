"""The whole federation: the same bits, the loop against the stacked engine, and against a plain loop."""

from __future__ import annotations

import copy
import random
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from stethos import lab
from stethos.errors import UsageError
from stethos.lab.local import LocalTraining
from stethos.lab.model import recipe_of
from stethos.lab.seed import generator

FAULTS = [
    lab.Fault("label-noise", 1, strength=0.4),
    lab.Fault("feature-noise", 2),
    lab.Fault("update-noise", 3, start=2),
    lab.Fault("stale", 4, strength=1),
    lab.Fault("crash", 5, start=2),
]
SMALL: dict[str, Any] = {"clients": 6, "rounds": 3, "observe": False, "faults": FAULTS}


def is_same(one: lab.LabResult, other: lab.LabResult) -> bool:
    is_equal = all(torch.equal(tensor, other.state[name]) for name, tensor in one.state.items())
    return is_equal and one.history == other.history and one.label_counts == other.label_counts


class Careless(nn.Module):
    """A model of the caller's that draws from the global generator and has buffers of all kinds."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(64, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, 10)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.layers(x)
        return out


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"engine": "stacked"},
        {"model": "cnn"},
        {"model": Careless},
        {"split": lab.Dirichlet(0.3), "participation": 0.5},
    ],
    ids=str,
)
def test_the_same_call_gives_the_same_bits_whatever_ran_before(options: dict[str, Any]) -> None:
    one = lab.federate(**SMALL, **options)
    torch.manual_seed(7)
    np.random.seed(7)
    random.seed(7)
    torch.rand(5)
    before = (torch.get_rng_state(), np.random.get_state()[1].copy(), random.getstate())  # type: ignore[index,union-attr]
    with torch.no_grad():
        other = lab.federate(**SMALL, **options)
    after = (torch.get_rng_state(), np.random.get_state()[1], random.getstate())  # type: ignore[index]
    assert is_same(one, other)
    assert torch.equal(before[0], after[0]) and np.array_equal(before[1], after[1]) and before[2] == after[2]


def test_several_processes_give_the_same_bits() -> None:
    options = {**SMALL, "model": Careless, "split": lab.Dirichlet(1.0)}
    assert is_same(lab.federate(**options), lab.federate(**options, processes=2))


def test_another_seed_gives_other_bits() -> None:
    assert not is_same(lab.federate(**SMALL, seed=0), lab.federate(**SMALL, seed=1))


def test_the_number_of_threads_is_put_back_and_makes_no_difference() -> None:
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        one = lab.federate(**SMALL)
        assert torch.get_num_threads() == 2
        torch.set_num_threads(1)
        assert is_same(one, lab.federate(**SMALL))
        with pytest.raises(UsageError):
            lab.federate(rounds=0, observe=False)
        assert torch.get_num_threads() == 1
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"model": "logistic", "data": "breast-cancer"},
        {"split": lab.Dirichlet(0.3), "local_epochs": 3, "batch": 16},
        {"split": lab.QuantitySkew(0.5), "participation": 0.5, "strategy": "fedprox"},
        {"optimizer": "adam", "lr": 0.01, "split": lab.QuantitySkew(1.0), "local_epochs": 2, "strategy": "fedadam"},
    ],
    ids=str,
)
def test_the_stacked_engine_agrees_with_the_loop(options: dict[str, Any]) -> None:
    seen: dict[str, list[lab.Exchange]] = {"loop": [], "stacked": []}
    loop, stacked = (
        lab.federate(**SMALL, **options, engine=engine, each_round=seen[engine].append)
        for engine in ("loop", "stacked")
    )
    for name, tensor in loop.state.items():
        assert torch.allclose(tensor, stacked.state[name], atol=1e-4), name
    for one, other in zip(loop.history, stacked.history, strict=True):
        assert one.loss == pytest.approx(other.loss, rel=1e-3)
        for a, b in zip(one.clients, other.clients, strict=True):
            assert (a.client, a.status, a.samples, a.base_round, a.compute_ms) == (
                b.client, b.status, b.samples, b.base_round, b.compute_ms
            )  # fmt: skip
            if a.status == "ok":
                assert (a.loss, a.entry_loss, a.exit_loss) == pytest.approx(
                    (b.loss, b.entry_loss, b.exit_loss), rel=1e-3
                )
                assert a.accuracy == pytest.approx(b.accuracy, abs=0.02)
    for a, b in zip(seen["loop"], seen["stacked"], strict=True):
        assert torch.allclose(a.sent, b.sent, atol=1e-4)
        for mine, theirs in zip(a.answers, b.answers, strict=True):
            assert mine is not None and theirs is not None and np.mean(mine == theirs) > 0.98


def test_a_round_is_what_a_plain_loop_makes_of_it() -> None:
    data = lab.load("digits", seed=3)
    result = lab.federate(data, clients=4, rounds=2, local_epochs=2, lr=0.2, seed=3, observe=False)
    training = LocalTraining(2, 32, 0.2, "sgd", 0.0, 3, wants_answers=False)
    parts = lab.IID()(data.train_y.numpy(), 4, generator(3, "split"))
    model = recipe_of("mlp", data, 3).build()
    entry: list[float] = []
    for number in (1, 2):
        states, sizes = [], []
        for client, part in enumerate(parts):
            local = copy.deepcopy(model)
            x, y = data.train_x[part], data.train_y[part]
            losses = []
            for batch in training.batches(client, number, len(y)):
                loss = cross_entropy(local(x[batch]), y[batch])
                losses.append(loss.item())
                gradients = torch.autograd.grad(loss, list(local.parameters()))
                with torch.no_grad():
                    for parameter, gradient in zip(local.parameters(), gradients, strict=True):
                        parameter -= 0.2 * gradient
            entry.append(sum(losses[:4]) / 4)
            states.append(local.state_dict())
            sizes.append(len(y))
        model.load_state_dict(
            {
                name: sum(n * state[name] for n, state in zip(sizes, states, strict=True)) / sum(sizes)
                for name in states[0]
            }
        )
    for name, tensor in model.state_dict().items():
        assert torch.allclose(tensor, result.state[name], atol=1e-5), name
    assert [one.entry_loss for rnd in result.history for one in rnd.clients] == pytest.approx(entry, rel=1e-4)


def test_batches_hold_every_sample_once_an_epoch_in_a_new_order() -> None:
    training = LocalTraining(2, 8, 0.1, "sgd", 0.0, 0, wants_answers=False)
    batches = training.batches(0, 1, 21)
    assert [len(batch) for batch in batches] == [8, 8, 5] * 2
    first, second = np.concatenate(batches[:3]), np.concatenate(batches[3:])
    assert sorted(first) == sorted(second) == list(range(21)) and list(first) != list(second)


def test_it_learns() -> None:
    result = lab.federate(observe=False)
    assert result.accuracy > 0.88 and len(result.history) == 20 and result.path is None
    assert sum(map(sum, result.label_counts.values())) == len(lab.load("digits").train_y)


def test_a_share_of_the_clients_takes_part_and_the_share_changes() -> None:
    result = lab.federate(clients=10, rounds=4, participation=0.3, observe=False, engine="stacked")
    asked = [tuple(one.client for one in rnd.clients) for rnd in result.history]
    assert all(len(names) == 3 for names in asked) and len(set(asked)) > 1


def test_labels_flipped_at_a_client_show_in_its_entry_loss() -> None:
    result = lab.federate(rounds=8, observe=False, engine="stacked", faults=[lab.Fault("label-noise", 4)])
    last = result.history[-1].clients
    assert max(last, key=lambda one: one.entry_loss or 0).client == "c4"


def test_buffers_of_a_batch_norm_are_averaged_and_counted() -> None:
    result = lab.federate(clients=3, rounds=2, model=Careless, observe=False)
    assert int(result.state["layers.1.num_batches_tracked"]) == 2 * 15
    assert torch.isfinite(result.state["layers.1.running_var"]).all() and result.accuracy > 0.3


def test_text_features_are_just_arrays() -> None:
    draw = np.random.default_rng(0)
    labels = draw.choice(["ham", "spam"], size=200)
    counts = draw.poisson(np.where(labels[:, None] == "spam", [3, 1, 1], [1, 1, 3]))
    result = lab.federate(lab.Data.of(counts, labels), clients=4, rounds=5, model="logistic", observe=False)
    assert result.accuracy > 0.8


class Broken(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        raise ArithmeticError("the caller's own")


def test_an_error_of_the_callers_model_comes_out_as_it_is() -> None:
    with pytest.raises(ArithmeticError, match="the caller's own"):
        lab.federate(clients=2, rounds=1, model=Broken, observe=False)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"clients": 0}, "clients=0"),
        ({"rounds": 2.5}, "rounds=2.5"),
        ({"participation": 0.0}, "participation=0.0"),
        ({"lr": float("nan")}, "lr=nan"),
        ({"seed": -1}, "seed=-1"),
        ({"batch": 0}, "batch=0"),
        ({"optimizer": "sdg"}, "did you mean sgd"),
        ({"engine": "lop"}, "did you mean loop"),
        ({"model": "mpl"}, "did you mean mlp"),
        ({"model": nn.Linear(2, 2)}, "a function without arguments"),
        ({"model": lambda: 3}, "the model is a int"),
        ({"model": "cnn", "data": "breast-cancer"}, "square images"),
        ({"model": "cnn", "engine": "stacked"}, "engine='loop' trains any model"),
        ({"processes": 2, "engine": "stacked"}, "it uses one process"),
        ({"clients": 1000}, "too few for 1000 clients"),
        ({"faults": [lab.Fault("nan", 99)]}, "the clients are c0 to c9"),
        ({"model": lambda: nn.Linear(64, 10), "processes": 2}, "top level of a module"),
    ],
)
def test_a_call_that_makes_no_sense_is_a_clear_error(options: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        lab.federate(**{"observe": False, **options})
