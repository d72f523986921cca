"""Steps made by hand: weights that change between two backwards although no optimizer has stepped."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING

import numpy as np
import torch

from stethos.clock import monotonic_ns
from stethos.observe.autograd_graph import unwrapped_of
from stethos.observe.batch_print import is_readable

if TYPE_CHECKING:
    from stethos.observe.step_recorder import StepRecorder

_LOOKED_AT, _FIRST = 4, 8  # leaves, of each the first elements
_ALIKE = 0.8  # the cosine between weights before and after a step


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
        self._shapes: list[torch.Size] = []
        self._gradients: list[list[float]] = []  # of the weights whose numbers are kept
        self.slope: float | None = None  # of the last step: the cosine between it and its gradient
        self._given: list[list[float]] = []  # numbers of the tensors whose gradients were asked for last
        self._stand_in: _UpdatesByHand | None = None
        self._made = 0  # steps of the process, as long as all of them were made by hand

    def before_backward(self) -> None:
        """If weights have changed since the last backward a step has been made: write it."""
        if self._leaves and not self._has_optimizer():
            self._look()

    def before_gradients(self, inputs: list[torch.Tensor]) -> None:
        """Gradients are asked for, not left in the weights.

        The weights may be other tensors each time, so their numbers are compared.
        """
        if self._has_optimizer():
            return
        shapes, values = [one.shape for one in inputs], _numbers_in(inputs)
        if values and shapes == self._shapes and _has_moved(self._given, values):
            self._all = list(map(weakref.ref, map(unwrapped_of, inputs)))
            self._note_slope(self._given, values)
            self._put_step()
        self._shapes, self._given, self._gradients = shapes, values, []

    def gradients_came(self, gradients: list[torch.Tensor]) -> None:
        """The gradients that were asked for, in the order of what they were asked for."""
        self._gradients = _numbers_in(gradients)

    def _note_slope(self, before: list[list[float]], after: list[list[float]]) -> None:
        """Whether weights have moved along their gradients, 1, or against them, -1."""
        old, new, slope = (
            np.concatenate([np.array(row) for row in rows]) for rows in (before, after, self._gradients or [[]])
        )
        if old.shape == new.shape == slope.shape:
            size = float(np.linalg.norm(new - old) * np.linalg.norm(slope))
            self.slope = float(np.dot(new - old, slope)) / size if 0 < size < np.inf else None

    def after_backward(self, leaves: list[torch.Tensor]) -> None:
        """Remember a few weights, to see whether they have changed by the next backward."""
        self._leaves = []
        if not self._has_optimizer():
            plain = list(filter(is_readable, leaves))
            self._leaves, self._all = list(map(weakref.ref, plain[-_LOOKED_AT:])), list(map(weakref.ref, leaves))
            self._values = self._now()
            self._gradients = _numbers_in([leaf.grad for leaf in plain[-_LOOKED_AT:] if leaf.grad is not None])

    def _has_optimizer(self) -> bool:
        """Whether torch's own optimizers are at work, or about to be: they are watched already."""
        seen = self._watch.optimizers.seen()
        has_other = self._watch.session.steps > self._made or any(
            watched.optimizer() is not self._stand_in for watched in seen
        )
        self.is_needed = self.is_needed and not has_other
        self.slope = None if has_other else self.slope  # weights that are moved beside an optimizer are moved back
        return has_other

    def finish(self) -> None:
        """The program ends: the last backward may have been followed by a step, too."""
        self.before_backward()

    def _look(self) -> None:
        values = self._now()
        if values and self._values and values != self._values:
            self.is_needed = True
            self._note_slope(self._values, values)
            self._put_step()
        self._values = values

    def _now(self) -> list[list[float]]:
        return _numbers_in([leaf for ref in self._leaves if (leaf := ref()) is not None])

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


def _numbers_in(tensors: list[torch.Tensor]) -> list[list[float]]:
    """A few numbers of the last of these tensors."""
    plain = [one for tensor in tensors[-_LOOKED_AT:] if is_readable(one := unwrapped_of(tensor))]
    return [one.detach().reshape(-1)[:_FIRST].tolist() for one in plain]


def _has_moved(before: list[list[float]], after: list[list[float]]) -> bool:
    """Whether numbers have moved, and are not simply others, as those of another picture are."""
    old, new = np.concatenate([np.array(one) for one in before]), np.concatenate([np.array(one) for one in after])
    if old.shape != new.shape or not np.isfinite(new).all():
        return False
    size = float(np.linalg.norm(old) * np.linalg.norm(new))
    return bool((new != old).any()) and (size == 0 or float(np.dot(old, new)) > _ALIKE * size)
