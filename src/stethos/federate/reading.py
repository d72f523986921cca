"""The numbers of one round: the global model it begins with, the updates that come in, and the rows they become."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from stethos.errors import UpdateMismatchError
from stethos.federate.cohort import Comparison, compare, quantities_of
from stethos.federate.fingerprint import GLOBAL, Fingerprint, count_odd, with_total
from stethos.federate.odd import odd_clients
from stethos.federate.reader import Reader
from stethos.federate.sketch import Plan
from stethos.federate.structure import State
from stethos.federate.update_row import finite_norm, norms_of_row
from stethos.observe.session import Session

if TYPE_CHECKING:
    from stethos.diagnose.federated.verdict import Verdict
    from stethos.federate.federation import Federation
    from stethos.federate.site import Site, Update

Vector = npt.NDArray[Any]
_PATIENCE_SHARE = 0.01


class Reading:
    """What a round reads of its updates. Called by one thread at a time; failures are the caller's to guard."""

    def __init__(self, federation: Federation, number: int) -> None:
        self._federation = federation
        self._number = number
        self._base: Vector | None = None
        self._reader: Reader | None = None
        self.odd: list[str] = []  # clients whose updates stand out

    # As the round goes ------------------------------------------------------------------------------

    def begin(self, state: State | None) -> None:
        """The global model before the round, if it is known."""
        federation = self._federation
        self._base = federation.base_row(state)
        if federation.responder is not None and state is not None:
            federation.responder.prepare(state)
        if federation.compressor is not None:
            plan = federation.plan
            federation.compressor.begin(self._number, state, None if plan is None else plan.structure)

    def read(self, update: Update) -> None:
        """An update came in: read it now, so that it may go when the caller is done with it."""
        federation = self._federation
        plan = federation.plan or (federation.plan_for(update.state) if update.is_delta else None)
        if plan is None or (self._base is None and not update.is_delta):
            self._gap("no global model was given to compare updates with: use federation(model=...) or delta=True")
            return
        try:
            reader = self._read(plan, update)
        except UpdateMismatchError:
            if not self._has_grown():
                raise
            plan = federation.plan or plan
            reader = self._read(plan, update)
        responder = federation.responder
        if responder is not None and reader.prints()[-1].is_finite:
            base = federation.global_state() if update.is_delta else None
            response = responder.response(update.state, base, plan.structure)
            reader.prints()[-1] = replace(reader.prints()[-1], response=response)
        session = federation.session
        if federation.compressor is not None and session is not None:
            federation.compressor.measure(
                session, plan.structure, update.client, update.state, is_delta=update.is_delta
            )

    def _read(self, plan: Plan, update: Update) -> Reader:
        reader = self._reader = self._reader or Reader(plan)
        reader.read(update.state, update.client, None if update.is_delta else self._base)
        return reader

    def _has_grown(self) -> bool:
        """Whether the global model got other layers after the round had begun, before its first update: then begin
        with those it has now."""
        federation, kept = self._federation, (self._federation.plan, self._base)
        state = federation.global_state()
        if self.prints or state is None:
            return False
        if self._reader is not None:
            self._reader.close()
        self._reader = None
        self.begin(state)
        if federation.plan is kept[0]:
            self._base = kept[1]
            return False
        return True

    @property
    def prints(self) -> list[Fingerprint]:
        return self._reader.prints() if self._reader is not None else []

    def odd_layers(self, client: str) -> list[tuple[str, int, int]]:
        """Layers of a client's last update that hold NaN or infinite elements, with the number of each."""
        plan = self._federation.plan
        one = next((one for one in reversed(self.prints) if one.client == client), None)
        if plan is None or one is None:
            return []
        counts = zip(plan.structure.layers, one.nan, one.inf, strict=False)
        return [(layer.name, int(nan), int(inf)) for layer, nan, inf in counts if nan or inf]

    def screen(
        self, probability: float | None, updates: Sequence[Update], sites: Sequence[Site], found: list[Verdict]
    ) -> None:
        """Add verdicts on the updates in hand to `found`; as sure as the detector must be where nothing is said."""
        from stethos.diagnose.federated.cohort import cohort_in
        from stethos.diagnose.federated.verdict import IN_COMPANY, SURE, verdicts_on

        plan = self._federation.plan
        if plan is None or not self.prints:
            return
        self._search_odd(plan, updates)
        compared = compare(plan, self.prints, self._federation.history)
        rows = [_with_matrices(row) for row in (*self._federation.recent, self._row(plan, compared, sites))]
        here = {one.client for one in self.prints}
        limits = (SURE, IN_COMPANY) if probability is None else (probability, None)
        verdicts = verdicts_on(cohort_in(rows), *limits)
        found.extend(one for one in verdicts if one.client in here and one.last is None)
        self.odd += [one.client for one in found]

    def _row(self, plan: Plan, compared: Comparison, sites: Sequence[Site]) -> dict[str, Any]:
        """This round as `cohort_in` wants it, but for `_with_matrices`."""
        facts = {site.client: site.facts for site in sites}
        mine: list[Mapping[str, Any]] = [facts.get(one.client, {}) for one in self.prints]
        return quantities_of(plan, self.prints, compared) | {
            "round": self._number,
            "clients": tuple(one.client for one in self.prints),
            "confusion": [fact.get("confusion") for fact in mine],
            **{
                name: np.array([np.nan if fact.get(name) is None else float(fact[name]) for fact in mine])
                for name in ("entry_loss", "exit_loss", "samples")
            },
        }

    # At its end -------------------------------------------------------------------------------------

    def write(
        self, session: Session, plan: Plan, state: State | None, updates: Sequence[Update], sites: Sequence[Site],
        duration_ms: float, *, wants_odd: bool,
    ) -> dict[str, Any]:  # fmt: skip
        """Write rows of `updates`; return what is known of the new global model (`state`), for the round's own row."""
        federation, base = self._federation, self._base
        row = federation.end_row(state)
        after = None
        if row is not None and state is not None:
            reader = self._reader = self._reader or Reader(plan)
            after = self._look_closer(plan, state, reader.change_of(row, base, state), updates)
        rows, prints = federation.update_rows(session, plan), self.prints
        base_norms = None if base is None else norms_of_row(plan, base)
        if prints:
            compared = compare(plan, prints, federation.history)
            self.odd += odd_clients(prints, compared) if wants_odd else []
            rows.put(self._number, prints, compared, base_norms, duration_ms * 1e-3 * _PATIENCE_SHARE)
            federation.recent.append(self._row(plan, compared, sites))
        if self._reader is not None:
            self._reader.close()
        if after is None or row is None or base is None:
            return {}
        rows.put(self._number, [after], None, base_norms, 0.0)
        history = federation.history
        history.add(after.sketch, prints)
        total = history.total if history.total is not None else after.sketch
        return {
            "global_norm": finite_norm(plan, row),
            "drift": after.norm,
            "start_drift": float(np.linalg.norm(total[: plan.weight_buckets])),
            "global_nan": float(after.nan[-1]),
            "global_inf": float(after.inf[-1]),
        }

    def _look_closer(self, plan: Plan, state: State, after: Fingerprint, updates: Sequence[Update]) -> Fingerprint:
        """Elements of large layers that are not read may be NaN too; if the new global model has any, find whose."""
        if plan.reads_everything:
            return after
        nan, inf = with_total(plan, count_odd(plan, state, GLOBAL))
        after = replace(after, nan=nan, inf=inf)
        if not after.is_finite:
            self._search_odd(plan, updates)
        return after

    def _search_odd(self, plan: Plan, updates: Sequence[Update]) -> None:
        """Look at every element of every update that is not known to be odd, unless all were read."""
        prints = self.prints
        if plan.reads_everything:
            return
        places: dict[str, list[int]] = {}
        for place, one in enumerate(prints):
            places.setdefault(one.client, []).append(place)
        for update in reversed(updates):
            mine = places.get(update.client)
            if not mine:
                continue
            place = mine.pop()
            if prints[place].is_finite:
                nan, inf = with_total(plan, count_odd(plan, update.state, update.client))
                prints[place] = replace(prints[place], nan=nan, inf=inf)

    def _gap(self, reason: str) -> None:
        session = self._federation.session
        if session is not None and not self._federation.history.changes:
            session.note_gap("updates", reason)


def _with_matrices(row: Mapping[str, Any]) -> dict[str, Any]:
    """The texts of confusion matrices are read when they are asked for, which is seldom."""
    return {**row, "confusion": [matrix_in(text) for text in row["confusion"]]}


def matrix_in(text: Any) -> Vector | None:
    """A confusion matrix as `Site` writes it down."""
    return np.array(json.loads(text), float) if isinstance(text, str) else None
