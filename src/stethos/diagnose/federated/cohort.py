"""The clients of some rounds side by side: one matrix per column, a row per round, a column per client."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from stethos.diagnose.window import Window
from stethos.schema import COMPARED_REPORTS, UPDATES, Kind
from stethos.store.frame import Frame, is_known

Array = npt.NDArray[np.float64]
Columns = Mapping[str, Any]
_NOT_COMPARED = {"base_norm", "cos_error", "size", "coverage"}  # they are the model's, not the client's
_NUMBERS = tuple(
    column.name for column in UPDATES.of_kind(Kind.I32, Kind.I64, Kind.F64) if column.name not in _NOT_COMPARED
)
_RAGGED = ("confusion", "bias")
COLUMNS = (*_NUMBERS, "first_ratio", "last_ratio", "odd", "bias", *COMPARED_REPORTS)
NEEDS = {"updates": frozenset({"round", "client"})}  # sizes and cosines are NULL where all updates are NaN
READS = {
    "updates": frozenset({"federation", "layer", "kind", "output_rows", *_NUMBERS}),
    "client_rounds": frozenset({"federation", "round", "client", *COMPARED_REPORTS}),
}


@dataclass(frozen=True, eq=False)
class Cohort:
    """Matrices of rounds x clients by name, NaN where a client did not take part or a number is not known.

    Each is an attribute, too: `cohort.norm`. Their names are the columns of whole updates and of what clients
    report, and: `first_ratio` and `last_ratio`, the `norm_ratio` of the first and of the output layer; `odd`, NaN and
    infinite elements. `confusion` has two more axes, local label and answer of the incoming global
    model; `bias` one, the class. Both may have no classes at all.
    """

    rounds: tuple[int, ...]
    clients: tuple[str, ...]
    values: Mapping[str, Array]

    def __getattr__(self, name: str) -> Array:
        if name not in COLUMNS:
            raise AttributeError(f"a cohort has no column {name!r}")
        return self.values[name]

    def __len__(self) -> int:
        return len(self.rounds)

    def part(self, place: slice) -> Cohort:
        """The same clients, over some of the rounds."""
        return Cohort(self.rounds[place], self.clients, {name: value[place] for name, value in self.values.items()})


def joined_needs(*reads: Mapping[str, frozenset[str]]) -> dict[str, frozenset[str]]:
    """The columns of several, table by table."""
    tables = list(dict.fromkeys(name for one in reads for name in one))
    return {name: frozenset().union(*(one.get(name, frozenset()) for one in reads)) for name in tables}


def only_federation(window: Window) -> str | None:
    """The name of a run's only federation."""
    updates = window.frame("updates")
    names = updates["federation"].tolist() if "federation" in updates else []
    return next((str(name) for name in names if isinstance(name, str)), None)


def cohorts_of(window: Window) -> Iterator[tuple[str | None, Cohort]]:
    """The cohort of each federation of a run, from its tables; no name where there is only one."""
    updates, reports = window.frame("updates"), window.frame("client_rounds")
    groups = updates.groups("federation") if "federation" in updates else {}
    if len(groups) < 2:
        yield None, _cohort_in_tables(updates, reports)
        return
    told = reports.groups("federation") if "federation" in reports else {}
    for name, mine in groups.items():
        yield str(name), _cohort_in_tables(mine, told.get(name, Frame({})))


def cohort_of(updates: Sequence[Columns], reports: Sequence[Columns] = ()) -> Cohort:
    """The cohort of all rounds and clients of `updates`, whether held in memory or read from tables.

    Both are columns of equal length: `round`, `client`, and any of `COLUMNS`; what `reports` says of others is left
    out. `bias` is a vector or None each, `confusion` a square matrix, its text, or None.
    """
    rounds = tuple(sorted({int(number) for one in updates for number in one["round"] if number == number}))
    clients = tuple(dict.fromkeys(client for one in updates for client in one["client"]))
    numbers = np.array(rounds, float)
    column_of = {client: place for place, client in enumerate(clients)}
    shape = (len(rounds), len(clients))
    values = {name: np.full(shape, math.nan) for name in COLUMNS if name not in _RAGGED}
    ragged: dict[str, dict[tuple[int, int], Array]] = {name: {} for name in _RAGGED}
    for one in (*updates, *reports):
        if not one or not rounds:
            continue
        given = np.asarray(one["round"], float)
        columns = np.fromiter((column_of.get(client, -1) for client in one["client"]), int, len(given))
        rows = np.minimum(np.searchsorted(numbers, given), len(rounds) - 1)
        at = np.flatnonzero((columns >= 0) & (numbers[rows] == given))
        rows, columns = rows[at], columns[at]
        for name in COLUMNS:
            if name not in one:
                continue
            if name in _RAGGED:
                told = zip(rows.tolist(), columns.tolist(), (one[name][place] for place in at.tolist()), strict=True)
                found = ((row, column, _array_in(value)) for row, column, value in told if value is not None)
                ragged[name] |= {(row, column): value for row, column, value in found if value is not None}
            elif np.asarray(one[name]).dtype.kind == "f":
                values[name][rows, columns] = np.asarray(one[name])[at]
    values["odd"] = np.nan_to_num(values["nan"]) + np.nan_to_num(values["inf"])
    return Cohort(
        rounds, clients, {**values, "confusion": _confusions(ragged["confusion"], shape),
                          "bias": _biases(ragged["bias"], shape)},
    )  # fmt: skip


