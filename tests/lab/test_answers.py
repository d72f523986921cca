"""What incoming models say of clients' samples, asked for all clients at once, is what each would have said."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from stethos.lab import local
from stethos.lab.client_data import ClientData
from stethos.lab.data import load
from stethos.lab.flat import FlatState, Layout
from stethos.lab.local import LocalTrainer, LocalTraining, TrainingTurn
from stethos.lab.model import Factory, recipe_of
from stethos.lab.seed import generator
from stethos.lab.split import IID

DATA = load("digits")
PARTS = IID()(DATA.train_y.numpy(), 5, generator(0, "split"))


def trainer_of(model: str | Factory, *, wants_answers: bool = True) -> LocalTrainer:
    training = LocalTraining(1, 32, 0.1, "sgd", 0.0, 0, wants_answers)
    return LocalTrainer(recipe_of(model, DATA, 0), ClientData(DATA, PARTS, (), seed=0), training)


def turns_of(trainer: LocalTrainer) -> list[TrainingTurn]:
    """The third client has an older model than the others."""
    new = Layout.of(trainer.model).read(trainer.model)
    old = FlatState(torch.zeros_like(new.vector) + 0.1 * torch.arange(len(new.vector)).sin(), {})
    return [TrainingTurn(client, 1, old if client == 2 else new) for client in range(5)]


@pytest.mark.parametrize("at_once", [4096, 600, 10])
def test_answers_to_all_are_the_answers_to_each(monkeypatch: pytest.MonkeyPatch, at_once: int) -> None:
    monkeypatch.setattr(local, "_MOST_AT_ONCE", at_once)
    trainer = trainer_of("mlp")
    turns = turns_of(trainer)
    together = trainer.answers_to(turns)
    alone = [trainer.train(turn) for turn in turns]
    for turn, trained in zip(turns, alone, strict=True):
        assert trained.answers is not None
        np.testing.assert_array_equal(together[turn.client], trained.answers)
        again = trainer.train(turn, together[turn.client])
        assert again.answers is together[turn.client] and torch.equal(again.state.vector, trained.state.vector)


def own_model() -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10))


def test_nobody_is_asked_for_nothing_and_a_callers_model_about_one_client_at_a_time() -> None:
    quiet = trainer_of("mlp", wants_answers=False)
    assert quiet.answers_to(turns_of(quiet)) == {}
    trainer = trainer_of(own_model)
    assert trainer.answers_to(turns_of(trainer)) == {} and trainer.train(turns_of(trainer)[0]).answers is not None
