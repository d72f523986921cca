"""What secure aggregation may reveal of clients: sums over random groups, never a single client.

In every round the clients are divided anew into groups. Of each group the sums of linear things are revealed: the
sketches of the updates, and a few numbers that each client finds out itself (`TRAITS`). Over some rounds every client
has been in many groups, and `diagnose.federated.group_test` names the one that spoils them.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

Vector = npt.NDArray[np.float64]
TRAITS = (
    "log_norm",
    "log_entry_loss",
    "cos_last",
)  # log length of its update, of its entry loss; cosine to last change
SCALE = 2.0**16  # sums are those of whole numbers, as masks need them
LARGEST = 2.0**20


@dataclass(slots=True)
class GroupSums:
    """The sums of one round: a row per group. `members` are numbers of clients."""

    round: int
    members: list[npt.NDArray[np.int64]]
    sketches: Vector
    traits: Vector


@dataclass(slots=True)
class GroupedFederation:
    """Divides clients into groups of about `size` in each round, by chance that nobody's behaviour has a part in."""

    clients: tuple[str, ...]
    size: int = 4
    seed: int = 0
    rounds: list[GroupSums] = field(default_factory=list)

    def add(self, number: int, present: list[int], sketches: Vector, traits: Vector) -> GroupSums:
        """One round: a row per client that answered. What single clients sent is not kept."""
        chance = np.random.default_rng([self.seed, number, 0x6A0])
        order = chance.permutation(len(present))
        count = max(len(present) // self.size, 1)
        parts = np.array_split(order, count)
        whole, own = _quantised(sketches), _quantised(traits)
        summed = GroupSums(
            number, [np.array([present[place] for place in part], np.int64) for part in parts],
            np.stack([whole[part].sum(0) for part in parts]) / SCALE,
            np.stack([own[part].sum(0) for part in parts]) / SCALE,
        )  # fmt: skip
        self.rounds.append(summed)
        return summed


def _quantised(values: Vector) -> npt.NDArray[np.int64]:
    """Whole numbers within bounds: what is not finite counts 0, and its sender has to say so itself."""
    plain = np.where(np.isfinite(values), values, 0.0)
    return np.round(np.clip(plain, -LARGEST, LARGEST) * SCALE).astype(np.int64)
