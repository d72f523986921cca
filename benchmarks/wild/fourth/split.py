"""How the fourth set deals samples out to clients. The first client is the unlike one where there is one."""

from __future__ import annotations

import numpy as np

from benchmarks.wild.data import Array, Samples

ONE_UNLIKE = ("ten-times", "rare-alone", "gain", "own-mix", "more-epochs", "other-group")
FEWEST = 40


def kinds_of(found: Samples) -> Array:
    """The classes of samples; quarters of the targets in a regression."""
    if found.targets.dtype.kind in "iu":
        return found.targets
    return np.digitize(found.targets, np.quantile(found.targets, [0.25, 0.5, 0.75]))


def parts_of(split: str, found: Samples, clients: int, size: int, draw: np.random.Generator) -> list[Array]:
    """The rows of each client."""
    kinds, count = kinds_of(found), len(found.inputs)
    order = draw.permutation(count)
    size = min(size, count // (clients + 9 if split == "ten-times" else clients))
    if split in ("even", "gain", "more-epochs"):  # of each class as many as everybody else
        ranked = order[np.argsort(kinds[order], kind="stable")]
        return [draw.permutation(ranked[place::clients])[:size] for place in range(clients)]
    if split == "zipf":
        sizes = np.maximum(1.6 * size / np.arange(1, clients + 1) ** 0.6, FEWEST).astype(int)
        sizes = np.maximum((sizes * min(1, count / sizes.sum())).astype(int), 12)
        return np.split(order, np.cumsum(sizes))[:clients]
    if split == "ten-times":
        return np.split(order[: size * (clients + 9)], np.arange(10 * size, size * (clients + 9), size))
    labels = np.unique(kinds)
    pools = {int(label): list(order[kinds[order] == label]) for label in labels}
    usual = np.array([len(pools[int(label)]) for label in labels]) / count
    if split == "one-class-less":
        return [dealt(pools, usual * (labels != labels[place % len(labels)]), size, draw) for place in range(clients)]
    if split == "drifting":  # from the first client to the last, low classes give way to high ones
        slopes = np.linspace(-1, 1, len(labels))
        along = np.linspace(-0.8, 0.8, clients)
        return [dealt(pools, usual * (1 + slopes * at), size, draw) for at in along]
    if split == "own-mix":
        wanted = np.where(labels == draw.choice(labels), 12 * usual, usual)
        return [dealt(pools, usual if place else wanted, size, draw) for place in range(clients)]
    if split == "rare-alone":
        rarest = labels == labels[usual.argmin()]
        mixes = [
            usual * np.where(rarest, 0, 1) if place else usual * np.where(rarest, 3, 1) for place in range(clients)
        ]
        return [dealt(pools, mix, size, draw) for mix in mixes]
    if split == "other-group":
        other, rest = order[found.groups[order] == 1], order[found.groups[order] == 0]
        size = min(size, len(rest) // (clients - 1), len(other))
        return [other[:size], *np.split(rest[: size * (clients - 1)], clients - 1)]
    if split == "near":  # half of what a client has lies near a sample of its own
        flat = found.inputs.reshape(count, -1).astype(float)
        flat = (flat - flat.mean(0)) / (flat.std(0) + 1e-6)
        left = np.ones(count, bool)
        parts = []
        for centre in order[:clients]:
            free = np.flatnonzero(left)
            nearest = free[np.argsort(np.square(flat[free] - flat[centre]).sum(1))[: 2 * size]]
            mine = draw.choice(nearest, min(size // 2, len(nearest)), replace=False)
            left[mine] = False
            others = draw.choice(np.flatnonzero(left), size - len(mine), replace=False)
            left[others] = False
            parts.append(draw.permutation(np.concatenate([mine, others])))
        return parts
    raise ValueError(split)


def dealt(pools: dict[int, list[int]], mix: Array, size: int, draw: np.random.Generator) -> Array:
    """Samples of classes in a mix, taken off the pools; an empty class gives way to the fullest of those wanted."""
    labels = list(pools)
    rows = []
    for label in draw.choice(labels, size, p=mix / mix.sum()):
        wanted = [one for one in labels if mix[labels.index(one)] > 0 and pools[one]]
        if not wanted:
            break
        rows.append(pools[label].pop() if pools[label] else pools[max(wanted, key=lambda one: len(pools[one]))].pop())
    return np.array(rows)
