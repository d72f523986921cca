"""Local training of all clients of a round at once: one batched matrix product instead of a loop over clients.

For the models that are chains of linear layers with rectified units between
them. The batches and their order are those of `LocalTrainer`, the results equal to its
up to rounding. Clients are sorted by their number of steps, so that those still
training are always the first ones, and nothing is computed for the others.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from stethos.errors import UsageError
from stethos.lab.client_data import ClientData, Version
from stethos.lab.flat import FlatState, Layout
from stethos.lab.local import LocalTraining, Trained, TrainingTurn
from stethos.lab.model import Recipe

_BETA1, _BETA2, _EPSILON = 0.9, 0.999, 1e-8  # torch's defaults for Adam
MODELS = ("logistic", "mlp")


@dataclass(frozen=True, slots=True)
class _Pool:
    """The samples of all clients one after another; client `k` has those from `starts[k]` on."""

    key: tuple[Version, ...]
    x: Tensor
    y: Tensor
    starts: list[int]
    sizes: list[int]


@dataclass(frozen=True, slots=True)
class _Schedule:
    """Which samples each client sees at each step: `index[client, step]`, of which the first `lengths` count."""

    index: Tensor
    lengths: Tensor
    steps: list[int]


class StackedTrainer:
    """Trains many clients at once; `train` gives what as many calls of `LocalTrainer.train` would."""

    def __init__(self, recipe: Recipe, client_data: ClientData, training: LocalTraining) -> None:
        if recipe.choice not in MODELS:
            raise UsageError(
                f"the engine 'stacked' cannot train the model {recipe.choice!r}",
                hint=f"it knows {' and '.join(MODELS)}; engine='loop' trains any model",
            )
        self._layout = Layout.of(recipe.build())
        self._client_data = client_data
        self._training = training
        self._pool: _Pool | None = None

    def train(self, turns: Sequence[TrainingTurn]) -> list[Trained]:
        pool = self._pool_of(turns[0].number)
        batches = [len(range(0, pool.sizes[turn.client], self._training.batch)) for turn in turns]
        order = sorted(range(len(turns)), key=lambda place: -batches[place])
        schedule = self._schedule([turns[place] for place in order], pool)
        base = torch.stack([turns[place].base.vector for place in order])
        vectors, losses, right = self._steps(base, pool, schedule)
        answers = self._answers(turns, pool) if self._training.wants_answers else [None] * len(turns)
        found: list[Trained | None] = [None] * len(turns)
        for row, place in enumerate(order):
            seen = pool.sizes[turns[place].client] * self._training.epochs
            own = tuple(losses[row, : schedule.steps[row]].tolist())
            found[place] = Trained(FlatState(vectors[row], {}), own, int(right[row]) / seen, answers[place])
        return [trained for trained in found if trained is not None]

    def _pool_of(self, number: int) -> _Pool:
        """All samples as they are in this round; made anew when a fault begins or ends."""
        clients = range(len(self._client_data))
        key = tuple(self._client_data.version(client, number) for client in clients)
        if self._pool is None or self._pool.key != key:
            samples = [self._client_data.samples(client, number) for client in clients]
            sizes = [len(y) for _, y in samples]
            starts = [0, *np.cumsum(sizes).tolist()]
            x = torch.cat([x.flatten(1) for x, _ in samples])
            self._pool = _Pool(key, x, torch.cat([y for _, y in samples]), starts, sizes)
        return self._pool

    def _schedule(self, turns: Sequence[TrainingTurn], pool: _Pool) -> _Schedule:
        batch, epochs = self._training.batch, self._training.epochs
        per_epoch = [math.ceil(pool.sizes[turn.client] / batch) for turn in turns]
        steps = [count * epochs for count in per_epoch]
        index = np.zeros((len(turns), max(steps), batch), dtype=np.int64)
        lengths = np.zeros((len(turns), max(steps)), dtype=np.int64)
        for row, turn in enumerate(turns):
            for step, chosen in enumerate(self._training.batches(turn.client, turn.number, pool.sizes[turn.client])):
                index[row, step, : len(chosen)] = chosen + pool.starts[turn.client]
                lengths[row, step] = len(chosen)
        return _Schedule(torch.from_numpy(index), torch.from_numpy(lengths), steps)

    def _steps(self, base: Tensor, pool: _Pool, schedule: _Schedule) -> tuple[Tensor, Tensor, Tensor]:
        """Train from `base`; return the weights, the loss of each batch, and the number of right answers."""
        training = self._training
        tensors = self._tensors(base)
        anchors = [tensor.clone() for tensor in tensors] if training.proximal else []
        moments = (
            [(torch.zeros_like(one), torch.zeros_like(one)) for one in tensors] if training.optimizer == "adam" else []
        )
        losses = torch.zeros(schedule.lengths.shape)
        right = torch.zeros(len(base), dtype=torch.int64)
        for step in range(schedule.lengths.shape[1]):
            active = sum(count > step for count in schedule.steps)
            lengths = schedule.lengths[:active, step]
            index = schedule.index[:active, step, : int(lengths.max())]
            now = [tensor[:active] for tensor in tensors]
            gradients, loss, hits = _gradients(now, pool.x[index], pool.y[index], lengths)
            losses[:active, step] = loss
            right[:active] += hits
            for place, (tensor, gradient) in enumerate(zip(now, gradients, strict=True)):
                if anchors:
                    gradient.add_(tensor - anchors[place][:active], alpha=training.proximal)
                if moments:
                    mean, square = (moment[:active] for moment in moments[place])
                    _adam(tensor, gradient, mean, square, training.lr, step + 1)
                else:
                    tensor.add_(gradient, alpha=-training.lr)
        return torch.cat([tensor.flatten(1) for tensor in tensors], dim=1), losses, right

    def _tensors(self, vectors: Tensor) -> list[Tensor]:
        """Weights and biases of all clients, layer by layer; copies."""
        return [
            vectors[:, entry.start : entry.end].reshape(len(vectors), *entry.shape).clone()
            for entry in self._layout.entries
        ]

    def _answers(self, turns: Sequence[TrainingTurn], pool: _Pool) -> list[NDArray[np.int64] | None]:
        """What each client's incoming model says of its samples; once for all that start from the same model."""
        spoken: dict[int, NDArray[np.int64]] = {}
        found: list[NDArray[np.int64] | None] = []
        for turn in turns:
            if id(turn.base) not in spoken:
                scores = _forward(self._tensors(turn.base.vector[None]), pool.x[None])[-1]
                spoken[id(turn.base)] = scores[0].argmax(dim=1).numpy()
            start = pool.starts[turn.client]
            found.append(spoken[id(turn.base)][start : start + pool.sizes[turn.client]])
        return found


