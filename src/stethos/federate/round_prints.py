"""The updates of one round: fingerprinted as they come in, compared with each other, recorded when it ends."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from stethos.errors import UpdateMismatchError
from stethos.federate.comparison import Columns, Facts, compare, measure, round_columns
from stethos.federate.fingerprint import GLOBAL, Fingerprint, UpdateBuffer, count_odd, count_unread, with_total
from stethos.federate.screening import Screened, screen_round
from stethos.federate.sketch import SketchPlan
from stethos.federate.structure import State
from stethos.outlier import STANDS_OUT_DEVIATIONS, deviations

if TYPE_CHECKING:
    from stethos.federate.federation import Federation
    from stethos.federate.site import Update

Vector = npt.NDArray[Any]
_LEAST_SPREAD = 0.02
_WAIT_SHARE = 0.01  # of a round's duration, for a drainer that does not keep up


class RoundPrints:
    """The fingerprints of a round. Called by one thread at a time; failures are the caller's to guard."""

    def __init__(self, federation: Federation, number: int) -> None:
        self._federation = federation
        self._number = number
        self._base: Vector | None = None
        self._buffer: UpdateBuffer | None = None
        self._compared: Columns | None = None
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

    def fingerprint(self, update: Update) -> None:
        """An update came in: copy what is needed of it, so that it may go when the caller is done with it."""
        federation = self._federation
        plan = federation.plan or (federation.plan_for(update.state) if update.is_delta else None)
        if plan is None or (self._base is None and not update.is_delta):
            self._gap("no global model was given to compare updates with: use federation(model=...) or delta=True")
            return
        try:
            buffer = self._add(plan, update)
        except UpdateMismatchError:
            if not self._has_grown():
                raise
            plan = federation.plan or plan
            buffer = self._add(plan, update)
        self._compared = None
        responder = federation.responder
        if responder is not None and buffer.prints()[-1].is_finite:
            base = federation.global_state() if update.is_delta else None
            response = responder.response(update.state, base, plan.structure)
            buffer.prints()[-1] = replace(buffer.prints()[-1], response=response)
        session = federation.session
        if federation.compressor is not None and session is not None:
            federation.compressor.measure(
                session, plan.structure, update.client, update.state, is_delta=update.is_delta
            )

    def _add(self, plan: SketchPlan, update: Update) -> UpdateBuffer:
        buffer = self._buffer = self._buffer or UpdateBuffer(plan)
        buffer.add(update.state, update.client, None if update.is_delta else self._base)
        return buffer

    def _has_grown(self) -> bool:
        """Whether the global model got other layers after the round had begun, before its first update: then begin
        with those it has now."""
        federation, kept = self._federation, (self._federation.plan, self._base)
        state = federation.global_state()
        if self.prints or state is None:
            return False
        if self._buffer is not None:
            self._buffer.close()
        self._buffer = None
        self.begin(state)
        if federation.plan is kept[0]:
            self._base = kept[1]
            return False
        return True

    @property
    def prints(self) -> list[Fingerprint]:
        return self._buffer.prints() if self._buffer is not None else []

    def odd_layers(self, client: str) -> list[tuple[str, int, int]]:
        """Layers of a client's last update that hold NaN or infinite elements, with the number of each."""
        plan = self._federation.plan
        one = next((one for one in reversed(self.prints) if one.client == client), None)
        if plan is None or one is None:
            return []
        counts = zip(plan.structure.layers, one.nan, one.inf, strict=False)
        return [(layer.name, int(nan), int(inf)) for layer, nan, inf in counts if nan or inf]

    def screen(self, updates: Sequence[Update], facts: Facts) -> Screened | None:
        """What is known of the updates in hand; None if no fingerprints could be made of them."""
        plan, prints = self._federation.plan, self.prints
        if plan is None or not prints:
            return None
        if count_unread(plan, prints, updates):
            self._compared = None
        columns = round_columns(plan, self._number, prints, self._columns(plan), facts)
        return screen_round(plan, prints, columns, self._federation.history)

    def _columns(self, plan: SketchPlan) -> Columns:
        """Of `updates`, for all that came in so far: compared once, whoever asks."""
        if self._compared is None:
            self._compared = compare(plan, self.prints, self._federation.history)
        base_norms = None if self._base is None else plan.norms_of_row(self._base)
        return measure(plan, self.prints, base_norms) | self._compared

    # At its end -------------------------------------------------------------------------------------

    def record(
        self, state: State | None, updates: Sequence[Update], facts: Facts, duration_ms: float, *, wants_odd: bool
    ) -> dict[str, Any]:
        """Write rows of `updates`, if there is a recording, and remember them for later rounds.

        Returns what is known of the new global model (`state`), for the round's own row.
        """
        federation, base, plan = self._federation, self._base, self._federation.plan
        if plan is None:
            return {}
        row = federation.end_row(state)
        after = None
        if row is not None and state is not None:
            buffer = self._buffer = self._buffer or UpdateBuffer(plan)
            after = self._look_closer(plan, state, buffer.change_of(row, base, state), updates)
        session, prints = federation.session, self.prints
        rows = None if session is None else federation.update_rows(session, plan)
        if prints:
            columns = self._columns(plan)
            self.odd += _clients_standing_out(prints, columns) if wants_odd else []
            if rows is not None:
                rows.record(self._number, prints, columns, duration_ms * 1e-3 * _WAIT_SHARE)
            federation.history.recent.append(round_columns(plan, self._number, prints, columns, facts))
        if self._buffer is not None:
            self._buffer.close()
        if after is None or row is None or base is None:
            return {}
        if rows is not None:
            rows.record(self._number, [after], measure(plan, [after], plan.norms_of_row(base)), 0.0)
        history = federation.history
        history.add(after.sketch, prints)
        total = history.total if history.total is not None else after.sketch
        return {
            "global_norm": plan.finite_norm(row),
            "drift": after.norm,
            "start_drift": float(np.linalg.norm(total[: plan.weight_buckets])),
            "global_nan": float(after.nan[-1]),
            "global_inf": float(after.inf[-1]),
        }

    def _look_closer(
        self, plan: SketchPlan, state: State, after: Fingerprint, updates: Sequence[Update]
    ) -> Fingerprint:
        """Elements of large layers that are not read may be NaN too; if the new global model has any, find whose."""
        if plan.reads_everything:
            return after
        nan, inf = with_total(plan, count_odd(plan, state, GLOBAL))
        after = replace(after, nan=nan, inf=inf)
        if not after.is_finite and count_unread(plan, self.prints, updates):
            self._compared = None
        return after

    def _gap(self, reason: str) -> None:
        session = self._federation.session
        if session is not None and not self._federation.history.changes:
            session.note_gap("updates", reason)


def _clients_standing_out(prints: Sequence[Fingerprint], columns: Columns) -> list[str]:
    """Clients with non-finite numbers, or whose length or direction lies far from the other clients'.

    Cheap, and generous rather than sure: it chooses what is captured.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        lengths = np.log(columns["norm_ratio"][:, -1])
    quantities = (lengths, columns["cos_centre"][:, -1], columns["sign_agreement"][:, -1])
    away = np.max([np.abs(deviations(values, _LEAST_SPREAD)) for values in quantities], axis=0)
    return [
        one.client
        for one, far in zip(prints, away, strict=True)
        if far > STANDS_OUT_DEVIATIONS or not one.is_finite
    ]  # fmt: skip
