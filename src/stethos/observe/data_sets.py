"""The data sets that loaders read: whether their numbers change between passes, and whether evaluations share samples.

Only data that lie in memory are looked at: tensors and arrays of a data set, or the places that a subset picks.
"""

from __future__ import annotations

import weakref
from typing import Any

import numpy as np
import torch
from torch.utils.data import Subset, TensorDataset

from stethos.guard import attempt
from stethos.observe.batch_print import Array, is_readable, numbers_of

Facts = dict[str, Any]

_MOST_LOOKS = 48  # at passes; each takes a few hundred microseconds at most
_MOST_SAMPLES = 8192  # whose numbers are compared
_MOST_COLUMNS = 64
_PROBES = 64  # samples, and numbers of each, by which a change is noticed
_LEAST_NUMBERS = 5  # different ones in a sample, else samples are alike by chance
_CHANGED, _ALIKE = 0.02, 0.5  # the share of numbers that change; how alike they stay
_SHARED = 0.5  # of an evaluation's samples


class DataSets:
    """Notes passes over loaders; `changes` goes with inspections of the training, `facts` with evaluations."""

    def __init__(self) -> None:
        self.changes: Facts = {}
        self.facts: Facts = {}
        self._numbers: dict[int, tuple[weakref.ref[Any], Array]] = {}  # by data set, as they were at its last pass
        self._looks = self._evaluations = 0
        self._changed: dict[int, int] = {}
        self._models: weakref.WeakSet[torch.nn.Module] = weakref.WeakSet()  # that were trained so far
        self._trained: set[Any] = set()  # samples that the model was trained on before the present data
        self._present: set[Any] = set()
        self._source: object = None  # the data set of the present training, weakly
        self._held: dict[int, bool] = {}  # by evaluated data set: whether it shares samples with the training

    def training_pass(self, data: Any, model: torch.nn.Module | None) -> None:
        """A pass over training data begins; `model` is the last one that an optimizer has updated."""
        if self._looks >= _MOST_LOOKS or data is None:
            return
        self._looks += 1
        self._note_model(model)
        self._note_numbers(data)
        if self._source is None or self._source() is not data:  # type: ignore[operator]
            self._trained |= self._present
            self._present = _samples_of(data)
            self._source = _reference(data)

    def evaluation_pass(self, data: Any, model: torch.nn.Module | None) -> None:
        """A pass without gradients begins."""
        if self._evaluations >= _MOST_LOOKS or not self._present or data is None:
            return
        self._evaluations += 1
        self._note_model(model)
        held = _samples_of(data)
        if not held or held == self._present:  # how well training data are answered is of interest, too
            return
        now, before = len(held & self._present) / len(held), len(held & self._trained) / len(held)
        self._held[hash(frozenset(held))] = now >= _SHARED
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
            self._trained.clear()
            self._held.clear()

    def _note_numbers(self, data: Any) -> None:
        """Compare some numbers of a data set with those of its last pass."""
        numbers = _probe(data)
        if numbers is None:
            return
        known = self._numbers.get(id(data))
        if known is not None and known[0]() is data and len(known[1]) == len(numbers):
            if _has_drifted(known[1], numbers):
                self._changed[id(data)] = self._changed.get(id(data), 0) + 1
                self.changes["data_changes"] = max(self._changed.values())
        else:
            self._changed.pop(id(data), None)
        reference = _reference(data)
        if reference is not None and len(self._numbers) < _MOST_LOOKS:
            self._numbers[id(data)] = reference, numbers


def _reference(data: Any) -> Any:
    return attempt(weakref.ref, data)


def _arrays(data: Any) -> list[Array]:
    """Tables with a row of numbers for each sample, the inputs first; views of them, not copies."""
    while type(data) is Subset:
        data = data.dataset
    held = list(data.tensors) if type(data) is TensorDataset else list(getattr(data, "__dict__", {}).values())
    found = []
    for one in held[:16]:
        if isinstance(one, list) and one and len(one) <= _MOST_SAMPLES:
            one = _stacked(one)
        if isinstance(one, torch.Tensor) and is_readable(one) and one.dim() and not one.is_complex():
            one = numbers_of(one)
        if isinstance(one, np.ndarray) and one.dtype.kind in "fiu" and one.ndim > 1 and len(one) >= 2:
            found.append(one)
    return found


def _stacked(samples: list[Any]) -> Array | None:
    """A table of some of the samples that a list holds, each a tensor or an array, or one of these and a label."""
    some = samples[:: max(1, len(samples) // _PROBES)][:_PROBES]
    firsts = [one[0] if isinstance(one, tuple | list) and one else one for one in some]
    if not all(isinstance(one, torch.Tensor) and is_readable(one) and one.dim() for one in firsts):
        return None
    return attempt(np.stack, [numbers_of(one) for one in firsts])


def _probe(data: Any) -> Array | None:
    """Numbers of some samples, as they are now."""
    arrays = _arrays(data)
    if not arrays or arrays[0].dtype.kind != "f":
        return None
    table = arrays[0]
    rows = table[:: max(1, len(table) // _PROBES)][:_PROBES]
    flat = rows.reshape(len(rows), -1)
    taken: Array = flat[:, :: max(1, flat.shape[1] // _PROBES)][:, :_PROBES].astype(np.float64).reshape(-1)
    return taken


def _has_drifted(before: Array, now: Array) -> bool:
    """Whether numbers are others than before but still much like them: changed in place, not replaced or filled in."""
    moved = (before != now) & (before != 0) & np.isfinite(before) & np.isfinite(now)
    if moved.mean() < _CHANGED or moved.sum() < 8:
        return False
    with np.errstate(all="ignore"):
        return bool(np.corrcoef(before[moved], now[moved])[0, 1] > _ALIKE)


def _samples_of(data: Any) -> set[Any]:
    """What tells the samples of a data set apart: their numbers, or their places in a set they are picked from."""
    places: Array | None = None
    while type(data) is Subset:
        chosen = np.asarray(data.indices)[: 4 * _MOST_SAMPLES]
        if chosen.dtype.kind not in "iu":
            return set()
        places = chosen if places is None else chosen[places]
        data = data.dataset
    arrays = _arrays(data)
    if arrays and (places is None or int(places.max(initial=0)) < len(arrays[0])):
        table = arrays[0]
        taken = table[places[:_MOST_SAMPLES]] if places is not None else table[:_MOST_SAMPLES]
        return _prints_of(taken)
    return {(id(data), place) for place in places.tolist()} if places is not None else set()


def _prints_of(table: Array) -> set[Any]:
    """A number for each row, the same for the same row; nothing where rows are too simple to be told apart."""
    flat = table.reshape(len(table), -1)
    flat = flat[:, :: max(1, flat.shape[1] // _MOST_COLUMNS)][:, :_MOST_COLUMNS].astype(np.float64)
    if any(len(set(row.tolist())) < _LEAST_NUMBERS for row in (flat[0], flat[-1])):
        return set()
    weights = np.sin(np.arange(1, flat.shape[1] + 1))  # of no meaning
    prints = np.ascontiguousarray(flat * weights).sum(1)
    found = set(prints[np.isfinite(prints)].tolist())
    return found if len(found) > 0.9 * len(flat) else set()
