"""Whatever of ours fails, wherever and with what: the training goes on, unchanged. Ctrl-C comes out."""

from __future__ import annotations

import contextlib
import json
import stat
import sys
from pathlib import Path
from types import FunctionType
from typing import Any

import pytest
from builders import RunBuilder
from injection import broken, functions_in
from processes import PROGRAMS, collected, drainers_of, environment, finish, start_program, wait_until

from stethos.native import NATIVE
from stethos.record.drainer import Drainer
from stethos.store.run import open_run

DEADLINE_S = 900
SWALLOWED = "Unspeakable"  # a RuntimeError and MemoryError whose `__str__` raises

# What the program, torch or the interpreter call themselves, and what these consist of besides a guard:
# plain attributes, and the checks of a user's arguments. To break one of them is to break the guard.
ENTRANCES = {
    *(f"observe.api.{name}" for name in ("watch", "log", "span", "_new_run")),
    *(f"observe.api.Watch.{name}" for name in ("__init__", "__enter__", "__exit__", "close", "note_error", "path")),
    *(f"observe.spans.Span.{name}" for name in ("__init__", "__enter__", "__exit__")),
    "observe.boot.current",
    "observe.boot.current_session",
    "observe.memory_trace.MemoryTrace.__torch_dispatch__",
    "observe.ending.EndWatch._hook",
    "record.place.check_name",
    "record.place.is_name",
}
ENTRANCES_AT_START = {
    "observe.boot.Recording.watch_torch",
    "observe.boot._ImportFinder.find_spec",
    *(f"observe.boot._Loader.{name}" for name in ("__init__", "create_module", "exec_module")),
}

