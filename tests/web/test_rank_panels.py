"""Panels that only runs of several ranks, GPUs or hangs have, over a run made by hand."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from builders import RunBuilder
from hung_run import CALLS, ODD, RANKS, make_hung_run

from stethos.store.run import Run, open_run
from stethos.store.stack_file import keep_stacks
from stethos.web.panel import evaluate
from stethos.web.panels import PANELS
from stethos.web.version import version_of

NEW = tuple(
    PANELS[name]
    for name in ("collective-wait", "collectives", "gpu-busy", "gpu-memory", "gpus", "hangs", "hang-stacks")
)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    path = tmp_path_factory.mktemp("ranks") / "hung"
    make_hung_run(path)
    with open_run(path) as run:
        yield run


def shown(run: Run, name: str, **given: str) -> list[dict[str, object]]:
    return evaluate(run, PANELS[name], **given).records()


def test_the_rank_that_all_wait_for_waits_least(run: Run) -> None:
    waits: dict[str, list[float]] = {}
    for row in shown(run, "collective-wait"):
        waits.setdefault(str(row["series"]), []).append(float(str(row["wait_ms"])))
    means = {series: sum(values) / len(values) for series, values in waits.items()}
    assert means == pytest.approx({"rank 0": 5.0, "rank 1": 5.0, f"rank {ODD}": 1.0})


def test_calls_that_did_not_end_stand_first(run: Run) -> None:
    rows = shown(run, "collectives")
    assert [(row["rank"], row["unfinished"], row["last_seq"]) for row in rows] == [
        (0, 1, 9),
        (1, 1, 9),
        (ODD, 0, CALLS),
    ]
    assert rows[0]["bytes"] == (CALLS + 1) * 4096


def test_every_gpu_has_its_curves(run: Run) -> None:
    assert {row["series"] for row in shown(run, "gpu-busy")} == {f"rank {rank}, GPU {rank}" for rank in range(RANKS)}
    assert {row["used_bytes"] for row in shown(run, "gpu-memory")} == {2**30}  # the process's own, where it is known
    assert shown(run, "gpus")[0] | {"busy_share": 0.72, "samples": 5, "power_w": 300.0} == shown(run, "gpus")[0]


def test_a_hang_names_its_culprit_first(run: Run) -> None:
    rows = shown(run, "hangs")
    assert [(row["role"], row["process"]) for row in rows] == [
        ("culprit", "rank 2"), ("waiting", "rank 0"), ("waiting", "rank 1"),
    ]  # fmt: skip


def test_stacks_of_a_hang_go_from_the_outside_in(run: Run) -> None:
    rows = shown(run, "hang-stacks", hang="1")
    assert [row["func"] for row in rows if row["member"] == "rank 2"] == ["<module>", "main", "evaluate"]
    assert rows == shown(run, "hang-stacks") == shown(run, "hang-stacks", threads="all")
    assert shown(run, "hang-stacks", hang="2") == []


def test_a_run_without_any_of_it_has_none_of_the_panels(tmp_path: Path) -> None:
    with RunBuilder(tmp_path / "plain") as made:
        made.process().steps(3)
        made.process().drain()
        with open_run(made.path) as run:
            assert all(panel.is_optional and not evaluate(run, panel).values for panel in NEW)


def test_kept_stacks_are_a_change_of_the_run(tmp_path: Path) -> None:
    with RunBuilder(tmp_path / "plain") as made:
        before = version_of(made.path)
        keep_stacks(made.path, [{"reason": "hang 1", "depth": 0}])
        assert version_of(made.path) != before
