"""Rows of `updates`: the fingerprints of a round's clients, compared, or of the global model."""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from stethos.federate.cohort import Comparison
from stethos.federate.fingerprint import GLOBAL, Fingerprint
from stethos.federate.row import wait_for_room
from stethos.federate.sketch import Plan
from stethos.observe.session import Session
from stethos.schema import NULL_F64, NULL_I32, UPDATES, Kind

Vector = npt.NDArray[Any]
_NUMBERS = [column.name for column in UPDATES.of_kind(Kind.I32, Kind.I64, Kind.F64)]
_TEXTS = [column.name for column in UPDATES.of_kind(Kind.TEXT)]
_NAMES = [column.name for column in UPDATES.of_kind(Kind.NAME)]
_PLACES = {name: place for place, name in enumerate(_NUMBERS)}
_BY_LAYER = ("norm_ratio", "cos_centre", "cos_error", "sign_agreement")
_WHOLE = ("cos_last", "cos_self", "cos_back", "back_rounds", "input_cos", "input_focus", "input_tail")
_OUTPUT_ROWS = ("norm", "mean", "bias")
_AT_ONCE = 64
assert _NAMES == ["federation", "layer", "kind"]


class UpdateRows:
    """Puts rows of `updates` into the ring: a frame per client, the whole update as its first row."""

    def __init__(self, session: Session, plan: Plan, federation: str) -> None:
        self.session = session
        self.plan = plan
        layers = plan.structure.layers
        ids = [
            [session.name_id(federation)] * (len(layers) + 1),
            [NULL_I32, *(session.name_id(layer.name) for layer in layers)],
            [session.name_id(kind) for kind in ("weight", *(layer.kind for layer in layers))],
        ]
        self._names = np.array(ids, np.int32).tobytes()
        self._sizes = np.append(plan.sizes, plan.sizes[: plan.structure.weights].sum())
        self._coverage = np.append(plan.coverage, _whole_coverage(plan))
        self._signs = plan.sign_member.sum(0)

    def put(
        self, number: int, prints: Sequence[Fingerprint], compared: Comparison | None, base: Vector | None,
        patience_s: float,
    ) -> None:  # fmt: skip
        """Write a round's updates; `base` are the norms of the global model before it, if known.

        `patience_s` may be waited for a drainer that does not keep up.
        """
        for first in range(0, len(prints), _AT_ONCE):
            part = slice(first, first + _AT_ONCE)
            texts = self._texts(prints[part])
            for one, table, text in zip(prints[part], self._numbers(prints, part, compared, base), texts, strict=True):
                if patience_s > 0:
                    patience_s -= wait_for_room(self.session, patience_s)
                client = NULL_I32 if one.client == GLOBAL else self.session.name_id(one.client)
                self.session.put_frame(
                    UPDATES.number, self._names, table.tobytes(), text, rows=table.shape[1], whose=(client, number)
                )

    def _numbers(
        self, everybody: Sequence[Fingerprint], part: slice, compared: Comparison | None, base: Vector | None
    ) -> Vector:
        """One table per client: a row per column of `updates`, a column per layer, the whole first."""
        prints, sizes = everybody[part], self._sizes
        nan, inf = np.stack([one.nan for one in prints]), np.stack([one.inf for one in prints])
        norms = np.stack([one.norms for one in prints])
        zeros = np.stack([one.signs for one in prints]) == 0
        numbers = np.full((len(prints), len(_NUMBERS), len(sizes)), NULL_F64)

        def fill(name: str, values: Vector) -> None:
            column = numbers[:, _PLACES[name]]
            column[:, 0] = values[..., -1]
            column[:, 1:] = values[..., :-1]

        with np.errstate(invalid="ignore"):
            fill("norm", np.where((nan + inf >= sizes) & (sizes > 0), math.nan, norms))
            fill("zero_share", (zeros @ self.plan.sign_member) / self._signs)
        fill("nan", nan)
        fill("inf", inf)
        fill("size", sizes)
        fill("coverage", self._coverage)
        if base is not None:
            fill("base_norm", base)
        if compared is not None:
            for name in _BY_LAYER:
                fill(name, getattr(compared, name)[part])
            for name in _WHOLE:
                numbers[:, _PLACES[name], 0] = getattr(compared, name)[part]
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
        output = None if self.plan.output is None else self.plan.structure.layers[self.plan.output].name
        return [[_text(one, half, output, name) for name in _TEXTS] for one, half in zip(prints, halves, strict=True)]


def _text(one: Fingerprint, half: Vector, output: str | None, name: str) -> str:
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


def norms_of_row(plan: Plan, row: Vector) -> Vector:
    """The norms of a global model's layers, and of all weights together; not finite where an element is not."""
    norms = plan.norms(row[None])[0]
    return np.append(norms, math.sqrt(float(np.square(norms[: plan.structure.weights]).sum())))


def finite_norm(plan: Plan, row: Vector) -> float:
    """The norm of all weights of a global model, over its finite elements."""
    norm = float(norms_of_row(plan, row)[-1])
    if math.isfinite(norm):
        return norm
    return float(norms_of_row(plan, np.where(np.isfinite(row), row, np.float32(0)))[-1])


def _whole_coverage(plan: Plan) -> float:
    weights = plan.structure.weights
    return sum(part.read for part in plan.parts[:weights]) / max(float(plan.sizes[:weights].sum()), 1.0)
