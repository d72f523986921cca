"""The optimizers of this process: their parameters, names and start values, and what a row of `steps` says of each."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from operator import is_not

import torch

from stethos.native import WatchedFields
from stethos.observe.alarm import Alarm
from stethos.observe.context import Turn
from stethos.observe.cuda.every_step import EveryStep
from stethos.observe.hyperparameters import note_optimizer
from stethos.observe.iteration import Iteration
from stethos.observe.layer_name import LayerNames, ParameterNames, parameters_of
from stethos.observe.loss_share import Probes
from stethos.observe.sample import tensor_bytes_of
from stethos.observe.session import Session
from stethos.schema import NULL_I32, NULL_I64

_UNNAMED, _SILENT = ParameterNames("", (), None), Alarm()


class Watched(WatchedFields):
    """One optimizer as we know it."""

    def __init__(self, number: int, optimizer: weakref.ref[torch.optim.Optimizer]) -> None:
        self.number = number
        self.optimizer = optimizer
        self.params: list[torch.Tensor] = []
        self.named = _UNNAMED
        self.alarm = _SILENT
        self.is_new_structure = self.was_sampled = False
        self.start: list[torch.Tensor] | None = None
        self.every_step: EveryStep | None = None  # where all parameters are on one GPU
        self.client = self.round = self.model = NULL_I32
        self.local_step = 0
        self.turn: Turn | None = None
        self.backwards_seen = -1  # its thread's count at its last step
        self.allocated_bytes = NULL_I64
        self.layer_ids: list[int] = []
        self.iteration_id = 0  # of the thread that it stepped in last
        self.probes: Probes | None = None  # where losses have to be told apart

    def take_turn(self, turn: Turn) -> None:
        """From now on its steps are of this client and round."""
        self.turn, (self.client, self.round, _) = turn, turn


class Optimizers:
    """Every optimizer that has stepped and is still there; one per recorder."""

    def __init__(
        self,
        session: Session,
        names: LayerNames,
        copy_of_start: Callable[[list[torch.Tensor]], list[torch.Tensor] | None],
    ) -> None:
        self._session = session
        self._names = names
        self._copy_of_start = copy_of_start
        self._watched: dict[int, Watched] = {}
        self._alarms: dict[tuple[str, ...], Alarm] = {}
        self._count = 0
        self.forget_ids()

    def __len__(self) -> int:
        return len(self._watched)

    def forget_ids(self) -> None:
        """In a forked child: names get other numbers."""
        self._last_ids: tuple[ParameterNames, int, list[int]] = _UNNAMED, NULL_I32, []

    def seen_in(self, iteration: Iteration) -> list[Watched]:
        return [watched for watched in list(self._watched.values()) if watched.iteration_id == id(iteration)]

    def seen(self) -> list[Watched]:
        """Every optimizer that is still there, in order of first use; for the agent."""
        return sorted(self._watched.values(), key=lambda watched: watched.number)

    def find(self, optimizer: torch.optim.Optimizer) -> Watched | None:
        """An optimizer that is known already."""
        watched = self._watched.get(id(optimizer))
        return watched if watched is not None and watched.optimizer() is optimizer else None

    def meet(self, optimizer: torch.optim.Optimizer) -> Watched:
        """Get to know an optimizer at its first step."""
        identity = id(optimizer)
        self._count += 1
        watched = Watched(self._count, weakref.ref(optimizer, lambda _: self._forget(identity)))
        self._learn_params(watched, optimizer)
        alarm = self._alarms.get(watched.named.layers)
        watched.is_new_structure = alarm is None
        watched.alarm = alarm or self._alarms.setdefault(watched.named.layers, Alarm())
        self._watched[identity] = watched
        if watched.is_new_structure:
            self._session.guard.run(
                "config", note_optimizer, self._session, len(self._alarms), optimizer, watched.params
            )
        return watched

    def _forget(self, identity: int) -> None:
        """An optimizer is gone: a thread may still hold what we knew of it, but its tensors are let go."""
        watched = self._watched.pop(identity, None)
        if watched is not None:
            watched.params, watched.start, watched.probes, watched.every_step = [], None, None, None

    def _learn_params(self, watched: Watched, optimizer: torch.optim.Optimizer) -> None:
        """The optimizer's parameters, their names and start values; none of this is worth losing its steps."""
        guard, name_id = self._session.guard, self._session.name_id
        params = parameters_of(optimizer)
        starts = {id(param): start for param, start in zip(watched.params, watched.start or (), strict=False)}
        fresh = [param for param in params if id(param) not in starts] if starts else params
        copies = guard.run("drift", self._copy_of_start, fresh)
        if starts and copies is not None:
            starts |= zip(map(id, fresh), copies, strict=True)
            copies = [starts[id(param)] for param in params]
        watched.start = copies
        watched.params, watched.probes, watched.every_step = params, None, None
        named = watched.named = guard.run("names", self._names.of, optimizer) or _numbered(len(params))
        if named is not self._last_ids[0]:  # else a model that is trained turn by turn has got its next optimizer
            model = name_id(named.model) if named.model else NULL_I32
            ids = [name_id(name) for name in named.layers]
            self._last_ids = named if NULL_I32 not in ids else _UNNAMED, model, ids
        _, watched.model, watched.layer_ids = self._last_ids
        allocated = guard.run("memory", tensor_bytes_of, optimizer, params)
        watched.allocated_bytes = NULL_I64 if allocated is None else allocated

    def params_now(self, watched: Watched) -> list[torch.Tensor]:
        """The optimizer's parameters, learned anew if it was given others since."""
        optimizer = watched.optimizer()
        if optimizer is not None:
            params = parameters_of(optimizer)
            if len(params) != len(watched.params) or any(map(is_not, params, watched.params)):
                self._learn_params(watched, optimizer)
        return watched.params


def _numbered(count: int) -> ParameterNames:
    """Names for parameters whose names cannot be found."""
    return ParameterNames("", tuple(f"param_{index}" for index in range(count)), None)
