"""How the training samples are dealt out to clients.

Each split is called with the labels, the number of clients and a generator.
It returns one array of sample numbers per client: nobody has fewer than
`LEAST` samples, and no sample is dealt out twice.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from stethos.errors import UsageError
from stethos.lab.choice import choose

Index = NDArray[np.int64]
LEAST = 4


class Split(Protocol):
    """Deals samples out: the places of each client's own in `labels`, no place twice."""

    def __call__(self, labels: Index, clients: int, generator: np.random.Generator) -> list[Index]: ...


def _check_positive(name: str, value: float) -> None:
    if not (np.isfinite(value) and value > 0):
        raise UsageError(f"{name}={value} is not above 0", hint=f"{name}=1 is a mild choice")


@dataclass(frozen=True, slots=True)
class IID:
    """Equal parts of the shuffled samples."""

    def __call__(self, labels: Index, clients: int, generator: np.random.Generator) -> list[Index]:
        _check_size(labels, clients)
        return [np.sort(part) for part in np.array_split(generator.permutation(len(labels)), clients)]


@dataclass(frozen=True, slots=True)
class Dirichlet:
    """Label skew: the shares of each class over the clients are drawn from a Dirichlet distribution.

    The smaller `alpha`, the fewer classes a client has: 1.0 is mild, 0.3 strong, 0.1 extreme.
    """

    alpha: float = 0.3

    def __post_init__(self) -> None:
        _check_positive("alpha", self.alpha)

    def __call__(self, labels: Index, clients: int, generator: np.random.Generator) -> list[Index]:
        _check_size(labels, clients)
        parts: list[list[Index]] = [[] for _ in range(clients)]
        for label in np.unique(labels):
            members = generator.permutation(np.flatnonzero(labels == label))
            shares = generator.dirichlet(np.full(clients, self.alpha))
            cuts = np.round(np.cumsum(shares)[:-1] * len(members)).astype(np.int64)
            for part, piece in zip(parts, np.split(members, cuts), strict=True):
                part.append(piece)
        return _fill_up([np.concatenate(part) for part in parts], generator)


@dataclass(frozen=True, slots=True)
class Shards:
    """Label skew: the samples, sorted by label, are cut into shards, and each client gets `per_client` of them."""

    per_client: int = 2

    def __post_init__(self) -> None:
        _check_positive("per_client", self.per_client)

    def __call__(self, labels: Index, clients: int, generator: np.random.Generator) -> list[Index]:
        _check_size(labels, clients)
        shuffled = generator.permutation(len(labels))
        in_order = shuffled[np.argsort(labels[shuffled], kind="stable")]
        shards = np.array_split(in_order, clients * self.per_client)
        dealt = generator.permutation(len(shards)).reshape(clients, self.per_client)
        return _fill_up([np.concatenate([shards[number] for number in row]) for row in dealt], generator)


@dataclass(frozen=True, slots=True)
class QuantitySkew:
    """Equal mixtures of unequal size: the clients' shares of all samples are drawn from a Dirichlet distribution."""

    alpha: float = 1.0

    def __post_init__(self) -> None:
        _check_positive("alpha", self.alpha)

    def __call__(self, labels: Index, clients: int, generator: np.random.Generator) -> list[Index]:
        _check_size(labels, clients)
        shares = generator.dirichlet(np.full(clients, self.alpha))
        cuts = np.round(np.cumsum(shares)[:-1] * len(labels)).astype(np.int64)
        return _fill_up(np.split(generator.permutation(len(labels)), cuts), generator)


SPLITS: dict[str, Split] = {
    "iid": IID(),
    "dirichlet": Dirichlet(),
    "shards": Shards(),
    "quantity-skew": QuantitySkew(),
}


def split_of(choice: Split | str) -> Split:
    """A split by its name, or the caller's own."""
    return choose("split", choice, SPLITS) if isinstance(choice, str) else choice


def deal(split: Split, labels: Index, clients: int, generator: np.random.Generator) -> list[Index]:
    """Apply a split, the caller's own too, and check what it promises."""
    parts = [np.asarray(part, dtype=np.int64) for part in split(labels, clients, generator)]
    everything = np.concatenate(parts) if parts else np.empty(0, dtype=np.int64)
    if len(parts) != clients or any(not len(part) for part in parts):
        raise UsageError(
            f"the split made {sum(map(bool, map(len, parts)))} non-empty parts for {clients} clients",
            hint="return one non-empty array of sample numbers per client",
        )
    if len(np.unique(everything)) != len(everything) or everything.min() < 0 or everything.max() >= len(labels):
        raise UsageError(
            "the split deals a sample out twice, or one that does not exist",
            hint=f"sample numbers go from 0 to {len(labels) - 1}, each at most once",
        )
    return parts


def _check_size(labels: Index, clients: int) -> None:
    if clients < 1:
        raise UsageError(f"clients={clients}", hint="a federation has at least one client")
    if len(labels) < LEAST * clients:
        raise UsageError(
            f"{len(labels)} training samples are too few for {clients} clients with at least {LEAST} each",
            hint=f"use clients={max(1, len(labels) // LEAST)} or fewer, or more data",
        )


def _fill_up(parts: list[Index], generator: np.random.Generator) -> list[Index]:
    """Move single samples from the biggest part to those that have too few."""
    for number in range(len(parts)):
        while len(parts[number]) < LEAST:
            giver = int(np.argmax([len(part) for part in parts]))
            place = int(generator.integers(len(parts[giver])))
            parts[number] = np.append(parts[number], parts[giver][place])
            parts[giver] = np.delete(parts[giver], place)
    return [np.sort(part) for part in parts]
