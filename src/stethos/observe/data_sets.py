"""The data sets that loaders read: whether their numbers change between passes, and whether evaluations share samples.

Only data that lie in memory are looked at: tensors and arrays of a data set, or the places that a subset picks. Of them
single numbers are read, never a copy made of what may be most of the memory.
"""

from __future__ import annotations

import math
import weakref
from typing import Any

import numpy as np
import torch
from torch.utils.data import Subset, TensorDataset

from stethos.guard import attempt
from stethos.observe.batch_print import ONLY_TORCH, Array, is_readable, numbers_of

Facts = dict[str, Any]

_MOST_LOOKS = 48  # at passes; each takes some milliseconds at most
_MOST_SAMPLES = 8192  # whose numbers are compared
_MOST_BYTES = 1 << 26  # of the samples that these numbers are taken from, which may lie in a file
_MOST_PLACES = 4 * _MOST_SAMPLES
_MOST_TRAINED = 4 * _MOST_PLACES
_MOST_COLUMNS = 64
_PROBES = 64  # samples, and numbers of each, by which a change is noticed
_MOST_MARKS = 8  # weights by which it is noticed that a model begins anew
_LEAST_NUMBERS = 5  # different ones in a sample, else samples are alike by chance
_CHANGED, _ALIKE = 0.02, 0.5  # the share of numbers that change; how alike they stay
_SHARED = 0.5  # of an evaluation's samples


