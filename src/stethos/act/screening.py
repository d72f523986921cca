"""Reads a round's updates before they are averaged, and remembers the rounds before it: what accusations rest on."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from stethos.diagnose.federated.cohort import Cohort, cohort_in
from stethos.federate.cohort import compare, quantities_of
from stethos.federate.fingerprint import GLOBAL, Fingerprint, count_odd, fingerprint_of, global_row
from stethos.federate.history import History
from stethos.federate.site import Update
from stethos.federate.sketch import Plan
from stethos.federate.structure import State, Structure

Vector = npt.NDArray[Any]
_RECENT = 12


@dataclass(frozen=True, eq=False)
class Screened:
    """One round: who sent what, in the order of `clients`; `cohort` has the last rounds before it, too.

    `norms` are those of the finite updates' changes, `sketches` the changes
    reduced to few numbers: linear, so that averages of them are those of the changes.
    """

    clients: tuple[str, ...]
    is_finite: npt.NDArray[np.bool_]
    norms: Vector
    sketches: Vector
    samples: Vector
    cohort: Cohort


class Screening:
    """Fingerprints of the rounds so far."""

    def __init__(self) -> None:
        self._plan: Plan | None = None
        self._history = History()
        self._rows: deque[dict[str, Any]] = deque(maxlen=_RECENT)
        self._base: Vector | None = None
        self._prints: list[Fingerprint] = []

    def see(
        self, number: int, base: State, updates: Sequence[Update], facts: Mapping[str, Mapping[str, Any]],
        tables: frozenset[str] = frozenset(),
    ) -> Screened:  # fmt: skip
        """Read the updates of a round against the global model that it began with; `tables` are its embeddings."""
        plan = self._plan = self._plan or Plan(Structure.of(base, tables=tables))
        row = global_row(plan, base)
        if self._base is not None:
            self._history.add(fingerprint_of(plan, self._base, base, GLOBAL).sketch, self._prints)
        self._base = row
        self._prints = [self._print_of(plan, row, update) for update in updates]
        clients = tuple(update.client for update in updates)
        told = [facts.get(client, {}) for client in clients]
        given = [update.samples or fact.get("samples") for update, fact in zip(updates, told, strict=True)]
        samples = np.array([float(one) if one else 1.0 for one in given])
        compared = compare(plan, self._prints, self._history)
        self._rows.append(
            quantities_of(plan, self._prints, compared)
            | {
                "round": number,
                "clients": clients,
                "samples": samples,
                "confusion": [fact.get("confusion") for fact in told],
                **{name: _numbers(told, name) for name in ("entry_loss", "exit_loss")},
            }
        )
        return Screened(
            clients,
            np.array([one.is_finite for one in self._prints]),
            np.array([one.norm for one in self._prints]),
            np.stack([one.sketch for one in self._prints])[:, : plan.weight_buckets].astype(np.float64),
            samples,
            cohort_in(self._rows),
        )

    def _print_of(self, plan: Plan, base: Vector, update: Update) -> Fingerprint:
        """An update's fingerprint; every element is looked at, also where only a part of a layer is read."""
        one = fingerprint_of(plan, None if update.is_delta else base, update.state, update.client)
        if one.is_finite and not bool((plan.coverage == 1).all()):
            weights = plan.structure.weights
            nan, inf = count_odd(plan, update.state, update.client)
            one.nan[:-1], one.inf[:-1] = nan, inf
            one.nan[-1], one.inf[-1] = nan[:weights].sum(), inf[:weights].sum()
        return one


def _numbers(facts: Sequence[Mapping[str, Any]], name: str) -> Vector:
    return np.array([np.nan if fact.get(name) is None else float(fact[name]) for fact in facts])
