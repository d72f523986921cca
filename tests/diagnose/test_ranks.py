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
    steps: dict[str, list[Any]] = {}
    for rank in range(ranks):
        for step in range(8):
            row: dict[str, Any] = {"weights": {"a": 7 * step, "b": 3 * step}, "gradient": 40.0 + step, "norm": 0.5,
                                   "lr": 0.1, "detail": {}}  # fmt: skip
            if change is not None:
                change(rank, step, row)
            facts = {"weights": row["weights"], **row["detail"]} | ({"replicated": True} if replicated else {})
            detail = json.dumps(facts)
            one_step = {"rank": rank, "step": step, "lr": row["lr"], "grad_norm": None}
            for name, value in one_step.items() if not row.get("is_missing") else ():
                steps.setdefault(name, []).append(value)
            one = made.inspections(1, process=f"p{rank}", rank=rank, step=step, detail=detail,
                                   gradient_hash=row["gradient"], gradient_norm=row["norm"])  # fmt: skip
            for name, values in one.items():
                columns.setdefault(name, []).extend(values)
    processes = {"process": [f"p{rank}" for rank in range(ranks)], "rank": list(range(ranks)),
                 "state": ["ended"] * ranks}  # fmt: skip
    return list(ReplicaDivergence().check(made.window(inspections=columns, processes=processes, steps=steps)))


def test_copies_that_stay_equal_are_not_accused() -> None:
    assert replicas(4) == []


@pytest.mark.parametrize("ranks", [3, 4])
def test_the_rank_whose_weights_change_is_named_with_its_layer_and_step(ranks: int) -> None:
    def change(rank: int, step: int, row: dict[str, Any]) -> None:
        if rank == 2 and step >= 5:
            row["weights"] = {"a": 1, "b": 3 * step}

    (one,) = replicas(ranks, change)
    assert (one.kind, one.subject.ranks, one.subject.layers, one.subject.first) == ("weights-changed", (2,), ("a",), 5)


def on_a_device(ranks: int, wrong: tuple[int, ...], **one: Any) -> list[Finding]:
    """Replicas of DDP whose weights are known by the rows of `layers`; a low bit is wrong on rank 1 at some steps."""
    rows: dict[str, list[Any]] = {}
    for rank in range(ranks):
        for step in (64, 128, 192):
            bad = rank == 1 and step in wrong
            row = {"process": f"p{rank}", "rank": rank, "step": step, "layer": "a", "kind": "weight", "norm": 2.0,
                   "mean": 0.1, "min": -1.0, "max": 1.0, "nan": 0.0, "inf": 0.0, "size": 9.0,
                   "checksum": 1000.0 * step + bad}  # fmt: skip
            for name, value in row.items():
                rows.setdefault(name, []).append(value)
    detail = json.dumps({"replicated": one.get("replicated", True)})
    inspections: dict[str, list[Any]] = {}
    for rank in range(ranks):
        for name, values in made.inspections(1, process=f"p{rank}", rank=rank, step=1, detail=detail).items():
            inspections.setdefault(name, []).extend(values)
    collectives = {"rank": list(range(ranks)), "op": ["all_gather"] * ranks}  # DDP's own, when it is made
    processes = {"process": [f"p{rank}" for rank in range(ranks)], "rank": list(range(ranks)),
                 "state": ["ended"] * ranks}  # fmt: skip
    window = made.window(layers=rows, inspections=inspections, collectives=collectives, processes=processes)
    return list(ReplicaDivergence().check(window))


@pytest.mark.parametrize(("wrong", "first"), [((128, 192), 128), ((192,), 192)])
def test_on_a_device_the_next_checksum_names_the_rank(wrong: tuple[int, ...], first: int) -> None:
    (one,) = on_a_device(3, wrong)
    assert (one.kind, one.subject.ranks, one.subject.layers, one.subject.first) == (
        "weights-changed", (1,), ("a",), first,
    )  # fmt: skip


def test_on_a_device_equal_copies_shards_and_one_look_at_two_ranks_say_nothing() -> None:
    assert on_a_device(3, ()) == []
    assert on_a_device(3, (128, 192), replicated=False) == []  # gathers, and nobody says that they are copies
    assert on_a_device(3, (128,)) == []  # equal again
    assert on_a_device(2, (192,)) == []


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


