"""How the fifth set deals samples out to clients. The first client is the unlike one where there is one."""

from __future__ import annotations

import numpy as np

from benchmarks.wild.data import Array, Samples
from benchmarks.wild.fourth.split import dealt, kinds_of

ONE_UNLIKE = (
    "doubtful-cases", "typical-cases", "specialist", "upper-end", "small-batches", "whole-batch", "augmenter",
    "other-hardware", "newcomer", "every-third",
)  # fmt: skip
FEWEST = 60


def parts_of(split: str, found: Samples, clients: int, size: int, draw: np.random.Generator) -> list[Array]:
    """The rows of each client."""
    kinds, count = kinds_of(found), len(found.inputs)
    order = draw.permutation(count)
    size = min(size, count // clients)
    labels = np.unique(kinds)
    match split:
        case "uneven":
            sizes = np.maximum((size * draw.uniform(0.6, 1.4, clients)).astype(int), min(size, FEWEST))
            sizes = (sizes * min(1, count / sizes.sum())).astype(int)
            return np.split(order, np.cumsum(sizes))[:clients]
        case "shared-patients":  # every sixth sample of a client is one that others may have, too
            common = order[: size // 2]
            own = np.split(order[-(size - size // 6) * clients :], clients)
            return [np.concatenate([part, draw.choice(common, size // 6, replace=False)]) for part in own]
        case "along-file":  # mostly what stands together in the file, and some from all of it
            start = draw.integers(0, count - size * clients + 1)
            blocks = np.split(np.arange(start, start + size * clients), clients)
            rows = np.concatenate(blocks)
            is_own = draw.random(len(rows)) < 0.4
            rows[~is_own] = draw.permutation(rows[~is_own])
            return np.split(rows, clients)
        case "two-types":  # every second client has mostly the lower half of what varies most
            below = order[np.argsort(main_direction(found)[order])]
            halves = [list(draw.permutation(part)) for part in np.array_split(below, 2)]
            size = min(size, int(0.9 * count / clients))
            return [
                np.array([halves[_side(halves, place % 2 == 0, draw)].pop() for _ in range(size)])
                for place in range(clients)
            ]
        case "doubtful-cases" | "typical-cases":
            doubt = doubt_of(found, kinds)[order]
            wanted = order[np.argsort(-doubt if split == "doubtful-cases" else doubt, kind="stable")][: 2 * size]
            first = draw.choice(wanted, size, replace=False)
            return [first, *_plain(order[~np.isin(order, first)], clients - 1, size)]
        case "upper-end":
            along = main_direction(found)
            first = draw.choice(np.argsort(along)[-max(size, count // 4) :], size, replace=False)
            return [first, *_plain(order[~np.isin(order, first)], clients - 1, size)]
    pools = {int(label): list(order[kinds[order] == label]) for label in labels}
    usual = np.array([len(pools[int(label)]) for label in labels]) / count
    match split:
        case "dir1":
            mixes = [usual * draw.dirichlet(np.ones(len(labels))) + 1e-3 * usual for _ in range(clients)]
            return [dealt(pools, mix, size, draw) for mix in mixes]
        case "favourite":
            mixes = [np.where(labels == labels[place % len(labels)], 3 * usual, usual) for place in range(clients)]
            return [dealt(pools, mix, size, draw) for mix in mixes]
        case "specialist":  # half of the classes, and of two classes one nearly alone
            own = draw.permutation(len(labels)) < max(1, len(labels) // 2)
            first = dealt(pools, np.where(own, usual, 0.1 * usual if len(labels) == 2 else 0), size, draw)
            return [first, *_plain(order[~np.isin(order, first)], clients - 1, size)]
    return _plain(order, clients, size)  # and the client itself is what differs


def _plain(order: Array, clients: int, size: int) -> list[Array]:
    size = min(size, len(order) // clients)
    return np.split(order[: size * clients], clients)


def _side(halves: list[list[int]], is_low: bool, draw: np.random.Generator) -> int:
    """Of which half a client takes a sample: three times in four of its own, as long as there are any."""
    wanted = int((draw.random() < 0.75) != is_low)
    return wanted if halves[wanted] else 1 - wanted


def _flat(found: Samples) -> Array:
    """Samples as rows of comparable numbers: of tokens, how often each occurs."""
    if found.inputs.dtype.kind in "iu":
        return np.stack([(found.inputs == word).sum(1) for word in range(int(found.inputs.max()) + 1)], 1).astype(float)
    flat = found.inputs.reshape(len(found.inputs), -1).astype(float)
    return (flat - flat.mean(0)) / (flat.std(0) + 1e-6)


def main_direction(found: Samples) -> Array:
    """Where each sample lies along what varies most."""
    flat = _flat(found)
    centred = flat - flat.mean(0)
    return np.asarray(centred @ np.linalg.svd(centred[:: max(1, len(centred) // 800)], full_matrices=False)[2][0])


def doubt_of(found: Samples, kinds: Array) -> Array:
    """The share of a sample's 15 nearest neighbours that are of another kind."""
    flat = _flat(found).astype(np.float32)
    squares = np.square(flat).sum(1)
    doubt = np.empty(len(flat))
    for start in range(0, len(flat), 500):
        part = slice(start, start + 500)
        distance = squares[part, None] - 2 * flat[part] @ flat.T + squares[None]
        near = np.argpartition(distance, 16, axis=1)[:, :16]
        doubt[part] = (kinds[near] != kinds[part, None]).sum(1) / 15
    return doubt
