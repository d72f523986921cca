"""What a federation of the lab leaves behind."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from stethos.lab.fault import Fault
from stethos.lab.flat import Layout
from stethos.lab.round_outcome import Status


@dataclass(frozen=True, slots=True)
class ClientRecord:
    """One client in one round. Losses and times are None where there was no reply.

    `faults` are the kinds that were active: the truth that a detector has to find.
    """

    client: str
    status: Status
    faults: tuple[str, ...] = ()
    samples: int | None = None
    loss: float | None = None
    accuracy: float | None = None
    entry_loss: float | None = None
    exit_loss: float | None = None
    download_ms: float | None = None
    compute_ms: float | None = None
    upload_ms: float | None = None
    wait_ms: float | None = None
    peak_bytes: int | None = None
    base_round: int | None = None


@dataclass(frozen=True, slots=True)
class RoundRecord:
    """One round: loss and accuracy of the new global model on the test set; virtual time."""

    round: int
    loss: float
    accuracy: float
    duration_ms: float
    wait_ms: float | None
    clients: tuple[ClientRecord, ...]


@dataclass(frozen=True, eq=False)
class Exchange:
    """What the server saw in a round, for `each_round=`: one row of `sent` per client that replied.

    `labels` and `answers` are the client's samples and what the incoming model
    said of them; `inputs` and `trained`, its inputs and the weights that it
    trained, are seen by the client alone. All of it is valid during the call,
    and not to be written to.
    """

    round: int
    clients: tuple[str, ...]
    current: Tensor
    sent: Tensor
    samples: Tensor
    layout: Layout
    records: tuple[ClientRecord, ...]
    labels: tuple[NDArray[np.int64], ...]
    answers: tuple[NDArray[np.int64] | None, ...]
    inputs: tuple[Tensor | None, ...] = ()
    trained: tuple[Tensor | None, ...] = ()


@dataclass(frozen=True, eq=False)
class LabResult:
    """The outcome: `faults` are the ground truth, one per client, with the classes that were meant.

    `path` is the run that was recorded; None if it was not observed.
    """

    data: str
    state: dict[str, Tensor]
    history: tuple[RoundRecord, ...]
    label_counts: dict[str, tuple[int, ...]]
    faults: tuple[Fault, ...]
    path: Path | None

    @property
    def losses(self) -> list[float]:
        return [one.loss for one in self.history]

    @property
    def accuracies(self) -> list[float]:
        return [one.accuracy for one in self.history]

    @property
    def accuracy(self) -> float:
        """Of the final model, on the test set."""
        return self.history[-1].accuracy
