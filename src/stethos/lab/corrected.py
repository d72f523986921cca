"""The lab's server with corrections: what becomes of a round's replies before they are combined, and of the result."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from stethos.act.correction import Corrector
from stethos.federate.site import Update
from stethos.lab.flat import Layout, State
from stethos.lab.result import ClientRecord
from stethos.lab.server import Median, Strategy

Combination = tuple[Tensor, Tensor, Strategy]


@dataclass(frozen=True, eq=False)
class Reply:
    """What a client sent, and the samples it was asked about."""

    record: ClientRecord
    state: State
    labels: NDArray[np.int64]
    answers: NDArray[np.int64] | None


def review(
    corrector: Corrector, number: int, layout: Layout, current: Tensor, replies: Sequence[Reply], given: Combination
) -> Combination:
    """What is combined instead of what was `given`: rows of weights, their samples, and how; the same in a dry run."""
    sent, samples, strategy = given
    updates = [Update(one.record.client, layout.as_dict(one.state), len(one.labels)) for one in replies]
    facts = {
        one.record.client: {
            "entry_loss": one.record.entry_loss,
            "exit_loss": one.record.exit_loss,
            "confusion": None if one.answers is None else confusion(one.labels, one.answers),
        }
        for one in replies
    }
    made = corrector.review(number, layout.as_dict(State(current, {})), updates, facts)
    if not made.is_applied:
        return given
    treatments = [made.of(update.client) for update in updates]
    weights = torch.tensor([one.weight for one in treatments], dtype=samples.dtype)
    scales = torch.tensor([one.scale for one in treatments], dtype=sent.dtype)
    kept = weights > 0
    if bool((scales != 1).any()):
        sent = torch.where(scales[:, None] == 1, sent, current + scales[:, None] * (sent - current))
    return sent[kept], (samples * weights)[kept], Median() if made.is_robust else strategy


def settle(corrector: Corrector, number: int, good: State, new: State, loss: float) -> State:
    """The global model to go on with: the new one or, if that is spoilt, the last good one."""
    odd = int((~torch.isfinite(new.vector)).sum())
    drift = float(torch.linalg.vector_norm(new.vector - good.vector))
    return good if corrector.settle(number, odd=odd, loss=loss, drift=drift) else new


def confusion(labels: NDArray[np.int64], answers: NDArray[np.int64]) -> NDArray[np.float64]:
    """How often the incoming model answered what (column) to samples labelled what (row)."""
    size = 1 + int(max(labels.max(), answers.max()))
    matrix = np.zeros((size, size))
    np.add.at(matrix, (labels, answers), 1)
    return matrix
