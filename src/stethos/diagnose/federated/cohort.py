"""The clients of some rounds side by side: one matrix per quantity, a row per round, a column per client."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from stethos.diagnose.window import Frame, Window

Array = npt.NDArray[np.float64]
NEEDS = {"updates": frozenset({"round", "client"})}  # sizes and cosines are NULL where all updates are NaN
READS = {
    "updates": frozenset(
        {"federation", "layer", "kind", "norm", "norm_ratio", "cos_centre",
         "sign_agreement", "cos_last", "cos_self", "cos_back", "back_rounds", "nan", "inf",
         "zero_share", "input_cos", "input_focus", "input_tail", "output_rows"}
    ),
    "client_rounds": frozenset({"federation", "round", "client", "entry_loss", "exit_loss", "samples", "confusion"}),
}  # fmt: skip


@dataclass(frozen=True, eq=False)
class Cohort:
    """Matrices of rounds x clients, NaN where a client did not take part or a number is not known.

    `confusion` has two more axes, local label and answer of the incoming global
    model; `bias` and `rows` one, the class. Both may have no classes at all.
    """

    rounds: tuple[int, ...]
    clients: tuple[str, ...]
    norm: Array
    norm_ratio: Array
    first_ratio: Array  # of the first layer's norm to the median client's
    last_ratio: Array  # of the output layer's
    cos_centre: Array
    sign_agreement: Array
    cos_last: Array
    cos_self: Array
    cos_back: Array
    back_rounds: Array
    zero_share: Array
    input_cos: Array
    input_focus: Array
    input_tail: Array
    odd: Array  # NaN and infinite elements
    entry_loss: Array
    exit_loss: Array
    samples: Array
    confusion: Array
    bias: Array

    def __len__(self) -> int:
        return len(self.rounds)

    def part(self, place: slice) -> Cohort:
        """The same clients, over some of the rounds."""
        values = {name: getattr(self, name)[place] for name in MATRICES}
        return Cohort(rounds=self.rounds[place], clients=self.clients, **values)


MATRICES = tuple(name for name in Cohort.__dataclass_fields__ if name not in ("rounds", "clients"))


def cohorts_of(window: Window) -> Iterator[tuple[str | None, Cohort]]:
    """The cohort of each federation of a run, from its tables; no name where there is only one."""
    updates, reports = window.frame("updates"), window.frame("client_rounds")
    groups = updates.groups("federation") if "federation" in updates else {}
    if len(groups) < 2:
        yield None, _cohort_of(updates, reports)
        return
    told = reports.groups("federation") if "federation" in reports else {}
    for name, mine in groups.items():
        yield str(name), _cohort_of(mine, told.get(name, Frame({})))


def _cohort_of(updates: Frame, reports: Frame) -> Cohort:
    whole = updates.where(np.array([layer is None for layer in updates["layer"]], bool) & _named(updates))
    rounds = tuple(sorted({int(number) for number in whole["round"] if number == number}))
    clients = tuple(dict.fromkeys(whole["client"].tolist()))
    place_r = {number: place for place, number in enumerate(rounds)}
    place_c = {client: place for place, client in enumerate(clients)}

    def matrix(frame: Frame, column: str) -> Array:
        values = np.full((len(rounds), len(clients)), math.nan)
        if column in frame and frame[column].dtype.kind == "f":
            for number, client, value in zip(frame["round"], frame["client"], frame[column], strict=True):
                if number in place_r and client in place_c:
                    values[place_r[number], place_c[client]] = value
        return values

    first, last = _outer_layers(updates)
    texts = _texts(whole, "output_rows", place_r, place_c)
    return Cohort(
        rounds=rounds,
        clients=clients,
        first_ratio=matrix(_of_layer(updates, first), "norm_ratio"),
        last_ratio=matrix(_of_layer(updates, last), "norm_ratio"),
        odd=np.nan_to_num(matrix(whole, "nan")) + np.nan_to_num(matrix(whole, "inf")),
        confusion=_confusions(_texts(reports, "confusion", place_r, place_c), len(rounds), len(clients)),
        bias=_biases(texts, len(rounds), len(clients)),
        **{
            name: matrix(whole, name)
            for name in (
                "norm", "norm_ratio", "cos_centre", "sign_agreement", "cos_last", "cos_self", "cos_back",
                "back_rounds", "zero_share", "input_cos", "input_focus", "input_tail",
            )
        },
        **{name: matrix(reports, name) for name in ("entry_loss", "exit_loss", "samples")},
    )  # fmt: skip


def cohort_in(rows: Sequence[Mapping[str, Any]]) -> Cohort:
    """The cohort of rounds held in memory, the oldest first.

    A row has `round`, `clients`, a vector per quantity in the clients' order, `bias`
    (a row per client), and `confusion`: a square matrix or None per client.
    """
    clients = tuple(dict.fromkeys(client for row in rows for client in row["clients"]))
    place = {client: number for number, client in enumerate(clients)}
    shape = (len(rows), len(clients))
    matrices = {name: np.full(shape, math.nan) for name in MATRICES if name not in ("confusion", "bias")}
    classes = max((len(one) for row in rows for one in row["confusion"] if one is not None), default=0)
    confusion = np.full((*shape, classes, classes), math.nan)
    bias = np.full((*shape, max(row["bias"].shape[1] for row in rows)), math.nan)
    for number, row in enumerate(rows):
        places = [place[client] for client in row["clients"]]
        for name, matrix in matrices.items():
            matrix[number, places] = row[name]
        if row["bias"].shape[1] == bias.shape[2]:
            bias[number, places] = row["bias"]
        for column, one in zip(places, row["confusion"], strict=True):
            if one is not None:
                confusion[number, column] = 0.0
                confusion[number, column, : len(one), : len(one)] = one
    return Cohort(
        rounds=tuple(row["round"] for row in rows), clients=clients, confusion=confusion, bias=bias, **matrices
    )


def _named(frame: Frame) -> npt.NDArray[np.bool_]:
    return np.array([client is not None for client in frame["client"]], bool)


def _of_layer(updates: Frame, layer: str | None) -> Frame:
    return updates.where(
        np.array([name is not None and name == layer for name in updates["layer"]], bool) & _named(updates)
    )


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


_Texts = dict[tuple[int, int], Any]


def _texts(frame: Frame, column: str, place_r: dict[int, int], place_c: dict[str, int]) -> _Texts:
    """JSON of a text column by round and client; what is no JSON is left out."""
    found: _Texts = {}
    if column not in frame:
        return found
    for number, client, text in zip(frame["round"], frame["client"], frame[column], strict=True):
        if isinstance(text, str) and number in place_r and client in place_c:
            try:
                found[place_r[number], place_c[client]] = json.loads(text)
            except ValueError:
                continue
    return found


def _confusions(texts: _Texts, rounds: int, clients: int) -> Array:
    matrices: dict[tuple[int, int], Array] = {}
    for place, value in texts.items():
        matrix = np.asarray(value, float) if isinstance(value, list) else np.zeros(0)
        if matrix.ndim == 2 and matrix.shape[0] == matrix.shape[1]:
            matrices[place] = matrix
    classes = max((len(matrix) for matrix in matrices.values()), default=0)
    found = np.full((rounds, clients, classes, classes), math.nan)
    for place, matrix in matrices.items():
        found[place] = 0.0
        found[place][: len(matrix), : len(matrix)] = matrix
    return found


def _biases(texts: _Texts, rounds: int, clients: int) -> Array:
    rows = {place: value["bias"] for place, value in texts.items() if isinstance(value, dict) and "bias" in value}
    classes = max((len(row) for row in rows.values()), default=0)
    found = np.full((rounds, clients, classes), math.nan)
    for place, row in rows.items():
        if len(row) == classes:
            found[place] = row
    return found
