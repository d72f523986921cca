"""Ranks that should do the same and do not: what is told of hand-made rows."""

from __future__ import annotations

import json
from typing import Any

import pytest
import training_rows as made

from stethos.diagnose.finding import Finding
from stethos.diagnose.ranks.collective_mismatch import CollectiveMismatch
from stethos.diagnose.ranks.replica_divergence import ReplicaDivergence


def replicas(ranks: int, change: Any = None, *, replicated: bool = True) -> list[Finding]:
    """Eight inspected steps of ranks that hold copies; `change(rank, step, row)` makes some of them differ."""
    columns: dict[str, list[Any]] = {}
    for rank in range(ranks):
        for step in range(8):
            row: dict[str, Any] = {"weights": {"a": 7 * step, "b": 3 * step}, "gradient": 40.0 + step, "norm": 0.5}
            if change is not None:
                change(rank, step, row)
            detail = json.dumps({"weights": row["weights"]} | ({"replicated": True} if replicated else {}))
            one = made.inspections(1, process=f"p{rank}", rank=rank, step=step, detail=detail,
                                   gradient_hash=row["gradient"], gradient_norm=row["norm"])  # fmt: skip
            for name, values in one.items():
                columns.setdefault(name, []).extend(values)
    processes = {"process": [f"p{rank}" for rank in range(ranks)], "rank": list(range(ranks))}
    return list(ReplicaDivergence().check(made.window(inspections=columns, processes=processes)))


def test_copies_that_stay_equal_are_not_accused() -> None:
    assert replicas(4) == []


@pytest.mark.parametrize("ranks", [3, 4])
def test_the_rank_whose_weights_change_is_named_with_its_layer_and_step(ranks: int) -> None:
    def change(rank: int, step: int, row: dict[str, Any]) -> None:
        if rank == 2 and step >= 5:
            row["weights"] = {"a": 1, "b": 3 * step}

    (one,) = replicas(ranks, change)
    assert (one.kind, one.subject.ranks, one.subject.layers, one.subject.first) == ("weights-changed", (2,), ("a",), 5)


def test_of_two_ranks_none_is_blamed() -> None:
    def change(rank: int, step: int, row: dict[str, Any]) -> None:
        if rank and step >= 5:
            row["weights"] = {"a": 1, "b": 2}

    (one,) = replicas(2, change)
    assert one.subject.ranks == (0, 1)


def test_gradients_that_differ_after_backward_were_not_exchanged() -> None:
    def change(rank: int, step: int, row: dict[str, Any]) -> None:
        if step >= 3:
            row["weights"], row["gradient"] = {"a": 100 * rank, "b": rank}, float(rank)

    (one,) = replicas(4, change)
    assert one.kind == "gradients-not-exchanged" and one.subject.first == 3


def test_ranks_that_differ_from_the_first_step_began_so() -> None:
    def change(rank: int, step: int, row: dict[str, Any]) -> None:
        row["weights"] = {"a": 1000 * rank + step}

    (one,) = replicas(4, change)
    assert one.kind == "different-start"


def test_ranks_that_average_their_weights_now_and_then_are_not_accused() -> None:
    def change(rank: int, step: int, row: dict[str, Any]) -> None:
        if step in (2, 3, 5, 6):
            row["weights"] = {"a": 1000 * rank + step}

    assert replicas(4, change) == []


def test_ranks_that_train_different_models_are_not_accused() -> None:
    def change(rank: int, step: int, row: dict[str, Any]) -> None:
        row["weights"] = {"a": 1000 * rank + step}

    assert replicas(4, change, replicated=False) == []


def calls(*last: tuple[int, int, str, int], **columns: Any) -> list[Finding]:
    """What each rank was doing at its end: number begun, number complete, operation, bytes."""
    groups = [
        json.dumps([{"name": "default", "begun": begun, "complete": complete, "op": op, "bytes": size}])
        for begun, complete, op, size in last
    ]
    count = len(last)
    processes = {"process": [f"p{rank}" for rank in range(count)], "rank": list(range(count)), "groups": groups,
                 "state": ["killed"] * count, "exit_code": [-15] * count, "steps": [9] * count, **columns}  # fmt: skip
    return list(CollectiveMismatch().check(made.window(processes=processes)))


def test_equal_calls_are_not_accused() -> None:
    assert calls((9, 8, "all_reduce", 4), (9, 8, "all_reduce", 4)) == []


@pytest.mark.parametrize("other", [("broadcast", 4), ("all_reduce", 8)])
def test_the_rank_that_calls_something_else_is_named(other: tuple[str, int]) -> None:
    (one,) = calls((9, 8, "all_reduce", 4), (9, 8, *other), (9, 8, "all_reduce", 4))
    assert one.subject.ranks == (1,) and other[0] in one.title


def test_sizes_may_differ_where_each_rank_gives_its_own_part() -> None:
    assert calls((9, 8, "all_gather", 4), (9, 8, "all_gather", 8)) == []


def test_a_rank_that_was_not_there_when_another_aborted_is_named() -> None:
    (one,) = calls((9, 8, "all_reduce", 4), (8, 8, "all_reduce", 4), exit_code=[-6, -15])
    assert one.subject.ranks == (1,) and "did not call" in one.title


def test_ranks_that_ended_well_are_not_looked_at() -> None:
    assert calls((9, 8, "all_reduce", 4), (9, 8, "broadcast", 4), state=["ended"] * 2) == []
