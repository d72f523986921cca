"""Where the time of a round goes, and which client and phase everybody waited for.

Where clients work side by side a round lasts as long as its last client: its parts are then the phases of
the typical (median) client, and `wait` is what the last one takes beyond that. Where they take turns, the
phases add up. Only durations are used, each measured by one clock: clocks that are apart or step do no harm.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from stethos.profile.column import Grid, durations_in, numbers_in
from stethos.profile.trip import PHASES, Trips, column_max, column_median, trips_of
from stethos.store.frame import Array, Frame

ROUND_PARTS = ("select", *PHASES, "wait", "aggregate", "evaluate", "other")
ROUND_COLUMNS = frozenset({"federation", "round", "t_ns", "duration_ms", "wait_ms"}) | {
    f"{name}_ms" for name in ("select", *PHASES, "aggregate", "evaluate")
}
_COLD = 4.0  # times the median round
_COLD_MS = 10.0
_FEWEST_WARM = 4
_SLACK = 1.05  # turns may overlap by so much and still be one after the other


@dataclass(frozen=True)
class RoundTime:
    """The rounds of one federation that have ended: ms per round and part, NaN where nothing was recorded.

    `numbers` are the rounds; `place` their columns in the grids of `trips`, -1 without one.
    """

    federation: str | None
    numbers: list[int]
    duration_ms: Array
    parts: dict[str, Array]
    is_side_by_side: Array
    critical: list[tuple[str, str] | None]
    trips: Trips | None
    place: Array
    notes: tuple[str, ...] = ()

    @property
    def total_ms(self) -> float:
        return float(np.nansum(self.duration_ms))

    def share(self, *names: str) -> float:
        """Of all the time of rounds, the part that these take; NaN if none of them was recorded."""
        found = [np.nansum(self.parts[name]) for name in names if not np.isnan(self.parts[name]).all()]
        return float(sum(found) / self.total_ms) if found and self.total_ms > 0 else math.nan

    def mean_ms(self, name: str) -> float | None:
        """Per round; None if it was not recorded."""
        values = self.parts[name]
        known = int(np.isfinite(self.duration_ms).sum())
        return None if np.isnan(values).all() or not known else float(np.nansum(values) / known)

    @property
    def waited_for(self) -> Counter[tuple[str, str]]:
        """In how many rounds each client, with its longest phase, came last."""
        return Counter(one for one in self.critical if one is not None)

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        known = self.duration_ms[np.isfinite(self.duration_ms)]
        return {
            "federation": self.federation,
            "rounds": len(self.numbers),
            "mean_ms": float(known.mean()) if len(known) else None,
            "median_ms": float(np.median(known)) if len(known) else None,
            "clients": "unknown" if self.trips is None else "side by side" if self.is_side_by_side.any() else "in turn",
            "parts_ms": {name: self.mean_ms(name) for name in ROUND_PARTS},
            "waited_for": [
                {"client": client, "phase": phase, "rounds": count}
                for (client, phase), count in self.waited_for.most_common(10)
            ],
            "notes": list(self.notes),
        }


@dataclass
class _Split:
    """One federation's rounds while they are taken apart."""

    count: int
    parts: dict[str, Array] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.parts = {name: np.full(self.count, math.nan) for name in ROUND_PARTS}


def round_times(rounds: Frame, turns: Frame) -> list[RoundTime]:
    """Take the rounds of every federation apart, from rows of `rounds` and `client_rounds`."""
    trips = {one.federation: one for one in trips_of(turns)}
    return [_taken_apart(name, *_warm(part), trips.get(name)) for name, part in _by_federation(rounds).items()]


def _warm(rounds: _Part) -> tuple[_Part, tuple[str, ...]]:
    """The rounds without the first, where that took far longer than the others, and what to say about it."""
    duration = rounds.durations("duration")
    rest = duration[1:][np.isfinite(duration[1:])]
    if len(rest) < _FEWEST_WARM or not duration[0] > max(_COLD * float(np.median(rest)), _COLD_MS):
        return rounds, ()
    return rounds.without_first(), (f"the first round is left out: it warms up, for {duration[0]:,.0f} ms",)


