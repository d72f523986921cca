"""Each client's samples as they are in a round: honest, or with the faults that are active then."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from stethos.lab.apply_fault import Samples, Scale, apply_data_fault
from stethos.lab.data import Data
from stethos.lab.fault import Fault
from stethos.lab.seed import generator
from stethos.lab.split import Index

Version = tuple[int, ...]


class ClientData:
    """Deals out the data; what a fault does to them is done once, when it becomes active, and kept.

    `faults` are resolved: one client each.
    """

    def __init__(self, data: Data, parts: Sequence[Index], faults: Sequence[Fault], seed: int) -> None:
        self._honest = [(data.train_x[part], data.train_y[part]) for part in parts]
        self._faults = [(number, fault) for number, fault in enumerate(faults) if fault.acts_on == "data"]
        self._seed = seed
        self._faulty: dict[tuple[int, Version], Samples] = {}
        self.scale = Scale(data.classes, float(data.train_x.std()), float(data.train_x.max()))

    def __len__(self) -> int:
        return len(self._honest)

    def labels(self, client: int) -> Tensor:
        """The client's honest labels."""
        return self._honest[client][1]

    def version(self, client: int, number: int) -> Version:
        """Which faults are in the client's data in round `number`; equal versions are equal data."""
        name = f"c{client}"
        return tuple(place for place, fault in self._faults if fault.is_active(name, number))

    def samples(self, client: int, number: int) -> Samples:
        """The client's inputs and labels in round `number`; not to be written to."""
        version = self.version(client, number)
        if not version:
            return self._honest[client]
        if (client, version) not in self._faulty:
            samples = self._honest[client]
            for place in version:
                fault = next(fault for number, fault in self._faults if number == place)
                samples = apply_data_fault(
                    fault, samples, self.scale, generator(self._seed, "data fault", place, client)
                )
            self._faulty[client, version] = samples
        return self._faulty[client, version]
