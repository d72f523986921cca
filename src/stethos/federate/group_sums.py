"""What secure aggregation may reveal of clients: sums over random groups, never a single client.

In every round the clients are divided anew into groups. Of each group the sums of the numbers are revealed that its
clients have found out about themselves (`own_traits`). Over some rounds every client has been in many groups, and
`diagnose.federated.group_test` names the one that spoils them. So what is constant about a client over many rounds is
not hidden by its groups, only what it did in one of them.
"""

from __future__ import annotations

import functools
import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from stethos.federate.own_traits import TRAITS
from stethos.federate.row import put_row
from stethos.observe import boot
from stethos.observe.session import Session
from stethos.schema import GROUP_SUMS

Vector = npt.NDArray[np.float64]
SCALE = 2.0**16  # sums are those of whole numbers, as masks need them
LARGEST = 2.0**20


@dataclass(slots=True)
class GroupSums:
    """The sums of one round: a row of `TRAITS` per group. `members` are numbers of clients."""

    round: int
    members: list[npt.NDArray[np.int64]]
    traits: Vector


@dataclass(slots=True)
class GroupedFederation:
    """Divides clients into groups of about `size` in each round, by chance that nobody's behaviour has a part in."""

    clients: tuple[str, ...]
    size: int = 4
    seed: int = 0
    rounds: list[GroupSums] = field(default_factory=list)

    def groups(self, number: int, present: list[int]) -> list[npt.NDArray[np.int64]]:
        """Who is together in a round: a client is in other company each time."""
        order = np.random.default_rng([self.seed, number, 0x6A0]).permutation(len(present))
        count = max(len(present) // self.size, 2 if len(present) >= 1.5 * self.size else 1)  # one alone tells nothing
        parts = np.array_split(order, count)
        return [np.array([present[place] for place in part], np.int64) for part in parts]

    def add(self, number: int, present: list[int], traits: Vector) -> GroupSums:
        """One round: a row per client that answered. What single clients sent is not kept."""
        places = {client: place for place, client in enumerate(present)}
        members = self.groups(number, present)
        whole = quantised(traits)
        sums = np.stack([whole[[places[int(one)] for one in part]].sum(0) for part in members]) / SCALE
        summed = GroupSums(number, members, sums)
        self.rounds.append(summed)
        return summed


def quantised(values: Vector) -> npt.NDArray[np.int64]:
    """Whole numbers within bounds: what is not finite counts 0, and its sender has to say so itself."""
    plain = np.where(np.isfinite(values), values, 0.0)
    return np.round(np.clip(plain, -LARGEST, LARGEST) * SCALE).astype(np.int64)


def record_sums(federation: str, number: int, members: list[list[str]], traits: Vector) -> None:
    """Write the sums of a round into `group_sums`, for `stethos diagnose`; without a recording nothing is done.

    For the server of any federation whose clients add up `own_traits` under secure aggregation, group by group.
    """
    session = boot.current_session()
    if session is None:
        return
    t_ns = time.monotonic_ns() + session.offset_ns
    for names, sums in zip(members, traits, strict=True):
        told = dict(zip(TRAITS, (round(float(one), 6) for one in sums), strict=True))
        values = {"federation": federation, "clients": json.dumps(names), "sums": told}
        session.guard.run("group_sums", functools.partial(_put, session, values, number, t_ns))


def _put(session: Session, values: Mapping[str, Any], number: int, t_ns: int) -> None:
    put_row(session, GROUP_SUMS, values, client=None, round=number, t_ns=t_ns)
