"""Faults as data: which clients misbehave, how, from which round to which, and how strongly.

`KINDS` lists every kind with its default strength and what the strength means.
A fault acts on the client's data, on the update it sends, on the model it
starts from, on whether it replies, or on its time and memory: see `acts_on`.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from stethos.errors import UsageError
from stethos.lab.choice import choose

Target = Literal["data", "update", "base", "reply", "time", "memory"]
Measure = Literal["share", "factor", "rounds", "bytes"]


@dataclass(frozen=True, slots=True)
class FaultKind:
    """A kind of fault: what it acts on, and what its strength means."""

    acts_on: Target
    strength: float
    measure: Measure
    doc: str


KINDS: dict[str, FaultKind] = {
    "label-flip": FaultKind("data", 1.0, "share", "this share of the samples of class `source` is labelled `target`"),
    "label-noise": FaultKind("data", 1.0, "share", "this share of all labels is replaced by another one at random"),
    "feature-noise": FaultKind("data", 1.0, "factor", "Gaussian noise of this many standard deviations is added"),
    "feature-shift": FaultKind("data", 1.0, "factor", "this many standard deviations are added to every input"),
    "backdoor": FaultKind("data", 0.2, "share", "this share of the samples carries a trigger and the label `target`"),
    "sign-flip": FaultKind("update", 1.0, "factor", "the update is sent negated, times this"),
    "scaling": FaultKind("update", 10.0, "factor", "the update is sent times this"),
    "update-noise": FaultKind(
        "update", 1.0, "factor", "Gaussian noise, this many times as long as the update, is added"
    ),
    "nan": FaultKind("update", 1.0, "share", "this share of one tensor (`layer`, else the first) is sent as NaN"),
    "inf": FaultKind("update", 1.0, "share", "this share of one tensor (`layer`, else the first) is sent as infinity"),
    "free-rider-zero": FaultKind("update", 1.0, "factor", "the global model is sent back as it came"),
    "free-rider-delta": FaultKind("update", 1.0, "factor", "the last change of the global model, times this, is sent"),
    "stale": FaultKind("base", 3.0, "rounds", "training starts from the global model of this many rounds ago"),
    "crash": FaultKind("reply", 1.0, "share", "with this probability in each round, local training raises"),
    "dropout": FaultKind("reply", 1.0, "share", "with this probability in each round, no reply comes"),
    "timeout": FaultKind("reply", 1.0, "share", "with this probability in each round, the reply comes too late"),
    "slow-compute": FaultKind("time", 10.0, "factor", "local training takes this many times as long"),
    "slow-link": FaultKind("time", 10.0, "factor", "download and upload take this many times as long"),
    "memory-hog": FaultKind("memory", 8.0 * 2**30, "bytes", "so much more peak memory is reported (none is allocated)"),
}


class ClientCrash(RuntimeError):  # noqa: N818  # it is what happened to the client, no error of the lab
    """What a client with the fault `crash` raises."""


@dataclass(frozen=True, slots=True)
class Fault:
    """Some clients misbehave in one way from round `start` (counted from 1) to `end`, or for good.

    `clients` are names such as "c3" or numbers from 0; one alone need not be in
    a list. `strength` is the kind's own unless given. `source` and `target` are
    classes: for a label flip the client's most frequent class and the one after
    it unless given, for a backdoor class 0. `layer` is the tensor that "nan" and
    "inf" spoil.
    """

    kind: str
    clients: int | str | Collection[int | str]
    start: int = 1
    end: int | None = None
    strength: float = math.nan
    source: int | None = None
    target: int | None = None
    layer: str | None = None

    def __post_init__(self) -> None:
        kind = choose("kind of fault", self.kind, KINDS)
        listed = (self.clients,) if isinstance(self.clients, int | np.integer | str) else tuple(self.clients)
        names = tuple(dict.fromkeys(f"c{one}" if isinstance(one, int | np.integer) else str(one) for one in listed))
        object.__setattr__(self, "clients", names)
        if math.isnan(self.strength):
            object.__setattr__(self, "strength", kind.strength)
        self._check(kind)

    def _check(self, kind: FaultKind) -> None:
        if not self.clients:
            raise UsageError(f"the fault {self.kind!r} has no clients", hint="Fault('sign-flip', clients=['c3'])")
        if self.start < 1 or (self.end is not None and self.end < self.start):
            raise UsageError(
                f"the fault {self.kind!r} lasts from round {self.start} to {self.end}",
                hint="rounds count from 1, and `end` is the last round of the fault",
            )
        most = 1 if kind.measure == "share" else math.inf
        if not (math.isfinite(self.strength) and 0 < self.strength <= most):
            raise UsageError(
                f"the fault {self.kind!r} has the strength {self.strength:g}",
                hint=f"{kind.doc}: above 0{', at most 1' if most == 1 else ''}",
            )
        if kind.measure == "rounds" and self.strength != int(self.strength):
            raise UsageError(f"the fault {self.kind!r} has the strength {self.strength:g}", hint="whole rounds")
        if self.source is not None and self.source == self.target:
            raise UsageError(f"labels of class {self.source} flipped to {self.target}", hint="choose another target")

    @property
    def names(self) -> tuple[str, ...]:
        """The clients' names."""
        return self.clients  # type: ignore[return-value]  # made so by __post_init__

    @property
    def acts_on(self) -> Target:
        return KINDS[self.kind].acts_on

    def is_active(self, client: str, number: int) -> bool:
        """Whether this client misbehaves in round `number`."""
        return client in self.names and self.start <= number and (self.end is None or number <= self.end)


def resolved(faults: Iterable[Fault], labels: Mapping[str, NDArray[np.int64]], classes: int) -> tuple[Fault, ...]:
    """The ground truth: one fault per client, with the classes filled in that were left open.

    `labels` are the honest labels of each client.
    """
    found = []
    for fault in faults:
        for client in fault.names:
            if client not in labels:
                raise UsageError(
                    f"the fault {fault.kind!r} names the client {client!r}",
                    hint=f"the clients are c0 to c{len(labels) - 1}",
                )
            found.append(_with_classes(replace(fault, clients=(client,)), labels[client], classes))
    return tuple(found)


def _with_classes(fault: Fault, labels: NDArray[np.int64], classes: int) -> Fault:
    if fault.kind == "backdoor":
        fault = replace(fault, target=0 if fault.target is None else fault.target)
    elif fault.kind == "label-flip":
        counts = np.bincount(labels, minlength=classes)
        source = int(counts.argmax()) if fault.source is None else fault.source
        target = (source + 1) % classes if fault.target is None else fault.target
        fault = replace(fault, source=source, target=target)
        if source < classes and not counts[source]:
            raise UsageError(
                f"client {fault.names[0]!r} has no samples of class {source} to flip",
                hint=f"leave source out for its most frequent class, which is {counts.argmax()}",
            )
    for number in (fault.source, fault.target):
        if number is not None and not 0 <= number < classes:
            raise UsageError(
                f"the fault {fault.kind!r} names class {number}", hint=f"the classes are 0 to {classes - 1}"
            )
    return fault
