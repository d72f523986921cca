"""Hand-made windows in which the detectors of ordinary training find their trouble, made as in their tests."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from stethos.diagnose.window import Window

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

import training_rows as made  # type: ignore[import-not-found]

STUCK = 2.3 + made.noise(300, 0.02)


def window(
    loss: Any, layers: dict[str, Any] | None = None, metrics: dict[str, Any] | None = None,
    inspections: dict[str, Any] | None = None, **steps: Any,
) -> Window:  # fmt: skip
    """A training with this loss, sampled layers, metrics and inspections."""
    tables = {"steps": made.steps(loss, **steps), "layers": layers or {}, "metrics": metrics or {}}
    tables["inspections"] = inspections or {}
    found: Window = made.window(**{name: rows for name, rows in tables.items() if rows})
    return found


def broken_loss() -> Window:
    layers = made.layers(4, gradient__a_weight={"nan": [0, 0, 4096, 4096]}, weight__a_weight={"nan": [0, 0, 0, 4096]})
    return window([1.0] * 20 + [math.nan] * 20, layers)


def broken_gradient() -> Window:
    layers = made.layers(4, gradient__a_weight={}, gradient__b_weight={"nan": [0, 0, 3, 3]}, weight__b_weight={})
    return window([1.0] * 21 + [math.nan] * 19, layers)


def broken_weight() -> Window:
    layers = made.layers(4, weight__a_weight={"inf": [0, 0, 1, 1]}, gradient__a_weight={})
    return window([1.0] * 20 + [math.nan] * 20, layers)


def vanishing() -> Window:
    norms = zip("abcd", (1e-8, 1e-6, 1e-3, 1.0), strict=True)
    return window(STUCK, made.layers(5, **{f"gradient__{name}_weight": {"norm": norm} for name, norm in norms}))


def frozen() -> Window:
    layers = made.layers(5, gradient__a_weight={"norm": 0.0}, gradient__b_weight={}, weight__a_weight={"drift": 0.0})
    return window(made.falling(), layers)


def moving() -> Window:
    drift = {name: [step * sample for sample in range(10)] for name, step in (("a", 3.0), ("b", 0.05))}
    rows = {f"weight__{name}_weight": {"norm": 10.0, "drift": moved} for name, moved in drift.items()}
    return window(STUCK, made.layers(10, every=1, **rows))


def spiked() -> Window:
    loss = made.falling(300)
    loss[200] = 50.0
    return window(loss)


def hardly_moving() -> Window:
    drift = [1e-7 * 6.4 * 10 * sample for sample in range(30)]
    layers = made.layers(30, weight__a_weight={"norm": 6.4, "drift": drift}, gradient__a_weight={"norm": 0.3})
    return window(STUCK, layers, lr=1e-6, grad_norm=0.5)


def overfitted() -> Window:
    held_out = [*np.linspace(2.3, 0.5, 8), *np.linspace(0.52, 1.0, 12)]
    return window(made.falling(400, end=0.01), metrics=made.metrics("val/loss", held_out, every=20))


def inspected(**columns: Any) -> Window:
    return window(made.falling(), inspections=made.inspections(**columns))


def renamed() -> Window:
    """Batches are mostly right, evaluations would be if classes had other names."""
    asked = {"answers": 400, "classes": 10, "hits": 0.08, "top_answer": 0.12, "top_label": 0.12, "renamed": 0.93,
             "known": False, "at": 45}  # fmt: skip
    return inspected(
        count=12, phase=["training"] * 8 + ["evaluation answers"] * 4,
        detail=[json.dumps({"hits": 0.95})] * 8 + [json.dumps(asked)] * 4,
    )  # fmt: skip


def warned() -> Window:
    text = "UserWarning: Detected call of `lr_scheduler.step()` before `optimizer.step()`."
    logs = {"process": ["p"], "rank": [None], "step": [0], "logger": ["py.warnings"], "message": [text], "fields": [""]}
    found: Window = made.window(steps=made.steps(made.falling()), logs=logs)
    return found


def emptied() -> Window:
    layers = made.layers(5, gradient__a_weight={"norm": 0.0}, weight__a_weight={"drift": 0.0})
    return window(STUCK, layers, inspections=made.inspections())


def diverged() -> Window:
    layers = made.layers(6, weight__a_weight={"norm": 6.4}, weight__b_weight={"norm": 3.2})
    count = len(layers["step"])
    both = {name: [*values, *values] for name, values in layers.items()}
    both["rank"] = [0] * count + [1] * count
    both["norm"] = [
        norm + (0.01 if rank and step >= 30 else 0)
        for norm, rank, step in zip(both["norm"], both["rank"], both["step"], strict=True)
    ]
    found: Window = made.window(layers=both, collectives={"rank": [0, 1], "op": ["all_reduce"] * 2})
    return found


def mismatched() -> Window:
    calls = [
        f'[{{"name": "default", "begun": 110, "complete": 109, "op": "all_reduce", "bytes": {size}}}]'
        for size in (4, 12)
    ]
    processes = {
        "process": ["p0", "p1"], "rank": [0, 1], "groups": calls, "state": ["killed"] * 2, "exit_code": [-6, -15],
        "steps": [54, 54],
    }  # fmt: skip
    found: Window = made.window(processes=processes)
    return found


def warming() -> Window:
    made_by = [{"name": "LambdaLR", "steps": 3, "length": None, "base": 0.1, "rate": 0.003, "is_stranger": False}]
    rows = made.inspections(detail=json.dumps({"schedulers": made_by, "passes": 3}))
    return window(made.falling(), lr=np.repeat([0.0, 0.001, 0.002, 0.003], 75), inspections=rows)


TRAINING: dict[str, Callable[[], Window]] = {
    "non-finite-loss": broken_loss,
    "non-finite-gradients": broken_gradient,
    "non-finite-weights": broken_weight,
    "exploding-gradients": lambda: window([1.0] * 70, grad_norm=[0.5] * 50 + [500.0] * 20),
    "vanishing-gradients": vanishing,
    "weight-explosion": lambda: window(
        [1.0] * 200, made.layers(20, weight__a_weight={"norm": list(np.linspace(6.4, 640, 20))})
    ),
    "dead-units": lambda: window(
        STUCK, made.layers(10, activation__1={"zero_share": [0.5] * 4 + [1.0] * 6}, activation__2={})
    ),
    "saturated-units": lambda: window(
        STUCK, made.layers(10, activation__1={"std": list(0.99 + made.noise(10, 1e-3)), "mean": 0.0}, activation__2={})
    ),
    "frozen-layers": frozen,
    "update-to-weight-ratio": moving,
    "poor-initialisation": lambda: window(
        STUCK, made.layers(3, weight__a_weight={"std": 3.0}, weight__b_weight={"std": 3.0})
    ),
    "series-anomaly": spiked,
    "divergence": lambda: window(np.concatenate([made.falling(200), np.linspace(0.2, 6, 100)])),
    "oscillation": lambda: window(1 + 0.4 * np.sin(np.arange(300) / 4) + made.noise(300, 0.02)),
    "slow-progress": lambda: window(np.linspace(2.3, 2.1, 400) + made.noise(400, 0.02)),
    "plateau": lambda: window(STUCK),
    "overfitting": overfitted,
    "learning-rate-too-high": lambda: window([2.3, 200.0, 9000.0, *(18 + made.noise(200))], lr=50.0),
    "learning-rate-too-low": hardly_moving,
    "detached-loss": lambda: window(
        STUCK, made.layers(5, gradient__a_weight={"norm": None}, weight__a_weight={"drift": 0.0})
    ),
    "gradients-not-zeroed": lambda: window(made.falling(100), grad_norm=0.4 * (np.arange(100) + 1) ** 0.95),
    "wrong-loss": lambda: inspected(
        remark="softmax-over-batch", detail='{"seen": "log_softmax(dim=0) over outputs of shape (32, 4)"}'
    ),
    "unoptimized-parameters": lambda: inspected(unoptimized=2, detail='{"unoptimized": ["", ""], "unowned": 2}'),
    "wrong-mode": lambda: inspected(stateful_training=0, root_training=0),
    "lost-gradients": emptied,
    "repeated-data": lambda: inspected(random_hash=7),
    "odd-batch": lambda: inspected(classes=1, top_class_share=1.0, label_mean=[0, 0, 1, 1, 2, 2, 3, 3]),
    "learning-rate-collapse": lambda: window(STUCK, lr=0.1 * 0.5 ** np.arange(300)),
    "implausible-loss": lambda: window(
        np.full(300, np.log(4.0)) + made.noise(300, 0.005), inspections=made.inspections()
    ),
    "telling-warning": warned,
    "odd-optimizer": lambda: window(
        STUCK, inspections=made.inspections(detail='{"weight_decay": 1.0, "decay_per_step": 0.1}')
    ),
    "growing-graph": lambda: inspected(detail=[f'{{"kept": {place}, "nodes": 12}}' for place in range(8)]),
    "odd-graph": lambda: inspected(
        remark="samples-mixed",
        detail='{"seen": "a tensor of shape (2, 32, 24) is viewed as (32, 48), which mixes up the 32 samples"}',
    ),
    "wrong-call": lambda: inspected(
        phase="call",
        detail='{"kind": "cosine_embedding_loss targets-not-signs", "seen": "50% of the targets are 0 where the loss '
        'expects 1 or -1", "times": 8, "calls": 8}',
    ),
    "odd-schedule": warming,
    "helper-model": lambda: inspected(
        phase="helper",
        stateful=2,
        stateful_training=2,
        root_training=1,
        detail='{"helper": 0, "kind": "Sequential", "weights": 7, "parameters": 4, "is_copy": false, "like": null}',
    ),
    "constant-outputs": lambda: inspected(
        detail=[json.dumps({"answer_spread": 0.4 / 10**place}) for place in range(8)]
    ),
    "odd-evaluation": renamed,
    "replica-divergence": diverged,
    "collective-mismatch": mismatched,
}
