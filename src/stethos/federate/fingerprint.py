"""Fingerprints of updates: each update is copied when it comes, several are then reduced to few numbers together.

A small model's fingerprint is a few microseconds of arithmetic and a hundred of calls; made for a dozen updates
at once, the calls are shared. Of large updates fewer wait, so that what is kept of them stays in the cache.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from stethos.federate.sketch import SketchPlan, square_sum
from stethos.federate.structure import State, flat_of

if TYPE_CHECKING:
    from stethos.federate.site import Update

Vector = npt.NDArray[Any]
GLOBAL = "(the global model)"
_WAITING_ELEMENTS = 1 << 18  # of updates that wait for their fingerprints: a megabyte
_MOST_WAITING = 64


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
class ReadUpdate:
    """Whose update lies in a row of elements, which layers it did not have, and its odd elements, if any."""

    client: str
    missing: tuple[int, ...] = ()
    odd: tuple[Vector, Vector] | None = None


class UpdateBuffer:
    """The updates of one round: copied when they are added, fingerprinted several at a time.

    Not for several threads at once. The memory is that of earlier rounds: fresh one costs more than what is copied.
    """

    def __init__(self, plan: SketchPlan) -> None:
        self._plan = plan
        self._memory: _Memory | None = None
        self._seen: list[ReadUpdate] = []
        self._raw: list[tuple[int, Vector | None]] = []  # rows as they came, and what is to be subtracted from them
        self._prints: list[Fingerprint] = []

    def add(self, state: State, client: str, base: Vector | None) -> None:
        """Copy an update; `base` is the global model's row, None where the update is a change already."""
        number, memory = len(self._seen), self._taken()
        if memory.copy_plain(number, state):
            self._seen.append(ReadUpdate(client))
            self._raw.append((number, base))
        else:
            self._seen.append(change_in(self._plan, memory.rows[number], base, state, client))
        if len(self._seen) == len(memory.rows):
            self._fingerprint()

    def change_of(self, row: Vector, base: Vector | None, state: State) -> Fingerprint:
        """That of the global model's change from `base` to its new `row`, made together with the updates that wait."""
        change = self._taken().rows[len(self._seen)]
        np.copyto(change, row)
        if base is not None:
            subtract(change, base)
        self._seen.append(ReadUpdate(GLOBAL, odd=clear_odd(self._plan, change, state, GLOBAL)))
        self._fingerprint()
        return self._prints.pop()

    def prints(self) -> list[Fingerprint]:
        """Those of the updates so far, in the order they came; the list itself, which may be changed."""
        if self._seen:
            self._fingerprint()
        return self._prints

    def close(self) -> None:
        """The round is over: the next one may use its memory."""
        self.prints()
        memory, self._memory = self._memory, None
        if memory is not None and not self._plan.spare_memory:
            self._plan.spare_memory.append(memory)

    def _taken(self) -> _Memory:
        if self._memory is None:
            spare = self._plan.spare_memory
            self._memory = spare.pop() if spare else _Memory(self._plan)
        return self._memory

    def _fingerprint(self) -> None:
        rows = self._taken().rows[: len(self._seen)]
        if self._raw:
            self._subtract_bases(rows)
        self._prints += fingerprints_of(self._plan, rows, self._seen)
        self._seen, self._raw = [], []

    def _subtract_bases(self, rows: Vector) -> None:
        """What `change_in` does to one row, for those that were copied as they came."""
        numbers, base = [number for number, _ in self._raw], self._raw[0][1]
        if len(numbers) == numbers[-1] + 1 and all(one is base for _, one in self._raw):  # mostly
            block = rows[: len(numbers)]
            if are_moderate(block) and (base is None or are_moderate(base)):
                if base is not None:
                    np.subtract(block, base, out=block)
                return
        for number, base in self._raw:
            odd = odd_in_row(self._plan, rows[number])
            if base is not None:
                subtract(rows[number], base)
            if clear(rows[number]):
                self._seen[number] = ReadUpdate(self._seen[number].client, odd=odd)


