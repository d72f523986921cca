"""What gradients tell at an inspected backward: whose are left, which are 0, whether steps by them change anything."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import torch

from stethos.observe.batch_print import Array, is_readable, numbers_of
from stethos.observe.layer_name import names_under
from stethos.observe.optimizers import Watched
from stethos.observe.statistic import estimated_norm_of

_MOST_NAMES = 8
_PROBES, _NUMBERS = 4, 16  # weights that are looked at, and numbers of each


def left_of(leaves: list[torch.Tensor], seen: list[Watched]) -> list[int]:
    """The optimizers, of several, that would step by gradients which are there before this backward."""
    left = {id(leaf): leaf.grad for leaf in leaves if leaf.grad is not None}
    if not left or len(seen) < 2:
        return []
    own = {one.number: [left[id(each)] for each in one.params if id(each) in left] for one in seen}
    return [number for number, some in own.items() if some and estimated_norm_of(some) > 0]


def silent_layers(leaves: list[torch.Tensor], roots: Iterable[torch.nn.Module]) -> list[str]:
    """Names of weights whose gradients are 0, all of them, while others have some."""
    known = [leaf for leaf in leaves if leaf.dim() > 1 and is_readable(leaf) and is_readable(leaf.grad)]
    silent = [leaf for leaf in known if leaf.grad is not None and not bool(leaf.grad.any())]
    if not silent or len(silent) == len(known):
        return []
    names = {key: name for root in roots for key, name in names_under(root).items()}
    return [names[id(leaf)] for leaf in silent if id(leaf) in names][:_MOST_NAMES]


class Stillness:
    """A few weights with a gradient, as they were when last looked at."""

    def __init__(self) -> None:
        self._known: dict[int, Array] = {}  # by the id of a weight: its numbers, NaN where there was no gradient
        self._steps = -1

    def note(self, leaves: list[torch.Tensor], steps: int) -> bool | None:
        """Whether nothing has moved although steps were made; None where that cannot be told."""
        now = {id(leaf): _numbers(leaf) for leaf in leaves if is_readable(leaf) and not leaf.is_complex()}
        before, self._known = self._known, {}
        none = np.zeros(0)  # an id may be another weight's by now
        pairs = [(before[key], values) for key, values in now.items() if len(before.get(key, none)) == len(values) > 0]
        has_stepped, self._steps = 0 <= self._steps < steps, steps
        for leaf in leaves:
            if len(self._known) < _PROBES and id(leaf) in now and is_readable(leaf.grad) and leaf.grad is not None:
                pulled = numbers_of(leaf.grad.reshape(-1)[:_NUMBERS]) != 0
                if len(pulled) == len(now[id(leaf)]) and bool(pulled.any()):
                    self._known[id(leaf)] = np.where(pulled, now[id(leaf)], np.nan)
        if not pairs or not has_stepped:
            return None
        return all(bool((old == new)[~np.isnan(old)].all()) for old, new in pairs)


def _numbers(leaf: torch.Tensor) -> Array:
    return numbers_of(leaf.detach().reshape(-1)[:_NUMBERS]).astype(np.float64)
