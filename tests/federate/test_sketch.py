"""Sketches: their error stays within the bound that is stated, and large layers are represented by a part."""

from __future__ import annotations

import math

import numpy as np
import pytest
from loop import fingerprint_of

from stethos.federate import comparison
from stethos.federate.comparison import History, compare
from stethos.federate.fingerprint import global_row
from stethos.federate.sketch import BUCKETS, FEWEST_BUCKETS, SketchPlan
from stethos.federate.structure import Structure

SHAPES = {"a.weight": (300, 200), "a.bias": (300,), "b.weight": (150, 300), "b.bias": (150,), "c.weight": (7, 150)}


def cohort(seed: int, count: int, kind: str) -> tuple[dict[str, np.ndarray], list[dict[str, np.ndarray]]]:
    """A global model and updates that share a direction to some degree."""
    chance = np.random.default_rng(seed)
    base = {name: chance.normal(size=shape).astype(np.float32) for name, shape in SHAPES.items()}
    common = {name: chance.normal(size=shape) for name, shape in SHAPES.items()}
    updates = []
    for number in range(count):
        share = number / count
        change = {}
        for name, shape in SHAPES.items():
            own = chance.normal(size=shape)
            if kind == "constant":
                own = np.ones(shape) * chance.normal()
            elif kind == "sparse" and len(shape) == 2:
                own = own * (np.arange(shape[1]) % 17 == 0)
            elif kind == "heavy":
                own = chance.standard_t(2, size=shape)
            change[name] = 0.01 * (share * common[name] + (1 - share) * own)
        updates.append({name: (base[name] + change[name]).astype(np.float32) for name in SHAPES})
    return base, updates


@pytest.mark.parametrize("kind", ["normal", "constant", "sparse", "heavy"])
def test_cosines_from_sketches_stay_within_the_stated_bound(kind: str) -> None:
    outside = total = 0
    for seed in range(6):
        base, updates = cohort(seed, 12, kind)
        plan = SketchPlan(Structure.of(base), seed=seed, read_everything=True)
        row = global_row(plan, base)
        prints = [fingerprint_of(plan, row, update, str(number)) for number, update in enumerate(updates)]
        found = compare(plan, prints, History())
        sketches = comparison._Rows([one.sketch for one in prints])
        weights = comparison._centre_weights(plan, sketches, np.ones(len(prints), bool))
        changes = np.stack([np.concatenate([(u[n] - base[n]).astype(float).ravel() for n in SHAPES]) for u in updates])
        others = weights @ changes - weights[:, None] * changes
        exact = (changes * others).sum(1) / np.linalg.norm(changes, axis=1) / np.linalg.norm(others, axis=1)
        assert (found["cos_error"][:, -1] < 4 / math.sqrt(BUCKETS / 2)).all()
        outside += int((np.abs(exact - found["cos_centre"][:, -1]) > found["cos_error"][:, -1]).sum())
        total += len(updates)
        for number, name in enumerate(SHAPES):
            part = np.stack([(u[name] - base[name]).astype(float).ravel() for u in updates])
            rest = weights @ part - weights[:, None] * part
            cosines = (part * rest).sum(1) / np.linalg.norm(part, axis=1) / np.linalg.norm(rest, axis=1)
            outside += int(
                (np.abs(cosines - found["cos_centre"][:, number]) > found["cos_error"][:, number] + 1e-5).sum()
            )
            total += len(updates)
    assert outside <= 0.01 * total  # three standard deviations


def test_a_small_model_is_exact_and_a_large_one_about_two_kilobytes() -> None:
    small = SketchPlan(Structure.of({"w": np.zeros((10, 20), np.float32), "b": np.zeros(10, np.float32)}))
    assert all(part.is_exact for part in small.parts)
    large = SketchPlan(Structure.of({name: np.zeros(shape, np.float32) for name, shape in SHAPES.items()}))
    assert BUCKETS * 0.9 < large.buckets <= BUCKETS + FEWEST_BUCKETS * len(SHAPES)


def test_a_large_layer_is_represented_by_a_part_of_it() -> None:
    chance = np.random.default_rng(0)
    base = {"w": chance.normal(size=(1000, 500)).astype(np.float32), "b": np.zeros(4, np.float32)}
    plan = SketchPlan(Structure.of(base))
    assert 0.025 < plan.coverage[0] < 0.05 and plan.coverage[1] == 1
    update = {"w": base["w"] + chance.normal(size=(1000, 500)).astype(np.float32), "b": base["b"] + 1}
    one = fingerprint_of(plan, global_row(plan, base), update, "a")
    assert one.norms[0] == pytest.approx(np.linalg.norm(update["w"] - base["w"]), rel=0.03)
    assert one.norms[1] == 2.0
    whole = SketchPlan(Structure.of(base), read_everything=True)
    exact = fingerprint_of(whole, global_row(whole, base), update, "a")
    assert exact.norms[0] == pytest.approx(np.linalg.norm(update["w"].astype(float) - base["w"]), rel=1e-5)


def test_the_seed_decides_the_plan_and_nothing_else_does() -> None:
    base = {name: np.zeros(shape, np.float32) for name, shape in SHAPES.items()}
    row = np.random.default_rng(1).normal(size=SketchPlan(Structure.of(base)).read).astype(np.float32)
    np.random.seed(3)
    state = np.random.get_state()[1].copy()
    first, again, other = (SketchPlan(Structure.of(base), seed).sketch(row[None])[0] for seed in (0, 0, 1))
    assert (first == again).all() and not np.allclose(first, other)
    assert (np.random.get_state()[1] == state).all()


def test_numbers_too_large_for_single_precision_keep_their_norm() -> None:
    base = {"w": np.zeros((4, 4), np.float32)}
    plan = SketchPlan(Structure.of(base))
    one = fingerprint_of(plan, global_row(plan, base), {"w": np.full((4, 4), 1e30, np.float32)}, "a")
    assert one.norm == pytest.approx(4e30, rel=1e-5) and one.is_finite