@pytest.mark.parametrize(("ranks", "blamed"), [(2, (0, 1)), (4, (2,))])
def test_another_learning_rate_is_the_cause(ranks: int, blamed: tuple[int, ...]) -> None:
    def change(rank: int, step: int, row: dict[str, Any]) -> None:
        if rank == ranks // 2:
            row["lr"] = 0.05
            row["weights"] = {"a": 1000 * step, "b": 900 * step}

    (one,) = replicas(ranks, change)
    assert (one.kind, one.subject.ranks) == ("rates-differ", blamed)


def test_a_rank_that_left_a_step_out_is_named() -> None:
    def change(rank: int, step: int, row: dict[str, Any]) -> None:
        if rank == 1 and step >= 3:  # it has the gradients that the others have one step later
            row["gradient"], row["weights"] = 41.0 + step, {"a": 1 + step, "b": 2 + step}
        row["is_missing"] = rank == 1 and step == 7

    (one,) = replicas(2, change)
    assert (one.kind, one.subject.ranks) == ("steps-skipped", (1,))


def test_buffers_that_never_change_must_be_equal_and_statistics_need_not() -> None:
    def change(rank: int, step: int, row: dict[str, Any]) -> None:
        row["detail"] = {"buffers": {"table": 7 if rank < 3 else 8, "running_mean": 100 * rank + step}}

    (one,) = replicas(4, change)
    assert (one.kind, one.subject.ranks, one.subject.layers) == ("buffers-differ", (3,), ("table",))


def test_parameters_that_came_after_wrapping_are_named() -> None:
    def change(rank: int, step: int, row: dict[str, Any]) -> None:
        row["detail"] = {"unexchanged": ["head.weight", "head.bias"]}
        row["weights"] = {"a": 7 * step, "head.weight": rank + step}

    (one,) = replicas(2, change)
    assert (one.kind, one.subject.ranks) == ("parameters-not-exchanged", (0, 1)) and "head.weight" in one.title


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


def by_hand(norms: Any, *, equal_start: bool = True) -> list[Finding]:
    """Two ranks without DDP whose weights differ from step 1 on, or from the start; `norms(rank, step)` are applied."""
    inspections: dict[str, list[Any]] = {}
    steps: dict[str, list[Any]] = {}
    for rank in range(2):
        for step in range(12):
            weights = {"a": 7 * step + (rank if step or not equal_start else 0), "b": 3 * step + rank * (step > 0)}
            for name, values in made.inspections(1, process=f"p{rank}", rank=rank, step=step,
                                                 detail=json.dumps({"weights": weights})).items():  # fmt: skip
                inspections.setdefault(name, []).extend(values)
            for name, value in {"rank": rank, "step": step, "lr": 0.1, "grad_norm": norms(rank, step)}.items():
                steps.setdefault(name, []).append(value)
    processes = {"process": ["p0", "p1"], "rank": [0, 1], "state": ["ended"] * 2}
    return list(ReplicaDivergence().check(made.window(inspections=inspections, processes=processes, steps=steps)))


def test_gradients_that_ranks_share_by_hand_and_scale_differently_are_named() -> None:
    (one,) = by_hand(lambda rank, step: (1.0 + 0.1 * step) * (1 + rank))
    assert one.kind == "gradients-scaled" and "rank 1 applies 2 times the gradients that rank 0" in one.title


def test_ranks_that_share_gradients_by_hand_must_begin_alike() -> None:
    (one,) = by_hand(lambda rank, step: 1.0 + 0.1 * step, equal_start=False)
    assert one.kind == "different-start"


def test_trainings_side_by_side_and_clipped_norms_are_no_shared_gradients() -> None:
    assert by_hand(lambda rank, step: 1.0 + 0.1 * step + 0.01 * rank * (step % 3)) == []
    assert by_hand(lambda rank, step: 1.0, equal_start=False) == []


def test_layers_beside_the_wrapped_model_are_named_alone() -> None:
    def change(rank: int, step: int, row: dict[str, Any]) -> None:
        if step:
            row["weights"] = {"a": 7 * step, "head": 3 * step + rank}
            row["gradient"] = 40.0 + step + rank

    (one,) = replicas(2, change)
    assert one.kind == "gradients-not-exchanged" and "the gradients of head" in one.title
