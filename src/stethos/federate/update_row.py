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
assert _NAMES == ["federation", "layer", "kind"]


class UpdateRows:
    """Puts rows of `updates` of one round into the ring: a frame per client, the whole update as its first row."""

    def __init__(self, session: Session, plan: Plan, federation: str, number: int, base: Vector | None) -> None:
        self._session = session
        self._plan = plan
        self._number = number
        self._base_norms = None if base is None else _with_whole(plan, plan.norms(base))
        layers = plan.structure.layers
        ids = [
            [session.name_id(federation)] * (len(layers) + 1),
            [NULL_I32, *(session.name_id(layer.name) for layer in layers)],
            [session.name_id(kind) for kind in ("weight", *(layer.kind for layer in layers))],
        ]
        self._names = np.array(ids, np.int32).tobytes()

    def put(self, prints: Sequence[Fingerprint], compared: Comparison | None, patience_s: float) -> None:
        """Write all of them; `patience_s` may be waited for a drainer that does not keep up."""
        numbers = self._numbers(prints, compared)
        for one, table in zip(prints, numbers, strict=True):
            if patience_s > 0:
                patience_s -= wait_for_room(self._session, patience_s)
            client = NULL_I32 if one.client == GLOBAL else self._session.name_id(one.client)
            texts = self._texts(one)
            self._session.put_frame(
                UPDATES.number, self._names, table.tobytes(), [texts.get(name, "") for name in _TEXTS],
                rows=table.shape[1], whose=(client, self._number),
            )  # fmt: skip

    def _numbers(self, prints: Sequence[Fingerprint], compared: Comparison | None) -> Vector:
        """One table per client: a row per column of `updates`, a column per layer, the whole first."""
        plan = self._plan
        sizes = np.append(plan.sizes, plan.sizes[: plan.structure.weights].sum())
        nan, inf = np.stack([one.nan for one in prints]), np.stack([one.inf for one in prints])
        norms = np.stack([one.norms for one in prints])
        zeros = np.stack([one.signs == 0 for one in prints]) @ plan.sign_member
        with np.errstate(invalid="ignore"):
            columns: dict[str, Vector] = {
                "norm": np.where((nan + inf >= sizes) & (sizes > 0), math.nan, norms),
                "nan": nan,
                "inf": inf,
                "zero_share": zeros / plan.sign_member.sum(0),
                "size": sizes,
                "coverage": np.append(plan.coverage, _whole_coverage(plan)),
            }
        if self._base_norms is not None:
            columns["base_norm"] = self._base_norms
        if compared is not None:
            columns |= {name: getattr(compared, name) for name in _NUMBERS if hasattr(compared, name)}
        numbers = np.full((len(prints), len(_NUMBERS), len(sizes)), NULL_F64)
        for index, name in enumerate(_NUMBERS):
            if name in columns:
                values = np.broadcast_to(columns[name], (len(prints), len(sizes)))
                np.copyto(numbers[:, index], np.roll(values, 1, axis=1), where=~np.isnan(np.roll(values, 1, axis=1)))
        for row, one in enumerate(prints):
            for layer in one.missing:
                numbers[row, :, layer + 1] = NULL_F64
        return numbers

    def _texts(self, one: Fingerprint) -> dict[str, str]:
        sketch = one.sketch[: self._plan.weight_buckets]
        length = math.sqrt(float(np.square(sketch, dtype=np.float64).sum()))
        texts = {"sketch": base64.b64encode((sketch / (length or 1.0)).astype("<f2").tobytes()).decode()}
        if one.output_rows is not None:
            texts["output_rows"] = json.dumps(
                {
                    name: value if isinstance(value, str) else [float(f"{number:.6g}") for number in value.tolist()]
                    for name, value in one.output_rows.items()
                }
            )
        if one.response is not None:
            texts["response"] = json.dumps(np.round(one.response, 4).tolist())
        return texts


def norm_of_row(plan: Plan, row: Vector | None) -> float | None:
    """The norm of all weights of a global model, over its finite elements."""
    if row is None:
        return None
    return float(_with_whole(plan, plan.norms(np.where(np.isfinite(row), row, np.float32(0))))[-1])


def _with_whole(plan: Plan, norms: Vector) -> Vector:
    """Norms of layers, and of all weights together."""
    return np.append(norms, math.sqrt(float(np.square(norms[: plan.structure.weights]).sum())))


def _whole_coverage(plan: Plan) -> float:
    weights = plan.structure.weights
    return sum(part.read for part in plan.parts[:weights]) / max(float(plan.sizes[:weights].sum()), 1.0)
