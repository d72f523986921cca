"""Figures of a run: what they show, and where they have gaps."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from builders import RunBuilder
from federated_rows import build_federation

from stethos.errors import QueryError, UsageError
from stethos.store.run import Run, open_run


def test_rounds_have_a_line_each_with_a_gap_where_the_loss_is_no_number(federation: Run) -> None:
    figure = federation.plot.rounds()
    loss, accuracy, duration = figure.axes
    assert (loss.get_ylabel(), accuracy.get_ylabel(), duration.get_ylabel()) == ("loss", "accuracy", "duration (s)")
    values = loss.lines[0].get_ydata()
    assert values[0] == 1.0 and math.isnan(values[1]) and values[2] == pytest.approx(1 / 3)
    (broken,) = loss.collections  # it was NaN, not missing
    assert broken.get_offsets()[:, 0].tolist() == [2.0] and not accuracy.collections
    (failures,) = duration.collections
    assert failures.get_offsets().tolist() == [[3.0, 1.0]] and duration.get_xlabel() == "round"


def test_clients_are_a_heat_map_with_gaps(federation: Run) -> None:
    axis = federation.plot.clients("loss").axes[0]
    grid = axis.images[0].get_array()
    assert grid.shape == (3, 3) and np.allclose(grid[0].filled(-1), [1, 1 / 2, 1 / 3])
    assert {label.get_text() for label in axis.get_yticklabels()} > {"c1", "c2"}
    assert axis.collections[0].get_offsets().shape == (1, 2)  # the one that failed
    assert "cosine" not in federation.plot.clients().axes[1].get_ylabel()  # there are no updates: the loss instead
    assert federation.plot.clients("cosine").axes[0].images[0].get_array().mask.all()


def test_layers_are_a_heat_map_of_sampled_steps(run: RunBuilder) -> None:
    process = run.process()
    for step, norm in ((0, 1.0), (10, 0.01)):
        process.layers(["fc1.weight", "fc2.weight"], step=step, norm=norm)
    process.drain()
    with open_run(run.path) as opened:
        axis = opened.plot.layers().axes[0]
        assert axis.images[0].get_array().tolist() == [[1.0, 0.01], [1.0, 0.01]]
        assert [label.get_text() for label in axis.get_yticklabels()] == ["fc2.weight", "fc1.weight"]
        assert [label.get_text() for label in axis.get_xticklabels()] == ["0", "10"]


def test_a_waterfall_shows_the_phases_of_each_client_inside_the_round(federation: Run) -> None:
    axis = federation.plot.waterfall(1).axes[0]
    bars = [(round(bar.get_x(), 3), round(bar.get_width(), 3)) for bar in axis.patches]
    assert len(bars) == 3 * 4 and all(start >= 0 and start + width <= 1.0001 for start, width in bars)
    assert {width for _, width in bars} == {0.48, 0.05, 0.4, 0.03}
    assert "s)" in axis.get_xlabel() and "round 1" in axis.get_title(loc="left")


def test_a_figure_shows_itself_and_can_be_saved(federation: Run, tmp_path: Path) -> None:
    figure = federation.plot.waterfall()
    assert figure._repr_png_().startswith(b"\x89PNG")
    figure.savefig(tmp_path / "figure.pdf")
    assert (tmp_path / "figure.pdf").read_bytes().startswith(b"%PDF")


def test_names_are_no_formulas(tmp_path: Path) -> None:
    build_federation(tmp_path / "run$^$", rounds=1, clients=("$^{", "c$1$"))
    with open_run(tmp_path / "run$^$") as run:
        for figure in (run.plot.rounds(), run.plot.clients(), run.plot.waterfall()):
            assert figure._repr_png_()


def test_what_cannot_be_plotted_is_said(run: RunBuilder, federation: Run) -> None:
    with open_run(run.path) as opened:
        for plot in (opened.plot.rounds, opened.plot.clients, opened.plot.layers, opened.plot.waterfall):
            with pytest.raises(QueryError, match="nothing to plot"):
                plot()
    with pytest.raises(QueryError, match="of round 99"):
        federation.plot.waterfall(99)
    with pytest.raises(UsageError, match="no value"):
        federation.plot.clients("colour")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="no value"):
        federation.plot.layers("x")