def _by_federation(rounds: Frame) -> dict[str | None, _Part]:
    names = rounds["federation"].tolist() if len(rounds) and "federation" in rounds else [None] * len(rounds)
    order = np.argsort(numbers_in(rounds, "round"), kind="stable").tolist()
    places: dict[str | None, list[int]] = {}
    for at in order:
        if numbers_in(rounds, "round")[at] == numbers_in(rounds, "round")[at]:
            places.setdefault(names[at], []).append(at)
    found = {name: _Part(rounds, np.array(at)) for name, at in places.items()}
    return {None: next(iter(found.values()))} if len(found) == 1 else found


class _Part:
    """Some rows of `rounds`."""

    def __init__(self, rounds: Frame, at: Array) -> None:
        self._rounds = rounds
        self._at = at

    def __len__(self) -> int:
        return len(self._at)

    def durations(self, name: str) -> Array:
        return np.asarray(durations_in(self._rounds, f"{name}_ms")[self._at])

    @property
    def odd(self) -> int:
        """Durations that cannot be."""
        values = numbers_in(self._rounds, "duration_ms")[self._at]
        return int(((values < 0) | np.isinf(values)).sum())

    def without_first(self) -> _Part:
        return _Part(self._rounds, self._at[1:])

    @property
    def numbers(self) -> list[int]:
        return [int(number) for number in numbers_in(self._rounds, "round")[self._at].tolist()]


def _taken_apart(federation: str | None, rounds: _Part, remarks: tuple[str, ...], trips: Trips | None) -> RoundTime:
    split = _Split(len(rounds))
    duration = rounds.durations("duration")
    for name in ("select", *PHASES, "aggregate", "evaluate"):
        split.parts[name] = rounds.durations(name)
    place = np.full(len(rounds), -1)
    side = np.isfinite(rounds.durations("wait"))
    critical: list[tuple[str, str] | None] = [None] * len(rounds)
    notes = list(remarks)
    if rounds.odd:
        notes.append(f"{rounds.odd} impossible durations of rounds (negative or infinite) are left out")
    if trips is not None:
        column = {number: at for at, number in enumerate(trips.rounds)}
        place = np.array([column.get(number, -1) for number in rounds.numbers])
        side |= _overlap(trips, place, duration)
        is_marked = np.isfinite(np.stack([split.parts[name] for name in PHASES])).any(axis=0)
        _add_turns(split, trips, place, side, is_marked)
        critical = _critical(trips, place, side)
        if not trips.known_phases and not is_marked.any():
            notes.append("the clients' turns are not split into phases: all of them counts as compute")
        if trips.odd:
            notes.append(f"{trips.odd} impossible times of clients (negative or infinite) are left out")
        _give_deadline_to_wait(split, trips, place, duration)
    over = _fit(split, duration)
    if over:
        notes.append(f"in {over} rounds the parts add up to more than the round: scaled down")
    return RoundTime(federation, rounds.numbers, duration, split.parts, side, critical, trips, place, tuple(notes))


def _overlap(trips: Trips, place: Array, duration: Array) -> Array:
    """Rounds whose turns take longer together than the round."""
    together = np.nansum(trips.turn_ms, axis=0)
    several = np.isfinite(trips.turn_ms).sum(axis=0) > 1
    found = np.where(place >= 0, several[place] & (together[place] > _SLACK * duration), False)
    return np.asarray(found, bool)


