"""One update, read once and reduced to what the cohort and the detectors need."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from stethos.federate.sketch import Plan, square_sum
from stethos.federate.structure import State, flat_of

Vector = npt.NDArray[Any]


GLOBAL = "(the global model)"


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """What is kept of an update: per layer (then all weights together) norms and counts, and a sketch.

    About 4 kB, of which the sketch has 2, and 8 kB more where the first layer is a matrix that is read whole.
    Vectors have one entry per layer and, last, one for all weights together.
    `sketch` is that of the change, with non-finite elements left out; `inputs`
    is the squared change of the first layer per input, `input_gram` how that change is
    spread over directions of the inputs: a matrix with trace 1, its upper triangle. `output_rows` are norm and mean
    of the change of every row of the output layer and, if it has one, the change of its bias.
    """

    client: str
    norms: Vector
    nan: Vector
    inf: Vector
    sketch: Vector
    signs: Vector
    output_rows: Vector | None
    inputs: Vector | None = None
    input_gram: Vector | None = None
    response: Vector | None = None
    missing: tuple[int, ...] = ()

    @property
    def norm(self) -> float:
        return float(self.norms[-1])

    @property
    def is_finite(self) -> bool:
        return not (self.nan[-1] or self.inf[-1])


@dataclass(frozen=True, slots=True)
class Seen:
    """Whose update lies in a row of elements, which layers it did not have, and its odd elements, if any."""

    client: str
    missing: tuple[int, ...] = ()
    odd: tuple[Vector, Vector] | None = None


def fingerprint_of(plan: Plan, base: Vector | None, state: State, client: str) -> Fingerprint:
    """Read an update against the global model's row (`base`; None where the update is a change already)."""
    rows = plan.scratch()[None]
    return fingerprints_of(plan, rows, [read_into(plan, rows[0], base, state, client)])[0]


def read_into(plan: Plan, row: Vector, base: Vector | None, state: State, client: str) -> Seen:
    """Put an update's change into a row of elements, with 0 for what is not finite or not there."""
    missing = plan.gather(state, client, row)
    if base is not None:
        subtract(row, base)
    odd = clear_odd(plan, row, state, client)
    for number in missing:
        row[plan.parts[number].start : plan.parts[number].stop] = 0
    return Seen(client, missing, odd)


def subtract(row: Vector, base: Vector) -> None:
    """In place."""
    with np.errstate(invalid="ignore", over="ignore"):
        np.subtract(row, base, out=row)


def clear_odd(plan: Plan, row: Vector, state: State, client: str) -> tuple[Vector, Vector] | None:
    """Set to 0 what is not finite in a row; the odd elements of the state that it was made of, if it has any."""
    return count_odd(plan, state, client) if clear(row) else None


def clear(row: Vector) -> bool:
    """Set to 0 what is not finite in a row; False if everything is."""
    if math.isfinite(square_sum(row)):
        return False
    np.copyto(row, 0, where=~np.isfinite(row))
    return True


def are_moderate(rows: Vector) -> bool:
    """Whether all elements are finite, and so far from the largest numbers that no difference of two is not."""
    with np.errstate(over="ignore", invalid="ignore"):
        return math.isfinite(np.vecdot(rows, rows).sum())


def fingerprints_of(plan: Plan, rows: Vector, seen: Sequence[Seen]) -> list[Fingerprint]:
    """Fingerprints of several changes at once, a row each; their vectors are rows of common matrices."""
    weights, count = plan.structure.weights, len(seen)
    norms = np.empty((count, len(plan.parts) + 1))
    norms[:, :-1] = plan.norms(rows)
    norms[:, -1] = np.sqrt(np.square(norms[:, :weights]).sum(1))
    odd = [plan.nothing_odd if one.odd is None else with_total(plan, one.odd) for one in seen]
    sketches = plan.sketch(rows)
    signs = np.sign(rows.take(plan.sign_places, axis=1)).astype(np.int8)
    output_rows, inputs = _output_rows(plan, rows), _inputs(plan, rows)
    return [
        Fingerprint(
            client=one.client, norms=norms[number], nan=odd[number][0], inf=odd[number][1],
            sketch=sketches[number], signs=signs[number],
            output_rows=None if output_rows is None else output_rows[number],
            inputs=None if inputs is None else inputs[0][number],
            input_gram=None if inputs is None else inputs[1][number], missing=one.missing,
        )
        for number, one in enumerate(seen)
    ]  # fmt: skip


def global_row(plan: Plan, state: State) -> Vector:
    """The global model's elements as `fingerprint_of` wants them."""
    row = np.empty(plan.read, np.float32)
    plan.gather(state, GLOBAL, row)
    return row


def count_odd(plan: Plan, state: State, client: str) -> tuple[Vector, Vector]:
    """NaN and infinite elements of every layer, over all of its elements."""
    nan, inf = np.zeros(len(plan.parts)), np.zeros(len(plan.parts))
    for number, value in enumerate(plan.structure.values_of(state, client)):
        if value is not None:
            flat = flat_of(value)
            if not math.isfinite(square_sum(flat)):
                nan[number], inf[number] = np.isnan(flat).sum(), np.isinf(flat).sum()
    return nan, inf


def with_total(plan: Plan, odd: tuple[Vector, Vector]) -> tuple[Vector, Vector]:
    """Such counts, and those of all weights together."""
    nan, inf = (np.append(counts, counts[: plan.structure.weights].sum()) for counts in odd)
    return nan, inf


def odd_in_row(plan: Plan, row: Vector) -> tuple[Vector, Vector]:
    """The same where all elements lie in a row, as they came."""
    starts = [part.start for part in plan.parts]
    counted = [np.add.reduceat(found, starts, dtype=np.float64) for found in (np.isnan(row), np.isinf(row))]
    return counted[0], counted[1]


def _inputs(plan: Plan, rows: Vector) -> tuple[Vector, list[Vector | None]] | None:
    """Of the first layer's change: its squares per input, and its spread over directions, None where it is zero."""
    if plan.input is None:
        return None
    part, layer = plan.parts[plan.input], plan.structure.layers[plan.input]
    tables = rows[:, part.start : part.stop].reshape(-1, *layer.shape)
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        energies: Vector = np.einsum("koi,koi->ki", tables, tables)
        seen = tables if plan.input_view is None else tables @ plan.input_view
        grams = seen.transpose(0, 2, 1) @ seen
        totals = np.trace(grams, axis1=1, axis2=2)
        packed = grams.reshape(len(rows), -1).take(plan.input_upper, axis=1)
        packed /= totals[:, None]
    return energies, [one if 0 < total < math.inf else None for one, total in zip(packed, totals.tolist(), strict=True)]


def _output_rows(plan: Plan, rows: Vector) -> Vector | None:
    """For every update the rows of `Fingerprint.output_rows`."""
    if plan.output is None:
        return None
    part, layer = plan.parts[plan.output], plan.structure.layers[plan.output]
    tables = rows[:, part.start : part.stop].reshape(-1, *layer.shape).astype(np.float64)
    found = np.empty((len(rows), 2 + plan.has_output_bias, layer.shape[0]))
    found[:, 0] = np.sqrt(np.vecdot(tables, tables))
    found[:, 1] = np.add.reduce(tables, axis=2) / max(layer.shape[1], 1)
    if plan.has_output_bias:
        found[:, 2] = rows[:, part.stop : part.stop + layer.shape[0]]
    return found
