"""Repeats the rounds of the lab's own runs from their captures: same data, same split, same faults, same bits."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import cross_entropy

from stethos.errors import CaptureError, ReplayError, UsageError
from stethos.federate.site import digest_of_order
from stethos.lab.corrected import Repeated
from stethos.lab.course import Course
from stethos.lab.data import Data
from stethos.lab.federation import one_thread
from stethos.lab.flat import FlatState
from stethos.lab.local import LocalTrainer
from stethos.lab.model import Factory
from stethos.lab.prepare import EngineName, LabChoices, Prepared, engine_of, prepare
from stethos.lab.seed import generator
from stethos.lab.server import Strategy
from stethos.lab.spec import choices_in, digest_of
from stethos.lab.split import Split
from stethos.lab.stacked import MODELS, StackedTrainer
from stethos.replay.history import ClientUpdate, FederationHistory, Past, State
from stethos.replay.trainer import ModelEvaluation

_MOST_SAMPLES = 2000  # of the test, for proofs: more take longer and show little more
_KEPT = 64  # states as vectors: a round's, which are combined again and again


def trainer_of(
    history: FederationHistory, *, data: Data | None = None, model: Factory | None = None, split: Split | None = None,
    strategy: Strategy | None = None, is_fast: bool = False,
) -> LabTrainer:  # fmt: skip
    """A trainer for a capture of the lab; what was the caller's own must be given again."""
    spec = history.settings.get("lab")
    if not isinstance(spec, Mapping):
        raise CaptureError("not a capture of the lab", hint="give the trainer of your loop: --trainer module:function")
    choices = choices_in(spec, data=data, model=model, split=split, strategy=strategy)
    try:
        made = LabTrainer(history, choices, is_fast=is_fast)
    except (TypeError, ValueError, ArithmeticError, LookupError, AttributeError, RuntimeError, MemoryError) as error:
        raise CaptureError(f"the federation cannot be set up again: {error}", hint="the capture is damaged") from None
    if spec.get("data_digest") not in (None, digest_of(made.made.task)):
        raise ReplayError(
            f"the data {made.made.task.name!r} are not those of the recording",
            hint="another version of the data, or of the package that they come with",
        )
    return made


