"""Clients' turns of a federation as grids, clients x rounds: their phases, and who came last."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from stethos.profile.column import Grid, durations_in, numbers_in
from stethos.store.frame import Array, Frame
from stethos.store.order import natural_key

PHASES = ("download", "compute", "upload")
TURN_COLUMNS = frozenset(
    {"client", "round", "federation", "t_ns", "status", "samples", "duration_ms", "download_ms", "compute_ms",
     "upload_ms", "wait_ms"}
)  # fmt: skip


@dataclass(frozen=True)
class Trips:
    """One federation's turns; NaN where a client had none, gave no update, or nothing is known.

    `turn_ms` is the whole turn: as recorded, else the sum of its phases; `wait_ms` how long its update waited for the
    last one. `is_late`
    is where a client was waited for in vain. `odd` counts times that cannot be.
    """

    federation: str | None
    clients: list[str]
    rounds: list[int]
    turn_ms: Grid
    phase_ms: dict[str, Grid]
    samples: Grid
    wait_ms: Grid
    is_late: Array
    odd: int

    @property
    def known_phases(self) -> tuple[str, ...]:
        """Phases of which anything was recorded."""
        return tuple(name for name, grid in self.phase_ms.items() if not np.isnan(grid).all())


def trips_of(columns: Frame) -> Iterator[Trips]:
    """The turns of each federation; the last one where a client had several in a round."""
    if not len(columns) or "client" not in columns or "round" not in columns:
        return
    names, numbers = columns["client"].tolist(), numbers_in(columns, "round")
    order = np.argsort(numbers_in(columns, "t_ns"), kind="stable")
    known = [at for at in order.tolist() if names[at] is not None and numbers[at] == numbers[at]]
    federations = columns["federation"].tolist() if "federation" in columns else [None] * len(columns)
    places: dict[object, list[int]] = {}
    for at in known:
        places.setdefault(federations[at], []).append(at)
    for federation, own in places.items():
        yield _trips(columns, None if len(places) == 1 else str(federation), np.array(own), names, numbers)


def _trips(columns: Frame, federation: str | None, at: Array, names: list[object], numbers: Array) -> Trips:
    own = [str(names[place]) for place in at.tolist()]
    clients = sorted(set(own), key=natural_key)
    rounds = sorted({int(number) for number in numbers[at].tolist()})
    row = {client: place for place, client in enumerate(clients)}
    column = {number: place for place, number in enumerate(rounds)}
    target = (np.array([row[client] for client in own]), np.array([column[int(n)] for n in numbers[at].tolist()]))
    shape = (len(clients), len(rounds))
    status = columns["status"][at] if "status" in columns else np.full(len(at), "ok", object)
    is_ok = np.array([one in ("ok", None) for one in status.tolist()])

    def grid(values: Array) -> Grid:
        found = np.full(shape, math.nan)
        found[target] = np.where(is_ok, values[at], math.nan)
        return found

    phases = {name: grid(durations_in(columns, f"{name}_ms")) for name in PHASES}
    turn = grid(durations_in(columns, "duration_ms"))
    together = _sum_known(list(phases.values()))
    is_late = np.zeros(shape, bool)
    is_late[target] = [one == "timeout" for one in status.tolist()]
    odd = sum(_impossible(numbers_in(columns, f"{name}_ms")[at]) for name in (*PHASES, "duration"))
    turn = np.where(np.isnan(turn), together, np.fmax(turn, together))
    return Trips(federation, clients, rounds, turn, phases, grid(numbers_in(columns, "samples")),
                 grid(durations_in(columns, "wait_ms")), is_late, odd)  # fmt: skip


def others_median(grid: Grid, members: Array) -> Array:
    """For each round the median of the clients that are not `members`; NaN where none is known."""
    return column_median(grid[~members])


def column_median(grid: Grid) -> Array:
    """The median of each round, of what is known."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # a round of which nothing is known
        return np.asarray(np.nanmedian(grid, axis=0)) if len(grid) else np.full(grid.shape[1], math.nan)


def column_max(grid: Grid) -> Array:
    """The largest of each round, of what is known."""
    return np.asarray(np.fmax.reduce(grid, axis=0)) if len(grid) else np.full(grid.shape[1], math.nan)


def _sum_known(grids: list[Grid]) -> Grid:
    """Sums of what is known; NaN where nothing is."""
    stacked = np.stack(grids)
    return np.where(np.isnan(stacked).all(axis=0), math.nan, np.nansum(stacked, axis=0))


def _impossible(values: Array) -> int:
    return int(((values < 0) | np.isinf(values)).sum())