class DataSets:
    """Notes passes over loaders; `changes` goes with inspections of the training, `facts` with evaluations."""

    def __init__(self) -> None:
        self.changes: Facts = {}
        self.facts: Facts = {}
        self.restarts = 0  # how often a model has begun other data with other weights than when it was evaluated last
        self._numbers: dict[int, tuple[weakref.ref[Any], Array]] = {}  # by data set, as they were at its last pass
        self._known: dict[int, tuple[weakref.ref[Any], int]] = {}  # by the id of a data set: its number
        self._looks = self._evaluations = self._count = 0
        self._changed: dict[int, int] = {}
        self._models: weakref.WeakSet[torch.nn.Module] = weakref.WeakSet()  # that were trained so far
        self._trained: set[Any] = set()  # samples that the model was trained on before the present data
        self._present: set[Any] = set()
        self._wholes: set[int] = set()  # all that was trained on at a time, by hash
        self._source: object = None  # the data set of the present training, weakly
        self._held: dict[int, bool] = {}  # by evaluated data set: whether it shares samples with the training
        self._evaluated: tuple[Any, tuple[Any, ...]] = lambda: None, ()  # the last model, weakly, and its weights then

    def training_pass(self, data: Any, model: torch.nn.Module | None) -> None:
        """A pass over training data begins; `model` is the last one that an optimizer has updated."""
        if self._looks >= _MOST_LOOKS or data is None:
            return
        self._looks += 1
        self._note_model(model)
        self._note_numbers(data)
        if self._source is None or self._source() is not data:  # type: ignore[operator]
            last = self._evaluated[0]()
            is_other = last is not None and self._evaluated[1] != _marks_of(last)
            self.restarts += is_other
            if last is None or is_other:
                self._forget()
            elif len(self._trained) < _MOST_TRAINED:
                self._trained |= self._present
            self._present = self._samples_of(data)
            self._wholes.add(hash(frozenset(self._present)))
            self._source = _reference(data)

    def evaluation_pass(self, data: Any, model: torch.nn.Module | None) -> None:
        """A pass without gradients begins."""
        if self._evaluations >= _MOST_LOOKS or not self._present or data is None:
            return
        self._evaluations += 1
        self._note_model(model)
        if model is not None:
            self._evaluated = weakref.ref(model), _marks_of(model)
        held = self._samples_of(data)
        whole = hash(frozenset(held))
        if not held or whole in self._wholes:  # how well training data are answered is of interest, too
            return
        now, before = len(held & self._present) / len(held), len(held & self._trained) / len(held)
        self._held[whole] = now >= _SHARED
        if now >= _SHARED and all(self._held.values()):
            self.facts |= {"held_in_training": now, "held_samples": len(held)}
        elif now < _SHARED and "held_in_training" in self.facts:
            del self.facts["held_in_training"]  # another set is evaluated as well, which the model does not know
        if before >= _SHARED and now < 0.05:
            self.facts |= {"held_trained_before": before, "held_samples": len(held)}

    def _note_model(self, model: torch.nn.Module | None) -> None:
        """A new model has seen none of the earlier data."""
        if model is not None and model not in self._models:
            self._models.add(model)
            self._forget()

    def _forget(self) -> None:
        """The model begins anew, or has become another one since it was evaluated, which says as little."""
        self._trained.clear()
        self._held.clear()

    def _note_numbers(self, data: Any) -> None:
        """Compare some numbers of a data set with those of its last pass."""
        numbers = _probe(data)
        if numbers is None:
            return
        known = self._numbers.get(id(data))
        if known is not None and known[0]() is data and known[1].shape == numbers.shape:
            if _has_drifted(known[1], numbers):
                self._changed[id(data)] = self._changed.get(id(data), 0) + 1
                self.changes["data_changes"] = max(self._changed.values())
        else:
            self._changed.pop(id(data), None)
        reference = _reference(data)
        if reference is not None and len(self._numbers) < _MOST_LOOKS:
            self._numbers[id(data)] = reference, numbers

    def _samples_of(self, data: Any) -> set[Any]:
        """What tells the samples of a data set apart: their numbers, or their places in a set they are picked from."""
        places: Array | None = None
        while type(data) is Subset:
            places = _picked_places(data.indices, places)
            if places is None:
                return set()
            data = data.dataset
        table = _table_of(data)
        if table is not None and (places is None or int(places.max(initial=0)) < len(table)):
            most = max(_PROBES, min(_MOST_SAMPLES, _MOST_BYTES // max(1, table[0].nbytes)))
            return _prints_of(_numbers_at(table, np.arange(len(table))[:most] if places is None else places[:most]))
        number = self._number_of(data) if places is not None else None
        return {(number, place) for place in places.tolist()} if places is not None and number is not None else set()

    def _number_of(self, data: Any) -> int | None:
        """A number that no other data set has, not even one that is later in the same place of memory."""
        known = self._known.get(id(data))
        if known is None or known[0]() is not data:
            reference = _reference(data)
            if reference is None:
                return None
            self._count += 1
            known = self._known[id(data)] = reference, self._count
        return known[1]


def _reference(data: Any) -> Any:
    return attempt(weakref.ref, data)


def _marks_of(model: torch.nn.Module) -> tuple[Any, ...]:
    """Tells weights from those of before: a step, a loading or a filling is counted with each."""
    some = list(model.parameters())[:_MOST_MARKS]
    firsts = [one.detach()[(0,) * one.dim()].item() for one in some if is_readable(one) and one.numel()]
    return (*((id(one), one._version) for one in some), *firsts)


def _table_of(data: Any) -> Array | None:
    """A table with a row of numbers for each sample, the inputs if they come first; a view, not a copy."""
    while type(data) is Subset:
        data = data.dataset
    count = attempt(len, data)
    held = list(data.tensors) if type(data) is TensorDataset else list(getattr(data, "__dict__", {}).values())
    for one in held[:16]:
        if isinstance(one, list) and len(one) == count and 0 < count <= _MOST_SAMPLES:
            one = _stacked(one)
        elif isinstance(one, torch.Tensor):
            is_plain = is_readable(one) and not one.is_complex() and one.dtype not in ONLY_TORCH  # else it is copied
            one = numbers_of(one) if is_plain and one.dim() and len(one) == count else None
        elif isinstance(one, np.ndarray) and (not one.ndim or len(one) != count or _is_mapped(one)):
            one = None
        if isinstance(one, np.ndarray) and one.dtype.kind in "fiu" and one.ndim > 1 and len(one) >= 2 and one.size:
            return one
    return None


def _is_mapped(array: Any) -> bool:
    """Whether an array lies in a file: to look at its numbers would read them from there."""
    while isinstance(array, np.ndarray) and not isinstance(array, np.memmap):
        array = array.base
    return isinstance(array, np.memmap)


def _stacked(samples: list[Any]) -> Array | None:
    """A table of some of the samples that a list holds, each a tensor or an array, or one of these and a label."""
    some = samples[:: max(1, len(samples) // _PROBES)][:_PROBES]
    firsts = [one[0] if isinstance(one, tuple | list) and one else one for one in some]
    if not all(isinstance(one, torch.Tensor) and is_readable(one) and one.dim() for one in firsts):
        return None
    return attempt(np.stack, [numbers_of(one) for one in firsts])


def _numbers_at(table: Array, rows: Array) -> Array:
    """Some numbers of each of these rows; of the rest of the table nothing is read."""
    size = math.prod(table.shape[1:])
    columns = np.arange(0, size, max(1, size // _MOST_COLUMNS))[:_MOST_COLUMNS]
    taken: Array = table[(rows[:, None], *np.unravel_index(columns, table.shape[1:]))].astype(np.float64)
    return taken


def _probe(data: Any) -> Array | None:
    """Numbers of some samples, as they are now: a row for each."""
    table = _table_of(data)
    if table is None or table.dtype.kind != "f":
        return None
    return _numbers_at(table, np.arange(0, len(table), max(1, len(table) // _PROBES))[:_PROBES])


def _has_drifted(before: Array, now: Array) -> bool:
    """Whether numbers are others than before but still much like them: changed in place, not replaced or filled in.

    Within a column: that columns have means of their own makes any two samples alike, also in another order.
    """
    moved = (before != now) & (before != 0) & np.isfinite(before) & np.isfinite(now)
    if moved.mean() < _CHANGED or moved.sum() < 8:
        return False
    with np.errstate(all="ignore"):
        size = np.abs(np.where(moved, before, 0)).max(0)
        old, new = (((one - np.where(moved, one, 0).sum(0) / moved.sum(0)) / size)[moved] for one in (before, now))
        return bool(np.corrcoef(old, new)[0, 1] > _ALIKE)


def _picked_places(indices: Any, places: Array | None) -> Array | None:
    """The first places that a subset picks, or those of its places; None where they are not whole numbers."""
    if isinstance(indices, torch.Tensor):
        if not is_readable(indices):
            return None
        indices = numbers_of(indices)
    if isinstance(indices, np.ndarray):
        chosen = indices[:_MOST_PLACES] if places is None else indices[places]
    else:
        chosen = np.asarray(indices[:_MOST_PLACES] if places is None else [indices[at] for at in places.tolist()])
    return chosen if chosen.dtype.kind in "iu" and chosen.ndim == 1 else None


def _prints_of(taken: Array) -> set[Any]:
    """A number for each row, the same for the same row; nothing where rows are too simple to be told apart."""
    if not len(taken) or any(len(set(row.tolist())) < _LEAST_NUMBERS for row in (taken[0], taken[-1])):
        return set()
    weights = np.sin(np.arange(1, taken.shape[1] + 1))  # of no meaning
    prints = np.ascontiguousarray(taken * weights).sum(1)
    found = set(prints[np.isfinite(prints)].tolist())
    return found if len(found) > 0.9 * len(taken) else set()
