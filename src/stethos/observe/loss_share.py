"""Tells losses apart where several backwards come before the steps of several optimizers.

Actor and critic, or models that teach each other: `a.backward(); b.backward(); first.step(); second.step()`. Which loss
is whose shows in the gradients that each backward has changed; a few of each optimizer's are looked at.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from stethos.observe.optimizers import Watched

_PROBES = 4


class Probes:
    """A few gradients of one optimizer, spread over its parameters, as they were when last looked at."""

    __slots__ = ("_marks", "_params")

    def __init__(self, params: Sequence[torch.Tensor]) -> None:
        trained = [param for param in params if param.requires_grad]
        places = sorted({(len(trained) - 1) * part // (_PROBES - 1) for part in range(_PROBES)}) if trained else ()
        self._params = [trained[place] for place in places]
        self._marks: list[tuple[weakref.ref[torch.Tensor] | None, int]] = [(None, 0)] * len(self._params)

    def have_changed(self) -> bool:
        """Whether one of them is there that was not, or was added to, since the last time."""
        has_changed = False
        for index, param in enumerate(self._params):
            gradient, (reference, version) = param.grad, self._marks[index]
            if gradient is None:
                self._marks[index] = None, 0
                continue
            now = 0 if gradient.is_inference() else gradient._version
            if reference is None or reference() is not gradient or now != version:
                has_changed = True
                self._marks[index] = weakref.ref(gradient), now
        return has_changed


class LossShares:
    """The losses of a thread's backwards since its last step; valid while the thread has made `backwards` of them."""

    __slots__ = ("_of_all", "_pending", "_shares", "_total", "backwards")

    def __init__(self, loss: float) -> None:
        self.backwards = 0
        self._pending: float | None = loss
        self._total = self._of_all = 0.0
        self._shares: dict[int, float] = {}

    def add(self, loss: float, backwards: int) -> None:
        """A backward begins; `claim` has been called for the one before."""
        self._pending, self.backwards = loss, backwards

    def claim(self, optimizers: Sequence[Watched]) -> None:
        """A backward has ended: its loss is of those whose gradients it changed; of all, if that shows in none."""
        pending, self._pending = self._pending, None
        if pending is None:
            return
        with torch._C.DisableTorchFunction():
            changed = [watched.number for watched in optimizers if _has_new_gradients(watched)]
        for number in changed:
            self._shares[number] = self._shares.get(number, 0.0) + pending
        self._total += pending
        if not changed:
            self._of_all += pending

    def of(self, watched: Watched) -> float:
        """The sum of an optimizer's losses; that of all if none is known to be its own."""
        share = self._shares.get(watched.number)
        return self._total if share is None else share + self._of_all


def _has_new_gradients(watched: Watched) -> bool:
    if watched.probes is None:
        watched.probes = Probes(watched.params)
    return watched.probes.have_changed()