class _Memory:
    """Rows for the elements of several updates; whoever takes it from a plan has it alone."""

    def __init__(self, plan: SketchPlan) -> None:
        count = min(max(_WAITING_ELEMENTS // plan.read, 1), _MOST_WAITING)
        self.rows = np.empty((count, plan.read), np.float32)
        self._plan = plan
        self._views: dict[int, list[Any]] = {}

    def copy_plain(self, number: int, state: State) -> bool:
        """Copy an update into a row at once; False if it is not just what the structure says, as plain tensors on the
        host, or not all of it is read: then nothing is copied, and it must be looked at more closely."""
        values = self._plan.structure.plain_values(state) if self._plan.is_plain else None
        if values is None:
            return False
        torch = sys.modules["torch"]
        is_tracked = torch.is_grad_enabled()
        torch._C._set_grad_enabled(False)
        try:
            torch._foreach_copy_(self._views.get(number) or self._make_views(number), values)
        finally:
            torch._C._set_grad_enabled(is_tracked)
        return True

    def _make_views(self, number: int) -> list[Any]:
        row = sys.modules["torch"].from_numpy(self.rows[number])
        parts = zip(self._plan.parts, self._plan.structure.layers, strict=True)
        views = self._views[number] = [row[part.start : part.stop].view(layer.shape) for part, layer in parts]
        return views


def change_in(plan: SketchPlan, row: Vector, base: Vector | None, state: State, client: str) -> ReadUpdate:
    """Put an update's change into a row of elements, with 0 for what is not finite or not there."""
    missing = plan.gather(state, client, row)
    if base is not None:
        subtract(row, base)
    odd = clear_odd(plan, row, state, client)
    for number in missing:
        row[plan.parts[number].start : plan.parts[number].stop] = 0
    return ReadUpdate(client, missing, odd)


def subtract(row: Vector, base: Vector) -> None:
    """In place."""
    with np.errstate(invalid="ignore", over="ignore"):
        np.subtract(row, base, out=row)


def clear_odd(plan: SketchPlan, row: Vector, state: State, client: str) -> tuple[Vector, Vector] | None:
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


def fingerprints_of(plan: SketchPlan, rows: Vector, seen: Sequence[ReadUpdate]) -> list[Fingerprint]:
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


def global_row(plan: SketchPlan, state: State) -> Vector:
    """The global model's elements as `UpdateBuffer.add` wants them."""
    row = np.empty(plan.read, np.float32)
    plan.gather(state, GLOBAL, row)
    return row


def count_odd(plan: SketchPlan, state: State, client: str) -> tuple[Vector, Vector]:
    """NaN and infinite elements of every layer, over all of its elements."""
    nan, inf = np.zeros(len(plan.parts)), np.zeros(len(plan.parts))
    for number, value in enumerate(plan.structure.values_of(state, client)):
        if value is not None:
            flat = flat_of(value)
            if not math.isfinite(square_sum(flat)):
                nan[number], inf[number] = np.isnan(flat).sum(), np.isinf(flat).sum()
    return nan, inf


def count_unread(plan: SketchPlan, prints: list[Fingerprint], updates: Sequence[Update]) -> bool:
    """Count NaN and infinite elements also where only a part of a layer is read; whether fingerprints changed."""
    if plan.reads_everything:
        return False
    places: dict[str, list[int]] = {}
    for place, one in enumerate(prints):
        places.setdefault(one.client, []).append(place)
    has_changed = False
    for update in reversed(updates):
        mine = places.get(update.client)
        if not mine:
            continue
        place = mine.pop()
        if prints[place].is_finite:
            nan, inf = with_total(plan, count_odd(plan, update.state, update.client))
            prints[place] = replace(prints[place], nan=nan, inf=inf)
            has_changed = True
    return has_changed


def with_total(plan: SketchPlan, odd: tuple[Vector, Vector]) -> tuple[Vector, Vector]:
    """Such counts, and those of all weights together."""
    nan, inf = (np.append(counts, counts[: plan.structure.weights].sum()) for counts in odd)
    return nan, inf


def odd_in_row(plan: SketchPlan, row: Vector) -> tuple[Vector, Vector]:
    """The same where all elements lie in a row, as they came."""
    starts = [part.start for part in plan.parts]
    counted = [np.add.reduceat(found, starts, dtype=np.float64) for found in (np.isnan(row), np.isinf(row))]
    return counted[0], counted[1]


def _inputs(plan: SketchPlan, rows: Vector) -> tuple[Vector, list[Vector | None]] | None:
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


def _output_rows(plan: SketchPlan, rows: Vector) -> Vector | None:
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
