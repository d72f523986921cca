"""One update, read once and reduced to what the cohort and the detectors need."""

from __future__ import annotations

import math
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

    About 2 kB, and 8 kB more where the first layer is a matrix that is read whole.
    Vectors have one entry per layer and, last, one for all weights together.
    `sketch` is that of the change, with non-finite elements left out; `inputs`
    is the squared change of the first layer per input, `input_gram` how that change is
    spread over directions of the inputs: a matrix with trace 1, its upper triangle.
    """

    client: str
    norms: Vector
    nan: Vector
    inf: Vector
    sketch: Vector
    signs: Vector
    output_rows: dict[str, Any] | None
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


def fingerprint_of(plan: Plan, base: Vector | None, state: State, client: str) -> Fingerprint:
    """Read an update against the global model's row (`base`; None where the update is a change already)."""
    change, missing = plan.gather(state, client)
    nan, inf = np.zeros(len(plan.parts) + 1), np.zeros(len(plan.parts) + 1)
    if base is not None:
        with np.errstate(invalid="ignore", over="ignore"):
            np.subtract(change, base, out=change)
    if not math.isfinite(square_sum(change)):
        nan[:-1], inf[:-1] = count_odd(plan, state, client)
        np.copyto(change, 0, where=~np.isfinite(change))
    for number in missing:
        change[plan.parts[number].start : plan.parts[number].stop] = 0
    weights = plan.structure.weights
    norms = plan.norms(change)
    nan[-1], inf[-1] = nan[:weights].sum(), inf[:weights].sum()
    inputs, gram = _inputs(plan, change)
    return Fingerprint(
        client=client,
        norms=np.append(norms, math.sqrt(float(np.square(norms[:weights]).sum()))),
        nan=nan,
        inf=inf,
        sketch=plan.sketch(change),
        signs=np.sign(change[plan.sign_places]).astype(np.int8),
        output_rows=_output_rows(plan, change),
        inputs=inputs,
        input_gram=gram,
        missing=missing,
    )


def global_row(plan: Plan, state: State) -> Vector:
    """The global model's elements as `fingerprint_of` wants them."""
    return plan.gather(state, GLOBAL)[0].copy()


def count_odd(plan: Plan, state: State, client: str) -> tuple[Vector, Vector]:
    """NaN and infinite elements of every layer, over all of its elements."""
    nan, inf = np.zeros(len(plan.parts)), np.zeros(len(plan.parts))
    for number, value in enumerate(plan.structure.values_of(state, client)):
        if value is not None:
            flat = flat_of(value)
            if not math.isfinite(square_sum(flat)):
                nan[number], inf[number] = np.isnan(flat).sum(), np.isinf(flat).sum()
    return nan, inf


def _inputs(plan: Plan, change: Vector) -> tuple[Vector | None, Vector | None]:
    if plan.input is None:
        return None, None
    part, layer = plan.parts[plan.input], plan.structure.layers[plan.input]
    table = change[part.start : part.stop].reshape(layer.shape)
    energies: Vector = np.einsum("oi,oi->i", table, table)
    with np.errstate(over="ignore", invalid="ignore"):
        seen = table if plan.input_view is None else table @ plan.input_view
        gram = seen.T @ seen
    total = float(np.trace(gram))
    if not 0 < total < math.inf:
        return energies, None
    return energies, gram[np.triu_indices(len(gram))] / np.float32(total)


def _output_rows(plan: Plan, change: Vector) -> dict[str, Any] | None:
    """Norm and mean of the change of every row of the output layer, and the change of its bias."""
    if plan.output is None:
        return None
    layers = plan.structure.layers
    part, layer = plan.parts[plan.output], layers[plan.output]
    rows = change[part.start : part.stop].reshape(layer.shape)
    found: dict[str, Any] = {
        "layer": layer.name,
        "norm": np.sqrt(np.square(rows, dtype=np.float64).sum(1)),
        "mean": rows.mean(1, dtype=np.float64),
    }
    after = plan.output + 1
    if after < plan.structure.weights and layers[after].shape == layer.shape[:1]:
        found["bias"] = change[plan.parts[after].start : plan.parts[after].stop].astype(np.float64)
    return found
