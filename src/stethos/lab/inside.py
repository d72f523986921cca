"""Inside a client's turn in the lab: does it send what it trained, and which of its samples do the harm?"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from stethos.lab.apply_fault import Samples
from stethos.lab.client_data import ClientData
from stethos.lab.federation import one_thread
from stethos.lab.local import LocalTrainer, TrainingTurn
from stethos.lab.replay import LabTrainer
from stethos.replay.bisection import fewest
from stethos.replay.history import RecordedRound
from stethos.replay.inside import RetrainedTurn
from stethos.replay.trainer import aggregated, right_answers

_PARTS = 8


class _PartialData(ClientData):
    """All data, with only some samples of one client."""

    def __init__(self, whole: ClientData, client: int, kept: Tensor) -> None:
        self.__dict__.update(whole.__dict__)
        self._whole, self._client, self._kept = whole, client, kept

    def samples(self, client: int, number: int) -> Samples:
        x, y = self._whole.samples(client, number)
        return (x[self._kept], y[self._kept]) if client == self._client else (x, y)


@one_thread()
def look_inside(trainer: LabTrainer, one: RecordedRound, client: str) -> RetrainedTurn:
    """Train the client's turn again, compare with what it sent, and search its samples label by label."""
    number = int(client[1:])
    recipe, client_data, training = trainer.made.parts
    base = trainer.state_of(one.base)
    turn = TrainingTurn(number, one.number, base)
    with torch.enable_grad():
        trained = LocalTrainer(recipe, client_data, training).train(turn)
    sent = trainer.state_of(one.sent_by(client)).vector
    change = torch.linalg.vector_norm(trained.state.vector - base.vector)
    parting = float(torch.linalg.vector_norm(sent - trained.state.vector) / change.clamp_min(1e-12))
    odd = next((step for step, loss in enumerate(trained.losses) if not np.isfinite(loss)), None)
    found = RetrainedTurn(client, one.number, parting if np.isfinite(parting) else float("inf"), odd)
    return found if not found.is_sent_as_trained else _search(trainer, one, found, client_data, turn)


def _search(
    trainer: LabTrainer, one: RecordedRound, found: RetrainedTurn, client_data: ClientData, turn: TrainingTurn
) -> RetrainedTurn:
    """The label whose samples the round does best without; then the fewest of them, by parts."""
    recipe, _, training = trainer.made.parts
    labels = client_data.samples(turn.client, turn.number)[1]
    clean = aggregated(trainer, one, frozenset({found.client}))

    def accuracy_without(left_out: Tensor) -> float:
        kept = torch.ones(len(labels), dtype=torch.bool)
        kept[left_out] = False
        if not bool(kept.any()):
            return float(right_answers(trainer, clean).mean())
        with torch.enable_grad():
            state = LocalTrainer(recipe, _PartialData(client_data, turn.client, kept), training).train(turn).state
        sent = trainer.layout.as_dict(state)
        updates = [replace(other, state=sent) if other.client == found.client else other for other in one.updates]
        return float(right_answers(trainer, aggregated(trainer, replace(one, updates=tuple(updates)))).mean())

    whole = accuracy_without(torch.zeros(0, dtype=torch.int64))
    groups = {label: torch.nonzero(labels == label).flatten() for label in sorted(set(labels.tolist()))}
    gains = {label: accuracy_without(group) - whole for label, group in groups.items()}
    label = max(gains, key=lambda one: gains[one])
    if gains[label] <= 0:
        return replace(found, accuracy=whole)
    parts = [part for part in groups[label].tensor_split(_PARTS) if len(part)]
    enough = whole + 0.6 * gains[label]
    chosen = torch.cat(fewest(parts, lambda some: accuracy_without(torch.cat(list(some))) >= enough))
    answers = trainer.scores(clean, client_data.samples(turn.client, turn.number)[0][groups[label]]).argmax(1)
    others = answers[answers != label]
    return replace(
        found, label=label, samples=tuple(chosen.tolist()), disputed=len(others),
        answer=int(others.mode().values) if len(others) else None, accuracy=whole,
        without_samples=whole + gains[label],
    )  # fmt: skip
