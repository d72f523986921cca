"""A federation of the lab seen through secure aggregation: `federate(each_round=GroupedExchange(clients, size))`."""

from __future__ import annotations

import math

import numpy as np
import torch

from stethos.federate.group_sums import GroupedFederation
from stethos.federate.sketch import SketchPlan
from stethos.federate.structure import Structure
from stethos.lab.result import ClientRecord, Exchange


class GroupedExchange:
    """Keeps of every round the sums over groups, and of single clients nothing; `federation` has them."""

    def __init__(self, clients: int, size: int = 4, seed: int = 0) -> None:
        self.federation = GroupedFederation(tuple(f"c{number}" for number in range(clients)), size, seed)
        self._plan: SketchPlan | None = None
        self._last: torch.Tensor | None = None

    def __call__(self, seen: Exchange) -> None:
        changes = (seen.sent - seen.current).to(torch.float32)
        entries = seen.layout.entries
        states = [{one.name: row[one.start : one.end].view(one.shape) for one in entries} for row in changes]
        records = {record.client: record for record in seen.records}
        if self._plan is None:
            self._plan = SketchPlan(Structure.of(states[0]))
        plan, table = self._plan, np.zeros((len(states), self._plan.read), np.float32)
        for client, state, row in zip(seen.clients, states, table, strict=True):
            plan.gather(state, client, row)
        sketches = plan.sketch(table).astype(np.float64)
        last = seen.current - self._last if self._last is not None else None
        own = [_traits(change, last, records[client]) for change, client in zip(changes, seen.clients, strict=True)]
        self._last = seen.current.clone()
        self.federation.add(seen.round, [int(client[1:]) for client in seen.clients], sketches, np.array(own))


def _traits(change: torch.Tensor, last: torch.Tensor | None, record: ClientRecord) -> list[float]:
    """What a client finds out about itself, each within bounds."""
    norm = float(change.norm())
    cosine = 0.0
    if last is not None and norm > 0 and float(last.norm()) > 0:
        cosine = float(torch.dot(change, last.to(change.dtype))) / norm / float(last.norm())
    loss = record.entry_loss if record.entry_loss is not None else 1.0
    return [math.log(min(max(norm, 1e-6), 1e6)), math.log(min(max(loss, 1e-6), 1e6)), cosine]