class LabTrainer:
    """Trains, aggregates and evaluates as the lab did; see `stethos.replay.trainer.Trainer`.

    A fast one, for proofs, trains all clients of a round at once where the model allows it, which gives the recorded
    results up to rounding, and evaluates on no more than 2,000 samples of the test.
    """

    can_train = True

    def __init__(self, history: FederationHistory, choices: LabChoices, *, is_fast: bool = False) -> None:
        self._history = history
        self.made: Prepared = prepare(choices, wants_answers=False)
        is_stacked = choices.model in MODELS if is_fast else choices.engine == "stacked"
        self._engine: EngineName = "stacked" if is_stacked else "loop"
        self._seed = 0
        self._course = self._course_of(0)
        self.layout = self._course.layout
        self.reach = self._course.reach
        self.entrance = StackedTrainer.train if is_stacked else LocalTrainer._train  # where a debugger stops
        task = self.made.task
        count = min(_MOST_SAMPLES, len(task.test_y)) if is_fast else len(task.test_y)
        self.test_x, self.test_y = task.test_x[:count], task.test_y[:count]
        self._vectors: OrderedDict[int, tuple[Mapping[str, Tensor], FlatState]] = OrderedDict()

    def train(self, round: int, clients: Sequence[str], past: Past, seed: int = 0) -> list[ClientUpdate]:
        if seed != self._seed:
            self._seed, self._course = seed, self._course_of(seed)
        data = self.made.setup.client_data
        numbers = [_number(client, len(data)) for client in clients]
        with one_thread(), torch.enable_grad():
            found = self._course.sent_by(numbers, round, lambda one: self.state_of(past(one)))
        updates = []
        for client, number, (state, trained) in zip(clients, numbers, found, strict=True):
            samples = len(data.labels(number))
            order = None if seed else digest_of_order(self.made.setup.order(number, round, samples))
            updates.append(ClientUpdate(client, self.layout.as_dict(state), samples, trained.losses, order))
        return updates

    def aggregate(
        self, round: int, current: State, updates: Sequence[ClientUpdate], memory: State
    ) -> tuple[State, State]:
        if not updates:
            return current, memory
        clients = len(self.made.setup.client_data)
        is_whole = {one.client for one in updates} >= set(self._history.clients(round))
        self._course.reviewer = Repeated(self._history.corrections, is_whole=is_whole)
        sent = [(_number(one.client, clients), self.state_of(one.state)) for one in updates]
        with one_thread():
            state, kept = self._course.combined(round, self.state_of(current), sent, memory)
        return self.layout.as_dict(state), kept

    @one_thread()
    @torch.no_grad()
    def evaluate(self, state: State) -> ModelEvaluation:
        loss, parts = 0.0, []
        for x, y in zip(torch.split(self.test_x, 4096), torch.split(self.test_y, 4096), strict=True):
            scores = self.scores(state, x)
            loss += float(cross_entropy(scores, y, reduction="sum"))
            parts.append(scores.argmax(dim=1) == y)
        right = np.asarray(torch.cat(parts).numpy(), bool)
        numbers = {"loss": loss / len(right), "accuracy": int(right.sum()) / len(right)}
        return ModelEvaluation(numbers, right, self.test_y.numpy())

    # One input ----------------------------------------------------------------------------------------

    def sample(self, given: int | NDArray[np.float32]) -> Tensor:
        """One input as the model gets it: a sample of the test by its number, or the caller's array."""
        task = self.made.task
        if isinstance(given, int):
            if given >= len(task.test_y):
                raise UsageError(f"no test sample {given}", hint=f"the test has samples 0 to {len(task.test_y) - 1}")
            return task.test_x[given : given + 1]
        shape = task.test_x.shape[1:]
        if given.dtype.kind not in "fiu" or given.size != shape.numel() or not np.isfinite(given).all():
            raise UsageError(
                f"the input has the shape {given.shape} and type {given.dtype}", hint=f"finite numbers, {tuple(shape)}"
            )
        return torch.from_numpy(np.ascontiguousarray(given, np.float32)).reshape(1, *shape)

    @torch.no_grad()
    def scores(self, state: State, x: Tensor) -> Tensor:
        """The model's scores for some inputs."""
        model = self.made.model
        self.layout.write(self.state_of(state), model)
        return torch.cat([model.eval()(part) for part in torch.split(x, 4096)])

    # States -------------------------------------------------------------------------------------------

    def state_of(self, named: Mapping[str, Tensor]) -> FlatState:
        """A state dict as the lab has it; CaptureError if it is not this model's.

        The same object for the same dict, for those asked about last: a proof combines a round's states again and
        again, and the stacked engine trains those together that start from one.
        """
        known = self._vectors.get(id(named))
        if known is None:
            known = self._vectors[id(named)] = named, self._flat(named)  # holding it keeps its identity
            if len(self._vectors) > _KEPT:
                self._vectors.popitem(last=False)
        else:
            self._vectors.move_to_end(id(named))
        return known[1]

    def _flat(self, named: Mapping[str, Tensor]) -> FlatState:
        try:
            made = self.layout.from_dict(named)
        except (KeyError, RuntimeError) as error:
            raise CaptureError(f"a captured model does not fit the lab's: {error}") from None
        if len(made.vector) != self.layout.size:
            raise CaptureError(f"a captured model has {len(made.vector)} weights, the lab's {self.layout.size}")
        return made

    def _course_of(self, seed: int) -> Course:
        recipe, data, training = self.made.parts
        if seed:
            training = replace(training, seed=int(generator(training.seed, "again", seed).integers(2**31)))
        return Course(self.made.setup, self.made.model, engine_of(self._engine, 1, (recipe, data, training)))


def _number(client: str, clients: int) -> int:
    if client[:1] != "c" or not client[1:].isdecimal() or int(client[1:]) >= clients:
        raise ReplayError(f"the lab has no client {client!r}", hint=f"c0 to c{clients - 1}")
    return int(client[1:])
