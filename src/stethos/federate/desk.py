"""Where the elements of updates lie until fingerprints are made of them: rows, used again from round to round."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from stethos.federate.sketch import Plan
from stethos.federate.structure import State

Vector = npt.NDArray[Any]
_KEPT = 1 << 18  # elements that wait to be made fingerprints of: a megabyte
_MOST = 64


class Desk:
    """Rows for several updates. Not for several threads at once: who takes one from a plan has it alone."""

    def __init__(self, plan: Plan) -> None:
        self.rows = np.empty((min(max(_KEPT // plan.read, 1), _MOST), plan.read), np.float32)
        self._plan = plan
        self._layers = [(layer.name, layer.shape) for layer in plan.structure.layers]
        self._views: dict[int, list[Any]] = {}

    @classmethod
    def taken(cls, plan: Plan) -> Desk:
        """One that nobody uses, or a new one: fresh memory costs more than what is copied into it."""
        try:
            spare: Desk = plan.spare_desks.pop()
        except IndexError:
            return cls(plan)
        return spare

    def give_back(self) -> None:
        if not self._plan.spare_desks:
            self._plan.spare_desks.append(self)

    def copy_plain(self, number: int, state: State) -> bool:
        """Copy an update into a row at once; False if it is not just what the structure says, as plain tensors on the
        host, or not all of it is read: then nothing is copied, and it must be looked at more closely."""
        torch = sys.modules.get("torch")
        entries = self._plan.structure.entries
        if torch is None or not self._plan.is_plain or not isinstance(state, Mapping) or len(state) != len(entries):
            return False
        values, kinds, dtype, strided = [], (torch.Tensor, torch.nn.Parameter), torch.float32, torch.strided
        for name, shape in self._layers:
            value: Any = state.get(name)
            if type(value) not in kinds or value.dtype is not dtype or value.shape != shape or not value.is_cpu:
                return False
            if value.layout is not strided:
                return False
            values.append(value)
        if len(values) < len(entries) and not all(name in state for name in entries):
            return False
        is_tracked = torch.is_grad_enabled()
        torch._C._set_grad_enabled(False)
        try:
            torch._foreach_copy_(self._views.get(number) or self._make_views(number), values)
        finally:
            torch._C._set_grad_enabled(is_tracked)
        return True

    def _make_views(self, number: int) -> list[Any]:
        row = sys.modules["torch"].from_numpy(self.rows[number])
        parts = zip(self._plan.parts, self._layers, strict=True)
        views = self._views[number] = [row[part.start : part.stop].view(shape) for part, (_, shape) in parts]
        return views
