"""A federation of the lab seen through secure aggregation: `federate(each_round=GroupedExchange(clients, size))`."""

from __future__ import annotations

import numpy as np
from torch import Tensor

from stethos.federate.group_sums import GroupedFederation, Vector, record_sums
from stethos.federate.own_traits import OwnTurn, own_traits
from stethos.lab.result import Exchange


class GroupedExchange:
    """Keeps of every round the sums over groups, and of single clients nothing; `federation` has them.

    Where the federation is recorded, so are the sums, under `name`.
    """

    def __init__(self, clients: int, size: int = 4, seed: int = 0, name: str = "lab") -> None:
        self.federation = GroupedFederation(tuple(f"c{number}" for number in range(clients)), size, seed)
        self.name = name
        self._before: Tensor | None = None
        self._usual: Vector | None = None

    def __call__(self, seen: Exchange) -> None:
        last = (seen.current - self._before).double().numpy() if self._before is not None else None
        self._before = seen.current.clone()
        traits = np.array([own_traits(turn, self._usual) for turn in _turns(seen, last)])
        sums = self.federation.add(seen.round, [int(client[1:]) for client in seen.clients], traits)
        self._usual = sums.traits.sum(0) / len(seen.clients)
        names = [[self.federation.clients[one] for one in part] for part in sums.members]
        record_sums(self.name, seen.round, names, sums.traits)


def _turns(seen: Exchange, last: np.ndarray[tuple[int], np.dtype[np.float64]] | None) -> list[OwnTurn]:
    """Each client's turn as it sees it itself."""
    losses = {record.client: record.entry_loss for record in seen.records}
    turns = []
    for place, client in enumerate(seen.clients):
        trained, inputs = seen.trained[place], seen.inputs[place]
        turns.append(
            OwnTurn(
                sent=(seen.sent[place] - seen.current).double().numpy(),
                trained=(trained - seen.current).double().numpy() if trained is not None else None,
                last=last,
                entry_loss=losses[client],
                labels=seen.labels[place],
                answers=seen.answers[place],
                inputs=inputs.numpy() if inputs is not None else None,
            )
        )
    return turns
