"""Who does the local training: one client after another, several processes, or all clients at once.

An engine is told a round's turns, and then asked for each result in turn: the
loop trains when it is asked, inside the client's context; the others have begun by then.
"""

from __future__ import annotations

import multiprocessing
import pickle
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import nullcontext
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from stethos.errors import StethosError, UsageError
from stethos.federate.invitation import Invitation
from stethos.lab.client_data import ClientData
from stethos.lab.local import LocalTrainer, LocalTraining, Trained, TrainingTurn
from stethos.lab.model import Recipe
from stethos.lab.stacked import StackedTrainer

Parts = tuple[Recipe, ClientData, LocalTraining]


class TrainingEngine(Protocol):
    """Trains the clients of a round: `begin` is given all turns, then `result` is asked for one after the other."""

    @property
    def trains_together(self) -> bool:
        """Whether a client's bits may depend on which others train with it."""

    @property
    def is_elsewhere(self) -> bool:
        """Whether clients train in other processes, which need an invitation to be recorded."""

    @property
    def model(self) -> torch.nn.Module | None:
        """The one that is trained in this process, client after client; None if there is no such."""

    def begin(self, turns: Sequence[TrainingTurn]) -> None: ...
    def result(self, turn: TrainingTurn) -> Trained: ...
    def close(self) -> None: ...


class Loop:
    """One client after another, in this process."""

    trains_together = False
    is_elsewhere = False

    def __init__(self, parts: Parts) -> None:
        self._trainer = LocalTrainer(*parts)
        self.model: torch.nn.Module | None = self._trainer.model
        self._answers: dict[int, NDArray[np.int64]] = {}

    def begin(self, turns: Sequence[TrainingTurn]) -> None:
        self._answers = self._trainer.answers_to(turns)

    def result(self, turn: TrainingTurn) -> Trained:
        return self._trainer.train(turn, self._answers.get(turn.client))

    def close(self) -> None:
        """Nothing to close."""


class Stacked:
    """All clients of a round at once."""

    trains_together = True
    is_elsewhere = False
    model: torch.nn.Module | None = None

    def __init__(self, parts: Parts) -> None:
        self._trainer = StackedTrainer(*parts)
        self._results: dict[int, Trained] = {}

    def begin(self, turns: Sequence[TrainingTurn]) -> None:
        results = self._trainer.train(turns) if turns else []
        self._results = {turn.client: trained for turn, trained in zip(turns, results, strict=True)}

    def result(self, turn: TrainingTurn) -> Trained:
        return self._results[turn.client]

    def close(self) -> None:
        """Nothing to close."""


class Processes:
    """Several processes, each with the loop's trainer: the same bits.

    What travels is pickled by hand: torch would pass tensors as open files.
    """

    trains_together = False
    is_elsewhere = True
    model: torch.nn.Module | None = None

    def __init__(self, parts: Parts, processes: int) -> None:
        try:
            packed = pickle.dumps(parts)
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            raise UsageError(
                f"the model cannot be sent to other processes: {error}",
                hint="define the function that builds it at the top level of a module, or use processes=1",
            ) from None
        context = multiprocessing.get_context("spawn")
        self._pool = ProcessPoolExecutor(processes, context, initializer=_start_worker, initargs=(packed,))
        self._coming: dict[int, Future[bytes]] = {}

    def begin(self, turns: Sequence[TrainingTurn]) -> None:
        try:
            self._coming = {turn.client: self._pool.submit(_train, pickle.dumps(turn)) for turn in turns}
        except BrokenProcessPool:
            raise _broken() from None

    def result(self, turn: TrainingTurn) -> Trained:
        try:
            answer = self._coming.pop(turn.client).result()
        except BrokenProcessPool:
            raise _broken() from None
        trained = pickle.loads(answer)
        assert isinstance(trained, Trained)
        return trained

    def close(self) -> None:
        self._pool.shutdown(cancel_futures=True)


def _broken() -> StethosError:
    return StethosError(
        "a training process ended before its time",
        hint='a script with processes= needs `if __name__ == "__main__":` around its call; else memory ran out',
    )


# The trainer of this process of a pool: its initializer has nowhere else to leave it.
_worker: Callable[[TrainingTurn], Trained] | None = None


def _start_worker(packed: bytes) -> None:
    global _worker
    torch.set_num_threads(1)
    _worker = LocalTrainer(*pickle.loads(packed)).train


def _train(packed: bytes) -> bytes:
    assert _worker is not None
    turn: TrainingTurn = pickle.loads(packed)
    with Invitation.from_fields(turn.invitation).marked() if turn.invitation else nullcontext():
        return pickle.dumps(_worker(turn))
