"""Inside a client's turn in the lab: does it send what it trained, and which of its samples do the harm?"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from stethos.lab.counterfactual import LabWorld
from stethos.lab.federation import one_thread
from stethos.lab.local import LocalTrainer, Turn
from stethos.lab.shelf import Shelf
from stethos.lab.spoil import Samples
from stethos.replay.bisection import fewest
from stethos.replay.inside import Inside
from stethos.replay.past import Turnout

_PARTS = 8


class _Part(Shelf):
    """The shelf with only some samples of one client on it."""

    def __init__(self, whole: Shelf, client: int, kept: Tensor) -> None:
        self.__dict__.update(whole.__dict__)
        self._whole, self._client, self._kept = whole, client, kept

    def samples(self, client: int, number: int) -> Samples:
        x, y = self._whole.samples(client, number)
        return (x[self._kept], y[self._kept]) if client == self._client else (x, y)


@one_thread()
def look_inside(world: LabWorld, turnout: Turnout, client: str) -> Inside:
    """Train the client's turn again, compare with what it sent, and search its samples label by label."""
    number, place = int(client[1:]), turnout.clients.index(client)
    recipe, shelf, training = world.made.parts
    base = world.state_of(turnout.base)
    turn = Turn(number, turnout.number, base)
    with torch.enable_grad():
        trained = LocalTrainer(recipe, shelf, training).train(turn)
    sent = world.state_of(turnout.sent[place]).vector
    change = torch.linalg.vector_norm(trained.state.vector - base.vector)
    parting = float(torch.linalg.vector_norm(sent - trained.state.vector) / change.clamp_min(1e-12))
    odd = next((step for step, loss in enumerate(trained.losses) if not np.isfinite(loss)), None)
    found = Inside(client, turnout.number, parting if np.isfinite(parting) else float("inf"), odd)
    return found if not found.is_sent_as_trained else _search(world, turnout, found, shelf, turn)


def _search(world: LabWorld, turnout: Turnout, found: Inside, shelf: Shelf, turn: Turn) -> Inside:
    """The label whose samples the round does best without; then the fewest of them, by parts."""
    recipe, _, training = world.made.parts
    labels = shelf.samples(turn.client, turn.number)[1]
    place = turnout.clients.index(found.client)

    def accuracy_without(left_out: Tensor) -> float:
        kept = torch.ones(len(labels), dtype=torch.bool)
        kept[left_out] = False
        if not bool(kept.any()):
            return float(world.right(turnout.combined(world, frozenset({found.client}))).mean())
        with torch.enable_grad():
            state = LocalTrainer(recipe, _Part(shelf, turn.client, kept), training).train(turn).state
        sent = [*turnout.sent]
        sent[place] = world.layout.as_dict(state)
        return float(world.right(replace(turnout, sent=tuple(sent)).combined(world)).mean())

    whole = accuracy_without(torch.zeros(0, dtype=torch.int64))
    groups = {label: torch.nonzero(labels == label).flatten() for label in sorted(set(labels.tolist()))}
    gains = {label: accuracy_without(group) - whole for label, group in groups.items()}
    label = max(gains, key=lambda one: gains[one])
    if gains[label] <= 0:
        return replace(found, accuracy=whole)
    parts = [part for part in groups[label].tensor_split(_PARTS) if len(part)]
    enough = whole + 0.6 * gains[label]
    chosen = torch.cat(fewest(parts, lambda some: accuracy_without(torch.cat(list(some))) >= enough))
    clean = turnout.combined(world, frozenset({found.client}))
    answers = world.scores(clean, shelf.samples(turn.client, turn.number)[0][groups[label]]).argmax(1)
    others = answers[answers != label]
    return replace(
        found, label=label, samples=tuple(chosen.tolist()), disputed=len(others),
        answer=int(others.mode().values) if len(others) else None, accuracy=whole,
        without_samples=whole + gains[label],
    )  # fmt: skip