# What the training of `programs/injected.py` does not come to, and why.
UNREACHED = {
    "another machine": {
        "observe.late_row.<lambda>",
        "observe.late_row.HostLead.note",
        *(f"observe.late_row.TracePrice.{name}" for name in ("note", "charge", "take_lost_ns")),
        "observe.context.TurnTotals.add",
        "observe.budget.Budget.use_device",
        "observe.sample.LayerSampler.take_gradients",
        *(f"observe.late_row.LateRows.{name}" for name in ("copy", "put_later", "flush", "_has_arrived", "_write")),
        *(f"observe.late_row.LateStep.{name}" for name in ("__init__", "mark", "loss_if_there")),
        *(f"observe.late_row.{name}" for name in ("recorded_event", "_spent_ns")),
        *(f"observe.step_recorder.StepRecorder.{name}" for name in (
            "put_later", "batch_came", "backward_ended", "_hold_for",
        )),
        *(f"observe.device_row.{name}" for name in (
            "wide_of", "rows_of", "_column_of", "joined", "columns_of", "checksums_in",
        )),
        "observe.device_row.distances_of",
        *(f"observe.histogram.{name}" for name in ("_spread", "_to_host")),  # or half precision
        *(f"observe.device_statistic.LateTable.{name}" for name in ("begin", "end", "expect_rows", "expect_drift")),
        "observe.device_statistic.LateTable.hold",
        *(f"observe.device_statistic.DeviceStatistics.{name}" for name in ("_start", "_start_drift")),
        *(f"observe.device_statistic.{name}" for name in ("_places", "_fills_memory", "_to_host", "_recorded_event")),
        "observe.sample.LayerSampler.start_norm",
        "observe.statistic._put_device",
        "record.ring.fence",
    },
    "the end of a federated client's turn, which calls it through the guard": {"observe.boot.Recording.turn_ended"},
    "the start of a process, see below": {
        "observe.boot.begin_from_environment",
        *(f"observe.boot.Recording.{name}" for name in ("watch_companions", "_watch_companion")),
        "observe.boot._ImportFinder.find_spec",
        *(f"observe.boot._Loader.{name}" for name in ("__init__", "create_module", "exec_module", "__getattr__")),
    },
    "only where the callbacks are those in Python, see tests/observe/test_native.py": {
        *(f"record.ring.PlainSlots.{name}" for name in (
            "__init__", "release", "take", "commit", "leave_void",
        )),
        *(f"observe.hotpath.{name}" for name in ("_parameters_of", "_wrap_known_backward", "_first_of")),
        "observe.iteration.Iteration.batch_came",
    } if NATIVE is not None else {"observe.hotpath._parts"},
    "only after another failure": {"observe.step_recorder.StepRecorder.failed", "observe.hotpath._may_be_loss"},
    "only where files cannot be mapped, see tests/attack": {
        "observe.session._own_registry", "observe.session._new_scratch",
    },
    "only with corrections, see tests/act": {"observe.api._correct_steps"},
    "only when the program is loaded": {"observe.spans.Span.__call__"},
    "only in a distributed job, see tests/observe/test_collectives.py": {
        *(f"observe.collectives.CollectiveWatch.{name}" for name in (
            "_begins", "_begun", "_waited", "_number_of", "_sweep", "_open", "_post_of", "_write", "_start", "_watch",
            "look", "_take_flights", "_land", "_write_flight",
        )),
        *(f"observe.collectives.{name}" for name in ("name_of", "shown_name", "members_of", "_bytes_in")),
        "record.provenance.Relations.learn",
        *(f"observe.flight.{name}" for name in ("last_flights", "flights", "_flight", "_size_of", "_recorder")),
    },
    "only where something leaks": {
        *(f"observe.holder.{name}" for name in ("holder_of", "_own_frames", "_named", "_container_of", "_owner_of")),
        *(f"observe.holder.{name}" for name in ("_attribute", "_described", "_instance_with")),
        *(f"observe.program_line.{name}" for name in ("filling_line", "_fills", "_is_named")),
        *(f"observe.memory_sample.{name}" for name in ("MemorySampler._holder", "_shown")),
    },
    "only in a federation, whose own guard stands around them": {
        "observe.context.TurnTotals.__init__", "observe.context.Tally.add", "observe.sample.put_weights",
        "observe.spans.ids_in", "observe.spans.traceparent", "observe.session.Session.mark_turn",
    },
}  # fmt: skip
# Called by readers, by the launcher or by the drainer; not on the side of the training.
# Kinds of losses, batches and secrets that this training does not have: see tests of these modules.
ELSEWHERE = (
    # what is called where a program evaluates, logs by another tool, or breaks: tests of their own
    "observe.answers.",
    "observe.attention_check.",
    "observe.autograd_graph.",
    "observe.batch_facts.",
    "observe.call_check.",
    "observe.checkpoint_check.",
    "observe.data_sets.",
    "observe.dependence.",
    "observe.divergences.",
    "observe.evaluation.",
    "observe.function_code.",
    "observe.gradient_call.",
    "observe.graph_check.",
    "observe.held_out.",
    "observe.helper_model.",
    "observe.hyperparameters.",
    "observe.kept_graph.",
    "observe.labels_near.",
    "observe.loggers.",
    "observe.media.",
    "observe.nan_origin.",
    "observe.optimizer_facts.",
    "observe.policy_sign.",
    "observe.prior.",
    "observe.out_of_memory.",
    "observe.module_check.",
    "observe.program_check.",
    "observe.replica.",
    "observe.row_print.",
    "observe.schedules.",
    "observe.source_check.",
    "observe.step_sampler.",
    "observe.loss_graph.",
    "observe.batch_print.",
    "observe.hand_step.",
    "observe.checksum.",
    "observe.inspection.",
    "observe.warnings_shown.",
    "redact.",
    "record.place.",
    "record.provenance.",
    "record.spawn.",
    "observe.api.Watch.run",
    "observe.api.Watch.__repr__",
    "record.ring.Ring.dropped",
)


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What became of a training with each function broken in each way."""
    directory = tmp_path_factory.mktemp("injected")
    parts = [
        start_program("injected.py", directory / "runs", str(part), "2", SWALLOWED, "KeyboardInterrupt",
                      env=environment(XDG_RUNTIME_DIR=str(directory)))
        for part in (0, 1)
    ]  # fmt: skip
    rows: list[dict[str, Any]] = []
    for part in parts:
        out, err = part.communicate(timeout=DEADLINE_S)
        assert part.returncode == 0, err[-3000:]
        rows += map(json.loads, out.splitlines())
    assert [row for row in rows if "is_clean" in row] == [{"is_clean": True}] * 2
    return [row for row in rows if "kind" in row]


def test_more_than_two_hundred_functions_are_broken(outcomes: list[dict[str, Any]]) -> None:
    assert len({row["function"] for row in outcomes if row["calls"]}) > 150
    assert len({row["function"] for row in outcomes}) > 200


def test_whatever_fails_the_training_leaves_the_same_behind(outcomes: list[dict[str, Any]]) -> None:
    harmed = {row["function"]: row["raised"] for row in outcomes if row["kind"] == SWALLOWED and not row["is_same"]}
    assert {name: raised for name, raised in harmed.items() if name not in ENTRANCES} == {}


def test_the_list_of_entrances_holds_no_other_function(outcomes: list[dict[str, Any]]) -> None:
    assert {row["function"] for row in outcomes if row["kind"] == SWALLOWED and not row["is_same"]} == ENTRANCES


def test_every_function_on_the_side_of_the_training_was_reached(outcomes: list[dict[str, Any]]) -> None:
    reached = {row["function"] for row in outcomes if row["calls"]}
    known = set().union(*UNREACHED.values())
    missed = {row["function"] for row in outcomes} - reached
    assert {name for name in missed - known if not name.startswith(ELSEWHERE)} <= RARE
    assert sorted(known & reached) == [], "now reached: take it off the list"


# Small turns that depend on numbers, and are tested on their own.
RARE = {
    "observe.step_recorder.StepRecorder.take_number", "observe.attention.looks_ahead", "observe.attention.keys_seen",
    "observe.mode_facts._is_drifting", "observe.mode_facts._is_untouched",
    "observe.mode_facts._learns_statistics",
    "observe.layer_name._stripped", "observe.optimizers._numbered", "observe.module_trace.ModuleTrace.is_on",
    "observe.session.Session._end_of_child", "observe.ending._was_caught",
    "observe.session.Session._end_with_exit", "observe.session.Session._note_exit",
    "observe.statistic._Export.__dlpack_device__", "observe.statistic._centred", "observe.statistic._norm_by_block",
    "observe.budget.Pace._learn",
    "observe.budget.SampleBudget.learn_unseen", "observe.iteration.Iterations.after_fork",
    "record.ring.Ring._look_at_tail",
    "record.ring.Ring.drop", *(f"record.ring.Slots.{name}" for name in ("take", "commit", "leave_void", "release")),
}  # fmt: skip


def test_ctrl_c_comes_out_of_every_function(outcomes: list[dict[str, Any]]) -> None:
    """Except in a forked child, whose exceptions do not come here, and where Python drops them as an object dies."""
    silent = {
        row["function"]
        for row in outcomes
        if row["kind"] == "KeyboardInterrupt" and row["calls"] and row["raised"] != "KeyboardInterrupt"
    }
    assert silent <= {
        "observe.session.Session._after_fork", "observe.step_recorder.StepRecorder.after_fork",
        "observe.session.Session._end_with_exit", "observe.session.Session._note_exit",
        "observe.optimizers.Optimizers._forget", "record.ring.Ring.release",
        "observe.collectives.CollectiveWatch.after_fork",
        "observe.memory_trace.MemoryTrace._free",
    }  # fmt: skip


# The start of a process ------------------------------------------------------------------------------------


def test_whatever_fails_at_the_start_the_program_runs_and_has_its_torch(tmp_path: Path) -> None:
    result = finish(start_program("injected_start.py", tmp_path))
    assert result.returncode == 0, result.stderr
    rows = [json.loads(line) for line in result.stdout.splitlines()]
    assert {row["function"] for row in rows if row["status"] != 7} == ENTRANCES_AT_START
    assert len([row for row in rows if row["calls"]]) > 30


# The drainer -----------------------------------------------------------------------------------------------


DRAINING = ("collector", "segment", "tap", "arrow", "host", "drainer")


def draining_functions() -> dict[str, FunctionType]:
    return functions_in(f"stethos.record.{name}" for name in DRAINING)


def visit(drainer: Drainer, times: int) -> None:
    for number in range(times):
        drainer.visit(number * 10.0)


@pytest.mark.parametrize("name", sorted(draining_functions()))
def test_a_drainer_with_a_broken_function_harms_nothing_and_the_next_one_goes_on(tmp_path: Path, name: str) -> None:
    """The process writes as ever; after the failure is mended every row is stored once, or counted as lost."""
    with RunBuilder(tmp_path / "run") as run:
        process = run.process()
        process.steps(20)
        first = Drainer(run.place)
        visit(first, 2)
        with broken(draining_functions()[name], RuntimeError):
            process.steps(30)
            process.log("in between")
            process.layers(["a.weight", "b.weight"])
            with contextlib.suppress(
                RuntimeError
            ):  # a drainer that cannot do its rounds ends, and another one is started
                visit(first, 3)
            assert process.ring.dropped() == dict.fromkeys(process.ring.dropped(), 0)
        for collector in first.collectors.values():
            collector.close()
        process.steps(5)
        second = Drainer(run.place)
        visit(second, 2)
        for collector in second.collectors.values():
            collector.close()
        with open_run(run.path) as reader:
            summary = reader.summary()
            assert summary["rows_produced"] == summary["rows_stored"] + summary["rows_dropped"] + summary["rows_lost"]
            assert summary["rows_lost"] == 0
            assert [tuple(row) for row in reader.rows("SELECT count(*), count(DISTINCT step) FROM steps").values] == [
                (55, 55)
            ]
            assert (summary["rows"]["layers"], summary["rows"]["logs"]) == (2, 1)


def test_a_training_does_not_notice_that_its_drainer_is_broken(tmp_path: Path) -> None:
    """With real drainers: each of these runs has one in which the function of that name raises."""
    names = ["collector.Collector.drain", "segment.SegmentWriter.write_group", "compact.seal_segment",
             "tap.Tap.read_slots", "drainer.Drainer.visit", "collector.Collector.__init__"]  # fmt: skip
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{PROGRAMS / "broken_drainer.py"}" "$@"\n', encoding="utf-8")
    python.chmod(python.stat().st_mode | stat.S_IXUSR)
    runs = [f"record.{name}" for name in names]
    program = start_program("undrained.py", tmp_path / "runs", *runs, env=environment(STETHOS_PYTHON=str(python)))
    result = finish(program)
    assert result.returncode == 0, result.stderr
    bare, *observed = result.stdout.split()
    assert observed == [bare] * len(names)
    wait_until(lambda: not drainers_of(tmp_path), "the end of the broken drainers")
    for name in runs:
        open_run(tmp_path / "runs" / name).close()  # starts a drainer for what is left
        assert collected(tmp_path / "runs" / name)[1]["rows_produced"] >= 300
    wait_until(lambda: not drainers_of(tmp_path), "the end of the drainers that collected the rest")
