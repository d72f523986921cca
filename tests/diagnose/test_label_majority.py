"""Whose labels are wrong is told only where no single client says what the class looks like."""

from __future__ import annotations

from typing import Any

import numpy as np

from stethos.diagnose.federated.data_sketch import Sketch
from stethos.diagnose.federated.inside_label import by_data

CENTRES = np.array([[0.0, 0.0], [4.0, 0.0], [0.0, 4.0]])


def sketch_of(counts: list[int], swapped: tuple[int, int] | None = None, seed: int = 0) -> Sketch:
    """A client with so many samples of each class around `CENTRES`; `swapped` are two classes whose labels are."""
    rng = np.random.default_rng(seed)
    looks = list(range(len(CENTRES)))
    if swapped is not None:
        first, second = swapped
        looks[first], looks[second] = second, first
    samples = [CENTRES[looks[label]] + rng.normal(size=(count, 2)) for label, count in enumerate(counts)]
    means = np.array([one.mean(0) for one in samples])
    scatter: Any = sum((one - mean).T @ (one - mean) for one, mean in zip(samples, means, strict=True))
    return Sketch(1, "numbers", 2, float(sum(counts)), 0, (0, 1, 2), np.array(counts, float), means, scatter)


def test_who_swaps_labels_that_several_others_have_is_seen() -> None:
    clients = [sketch_of([20, 20, 20], seed=seed) for seed in range(5)]
    found = by_data([sketch_of([20, 20, 20], (0, 1), 9), *clients], [sketch_of([20, 20, 20], (0, 1), 9), *clients])
    assert found.share[0] > 0.5 and found.share[1:].max() < 0.3


def test_nobody_is_measured_by_the_labels_of_the_one_who_holds_most_of_them() -> None:
    large = sketch_of([300, 300, 20], (0, 1), 9)
    clients: list[Sketch | None] = [large, *(sketch_of([12, 12, 40], seed=seed) for seed in range(5))]
    found = by_data(clients, clients)
    assert np.nan_to_num(found.share[1:]).max() < 0.1 and np.nan_to_num(found.cell[1:]).max() < 0.1


def test_who_swaps_labels_is_seen_by_several_small_clients_beside_the_one_who_holds_most() -> None:
    swapping, honest = sketch_of([40, 40, 20], (0, 1), 9), sketch_of([90, 90, 20], seed=8)
    clients: list[Sketch | None] = [swapping, honest, *(sketch_of([6, 6, 40], seed=seed) for seed in range(5))]
    found = by_data(clients, clients)
    assert found.share[0] > 0.5 and np.nan_to_num(found.share[1:]).max() < 0.3
