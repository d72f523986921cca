"""Corrections of a federation whose caller asked for them: `federation(correct=...)`.

They are made by `stethos.act`, which is loaded when a federation asks for it.
If they fail themselves, the updates stay as they were sent, and the failure is recorded.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from stethos.federate.structure import State, copied, flat_of, is_float
from stethos.guard import attempt
from stethos.observe import boot

if TYPE_CHECKING:
    from collections.abc import Callable

    from stethos.act.correction import Correction
    from stethos.federate.federation import Federation
    from stethos.federate.round import Round
    from stethos.federate.site import Update

Made = TypeVar("Made")


class Correcting:
    """The corrector of one federation, and the last global model that was good."""

    def __init__(self, mode: str, name: str, path: Path | None) -> None:
        from stethos.act.action import parse_mode
        from stethos.act.recording import recorded_corrector

        self.corrector = recorded_corrector(parse_mode(mode), name, path)
        self._made: dict[int, Correction] = {}
        self._good: dict[str, Any] | None = None
        self._base: dict[str, Any] | None = None
        self._settled: int | None = None

    def correction_of(self, rnd: Round) -> Correction | None:
        """What to do about the updates in hand; asked once per round, None if it cannot be told."""
        if rnd.recorded not in self._made:
            made = _guarded(self._review, rnd)
            if made is None:
                return None
            self._made = {rnd.recorded: made}
        return self._made[rnd.recorded]

    def _review(self, rnd: Round) -> Correction | None:
        base, screened = rnd.base, rnd.screened()
        if isinstance(base, Mapping):
            self._base = copied(base)
        if base is None or screened is None or len(screened.clients) != len(rnd.updates):
            return None
        return self.corrector.decide(screened)

    def corrected(self, rnd: Round) -> list[Update]:
        from stethos.act.aggregate import treated

        made, base = self.correction_of(rnd), rnd.base
        if made is None or base is None or not made.is_applied or not made.treatments:
            return list(rnd.updates)
        found = _guarded(treated, rnd.updates, base, made)
        if found is None:
            return list(rnd.updates)
        rnd.note_correction(made.treatments)
        return found

    def must_roll_back(self, rnd: Round, state: State) -> bool:
        """Whether a new global model must give way to the one before it, where the caller can see to that."""
        self._settled = rnd.recorded
        base = self._base
        drift = _distance(state, base) if base is not None and isinstance(state, Mapping) else None
        odd = _odd_in(state) if isinstance(state, Mapping) else 0
        is_bad = bool(_guarded(lambda: self.corrector.settle(rnd.recorded, odd=odd, loss=None, drift=drift)))
        rnd.note_correction(is_rolled_back=is_bad)
        return is_bad

    def settle(self, rnd: Round, federation: Federation, result: State | None, loss: float | None) -> None:
        """The round is over: keep the new global model as the last good one, or put the last good one back."""
        if self._settled != rnd.recorded:
            _guarded(self._settle, rnd, federation, result, loss)

    def _settle(self, rnd: Round, federation: Federation, result: State | None, loss: float | None) -> None:
        state = result if result is not None else federation.global_state()
        if not isinstance(state, Mapping):
            return
        good = self._good if self._good is not None else self._base
        odd, drift = _odd_in(state), _distance(state, self._base) if self._base is not None else None
        if self.corrector.settle(rnd.recorded, odd=odd, loss=loss, drift=drift):
            if good is not None and not federation.restore(good):
                self.corrector.refuse_last("the federation was not given a module to put back: federation(model=...)")
            else:
                rnd.note_correction(is_rolled_back=good is not None)
            return
        if not odd:
            self._good = copied(state)


def averaged(federation: Federation, rnd: Round) -> dict[str, Any]:
    """The new global weights; see `Round.aggregate`."""
    from stethos.act.aggregate import average

    base = rnd.base
    correcting = federation.correcting
    made = correcting.correction_of(rnd) if correcting is not None else None
    updates = rnd.corrected()
    if not updates and made is not None and isinstance(base, Mapping):
        return dict(base)
    is_robust = made is not None and made.is_applied and made.is_robust
    rnd.note_correction(is_robust=is_robust)
    return average(updates, base if base is not None else {}, is_robust=is_robust)


def _guarded(function: Callable[..., Made], *args: Any) -> Made | None:
    session = boot.current_session()
    if session is None:
        return attempt(function, *args)
    found: list[Made] = []
    session.guard.run("actions", lambda: found.append(function(*args)))
    return found[0] if found else None


def _odd_in(state: Mapping[str, Any]) -> int:
    return sum(int((~np.isfinite(flat_of(value))).sum()) for value in state.values() if is_float(value))


def _distance(state: Mapping[str, Any], base: Mapping[str, Any]) -> float:
    with np.errstate(all="ignore"):
        squares = [
            float(np.square(flat_of(value).astype(np.float64) - flat_of(base[name])).sum())
            for name, value in state.items()
            if is_float(value) and name in base
        ]
    return float(np.sqrt(sum(squares)))
