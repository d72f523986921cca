"""How the third set deals samples out to clients. The first client is the unlike one where there is one."""

from __future__ import annotations

import numpy as np

from benchmarks.wild.data import Array, Samples

ONE_UNLIKE = ("extra", "device", "large", "foreign")  # the first client is honest, and unlike the others
_LARGE, _SMALL = (200, 220, 250, 300), (40, 60, 80, 100)
LARGE_SHARE = 0.65  # of federations; some data sets have too few rows for large clients
_FEWEST = 12


def size_of(draw: np.random.Generator) -> int:
    """Samples a client, as drawn."""
    return int(draw.choice(_LARGE if draw.random() < LARGE_SHARE else _SMALL))


def parts_of(
    split: str, found: Samples, classes: int, clients: int, size: int, draw: np.random.Generator
) -> list[Array]:
    """The rows of each client."""
    count = len(found.inputs)
    size = min(size, count // clients)
    order = draw.permutation(count)
    match split:
        case "iid" | "device":
            return np.split(order[: size * clients], clients)
        case "ordered":  # neighbours, from somewhere in the file on
            start = int(draw.integers(0, count - size * clients + 1))
            return np.split(np.arange(start, start + size * clients), clients)
        case "lognormal":
            sizes = np.maximum((size * draw.lognormal(-0.2, 0.9, clients)).astype(int), _FEWEST)
            sizes = np.maximum((sizes * min(1, count / sizes.sum())).astype(int), _FEWEST)
            return [part for part in np.split(order, np.cumsum(sizes))[:clients] if len(part)]
        case "large":
            size = min(size, count // (clients + 3))
            return np.split(order[: size * (clients + 3)], np.arange(4 * size, size * (clients + 3), size))
        case "foreign":
            other, usual = order[found.groups[order] == 1], order[found.groups[order] == 0]
            size = min(size, len(usual) // (clients - 1))
            return [other[:size], *np.split(usual[: size * (clients - 1)], clients - 1)]
        case "populations":
            pools = [list(order[found.groups[order] == group]) for group in (0, 1)]
            places = np.arange(clients) % 3 == 0  # one client in three has mostly the other group
            size = min(size, int(0.95 * len(pools[1]) / (0.8 * places.sum() + 0.1 * (~places).sum())))
            return [_taken(pools, draw.random(size) < (0.8 if is_other else 0.1)) for is_other in places]
        case "extra":  # half of what the first client has is a class that nobody else has
            label = int(draw.integers(classes))
            own, rest = order[found.targets[order] == label], order[found.targets[order] != label]
            size = min(size, len(rest) // clients)
            own = own[: size // 2]
            rest = rest[: size * clients - len(own)]
            return np.split(np.concatenate([own, rest]), np.arange(size, size * clients, size))
        case "dir0.2":
            by_label = [list(order[found.targets[order] == label]) for label in range(classes)]
            parts = []
            for _ in range(clients):
                shares = draw.dirichlet([0.2] * classes)
                rows = [by_label[label].pop() for label in draw.choice(classes, size, p=shares) if by_label[label]]
                while len(rows) < min(size, 40):
                    rows.append(max(by_label, key=len).pop())
                parts.append(np.array(rows))
            return parts
    raise ValueError(split)


def _taken(pools: list[list[int]], from_other: Array) -> Array:
    return np.array([pools[int(is_other)].pop() if pools[int(is_other)] else pools[0].pop() for is_other in from_other])
