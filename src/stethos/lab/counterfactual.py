"""A captured federation of the lab as a world: it aggregates, examines and trains again, also without some clients."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray

from stethos.errors import CaptureError, UsageError
from stethos.lab.corrected import Repeated, correction_in, treated
from stethos.lab.course import Course
from stethos.lab.engine import Engine
from stethos.lab.federation import one_thread
from stethos.lab.flat import Layout, State
from stethos.lab.observed import silent_round
from stethos.lab.prepare import Choices, EngineName, Prepared, engine_of, prepare
from stethos.lab.seed import generator
from stethos.lab.spec import choices_in, digest_of
from stethos.lab.stacked import MODELS
from stethos.replay.past import History

Weights = dict[str, torch.Tensor]
_MOST_SAMPLES = 2000  # of the test: more take longer and show little more
_KEPT = 64  # states as vectors: a round's, which are combined again and again


class LabWorld:
    """The lab as it was when a capture was made; `right` looks at no more than 2,000 samples of its test."""

    def __init__(self, history: History, choices: Choices | None = None) -> None:
        spec = history.settings.get("lab")
        if choices is None and not isinstance(spec, dict):
            raise CaptureError("this is no federation of the lab", hint="its own trainer and evaluator are needed")
        self._history = history
        self.choices = choices or choices_in(spec or {})
        self.made: Prepared = prepare(self.choices, wants_answers=False)
        if isinstance(spec, dict) and spec.get("data_digest") not in (None, digest_of(self.made.task)):
            raise CaptureError(
                f"the data set {self.made.task.name!r} is not what it was when the run was recorded",
                hint="fetch it again, or use the version of Stethos that recorded the run",
            )
        self.layout = Layout.of(self.made.model)
        self._trained = self.layout.parameters
        self._vectors: OrderedDict[int, tuple[Weights, State]] = OrderedDict()
        count = min(_MOST_SAMPLES, len(self.made.task.test_y))
        self.test_x, self.test_y = self.made.task.test_x[:count], self.made.task.test_y[:count]

    can_train = True

    @property
    def reach(self) -> int:
        """How many rounds before the first one global models are needed from: of a stale client, of a free rider."""
        return 1 + max((int(fault.strength) for fault in self.made.faults if fault.acts_on == "base"), default=0)

    @property
    def labels(self) -> NDArray[np.int64]:
        return self.test_y.numpy()

    @one_thread()
    def combined(
        self, number: int, base: Weights, clients: Sequence[str], sent: Sequence[Weights], samples: Sequence[float]
    ) -> Weights:
        old, rows = self._flat(base), [self._flat(one) for one in sent]
        stacked = torch.stack([one.vector for one in rows])
        counts = torch.tensor(samples, dtype=torch.float64)
        trained, given = self._trained, (stacked, counts, self.made.strategy)
        stacked, counts, strategy = treated(correction_in(self._history.remedy(number)), clients, old.vector, given)
        if not len(stacked):
            return base
        memory = dict(self._history.server_state(number))
        if bool(trained.all()):
            vector = strategy.combine(old.vector, stacked, counts, memory)
        else:
            vector = (counts / counts.sum()).to(stacked.dtype) @ stacked
            vector[trained] = strategy.combine(old.vector[trained], stacked[:, trained], counts, memory)
        return self.layout.as_dict(State(vector, rows[0].counters))

    def _flat(self, weights: Weights) -> State:
        """`state_of`, remembered for the states that were asked for last; holding them keeps their identity."""
        known = self._vectors.get(id(weights))
        if known is None:
            known = self._vectors[id(weights)] = weights, self.state_of(weights)
            if len(self._vectors) > _KEPT:
                self._vectors.popitem(last=False)
        else:
            self._vectors.move_to_end(id(weights))
        return known[1]

    @one_thread()
    @torch.no_grad()
    def right(self, state: Weights) -> NDArray[np.bool_]:
        return np.asarray((self.scores(state, self.test_x).argmax(1) == self.test_y).numpy(), bool)

    def sample(self, given: int | NDArray[np.float32]) -> torch.Tensor:
        """One input as the model gets it: a sample of the test by its number, or the caller's array."""
        if isinstance(given, int):
            if given >= len(self.made.task.test_y):
                raise UsageError(
                    f"no test sample {given}", hint=f"the test has samples 0 to {len(self.made.task.test_y) - 1}"
                )
            return self.made.task.test_x[given : given + 1]
        shape = self.made.task.test_x.shape[1:]
        if given.dtype.kind not in "fiu" or given.size != shape.numel() or not np.isfinite(given).all():
            raise UsageError(
                f"the input has the shape {given.shape} and type {given.dtype}", hint=f"finite numbers, {tuple(shape)}"
            )
        return torch.from_numpy(np.ascontiguousarray(given, np.float32)).reshape(1, *shape)

    def scores(self, state: Weights, x: torch.Tensor) -> torch.Tensor:
        """The model's scores for some inputs."""
        model = self.made.model
        self.layout.write(self.state_of(state), model)
        model.eval()
        with torch.no_grad():
            return torch.cat([model(part) for part in torch.split(x, 4096)])

    @one_thread()
    def trained(
        self, first: int, last: int, without: frozenset[str], seed: int, tell: Callable[[int], None]
    ) -> Weights:
        """Train rounds again from the global model that the first of them began with."""
        with closing(self._engine(seed)) as engine, torch.enable_grad():
            left_out = frozenset(int(name[1:]) for name in without if name[1:].isdecimal())
            reviewer = Repeated(self._history.remedy, is_whole=not left_out)
            course = Course(self.made.setup, self.made.model, engine, reviewer, left_out)
            past = {
                number - 1: self._global_before(number) for number in range(max(1, first - course.reach), first + 1)
            }
            course.begin(first, past, self._history.server_state(first))
            for number in range(first, last + 1):
                course.play(number, silent_round(), is_examined=False)
                tell(number)
        return self.layout.as_dict(course.state)

    def _global_before(self, number: int) -> State:
        return self.state_of(self._history.global_state(number))

    def _engine(self, seed: int) -> Engine:
        recipe, shelf, training = self.made.parts
        if seed:
            training = replace(training, seed=int(generator(training.seed, "again", seed).integers(2**31)))
        name: EngineName = "stacked" if self.choices.model in MODELS else "loop"
        return engine_of(name, 1, (recipe, shelf, training))

    def state_of(self, weights: Weights) -> State:
        """A state dict as the lab has it; CaptureError if it is not this model's."""
        try:
            parts = [weights[entry.name].reshape(-1).to(self.layout.dtype) for entry in self.layout.entries]
            counters = {name: value for name, value in weights.items() if not value.is_floating_point()}
            vector = torch.cat(parts)
        except (KeyError, RuntimeError) as error:
            raise CaptureError(f"a captured model does not fit the lab's: {error}") from None
        if len(vector) != self.layout.size:
            raise CaptureError(f"a captured model has {len(vector)} weights, the lab's {self.layout.size}")
        return State(vector, counters)
