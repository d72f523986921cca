"""The lab's server with corrections: what becomes of a round's replies before they are combined, and of the result."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from stethos.act.action import Treatment
from stethos.act.correction import Correction, Corrector
from stethos.federate.screening import Screened
from stethos.federate.site import Update
from stethos.federate.structure import State as AnyState
from stethos.lab.flat import FlatState, Layout
from stethos.lab.result import ClientRecord
from stethos.lab.server import Median, Strategy
from stethos.replay.corrections import RoundCorrections

Combination = tuple[Tensor, Tensor, Strategy]


class Reviewer(Protocol):
    """Decides about updates and results: a `Corrector`, or one that does again what was recorded."""

    def review(
        self,
        number: int,
        base: AnyState,
        updates: Sequence[Update],
        facts: Mapping[str, Mapping[str, Any]] | None = None,
    ) -> Correction: ...
    def settle(self, number: int, *, odd: int, loss: float | None, drift: float | None) -> bool: ...


class Repeated:
    """Does what corrections did when the run was recorded.

    A rollback is repeated if the round is as it was; where clients are left out (`is_whole` is False) its
    cause may be gone with them, and it is only repeated if the new model is not finite.
    """

    def __init__(self, corrections: Callable[[int], RoundCorrections], *, is_whole: bool = True) -> None:
        self._corrections = corrections
        self._is_whole = is_whole

    def review(
        self,
        number: int,
        base: AnyState,
        updates: Sequence[Update],
        facts: Mapping[str, Mapping[str, Any]] | None = None,
    ) -> Correction:
        return correction_in(self._corrections(number))

    def settle(self, number: int, *, odd: int, loss: float | None, drift: float | None) -> bool:
        return self._corrections(number).is_rolled_back and (self._is_whole or odd > 0)


def correction_in(corrections: RoundCorrections) -> Correction:
    """What was recorded of a round's corrections, to be applied again."""
    treatments = {client: Treatment(*pair) for client, pair in corrections.treatments.items()}
    return Correction(treatments, corrections.is_robust)


@dataclass(frozen=True, eq=False)
class Reply:
    """What a client sent, and the samples it was asked about."""

    record: ClientRecord
    state: FlatState
    labels: NDArray[np.int64]
    answers: NDArray[np.int64] | None
    inputs: Tensor | None = None
    trained: Tensor | None = None


def review(
    corrector: Reviewer, number: int, layout: Layout, current: Tensor, replies: Sequence[Reply], given: Combination,
    screened: Screened | None = None,
) -> tuple[Combination, Correction]:  # fmt: skip
    """What is combined instead of what was `given` (the same in a dry run), and what was decided.

    `screened` is what the recording already knows of these updates; without it they are fingerprinted here.
    """
    clients = [one.record.client for one in replies]
    if isinstance(corrector, Corrector) and screened is not None and list(screened.clients) == clients:
        made = corrector.decide(screened)
    else:
        made = _reviewed(corrector, number, layout, current, replies)
    if not made.is_applied:
        return given, made
    return treated(made, clients, current, given), made


def _reviewed(
    corrector: Reviewer, number: int, layout: Layout, current: Tensor, replies: Sequence[Reply]
) -> Correction:
    updates = [Update(one.record.client, layout.as_dict(one.state), len(one.labels)) for one in replies]
    facts = {
        one.record.client: {
            "entry_loss": one.record.entry_loss,
            "exit_loss": one.record.exit_loss,
            "confusion": None if one.answers is None else confusion(one.labels, one.answers),
        }
        for one in replies
    }
    return corrector.review(number, layout.as_dict(FlatState(current, {})), updates, facts)


def treated(made: Correction, clients: Sequence[str], current: Tensor, given: Combination) -> Combination:
    """Rows of weights, their samples, and how they are combined, as a correction leaves them; perhaps no row."""
    sent, samples, strategy = given
    treatments = [made.of(client) for client in clients]
    weights = torch.tensor([one.weight for one in treatments], dtype=samples.dtype)
    scales = torch.tensor([one.scale for one in treatments], dtype=sent.dtype)
    kept = weights > 0
    if bool((scales != 1).any()):
        sent = torch.where(scales[:, None] == 1, sent, current + scales[:, None] * (sent - current))
    return sent[kept], (samples * weights)[kept], Median() if made.is_robust else strategy


def settle(corrector: Reviewer, number: int, good: FlatState, new: FlatState, loss: float) -> FlatState:
    """The global model to go on with: the new one or, if that is not finite or worse, the last good one."""
    odd = int((~torch.isfinite(new.vector)).sum())
    drift = float(torch.linalg.vector_norm(new.vector - good.vector))
    return good if corrector.settle(number, odd=odd, loss=loss, drift=drift) else new


def confusion(labels: NDArray[np.int64], answers: NDArray[np.int64]) -> NDArray[np.float64]:
    """How often the incoming model answered what (column) to samples labelled what (row)."""
    size = 1 + int(max(labels.max(), answers.max()))
    matrix = np.zeros((size, size))
    np.add.at(matrix, (labels, answers), 1)
    return matrix
