"""Local training of one client with an ordinary torch model and optimizer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from stethos.lab.client_data import ClientData
from stethos.lab.flat import FlatState, Layout
from stethos.lab.model import Recipe
from stethos.lab.seed import generator, isolated

_MOST_AT_ONCE = 4096  # samples that a model is asked about in one go
_NUMBERS_AT_ONCE = 1 << 18  # in them: what layers make of more does not stay in the caches
EDGE_BATCHES = 4  # the first and the last so many local batches make the entry and the exit loss

OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam}


@dataclass(frozen=True, slots=True)
class LocalTraining:
    """How every client trains."""

    epochs: int
    batch: int
    lr: float
    optimizer: str
    proximal: float
    seed: int
    wants_answers: bool

    def batches(self, client: int, number: int, samples: int) -> list[NDArray[np.int64]]:
        """The order of a client's samples in a round, cut into batches; each epoch is shuffled anew."""
        draw = generator(self.seed, "batches", client, number)
        found = []
        for _ in range(self.epochs):
            order = draw.permutation(samples)
            found += [order[start : start + self.batch] for start in range(0, samples, self.batch)]
        return found


@dataclass(frozen=True, slots=True)
class TrainingTurn:
    """A client's turn: in which round it trains, from which state; `invitation` lets another process report on it."""

    client: int
    number: int
    base: FlatState
    invitation: dict[str, str] | None = None


@dataclass(frozen=True, slots=True)
class Trained:
    """What came of a turn.

    `losses` are those of the local batches as they came, each before its step;
    `accuracy` is the share they got right. `answers` are the incoming model's
    predictions on the client's samples, if asked for.
    """

    state: FlatState
    losses: tuple[float, ...]
    accuracy: float
    answers: NDArray[np.int64] | None

    @property
    def loss(self) -> float:
        return _mean(self.losses)

    @property
    def entry_loss(self) -> float:
        return _mean(self.losses[:EDGE_BATCHES])

    @property
    def exit_loss(self) -> float:
        return _mean(self.losses[-EDGE_BATCHES:])


def _mean(values: tuple[float, ...]) -> float:
    return sum(values) / len(values)


class LocalTrainer:
    """Trains one client after another with one model object; each turn has an optimizer of its own."""

    def __init__(self, recipe: Recipe, client_data: ClientData, training: LocalTraining) -> None:
        self._recipe = recipe
        self._client_data = client_data
        self._training = training
        self.model = recipe.build()
        self._layout = Layout.of(self.model)

    def train(self, turn: TrainingTurn, answers: NDArray[np.int64] | None = None) -> Trained:
        """Train from the turn's state. `answers` are those of its incoming model, if `answers_to` has told them."""
        training = self._training
        luck = isolated(training.seed, "local", turn.client, turn.number) if self._recipe.is_callers else nullcontext()
        with luck:
            return self._train(turn, answers)

    def answers_to(self, turns: Sequence[TrainingTurn]) -> dict[int, NDArray[np.int64]]:
        """What the incoming models say of their clients' samples, by client: for many small clients in one go.

        Nothing where nobody wants to know, and of the caller's models, which may do something else with the samples
        of several clients than with those of one.
        """
        if not self._training.wants_answers or self._recipe.is_callers:
            return {}
        found: dict[int, NDArray[np.int64]] = {}
        groups: list[tuple[FlatState, list[TrainingTurn]]] = []
        room = 0
        for turn in turns:
            size = len(self._client_data.labels(turn.client))
            if not groups or groups[-1][0] is not turn.base or size > room:
                groups.append((turn.base, []))
                room = _MOST_AT_ONCE
            groups[-1][1].append(turn)
            room -= size
        for base, group in groups:
            self._layout.write(base, self.model)
            inputs = [self._client_data.samples(turn.client, turn.number)[0] for turn in group]
            answers = predictions(self.model, torch.cat(inputs) if len(inputs) > 1 else inputs[0])
            parts = torch.split(answers, [len(x) for x in inputs])
            found.update({turn.client: part.numpy() for turn, part in zip(group, parts, strict=True)})
        return found

    def _train(self, turn: TrainingTurn, answers: NDArray[np.int64] | None) -> Trained:
        model, training = self.model, self._training
        x, y = self._client_data.samples(turn.client, turn.number)
        self._layout.write(turn.base, model)
        if answers is None and training.wants_answers:
            answers = predictions(model, x).numpy()
        model.train()
        parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        anchors = [parameter.detach().clone() for parameter in parameters] if training.proximal else []
        optimizer = OPTIMIZERS[training.optimizer](parameters, lr=training.lr)
        losses, right = [], []
        batches = training.batches(turn.client, turn.number, len(y))
        for batch in batches:
            index = torch.from_numpy(batch)
            labels = y[index]
            optimizer.zero_grad()
            scores = model(x[index])
            loss = cross_entropy(scores, labels)
            total = loss
            if anchors:
                distance = torch.stack(
                    [(parameter - anchor).square().sum() for parameter, anchor in zip(parameters, anchors, strict=True)]
                )
                total = loss + training.proximal / 2 * distance.sum()
            total.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            losses.append(loss.detach())
            right.append((scores.argmax(dim=1) == labels).sum())
        seen = sum(len(batch) for batch in batches)
        return Trained(
            self._layout.read(model),
            tuple(torch.stack(losses).tolist()),
            int(torch.stack(right).sum()) / seen,
            answers,
        )


@torch.no_grad()
def predictions(model: nn.Module, x: Tensor) -> Tensor:
    """The class that the model gives to each input."""
    model.eval()
    most = min(max(_NUMBERS_AT_ONCE // max(x[:1].numel(), 1), 1), _MOST_AT_ONCE)
    if len(x) <= most:
        return model(x).argmax(dim=1)  # type: ignore[no-any-return]
    return torch.cat([model(part).argmax(dim=1) for part in torch.split(x, most)])
