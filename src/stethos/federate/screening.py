"""What is known of a round's updates before they are averaged: what verdicts and corrections rest on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from stethos.federate.comparison import Facts, History, compare, measure, round_columns
from stethos.federate.fingerprint import Fingerprint, UpdateBuffer, count_unread, global_row
from stethos.federate.sketch import SketchPlan
from stethos.federate.structure import State, Structure

if TYPE_CHECKING:
    from stethos.diagnose.federated.cohort import Cohort
    from stethos.diagnose.federated.verdict import ClientVerdict
    from stethos.federate.site import Update

Vector = npt.NDArray[Any]


@dataclass(frozen=True, eq=False)
class Screened:
    """One round: who sent what, in the order of `clients`; `cohort` has the last rounds before it, too.

    `odd` counts NaN and infinite elements, buffers included, `norms` are lengths of the changes, `sketches` the changes
    reduced to few numbers: linear, so that averages of them are those of the changes.
    """

    number: int
    clients: tuple[str, ...]
    odd: Vector
    norms: Vector
    sketches: Vector
    samples: Vector
    cohort: Cohort

    @property
    def is_finite(self) -> npt.NDArray[np.bool_]:
        return np.asarray(self.odd == 0)


def screen_round(
    plan: SketchPlan, prints: Sequence[Fingerprint], columns: Mapping[str, Any], history: History
) -> Screened:  # fmt: skip
    """The round with these `round_columns` beside the last ones."""
    from stethos.diagnose.federated.cohort import cohort_of

    return Screened(
        columns["round"][0],
        tuple(columns["client"]),
        np.array([one.nan[:-1].sum() + one.inf[:-1].sum() for one in prints]),
        np.array([one.norm for one in prints]),
        np.stack([one.sketch for one in prints])[:, : plan.weight_buckets].astype(np.float64),
        np.where(columns["samples"] > 0, columns["samples"], 1.0),
        cohort_of([*history.recent, columns]),
    )


def accused_in(screened: Screened | None, probability: float | None) -> list[ClientVerdict]:
    """Verdicts on clients of the round; as sure as the detector `faulty-client` must be where nothing is said."""
    if screened is None:
        return []
    from stethos.diagnose.federated.accusation import SURE_OF_UPDATES, weigh

    limit = SURE_OF_UPDATES if probability is None else probability
    verdicts = weigh(screened.cohort).accused(probability=limit)
    return [one for one in verdicts if one.client in screened.clients and one.last is None]


class Screening:
    """Screens rounds whose updates are all at hand, for a server that is not recorded by a `Federation`."""

    def __init__(self) -> None:
        self._plan: SketchPlan | None = None
        self.history = History()
        self._base: Vector | None = None
        self._prints: list[Fingerprint] = []

    def screen(self, number: int, base: State, updates: Sequence[Update], facts: Facts) -> Screened:
        """The updates of a round against the global model that it began with."""
        plan = self._plan = self._plan or SketchPlan(Structure.of(base))
        row, buffer = global_row(plan, base), UpdateBuffer(plan)
        if self._base is not None:
            self.history.add(buffer.change_of(row, self._base, base).sketch, self._prints)
        for update in updates:
            buffer.add(update.state, update.client, None if update.is_delta else row)
        self._base, self._prints = row, buffer.prints()
        buffer.close()
        count_unread(plan, self._prints, updates)
        columns = measure(plan, self._prints) | compare(plan, self._prints, self.history)
        told = {one.client: {"samples": one.samples, **facts.get(one.client, {})} for one in updates}
        mine = round_columns(plan, number, self._prints, columns, told)
        screened = screen_round(plan, self._prints, mine, self.history)
        self.history.recent.append(mine)
        return screened
