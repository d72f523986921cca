"""Updates as a correction leaves them, and averages of them: plain and robust. Tensors stay tensors, arrays arrays."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from stethos.act.correction import Correction
from stethos.errors import UsageError
from stethos.federate.site import Update
from stethos.federate.structure import State, is_float, is_tensor


def treated(updates: Sequence[Update], base: State, correction: Correction) -> list[Update]:
    """The updates to average; those that nothing is done about are the very same objects."""
    found = []
    for update in updates:
        treatment = correction.of(update.client)
        if treatment.weight == 0:
            continue
        if treatment.scale != 1:
            update = replace(update, state=_scaled(update, base, treatment.scale))
        if treatment.weight != 1:
            update = replace(update, samples=max(1, round((update.samples or 100) * treatment.weight)))
        found.append(update)
    return found


def average(updates: Sequence[Update], base: State, *, is_robust: bool = False) -> dict[str, Any]:
    """The mean of full weights, weighted by samples (all alike where one is not known); the median if robust.

    Entries that are no floats, such as counters, are those of the first update. UsageError without updates.
    """
    if not updates:
        raise UsageError("no updates to average", hint="keep the global model as it is in this round")
    states = [_named(_added(update, base), base) for update in updates]
    known = all(update.samples for update in updates)
    weights = np.array([float(update.samples or 1) if known else 1.0 for update in updates])
    return {name: _combined([state[name] for state in states], weights, is_robust) for name in states[0]}


def _combined(values: list[Any], weights: np.ndarray[Any, Any], is_robust: bool) -> Any:
    if not is_float(values[0]):
        return values[0]
    if is_tensor(values[0]):
        torch = sys.modules["torch"]
        stacked = torch.stack([value.detach() for value in values])
        if is_robust:
            ranked = stacked.sort(dim=0).values
            return (ranked[(len(values) - 1) // 2] + ranked[len(values) // 2]) / 2
        shares = torch.from_numpy(weights / weights.sum()).to(stacked.device, stacked.dtype)
        return torch.tensordot(shares, stacked, dims=1)
    stacked = np.stack(values)
    if is_robust:
        return np.median(stacked, axis=0).astype(stacked.dtype)
    return np.tensordot((weights / weights.sum()).astype(stacked.dtype), stacked, axes=1)


def _named(state: State, base: State) -> dict[str, Any]:
    if isinstance(state, Mapping):
        return dict(state)
    names = list(base) if isinstance(base, Mapping) else [str(place) for place in range(len(state))]
    return dict(zip(names, state, strict=False))


def _added(update: Update, base: State) -> State:
    """An update as full weights."""
    if not update.is_delta:
        return update.state
    own, old = _named(update.state, base), _named(base, base)
    return {name: old[name] + value if is_float(value) else value for name, value in own.items()}


def _scaled(update: Update, base: State, scale: float) -> State:
    """The update with its change times `scale`."""
    own, old = _named(update.state, base), _named(base, base)
    if update.is_delta:
        changed = {name: value * scale if is_float(value) else value for name, value in own.items()}
    else:
        changed = {
            name: old[name] + (value - old[name]) * scale if is_float(value) and name in old else value
            for name, value in own.items()
        }
    return changed if isinstance(update.state, Mapping) else list(changed.values())
