"""Histograms of a layer over its steps, on buckets that are the same for all of them."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

import pytest
from builders import RunBuilder

from stethos.store.run import Run, open_run
from stethos.view.layer import LAYER_HISTOGRAMS

FLAT = [10] * 16


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    with RunBuilder(tmp_path / "run") as made:
        process = made.process(is_alive=False)
        process.steps(100)
        process.layers(["wide", "narrow"], "weight", step=0)
        for step in (0, 40, 80):
            process.histogram("shrinks", -(10.0 ** -(step / 20)), 10.0 ** -(step / 20), FLAT, step=step)
            process.histogram("away", 999.999, 1000.001, FLAT, step=step)
            process.histogram("same", 0.5, 0.5, [160, *[0] * 15], "weight", step=step)
        process.histogram("mixed", 0.0, 0.0, [160, *[0] * 15], step=0)
        process.histogram("mixed", -1.0, 1.0, [80, *[0] * 14, 80], step=50)
        process.drain()
        process.finish()
    with open_run(tmp_path / "run") as opened:
        yield opened


def shares(run: Run, layer: str, spread: str = "gradient") -> dict[int, dict[str, float]]:
    """By step and by the lower end of a bucket; from the lowest to the highest."""
    found: dict[int, dict[str, float]] = {}
    for row in LAYER_HISTOGRAMS.records(run, layer=layer, spread=spread):
        found.setdefault(row["step"], {})[row["bucket"]] = row["value"]
    return {step: dict(reversed(values.items())) for step, values in found.items()}


def test_every_step_adds_up_to_one_in_buckets_that_are_the_same(run: Run) -> None:
    for layer in ("shrinks", "away", "mixed"):
        found = shares(run, layer)
        assert len({tuple(values) for values in found.values()}) == 1
        for values in found.values():
            assert math.isclose(sum(values.values()), 1.0, rel_tol=1e-6)


def test_what_shrinks_a_hundredfold_is_still_spread(run: Run) -> None:
    found = shares(run, "shrinks")
    filled = [sum(share > 0.001 for share in found[step].values()) for step in (0, 40, 80)]
    assert filled[0] > filled[1] > filled[2] > 2
    edges = [float(edge) for edge in found[0]]
    assert edges == sorted(edges)
    assert edges[0] == pytest.approx(-1, abs=0.1)


def test_names_of_buckets_far_from_zero_differ(run: Run) -> None:
    assert len(next(iter(shares(run, "away").values()))) == 32


def test_elements_that_are_all_the_same_stand_in_one_bucket(run: Run) -> None:
    for step, values in shares(run, "same", "weight").items():
        assert [share for share in values.values() if share] == [1.0], step
    zeros = shares(run, "mixed")[0]
    (edge,) = [edge for edge, share in zeros.items() if share]
    assert float(edge) <= 0 < float(edge) + 0.1


def test_two_heaps_stay_apart(run: Run) -> None:
    values = list(shares(run, "mixed")[50].values())
    assert sum(values[:4]) == pytest.approx(0.5, abs=0.05)
    assert sum(values[-4:]) == pytest.approx(0.5, abs=0.05)


def test_a_layer_or_a_run_without_any_has_no_rows(run: Run, tmp_path: Path) -> None:
    assert shares(run, "wide") == {}
    with RunBuilder(tmp_path / "none") as made:
        process = made.process(is_alive=False)
        process.drain()
        process.finish()
    with open_run(tmp_path / "none") as empty:
        assert LAYER_HISTOGRAMS.records(empty) == []