def _cohort_in_tables(updates: Frame, reports: Frame) -> Cohort:
    is_named, layers = is_known(updates["client"]), updates["layer"]
    whole = updates.where(~is_known(layers) & is_named)
    outer = dict(zip(("first_ratio", "last_ratio"), _outer_layers(updates), strict=True))
    parts = {name: updates.where(np.asarray(layers == layer) & is_named)
             for name, layer in outer.items() if layer is not None and "norm_ratio" in updates}  # fmt: skip
    has_biases = "output_rows" in whole and bool(is_known(whole["output_rows"]).any())
    biases = [_bias_in(text) for text in whole["output_rows"]] if has_biases else []
    return cohort_of(
        [_columns(whole) | ({"bias": biases} if biases else {})],
        [
            _columns(reports) if len(reports) else {},
            *({"round": one["round"], "client": one["client"], name: one["norm_ratio"]} for name, one in parts.items()),
        ],
    )


def _columns(frame: Frame) -> dict[str, Any]:
    return {name: frame[name] for name in frame.names}


def _outer_layers(updates: Frame) -> tuple[str | None, str | None]:
    """The first and the last layer of weights that are matrices, by their order in an update."""
    kinds = updates["kind"] if "kind" in updates else ["weight"] * len(updates)
    names = list(
        dict.fromkeys(
            name for name, kind in zip(updates["layer"], kinds, strict=True) if name is not None and kind == "weight"
        )
    )
    matrices = [name for name in names if not name.endswith("bias")] or names
    return (matrices[0], matrices[-1]) if matrices else (None, None)


def _parsed(text: str) -> Any:
    """JSON; None for what is not."""
    try:
        return json.loads(text)
    except ValueError:
        return None


def _bias_in(text: Any) -> Any:
    """The change of the output layer's bias in `updates.output_rows`; None if it does not say."""
    value = _parsed(text) if isinstance(text, str) else None
    return value.get("bias") if isinstance(value, dict) else None


def _array_in(value: Any) -> Array | None:
    """A vector or matrix, given as such or as its text."""
    value = _parsed(value) if isinstance(value, str) else value
    try:
        return np.asarray(value, float) if isinstance(value, list | np.ndarray) else None
    except (TypeError, ValueError):  # rows of several lengths, or no numbers
        return None


def _confusions(given: Mapping[tuple[int, int], Array], shape: tuple[int, int]) -> Array:
    matrices = {place: one for place, one in given.items() if one.ndim == 2 and one.shape[0] == one.shape[1]}
    classes = _longest(matrices.values())
    found = np.full((*shape, classes, classes), math.nan)
    for place, matrix in matrices.items():
        found[place] = 0.0
        found[place][: len(matrix), : len(matrix)] = matrix
    return found


def _biases(given: Mapping[tuple[int, int], Array], shape: tuple[int, int]) -> Array:
    classes = _longest(given.values())
    found = np.full((*shape, classes), math.nan)
    for place, row in given.items():
        if len(row) == classes:
            found[place] = row
    return found


def _longest(arrays: Iterable[Array]) -> int:
    return max((len(one) for one in arrays), default=0)


# What clients have in common ------------------------------------------------------------------------

_HARDLY = 0.1


def shared_labels(cohort: Cohort) -> Array:
    """For each client, of all samples with its labels, the share that other clients hold.

    A mean over the client's own samples: 0 where it alone holds each of its labels, 0.9 where ten clients hold
    the same. NaN for clients that did not tell their labels.
    """
    counts = np.nansum(cohort.confusion, axis=(0, 3))
    own = counts.sum(1)
    if not own.any():
        return np.full(len(cohort.clients), math.nan)
    others = 1 - counts / np.maximum(counts.sum(0), 1e-9)
    shared: Array = np.where(own > 0, (counts * others).sum(1) / np.maximum(own, 1e-9), math.nan)
    return shared


def is_alone_with(cohort: Cohort, place: int, label: int) -> bool:
    """Whether hardly anybody else has samples of this label, so that nobody can say how they should look."""
    counts = np.nansum(cohort.confusion, axis=(0, 3))[:, label]
    return bool(counts.sum() - counts[place] < _HARDLY * counts.sum())