def _add_turns(split: _Split, trips: Trips, place: Array, side: Array, is_marked: Array) -> None:
    """The clients' phases as parts of the round, where the round itself did not mark any."""
    turns = trips.turn_ms[:, place]
    known = (place >= 0) & np.isfinite(turns).any(axis=0)
    at_typical = _typical(turns)
    phases = _whole_phases(trips)
    for name in PHASES:
        grid = phases[name][:, place]
        alone = np.where(np.isnan(grid).all(axis=0), math.nan, np.nansum(grid, axis=0))
        typical = grid[at_typical, np.arange(len(place))]
        part = np.where(side, typical, alone)
        use = known & ~is_marked
        split.parts[name] = np.where(use, part, split.parts[name])
    wait = np.fmax(column_max(turns) - turns[at_typical, np.arange(len(place))], 0.0)
    split.parts["wait"] = np.where(known & side, wait, math.nan)
    longest = np.where(is_marked & side & known, np.nan_to_num(wait), 0.0)
    split.parts["compute"] = np.fmax(split.parts["compute"] - longest, 0.0)  # a marked phase contains the wait


def _typical(turns: Grid) -> Array:
    """For each round the client whose turn is the median one (the lower of two)."""
    filled = np.where(np.isnan(turns), math.inf, turns)
    order = np.argsort(filled, axis=0, kind="stable")
    count = np.isfinite(turns).sum(axis=0)
    middle = np.maximum((count - 1) // 2, 0)
    return np.asarray(order[middle, np.arange(turns.shape[1])])


def _whole_phases(trips: Trips) -> dict[str, Grid]:
    """The phases of each turn; what no phase explains is compute where nothing says what it was."""
    known = np.stack([np.nan_to_num(grid) for grid in trips.phase_ms.values()]).sum(axis=0)
    rest = np.fmax(trips.turn_ms - known, 0.0)
    compute = trips.phase_ms["compute"]
    return {**trips.phase_ms, "compute": np.where(np.isnan(compute), rest, compute)}


def _critical(trips: Trips, place: Array, side: Array) -> list[tuple[str, str] | None]:
    """Of each round where clients work side by side the last client, and the phase in which it lost most.

    The last one is the one that waited least, as every screen tells it; where that was not recorded, the slowest.
    """
    phases = _whole_phases(trips)
    medians = {name: column_median(grid) for name, grid in phases.items()}
    found: list[tuple[str, str] | None] = []
    for at, is_side in zip(place.tolist(), side.tolist(), strict=True):
        turns = trips.turn_ms[:, at] if at >= 0 else np.array([math.nan])
        if not is_side or np.isfinite(turns).sum() < 2:
            found.append(None)
            continue
        last = int(np.lexsort((-np.nan_to_num(turns, nan=-1.0), np.nan_to_num(trips.wait_ms[:, at], nan=math.inf)))[0])
        over = {name: float(np.nan_to_num(grid[last, at] - medians[name][at])) for name, grid in phases.items()}
        found.append((trips.clients[last], max(over, key=lambda name: over[name])))
    return found


def _give_deadline_to_wait(split: _Split, trips: Trips, place: Array, duration: Array) -> None:
    """In a round that waited for somebody in vain, what nothing else explains was that wait."""
    late = (place >= 0) & np.asarray(trips.is_late.any(axis=0))[place]
    known = np.nansum(np.stack([split.parts[name] for name in ROUND_PARTS]), axis=0)
    rest = np.fmax(duration - known, 0.0)
    split.parts["wait"] = np.where(late, np.nan_to_num(split.parts["wait"]) + rest, split.parts["wait"])


def _fit(split: _Split, duration: Array) -> int:
    """`other` is what is left; parts that add up to more than the round are scaled down. Return in how many rounds."""
    names = [name for name in ROUND_PARTS if name != "other"]
    known = np.nansum(np.stack([split.parts[name] for name in names]), axis=0)
    with np.errstate(divide="ignore", invalid="ignore"):
        scale = np.where(known > duration, duration / known, 1.0)
    for name in names:
        split.parts[name] = split.parts[name] * np.where(np.isfinite(scale), scale, 1.0)
    split.parts["other"] = np.fmax(duration - known, 0.0)
    return int((known > _SLACK * duration).sum())
