"""SYS001: clients that keep the others waiting."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from stethos.diagnose.detector import Needs, threshold
from stethos.diagnose.finding import Evidence, Finding, Severity, Subject
from stethos.diagnose.time_parts import ROUNDS_READ, rounds_in
from stethos.diagnose.turn import Grid, Turns, column_medians, numbers, others_median, turns_of
from stethos.diagnose.window import Window
from stethos.profile.column import median_of
from stethos.profile.what_if import slowness_of
from stethos.store.frame import Array

_PHASES = {"its training": ("compute_ms",), "its link": ("download_ms", "upload_ms")}


@dataclass(frozen=True, slots=True)
class Straggler:
    """A client takes much longer than the others, round after round, and they wait for it.

    What it looks at: the duration of each client's turn against the median of the others in the same round, and
    against what its number of samples would lead one to expect. Where the phases were recorded it names the slow one.

    Why it matters: a synchronous round lasts as long as its slowest client; all others are idle.

    Not a fault when: the client simply has more data. What its samples explain is not counted; compare
    `quantity-skew`.

    Next step: look at the client's machine or link; leave it out, set a deadline, or give it less local work.
    """

    code: ClassVar[str] = "SYS001"
    name: ClassVar[str] = "straggler"
    severity: ClassVar[Severity] = Severity.WARNING
    needs: ClassVar[Needs] = {"client_rounds": frozenset({"client", "round", "duration_ms"})}
    reads: ClassVar[Needs] = ROUNDS_READ
    explains: ClassVar[frozenset[str]] = frozenset({"low-utilisation"})

    times: float = threshold(2.5, "times the expected duration of a turn")
    rounds: int = threshold(3, "rounds in which it is late")
    share: float = threshold(0.5, "share of its rounds in which it is late")
    at_least_ms: float = threshold(50.0, "milliseconds that it takes longer than the others")

    def check(self, window: Window) -> Iterator[Finding]:
        for turns in turns_of(window):
            duration = np.where(turns.is_ok, turns.grid("duration_ms"), np.nan)
            others = others_median(duration)
            expected = np.maximum(others, _expected(turns, duration))
            with np.errstate(invalid="ignore"):
                late = (duration > self.times * expected) & (duration - others > self.at_least_ms)
            for place, client in enumerate(turns.clients):
                if self._is_straggler(late[place], duration[place]):
                    share = _what_if(window, turns.federation, client)
                    yield self._finding(turns, client, duration, others, late[place], share)

    def _is_straggler(self, late: Array, duration: Array) -> bool:
        if late.sum() < self.rounds:
            return False
        since = np.flatnonzero(late)[0]
        known = ~np.isnan(duration[since:])
        return bool(late.sum() >= self.share * known.sum())

    def _finding(
        self, turns: Turns, client: str, duration: Grid, others: Grid, late: Array, share: float | None
    ) -> Finding:
        place = turns.clients.index(client)
        first, last = (turns.rounds[at] for at in np.flatnonzero(late)[[0, -1]])
        own_ms, usual_ms = median_of(duration[place][late]), median_of(others[place][late])
        is_open = bool(late[np.flatnonzero(~np.isnan(duration[place]))[-self.rounds :]].any())
        cause = _slow_phase(turns, place, late)
        waited_s = float(np.nansum(np.where(late, duration[place] - others[place], 0))) / 1000
        victims = [name for name in turns.clients if name != client]
        text = f"{client} takes {own_ms:,.0f} ms where the others take {usual_ms:,.0f} ms"
        gain = f"; rounds would be {share:.0%} shorter if it were like the others" if share is not None else ""
        return Finding(
            self.code,
            self.name,
            self.name,
            self.severity,
            f"client {client} takes {own_ms / usual_ms:.1f} times as long as the others" + cause,
            Subject((client,), first=first, last=None if is_open else last),
            confidence=min(0.99, 0.8 + 0.03 * int(late.sum())),
            evidence=(
                Evidence(
                    f"{text}, in {int(late.sum())} rounds; the others waited {waited_s:,.1f} s for it in all" + gain,
                    "SELECT round, client, duration_ms, download_ms, compute_ms, upload_ms, wait_ms "
                    f"FROM client_rounds {turns.where(f'round >= {first}')}"
                    "ORDER BY round, duration_ms DESC",
                    numbers(duration[place]),
                    numbers(column_medians(np.delete(duration, place, axis=0))),
                ),
            ),
            next_step=f"look at {client}'s machine or link; leave it out, set a deadline, or give it less local work",
            detail={"times": own_ms / usual_ms, "victims": victims, "waited_s": waited_s, "share": share},
            is_open=is_open,
        )


def _what_if(window: Window, federation: str | None, client: str) -> float | None:
    """By how much rounds would be shorter at the others' pace; None where rounds were not recorded."""
    for one in rounds_in(window):
        if one.federation == federation:
            slow = slowness_of(one, client)
            return slow.share if slow is not None else None
    return None


def _expected(turns: Turns, duration: Grid) -> Grid:
    """What each turn would take at the others' pace, given its samples; NaN where samples are not known."""
    samples = np.where(turns.is_ok, turns.grid("samples"), np.nan)
    with np.errstate(invalid="ignore", divide="ignore"):
        compute = np.where(turns.is_ok, turns.grid("compute_ms"), np.nan)
        if not np.isnan(compute).all():
            rest = others_median(duration - compute)
            return np.nan_to_num(rest + others_median(compute / samples) * samples, nan=0.0, posinf=0.0)
        return np.nan_to_num(others_median(duration) * samples / others_median(samples), nan=0.0, posinf=0.0)


def _slow_phase(turns: Turns, place: int, late: Array) -> str:
    """Which phase has most of the excess, in words; "" if they were not recorded."""
    excess = {}
    for words, columns in _PHASES.items():
        grid = np.where(turns.is_ok, sum(turns.grid(column) for column in columns), np.nan)
        over = median_of((grid - others_median(grid))[place][late])
        if over > 0:
            excess[words] = over
    if not excess:
        return ""
    worst = max(excess, key=lambda words: excess[words])
    if excess[worst] < 0.6 * sum(excess.values()):
        return ""
    return f", most of it in {worst}"