def _forward(tensors: Sequence[Tensor], x: Tensor) -> list[Tensor]:
    """The input and the output of each layer; all but the last are rectified."""
    seen = [x]
    for place in range(0, len(tensors), 2):
        out = torch.baddbmm(tensors[place + 1].unsqueeze(1), seen[-1], tensors[place].transpose(1, 2))
        seen.append(out if place + 2 == len(tensors) else out.relu_())
    return seen


def _gradients(tensors: Sequence[Tensor], x: Tensor, y: Tensor, lengths: Tensor) -> tuple[list[Tensor], Tensor, Tensor]:
    """Gradients of each client's mean loss over its first `lengths` samples, that loss, and how many were right."""
    seen = _forward(tensors, x)
    logs = torch.log_softmax(seen[-1], dim=2)
    counts = torch.arange(y.shape[1]) < lengths[:, None]
    loss = (-logs.gather(2, y[..., None]).squeeze(2)).masked_fill(~counts, 0).sum(dim=1) / lengths
    hits = ((seen[-1].argmax(dim=2) == y) & counts).sum(dim=1)
    back = logs.exp()
    back.scatter_add_(2, y[..., None], torch.full((*y.shape, 1), -1.0))
    back = (back / lengths[:, None, None]).masked_fill(~counts[..., None], 0)
    gradients: list[Tensor] = []
    for place in range(len(tensors) - 2, -1, -2):
        below = seen[place // 2]
        gradients[:0] = [torch.bmm(back.transpose(1, 2), below), back.sum(dim=1)]
        if place:
            back = torch.bmm(back, tensors[place]) * (below > 0)
    return gradients, loss, hits


def _adam(tensor: Tensor, gradient: Tensor, mean: Tensor, square: Tensor, lr: float, step: int) -> None:
    mean.lerp_(gradient, 1 - _BETA1)
    square.mul_(_BETA2).addcmul_(gradient, gradient, value=1 - _BETA2)
    scale = (square.sqrt() / math.sqrt(1 - _BETA2**step)).add_(_EPSILON)
    tensor.addcdiv_(mean, scale, value=-lr / (1 - _BETA1**step))
