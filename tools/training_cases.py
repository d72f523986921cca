"""Hand-made windows in which the detectors of ordinary training find their trouble, made as in their tests."""

from __future__ import annotations

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
    loss: Any, layers: dict[str, Any] | None = None, metrics: dict[str, Any] | None = None, **steps: Any
) -> Window:
    """A training with this loss, sampled layers and metrics."""
    tables = {"steps": made.steps(loss, **steps), "layers": layers or {}, "metrics": metrics or {}}
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
}
