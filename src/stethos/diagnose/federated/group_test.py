"""Names a faulty client from sums over groups alone; see `federate.group_sums`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

Vector = npt.NDArray[np.float64]
THRESHOLD = 6.5  # of the score; above that of clean federations of the lab, see `benchmarks.group_testing`
_RIDGE = 0.3
_AHEAD = 1.3  # as far ahead of the next client
_MOST = 15.0  # that one quantity can say
_WEIGHTS = {"log_norm": 0.3}  # honest clients differ in it by how much data they have
_LEAST_SPREAD = 0.07


class Sums(Protocol):
    """One round of sums: members by group, and a row per group of sketches and of traits."""

    members: list[npt.NDArray[np.int64]]
    sketches: Vector
    traits: Vector


@dataclass(frozen=True, slots=True)
class GroupVerdict:
    """How much each client stands out, and who does so beyond doubt; `trait` says in what."""

    scores: Vector
    client: int | None
    trait: str


def decode(rounds: Sequence[Sums], clients: int, traits: Sequence[str], threshold: float = THRESHOLD) -> GroupVerdict:
    """Which client's presence explains what groups differ in.

    Each quantity of a group is taken as the mean of what its members bring along, constant over the rounds: least
    squares over all groups give each member's part. Parts are compared with those of the other clients.
    """
    quantities = _quantities(rounds, traits)
    design = _design(rounds, clients)
    found = {name: _standing_out(*_parts(design, values, rounds), sign) for name, (values, sign) in quantities.items()}
    found["direction"] = _direction(design, rounds)
    squares = {name: _WEIGHTS.get(name, 1.0) * np.minimum(one, _MOST) ** 2 for name, one in found.items()}
    scores = np.sqrt(np.sum(list(squares.values()), axis=0))
    first, second = (*np.argsort(scores)[::-1][:2], 0)[:2]
    is_sure = clients >= 3 and scores[first] > threshold and scores[first] > _AHEAD * scores[second]
    trait = max(squares, key=lambda name: float(squares[name][first]))
    return GroupVerdict(scores, int(first) if is_sure else None, trait)


def _standing_out(parts: Vector, error: float, sign: int) -> Vector:
    """How far each part is from the others, in robust standard deviations; only in the bad direction."""
    apart = parts - np.median(parts)
    z = apart / max(float(np.hypot(1.4826 * np.median(np.abs(apart)), error)), 1e-12)
    return np.abs(z) if sign == 0 else np.maximum(sign * z, 0.0)


def _direction(design: Vector, rounds: Sequence[Sums]) -> Vector:
    """How far each client pulls its groups' sketches the same way, round after round."""
    rows = []
    for one in rounds:
        means = one.sketches / _sizes(one)[:, None]
        rest = (means - means.mean(axis=0)) / (float(np.linalg.norm(np.median(means, axis=0))) or 1.0)
        lengths = np.linalg.norm(rest, axis=1, keepdims=True)
        held = rest * np.minimum(1.0, 3 * np.median(lengths) / np.maximum(lengths, 1e-12))
        rows.append(held - held.mean(axis=0))
    parts = _solved(design, np.concatenate(rows))
    size = np.log(np.maximum(np.linalg.norm(parts - np.median(parts, axis=0), axis=1), 1e-12))
    apart = size - np.median(size)
    return np.asarray(np.maximum(apart / max(1.4826 * float(np.median(np.abs(apart))), _LEAST_SPREAD), 0.0))


def _quantities(rounds: Sequence[Sums], traits: Sequence[str]) -> dict[str, tuple[list[Vector], int]]:
    """By name what groups are compared in, round by round, and which way is bad: 1 high, -1 low, 0 both."""
    signs = {"log_norm": 0, "log_entry_loss": 1, "cos_last": 0}
    found: dict[str, tuple[list[Vector], int]] = {
        name: ([one.traits[:, place] / _sizes(one) for one in rounds], signs.get(name, 0))
        for place, name in enumerate(traits)
    }
    along, apart = [], []
    for one in rounds:
        means = one.sketches / _sizes(one)[:, None]
        centre = np.median(means, axis=0) if len(means) > 2 else means.mean(axis=0)
        length = float(np.linalg.norm(centre)) or 1.0
        along.append(means @ centre / length**2)
        rest = means - np.outer(means @ centre / length**2, centre)
        apart.append(np.log(np.maximum(np.linalg.norm(rest, axis=1) * np.sqrt(_sizes(one)) / length, 1e-9)))
    found["along the others"] = along, -1
    found["apart from the others"] = apart, 1
    return found


def _sizes(one: Sums) -> Vector:
    return np.array([len(part) for part in one.members], float)


def _design(rounds: Sequence[Sums], clients: int) -> Vector:
    rows = []
    for one in rounds:
        table = np.zeros((len(one.members), clients))
        for place, part in enumerate(one.members):
            table[place, part] = 1 / len(part)
        rows.append(table - table.mean(axis=0))
    return np.concatenate(rows)


def _parts(design: Vector, values: list[Vector], rounds: Sequence[Sums]) -> tuple[Vector, float]:
    """Each client's part, and its standard error; values count from their round's mean, large ones are held back."""
    y = np.concatenate([one - np.median(one) for one in values])
    scale = 1.4826 * float(np.median(np.abs(y))) or float(np.std(y)) or 1.0
    held = [np.clip(one - np.median(one), -8 * scale, 8 * scale) for one in values]
    y = np.concatenate([one - one.mean() for one in held])
    parts = _solved(design, y)
    left = y - design @ parts
    variance = float(left @ left) / max(len(y) - len(rounds) - design.shape[1], 1)
    gram = design.T @ design
    inverse = np.linalg.inv(gram + _ridge(gram))
    return parts, float(np.sqrt(variance * np.median(np.diag(inverse @ gram @ inverse))))


def _solved(design: Vector, values: Vector) -> Vector:
    """Least squares, held back a little: with few rounds some clients were always together."""
    gram = design.T @ design
    return np.asarray(np.linalg.solve(gram + _ridge(gram), design.T @ values))


def _ridge(gram: Vector) -> Vector:
    return _RIDGE * float(np.trace(gram)) / len(gram) * np.eye(len(gram))
