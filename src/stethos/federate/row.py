"""Writes rows of the federated tables into the ring."""

from __future__ import annotations

import base64
import functools
import json
import time
from array import array
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from stethos.federate.fingerprint import GLOBAL, Fingerprint
from stethos.federate.sketch import SketchPlan
from stethos.observe.session import Session
from stethos.observe.spans import json_of
from stethos.redact import redact
from stethos.schema import NULL_F64, NULL_I32, RECORDED, UPDATES, Kind, Table

Vector = npt.NDArray[Any]
_NUMBERS = (Kind.I32, Kind.I64, Kind.F64, Kind.BOOL)
_PLACES = {column.name: place for place, column in enumerate(UPDATES.of_kind(*_NUMBERS))}
_UPDATE_TEXTS = [column.name for column in UPDATES.of_kind(Kind.TEXT)]
_OUTPUT_ROWS = ("norm", "mean", "bias")
_AT_ONCE = 64
_LARGEST = 2.0**53


def put_row(
    session: Session, table: Table, values: Mapping[str, Any], *, client: str | None, round: int, t_ns: int
) -> bool:
    """One row; what is not among the values is NULL. Return False if it was dropped."""
    names, numbers, texts = _columns_of(table.number)
    ids = array(
        "i", [NULL_I32 if (value := values.get(name)) is None else session.name_id(str(value)) for name in names]
    )
    doubles = array("d", [_number(values.get(name), is_whole) for name, is_whole in numbers])
    whose = (session.name_id(client) if client is not None else NULL_I32, round)
    return session.put_frame(
        table.number, ids.tobytes(), doubles.tobytes(), [_text(values.get(name)) for name in texts],
        t_ns=t_ns, whose=whose,
    )  # fmt: skip


@functools.cache
def _columns_of(number: int) -> tuple[list[str], list[tuple[str, bool]], list[str]]:
    """The names of a table's own columns as a frame holds them: names, numbers (whether whole ones), texts."""
    (table,) = (table for table in RECORDED.values() if table.number == number)
    return (
        [column.name for column in table.of_kind(Kind.NAME)],
        [(column.name, column.kind in (Kind.I32, Kind.I64)) for column in table.of_kind(*_NUMBERS)],
        [column.name for column in table.of_kind(Kind.TEXT)],
    )


def wait_for_room(session: Session, most_wait_s: float) -> float:
    """Give the drainer time while the ring is half full, up to `most_wait_s`; return the seconds that took.

    A round of a thousand clients is more than a ring holds. Called between
    rounds, by the server alone: where that is a small part of the round's
    duration it is not noticed, and rows that do not fit are dropped and counted.
    """
    began = time.monotonic()
    while session.ring is not None and session.ring.has_backlog() and time.monotonic() - began < most_wait_s:
        time.sleep(0.002)
    return time.monotonic() - began


def _number(value: Any, is_whole: bool) -> float:
    if value is None:
        return NULL_F64
    number = float(value)
    return NULL_F64 if is_whole and not abs(number) < _LARGEST else number


def _text(value: Any) -> str:
    if value is None:
        return ""
    return json_of(value) if isinstance(value, Mapping) else str(value)


class UpdateRows:
    """Puts rows of `updates` into the ring: a frame per client, the whole update as its first row."""

    def __init__(self, session: Session, plan: SketchPlan, federation: str) -> None:
        self.session = session
        self.plan = plan
        layers = plan.structure.layers
        ids = [
            [session.name_id(federation)] * (len(layers) + 1),
            [NULL_I32, *(session.name_id(layer.name) for layer in layers)],
            [session.name_id(kind) for kind in ("weight", *(layer.kind for layer in layers))],
        ]
        self._names = np.array(ids, np.int32).tobytes()

    def record(
        self, number: int, prints: Sequence[Fingerprint], columns: Mapping[str, Vector], most_wait_s: float
    ) -> None:
        """Write a round's updates; `columns` are those of `measure` and `compare`, by name.

        `most_wait_s` may be waited for a drainer that does not keep up.
        """
        for first in range(0, len(prints), _AT_ONCE):
            part = slice(first, first + _AT_ONCE)
            tables, texts = self._numbers(prints[part], columns, part), self._texts(prints[part])
            for one, table, text in zip(prints[part], tables, texts, strict=True):
                if most_wait_s > 0:
                    most_wait_s -= wait_for_room(self.session, most_wait_s)
                client = NULL_I32 if one.client == GLOBAL else self.session.name_id(one.client)
                self.session.put_frame(
                    UPDATES.number, self._names, table.tobytes(), text, rows=table.shape[1], whose=(client, number)
                )

    def _numbers(self, prints: Sequence[Fingerprint], columns: Mapping[str, Vector], part: slice) -> Vector:
        """One table per client: a row per column of `updates`, a column per layer, the whole first."""
        numbers = np.full((len(prints), len(_PLACES), len(self.plan.all_sizes)), NULL_F64)
        for name, values in columns.items():
            column = numbers[:, _PLACES[name]]
            if values.ndim == 1:
                column[:, 0] = values[part]
            else:
                column[:, 0] = values[part, -1]
                column[:, 1:] = values[part, :-1]
        np.copyto(numbers, NULL_F64, where=np.isnan(numbers))
        for row, one in enumerate(prints):
            for layer in one.missing:
                numbers[row, :, layer + 1] = NULL_F64
        return numbers

    def _texts(self, prints: Sequence[Fingerprint]) -> list[list[str]]:
        sketches = np.stack([one.sketch for one in prints])[:, : self.plan.weight_buckets].astype(np.float64)
        with np.errstate(invalid="ignore"):  # infinite where numbers were too large for single precision
            lengths = np.sqrt(np.vecdot(sketches, sketches))
            halves = (sketches / np.where(lengths > 0, lengths, 1.0)[:, None]).astype("<f2")
        output = None if self.plan.output is None else redact(self.plan.structure.layers[self.plan.output].name)
        pairs = zip(prints, halves, strict=True)
        return [[_update_text(one, half, output, name) for name in _UPDATE_TEXTS] for one, half in pairs]


def _update_text(one: Fingerprint, half: Vector, output: str | None, name: str) -> str:
    if name == "sketch":
        return base64.b64encode(half.tobytes()).decode()
    if name == "output_rows" and one.output_rows is not None:
        lists = zip(_OUTPUT_ROWS, one.output_rows, strict=False)
        return f'{{"layer": {json.dumps(output)}, ' + ", ".join(f'"{key}": {_listed(row)}' for key, row in lists) + "}"
    if name == "response" and one.response is not None:
        return json.dumps(np.round(one.response, 4).tolist())
    return ""


def _listed(values: Vector) -> str:
    """Finite numbers as JSON, with six digits each."""
    numbers = values.tolist()
    return "[" + ", ".join(["%.6g"] * len(numbers)) % tuple(numbers) + "]"
