"""How much shorter rounds would be if somebody, or something, were as fast as is usual."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from stethos.profile.column import Grid, median_of
from stethos.profile.round_time import RoundTime
from stethos.profile.trip import Trips, column_max, others_median
from stethos.store.frame import Array

PARTS_OF = {"upload": ("upload",), "download": ("download",), "link": ("download", "upload"), "compute": ("compute",)}
_FEWEST_ROUNDS = 3
_MOST_CLIENTS = 1 / 3  # more than that is no exception
_MOST_OF_LINK = 0.8
_EXPLAINED = 0.7
_CLEARLY = 1.5  # times the others', in the rounds that are looked at
_FEWEST_SHARE = 0.25  # of a client's rounds


@dataclass(frozen=True, slots=True)
class Slowness:
    """Clients that are slow in one thing: how often as slow as the others, and what it would save if they were not.

    `share` is of the time of all rounds. `samples_times` is how many times as many samples they have.
    """

    what: str
    clients: tuple[str, ...]
    times: float
    own_ms: float
    usual_ms: float
    share: float
    samples_times: float

    @property
    def is_explained_by_samples(self) -> bool:
        return self.what == "compute" and self.samples_times >= _EXPLAINED * self.times


def slow_clients(one: RoundTime, times: float = 1.8) -> Slowness | None:
    """The slowness that costs most; None if no client stands out."""
    trips = one.trips
    if trips is None or len(trips.clients) < 3 or one.total_ms <= 0:
        return None
    found = [slow for what in PARTS_OF if (slow := _slow(one, trips, what, times)) is not None]
    if not found:
        return None
    best = max(found, key=lambda slow: slow.share)
    if best.what == "link":
        parts = [slow for slow in found if slow.what in ("upload", "download")]
        parts = [slow for slow in parts if slow.share >= _MOST_OF_LINK * best.share]
        best = max(parts, key=lambda slow: slow.share, default=best)
    return best


def slowness_of(one: RoundTime, client: str) -> Slowness | None:
    """What one client costs, in the thing in which it costs most; None if that is nothing."""
    trips = one.trips
    if trips is None or client not in trips.clients or one.total_ms <= 0:
        return None
    members = np.array([name == client for name in trips.clients])
    found = [_told(one, trips, what, members) for what in PARTS_OF]
    known = [slow for slow in found if slow is not None and slow.share > 0]
    if not known:
        return None
    best = max(known, key=lambda slow: slow.share)
    single = [slow for slow in known if slow.what != "link" and slow.share >= _MOST_OF_LINK * best.share]
    return max(single, key=lambda slow: slow.share, default=best)


def _slow(one: RoundTime, trips: Trips, what: str, times: float) -> Slowness | None:
    grid = _time_for(trips, what)
    members = _outliers(grid, times)
    if not members.any() or members.mean() > _MOST_CLIENTS:
        return None
    slow = _told(one, trips, what, members)
    return slow if slow is not None and slow.times >= times else None


def _told(one: RoundTime, trips: Trips, what: str, members: Array) -> Slowness | None:
    grid = _time_for(trips, what)
    own, usual = grid[members], others_median(grid, members)
    ratios = own / np.where(usual > 0, usual, math.nan)
    slow = ratios >= _CLEARLY if (ratios >= _CLEARLY).any() else np.isfinite(ratios)
    ratio = median_of(ratios[slow])
    if not math.isfinite(ratio):
        return None
    samples = trips.samples[members] / np.where(
        (few := others_median(trips.samples, members)) > 0, few, math.nan
    )  # fmt: skip
    clients = tuple(name for name, is_it in zip(trips.clients, members.tolist(), strict=True) if is_it)
    saved = saved_ms(one, trips, members, PARTS_OF[what])
    return Slowness(
        what,
        clients,
        ratio,
        median_of(own[slow]),
        median_of(np.broadcast_to(usual, own.shape)[slow]),
        float(np.nansum(saved) / one.total_ms),
        median_of(samples.ravel()),
    )


def saved_ms(one: RoundTime, trips: Trips, members: Array, phases: Sequence[str]) -> Array:
    """Per round, what it would save if these clients took the others' median time in these phases."""
    excess = np.zeros_like(trips.turn_ms)
    for name in phases:
        over = trips.phase_ms[name] - others_median(trips.phase_ms[name], members)
        excess[members] += np.nan_to_num(np.fmax(over, 0.0))[members]
    if phases == ("compute",) and not trips.known_phases:  # turns that were not split
        over = trips.turn_ms - others_median(trips.turn_ms, members)
        excess[members] = np.nan_to_num(np.fmax(over, 0.0))[members]
    return shortened_ms(one, trips, trips.turn_ms - excess)


def shortened_ms(one: RoundTime, trips: Trips, turns: Grid) -> Array:
    """Per round, what these turns instead of the real ones would save: of the last one where clients work side by
    side, of all of them where they take turns."""
    side = column_max(trips.turn_ms) - column_max(turns)
    alone = np.nansum(trips.turn_ms - turns, axis=0)
    saved = np.where(one.is_side_by_side, side[one.place], alone[one.place])
    return np.where(one.place >= 0, np.clip(np.nan_to_num(saved), 0.0, np.nan_to_num(one.duration_ms)), 0.0)


def _time_for(trips: Trips, what: str) -> Grid:
    if what == "compute" and not trips.known_phases:
        return trips.turn_ms
    grids = [trips.phase_ms[name] for name in PARTS_OF[what]]
    return np.asarray(sum(grids[1:], start=grids[0]))


def _outliers(grid: Grid, times: float) -> Array:
    """Clients that took so many times as long as the median, in at least a quarter of their rounds."""
    usual = others_median(grid, np.zeros(len(grid), bool))
    with np.errstate(invalid="ignore"):
        slow = grid > times * usual
    known = np.isfinite(grid).sum(axis=1)
    needed = np.maximum(min(_FEWEST_ROUNDS, grid.shape[1]), _FEWEST_SHARE * known)
    return np.asarray((known > 0) & (slow.sum(axis=1) >= needed))
