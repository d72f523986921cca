"""Repeats the rounds of the lab's own runs from their captures: same data, same split, same faults, same bits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from stethos.errors import CaptureError, ReplayError
from stethos.federate.site import digest_of_order
from stethos.lab.corrected import Repeated
from stethos.lab.course import Course
from stethos.lab.data import Data
from stethos.lab.federation import one_thread
from stethos.lab.flat import State as FlatState
from stethos.lab.local import LocalTrainer
from stethos.lab.model import Factory
from stethos.lab.prepare import Prepared, engine_of, prepare
from stethos.lab.server import Strategy
from stethos.lab.spec import choices_in, digest_of
from stethos.lab.split import Split
from stethos.lab.stacked import StackedTrainer
from stethos.replay.bundle import Bundle
from stethos.replay.workshop import Past, Sent

State = dict[str, Tensor]


def workshop_of(
    bundle: Bundle, *, data: Data | None = None, model: Factory | None = None, split: Split | None = None,
    strategy: Strategy | None = None,
) -> LabWorkshop:  # fmt: skip
    """A workshop for a capture of the lab; what was the caller's own must be given again."""
    spec = bundle.settings.get("lab")
    if not isinstance(spec, Mapping):
        raise CaptureError("not a capture of the lab", hint="give the trainer of your loop: --trainer module:function")
    choices = choices_in(spec, data=data, model=model, split=split, strategy=strategy)
    made = prepare(choices, wants_answers=False)
    if spec.get("data_digest") not in (None, digest_of(made.task)):
        raise ReplayError(
            f"the data {made.task.name!r} are not those of the recording",
            hint="another version of the data, or of the package that they come with",
        )
    return LabWorkshop(bundle, made, str(choices.engine))


class LabWorkshop:
    """Trains, aggregates and evaluates as the lab did; see `stethos.replay.workshop.Workshop`."""

    def __init__(self, bundle: Bundle, made: Prepared, engine: str) -> None:
        self._bundle = bundle
        self._made = made
        self.engine = engine
        self._course = Course(
            made.setup, made.model, engine_of("stacked" if engine == "stacked" else "loop", 1, made.parts)
        )
        self._layout = self._course.layout
        self.entrance = StackedTrainer.train if engine == "stacked" else LocalTrainer._train  # where a debugger stops
        self._known: dict[int, tuple[State, FlatState]] = {}

    def train(self, round: int, client: str, past: Past) -> Sent:
        number = _number(client, len(self._made.setup.shelf))
        with one_thread(), torch.enable_grad():
            state, trained = self._course.sent_by(number, round, lambda one: self._flat(one, past))
        samples = len(self._made.setup.shelf.labels(number))
        order = digest_of_order(self._made.setup.order(number, round, samples))
        return Sent(client, self._layout.as_dict(state), samples, trained.losses, order)

    def aggregate(self, round: int, current: State, sent: Sequence[Sent], memory: State) -> tuple[State, State]:
        if not sent:
            return current, memory
        clients = len(self._made.setup.shelf)
        is_whole = {one.client for one in sent} >= set(self._bundle.clients(round))
        self._course.reviewer = Repeated(self._bundle.remedy, is_whole=is_whole)
        states = [(_number(one.client, clients), self._layout.from_dict(one.state)) for one in sent]
        with one_thread():
            state, kept = self._course.combined(round, self._layout.from_dict(current), states, memory)
        return self._layout.as_dict(state), kept

    def evaluate(self, state: State) -> dict[str, float]:
        with one_thread():
            loss, accuracy = self._course.evaluated(self._layout.from_dict(state))
        return {"loss": loss, "accuracy": accuracy}

    def _flat(self, number: int, past: Past) -> FlatState:
        """The same object for the same state: the stacked engine trains those together that start from one."""
        named = past(number)
        known = self._known.get(number)
        if known is None or known[0] is not named:
            known = self._known[number] = named, self._layout.from_dict(named)
            for old in [one for one in self._known if one < number - 20]:
                del self._known[old]
        return known[1]


def _number(client: str, clients: int) -> int:
    if client[:1] != "c" or not client[1:].isdigit() or int(client[1:]) >= clients:
        raise ReplayError(f"the lab has no client {client!r}", hint=f"c0 to c{clients - 1}")
    return int(client[1:])
