"""Steps made by hand: weights that change between two backwards although no optimizer has stepped."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING

import torch

from stethos.clock import monotonic_ns
from stethos.observe.batch_print import is_readable

if TYPE_CHECKING:
    from stethos.observe.step_recorder import StepRecorder

_LOOKED_AT = 4  # leaves, of each the first elements


class _UpdatesByHand(torch.optim.Optimizer):
    """Stands for the program's own way to change its weights; never steps itself."""

    def step(self, closure: object = None) -> None:  # type: ignore[override]
        raise AssertionError("never called")


class HandSteps:
    """Notices such steps and writes their rows; `is_needed` from the first of them on, while no optimizer steps."""

    def __init__(self, watch: StepRecorder) -> None:
        self._watch = watch
        self.is_needed = False
        self._leaves: list[weakref.ref[torch.Tensor]] = []
        self._all: list[weakref.ref[torch.Tensor]] = []
        self._values: list[list[float]] = []
        self._stand_in: _UpdatesByHand | None = None
        self._made = 0  # steps of the process, as long as all of them were made by hand

    def before_backward(self) -> None:
        """If weights have changed since the last backward a step has been made: write it."""
        if self._leaves and not self._has_optimizer():
            self._look()

    def after_backward(self, leaves: list[torch.Tensor]) -> None:
        """Remember a few weights, to see whether they have changed by the next backward."""
        self._leaves = []
        if not self._has_optimizer():
            plain = list(filter(is_readable, leaves))
            self._leaves, self._all = list(map(weakref.ref, plain[-_LOOKED_AT:])), list(map(weakref.ref, leaves))
            self._values = self._now()

    def _has_optimizer(self) -> bool:
        """Whether torch's own optimizers are at work, or about to be: they are watched already."""
        seen = self._watch.optimizers.seen()
        has_other = self._watch.session.steps > self._made or any(
            watched.optimizer() is not self._stand_in for watched in seen
        )
        self.is_needed = self.is_needed and not has_other
        return has_other

    def finish(self) -> None:
        """The program ends: the last backward may have been followed by a step, too."""
        self.before_backward()

    def _look(self) -> None:
        values = self._now()
        if values and self._values and values != self._values:
            self.is_needed = True
            self._put_step()
        self._values = values

    def _now(self) -> list[list[float]]:
        leaves = [leaf for ref in self._leaves if is_readable(leaf := ref()) and leaf is not None]
        return [leaf.detach().reshape(-1)[:8].tolist() for leaf in leaves]

    def _put_step(self) -> None:
        """A row as an optimizer's step would leave it; its gradients are gone, so none are sampled."""
        watch = self._watch
        iteration = watch.local.iteration
        if self._stand_in is None:
            self._stand_in = _UpdatesByHand([leaf for ref in self._all if (leaf := ref()) is not None], {})
        watched = watch.enter(iteration, self._stand_in)
        watched.is_new_structure = False
        iteration.depth, iteration.step = 1, watch.take_number()
        iteration.optimizer_start_ns = monotonic_ns()
        watch.step_ended(self._stand_in, (), {})
        self._made = watch.session.steps
