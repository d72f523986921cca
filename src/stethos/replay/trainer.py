"""Who repeats a federation's work: train clients, aggregate, evaluate.

The lab has a `Trainer` for its own runs; `OwnTrainer` calls the functions of a user's loop.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from stethos.errors import ReplayError
from stethos.replay.effect import Flags
from stethos.replay.history import ClientUpdate, Past, RecordedRound, State

Labels = npt.NDArray[np.int64]
RIGHT, LABELS = "right", "labels"  # in what an evaluator returns: one value per test sample
_HINT = f"return booleans, one per test sample, or a dict with them as {RIGHT!r} (and the true classes as {LABELS!r})"


@dataclass(frozen=True, eq=False, slots=True)
class ModelEvaluation:
    """What a test says of a model: numbers by name and, where known, which samples it gets right, and their classes."""

    numbers: Mapping[str, float]
    right: Flags | None = None
    labels: Labels | None = None


class Trainer(Protocol):
    """Repeats a federation's work. Not every one can train, and a training may need earlier global models."""

    @property
    def can_train(self) -> bool: ...
    @property
    def reach(self) -> int:
        """How many rounds before the one it begins with a training needs global models from."""

    def train(self, round: int, clients: Sequence[str], past: Past, seed: int = 0) -> list[ClientUpdate]:
        """What these clients send in a round; seed 0 repeats what was recorded, others draw other numbers."""

    def aggregate(
        self, round: int, current: State, updates: Sequence[ClientUpdate], memory: State
    ) -> tuple[State, State]:
        """The new global model, corrected as it was then, and what the server remembers for the next round."""

    def evaluate(self, state: State) -> ModelEvaluation: ...


def aggregated(trainer: Trainer, one: RecordedRound, without: frozenset[str] = frozenset()) -> State:
    """A recorded round's result without some of its clients; the model it began with if none are left."""
    left = [update for update in one.updates if update.client not in without]
    return trainer.aggregate(one.number, one.base, left, one.memory)[0] if left else one.base


def right_answers(trainer: Trainer, state: State) -> Flags:
    """For each test sample whether the model gets it right; ReplayError where the evaluator does not say."""
    found = trainer.evaluate(state).right
    if found is None:
        raise ReplayError("the evaluator returned numbers only, not which samples are right", hint=_HINT)
    return found


def evaluation_in(made: Any) -> ModelEvaluation:
    """What a user's evaluator returned.

    A mapping of numbers by name, in which `right` and `labels` hold one value per test sample; or these booleans
    alone, or booleans and labels as a pair; or one number, the accuracy; or loss and accuracy as a pair.
    """
    if not isinstance(made, Mapping):
        made = _named(made)
    numbers = {str(name): float(value) for name, value in made.items() if name not in (RIGHT, LABELS)}
    right = made.get(RIGHT)
    if right is None:
        return ModelEvaluation(numbers)
    flags = np.asarray(right).reshape(-1)
    if flags.dtype != np.bool_ or len(flags) < 2:
        raise ReplayError(f"{RIGHT!r} of the evaluator is {flags.dtype}: no booleans, one per sample", hint=_HINT)
    labels = None if made.get(LABELS) is None else np.asarray(made[LABELS], np.int64).reshape(-1)
    if labels is not None and len(labels) != len(flags):
        raise ReplayError(f"the evaluator returned {len(flags)} answers and {len(labels)} labels", hint=_HINT)
    return ModelEvaluation({"accuracy": float(flags.mean()), **numbers}, flags, labels)


def _named(made: Any) -> Mapping[str, Any]:
    first, second = made if isinstance(made, tuple) and len(made) == 2 else (made, None)
    if np.ndim(first):
        return {RIGHT: first, LABELS: second}
    return {"accuracy": first} if second is None else {"loss": first, "accuracy": second}
