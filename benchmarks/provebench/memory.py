"""A federation of the lab, played and held in memory as a capture would hold it on disk."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

import torch

from benchmarks.faults.case import Case, data_of
from stethos import lab
from stethos.lab.clock import Timing
from stethos.lab.flat import FlatState, Layout
from stethos.lab.prepare import LabChoices
from stethos.lab.result import Exchange, LabResult
from stethos.replay.corrections import RoundCorrections
from stethos.replay.history import ClientUpdate


@dataclass(eq=False)
class Memory:
    """The rounds of one federation; the same methods as a `Bundle`."""

    settings: dict[str, Any] = field(default_factory=dict)
    exchanges: list[Exchange] = field(default_factory=list)
    layout: Layout | None = None
    last: dict[str, torch.Tensor] = field(default_factory=dict)

    def see(self, exchange: Exchange) -> None:
        self.layout = exchange.layout
        self.exchanges.append(exchange)

    @property
    def rounds(self) -> tuple[int, ...]:
        return tuple(one.round for one in self.exchanges)

    def clients(self, round: int) -> tuple[str, ...]:
        return self.exchanges[round - 1].clients

    kept = clients

    def global_state(self, round: int, when: Literal["before", "after"] = "before") -> dict[str, torch.Tensor]:
        if when == "after" and round == len(self.exchanges):
            return self.last
        return self._named(self.exchanges[round - 1 + (when == "after")].current)

    def server_state(self, round: int) -> dict[str, torch.Tensor]:
        return {}

    def corrections(self, round: int) -> RoundCorrections:
        return RoundCorrections()

    def update(self, round: int, client: str) -> ClientUpdate:
        one = self.exchanges[round - 1]
        place = one.clients.index(client)
        return ClientUpdate(client, self._named(one.sent[place]), int(one.samples[place]))

    def _named(self, vector: torch.Tensor) -> dict[str, torch.Tensor]:
        assert self.layout is not None
        return self.layout.as_dict(FlatState(vector, {}))


def played(case: Case, *, model: str = "mlp", **more: Any) -> tuple[Memory, LabResult, LabChoices]:
    """Play a case; what a server saw, what came of it, and how it was set up."""
    memory = Memory()
    faults = tuple(
        lab.Fault(kind, [client], **({} if strength is None else {"strength": strength}))
        for kind, client, strength in case.faults
    )
    engine: Literal["loop", "stacked"] = "loop" if model == "cnn" else "stacked"
    data = data_of(case)
    options = {"local_epochs": 2, "batch": 32, "lr": 0.1, **case.options}
    result = lab.federate(
        data, clients=case.clients, rounds=case.rounds, split=case.split, faults=faults, seed=case.seed, model=model,
        engine=engine, observe=False, each_round=memory.see, **options, **more,
    )  # fmt: skip
    memory.last = result.state
    choices = LabChoices(
        data, case.clients, case.rounds, case.split, model, options.get("strategy", "fedavg"), faults, 1.0,
        options["local_epochs"], options["batch"], options["lr"], "sgd", Timing(), case.seed, engine,
    )  # fmt: skip
    return memory, result, choices
