"""Clients' turns as grids: one row per client, one column per round."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from stethos.diagnose.window import Window
from stethos.store.frame import Array, Frame, is_known
from stethos.store.literal import literal
from stethos.store.order import natural_key

Grid = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Turns:
    """What became of the clients of one federation, round by round; the last turn where a client had several."""

    federation: str | None
    frame: Frame

    @cached_property
    def clients(self) -> list[str]:
        """In natural order: c2 before c10."""
        return sorted({str(one) for one in self.frame["client"].tolist()}, key=natural_key)

    @cached_property
    def rounds(self) -> list[int]:
        return sorted({int(one) for one in self.frame["round"].tolist()})

    @cached_property
    def _places(self) -> tuple[Array, Array]:
        row = {client: place for place, client in enumerate(self.clients)}
        column = {number: place for place, number in enumerate(self.rounds)}
        return (
            np.array([row[str(one)] for one in self.frame["client"].tolist()], int),
            np.array([column[int(one)] for one in self.frame["round"].tolist()], int),
        )

    def grid(self, column: str) -> Grid:
        """A column of numbers, clients x rounds; NaN where a client had no turn or nothing is known."""
        found = np.full((len(self.clients), len(self.rounds)), math.nan)
        if column in self.frame and self.frame[column].dtype.kind == "f":
            found[self._places] = self.frame[column]
        return found

    def words(self, column: str) -> Array:
        """A column of texts, clients x rounds; None where a client had no turn."""
        found = np.full((len(self.clients), len(self.rounds)), None, object)
        if column in self.frame:
            found[self._places] = self.frame[column]
        return found

    @cached_property
    def is_ok(self) -> Array:
        """Where an update came in."""
        status = self.words("status")
        return np.asarray(status == "ok")

    def where(self, *conditions: str) -> str:
        """The WHERE clause for rows of this federation, with a space behind it; "" where none is needed."""
        own = () if self.federation is None else (f"federation = {literal(self.federation)}",)
        return f"WHERE {' AND '.join((*own, *conditions))} " if (*own, *conditions) else ""


def turns_of(window: Window) -> list[Turns]:
    """The clients' turns of each federation of the run."""
    return window.derive(_turns_in)


def _turns_in(window: Window) -> list[Turns]:
    frame = window.frame("client_rounds")
    if not len(frame) or "client" not in frame or "round" not in frame:
        return []
    frame = frame.where(is_known(frame["client"]) & ~_is_nan(frame["round"]))
    if "t_ns" in frame:
        frame = frame.sorted_by("t_ns")
    if "federation" not in frame or not is_known(frame["federation"]).any():
        return [Turns(None, frame)] if len(frame) else []
    groups = frame.groups("federation")
    return [Turns(str(name) if len(groups) > 1 else None, part) for name, part in groups.items()]


def others_median(grid: Grid) -> Grid:
    """For each client and round the median of the other clients in that round; NaN where fewer than two are known."""
    found = np.full_like(grid, math.nan)
    for column in range(grid.shape[1]):
        known = np.flatnonzero(~np.isnan(grid[:, column]))
        if len(known) >= 2:
            found[:, column] = np.median(grid[known, column])
        if len(known) >= 3:
            found[known, column] = median_without_each(grid[known, column])
        elif len(known):
            found[known, column] = math.nan
    return found


def median_without_each(values: Array) -> Array:
    """For each value the median of all the others; two values at least."""
    order = np.argsort(values, kind="stable")
    ranked, rank = values[order], np.empty(len(values), int)
    rank[order] = np.arange(len(values))
    low, high = (len(values) - 2) // 2, (len(values) - 1) // 2
    return np.asarray((ranked[low + (low >= rank)] + ranked[high + (high >= rank)]) / 2)


def column_medians(grid: Grid) -> Grid:
    """The median of each column, of what is known."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # a round of which nothing is known
        return np.asarray(np.nanmedian(grid, axis=0))


def bytes_words(count: float) -> str:
    """`3.2 MB`."""
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count:.0f} bytes"


def numbers(values: Array | Sequence[float]) -> tuple[float, ...]:
    """An array as the series of an evidence."""
    return tuple(float(value) for value in values)


def listed(names: Sequence[str], most: int = 3) -> str:
    """`c1, c2, c3 and 4 more`."""
    shown = ", ".join(names[:most])
    return f"{shown} and {len(names) - most} more" if len(names) > most else shown


def _is_nan(values: Array) -> Array:
    return np.isnan(values) if values.dtype.kind == "f" else np.ones(len(values), bool)
