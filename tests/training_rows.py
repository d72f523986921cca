"""Windows made by hand: trainings as rows of `steps`, `layers` and `metrics`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from stethos.diagnose.window import Window
from stethos.store.frame import Frame

Numbers = Sequence[float | None] | np.ndarray[Any, Any]


def noise(count: int, size: float = 1.0, seed: int = 0) -> np.ndarray[Any, Any]:
    return np.random.default_rng(seed).normal(0, size, count)


def falling(count: int = 300, start: float = 2.3, end: float = 0.2, rate: float = 8.0) -> np.ndarray[Any, Any]:
    """A loss as it should be: down, ever slower, with the noise of batches."""
    curve = end + (start - end) * np.exp(-rate * np.arange(count) / count)
    return np.asarray(curve * (1 + noise(count, 0.05)))


def steps(loss: Numbers, **columns: Any) -> dict[str, Any]:
    """Rows of `steps` of one optimizer; a number or text stands for every row."""
    count = len(loss)
    given: dict[str, Any] = {"process": "p", "optimizer": 1, "step": list(range(count)), "model": "Net", "lr": 0.1,
                             "rank": None, "client": None, "round": None, "grad_norm": None, **columns}  # fmt: skip
    filled = {
        name: values if isinstance(values, list | np.ndarray) else [values] * count for name, values in given.items()
    }
    return {**filled, "loss": list(loss)}


def layers(samples: int, every: int = 10, **stats: Mapping[str, Any]) -> dict[str, Any]:
    """Rows of `layers`: `kind__name` (dots as `_`) to its statistics, numbers or one per sample."""
    rows: list[dict[str, Any]] = []
    for sample in range(samples):
        for key, given in stats.items():
            kind, _, name = key.partition("__")
            numbers: dict[str, Any] = {"norm": 1.0, "mean": 0.0, "std": 0.1, "min": -1.0, "max": 1.0, "zero_share": 0.0,
                                       "nan": 0, "inf": 0, "drift": None, "size": 4096, **given}  # fmt: skip
            row = {
                name: value[sample] if isinstance(value, list | np.ndarray) else value
                for name, value in numbers.items()
            }
            rows.append({"process": "p", "optimizer": 1, "step": sample * every, "client": None, "round": None,
                         "kind": kind, "layer": name.replace("_", "."), **row})  # fmt: skip
    return {name: [row[name] for row in rows] for name in rows[0]} if rows else {}


def metrics(name: str, values: Numbers, every: int = 1) -> dict[str, Any]:
    count = len(values)
    return {"process": ["p"] * count, "client": [None] * count, "step": [place * every for place in range(count)],
            "name": [name] * count, "value": list(values)}  # fmt: skip


def inspections(count: int = 8, **columns: Any) -> dict[str, Any]:
    """Rows of `inspections` of a healthy training; a value stands for every row."""
    given: dict[str, Any] = {
        "process": "p", "rank": None, "client": None, "step": list(range(count)), "phase": "training",
        "function": "NllLoss", "epoch_start": [1] + [0] * (count - 1), "gradient_norm": 0.5, "leftover_norm": None,
        "leaves": 4, "unoptimized": 0, "unused": 0, "stateful": 1, "stateful_training": 1, "dropouts": 1,
        "root_training": 1, "batch": 32, "input_hash": list(range(100, 100 + count)), "input_mean": 0.0,
        "input_std": 1.0, "input_min": -3.0, "input_max": 3.0, "input_zero_share": 0.0, "input_nan_share": 0.0,
        "label_hash": list(range(count)), "label_mean": 1.5, "label_std": 1.0, "label_min": 0.0, "label_max": 3.0,
        "classes": 4, "top_class_share": 0.3, "outputs": 4, "leaking_column": None,
        "random_hash": list(range(500, 500 + count)), "remark": None, "detail": None, **columns,
    }  # fmt: skip
    return {name: values if isinstance(values, list) else [values] * count for name, values in given.items()}


def window(**tables: Mapping[str, Any]) -> Window:
    return Window({name: Frame(columns) for name, columns in tables.items()})


def names_in(detector: Any, seen: Window) -> list[str]:
    return [one.name for one in detector.check(seen)]
