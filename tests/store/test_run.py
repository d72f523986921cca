"""Queries over runs that grow, have ended, or were killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import polars
import pytest
from builders import MS_NS, T0_NS, RunBuilder
from processes import wait_until

import stethos
from stethos.errors import QueryError
from stethos.record.arrow import full_schema
from stethos.record.layout import HeaderWord
from stethos.record.place import ProcessPlace
from stethos.record.spawn import is_drained
from stethos.schema import PROCESSES, RECORDED, RUNS, TABLES, Table
from stethos.store import limit
from stethos.store import run as reading
from stethos.store.engine import Engine
from stethos.store.process import ProcessReader
from stethos.store.run import Run

MODULE_TIMES = (
    "SELECT module, stage, COUNT(*) as count, AVG(duration) as avg_time, SUM(duration) as total_time "
    "FROM python.torch_trace WHERE step > (SELECT MAX(step) - 5 FROM python.torch_trace) "
    "GROUP BY module, stage ORDER BY total_time DESC LIMIT 10"
)
PEAK_MEMORY = (
    "SELECT step, MAX(allocated) as peak_memory, MAX(allocated) - MIN(allocated) as memory_range "
    "FROM python.torch_trace WHERE step > (SELECT MAX(step) - 20 FROM python.torch_trace) GROUP BY step ORDER BY step"
)
ENDLESS = "SELECT sum(a.range * b.range) FROM range(10000000) a, range(10000000) b"


def test_sealed_and_growing_rows_are_one_table(run: RunBuilder) -> None:
    process = run.process(rank=3)
    process.steps(10)
    process.seal()
    process.steps(5)
    process.drain()
    table = stethos.open_run(run.path).sql("SELECT process, rank, step, loss, grad_norm FROM steps ORDER BY step")
    assert table.column("step").to_pylist() == list(range(15))
    assert set(table.column("rank").to_pylist()) == {3}
    assert table.column("loss").to_pylist() == [1 / (step + 1) for step in range(15)]
    assert table.column("grad_norm").null_count == 15


def test_a_run_object_follows_a_growing_run(run: RunBuilder) -> None:
    process = run.process()
    opened = Run(run.place)
    seen = []
    for action in (process.drain, process.seal, process.drain, process.finish):
        process.steps(4)
        action()
        seen.append(opened.rows("SELECT count(*), max(step) FROM steps").values[0])
    assert seen == [(4, 3), (8, 7), (12, 11), (16, 15)]


def test_a_segment_sealed_between_manifest_and_reading_is_found_in_the_next_manifest(
    run: RunBuilder, monkeypatch: pytest.MonkeyPatch
) -> None:
    process = run.process()
    process.steps(6)
    process.drain()
    original = ProcessPlace.manifest
    seals = iter([process.seal])

    def manifest(place: ProcessPlace) -> dict[str, object]:
        content = original(place)
        for seal in seals:
            seal()
        return content

    monkeypatch.setattr(ProcessPlace, "manifest", manifest)
    assert Run(run.place).rows("SELECT count(*) FROM steps").values == [(6,)]


def test_a_file_retired_while_a_query_starts_is_no_error(run: RunBuilder, monkeypatch: pytest.MonkeyPatch) -> None:
    process = run.process()
    process.layers(["a", "b"])
    process.seal()
    opened = Run(run.place)
    assert opened.rows("SELECT count(*) FROM layers").values == [(2,)]
    original = ProcessReader.refresh
    retire = iter([lambda: process.collector.retire(process.collector.sealed[0])])

    def refresh(reader: ProcessReader) -> None:
        original(reader)
        for action in retire:
            action()

    monkeypatch.setattr(ProcessReader, "refresh", refresh)
    assert opened.rows("SELECT count(*) FROM layers").values == [(0,)]


def test_a_file_that_goes_as_an_export_starts_is_no_error(run: RunBuilder, monkeypatch: pytest.MonkeyPatch) -> None:
    process = run.process()
    for _ in range(2):
        process.steps(4)
        process.seal()
    define = Engine.define

    def lose_then_define(self: Engine, table: Table, files: Sequence[Path], *rest: Any) -> None:
        monkeypatch.setattr(Engine, "define", define)
        files[0].unlink()  # as a drainer does whose run is at its limit
        define(self, table, files, *rest)

    monkeypatch.setattr(Engine, "define", lose_then_define)
    assert Run(run.place).batches(TABLES["steps"]).read_all().num_rows == 4


def test_a_pipe_that_takes_the_place_of_a_file_holds_no_reader_up(
    run: RunBuilder, monkeypatch: pytest.MonkeyPatch
) -> None:
    process = run.process()
    process.steps(4)
    process.seal()
    define = Engine.define
    released: list[Path] = []

    def swap_then_define(self: Engine, table: Table, files: Sequence[Path], *rest: Any) -> None:
        monkeypatch.setattr(Engine, "define", define)
        files[0].unlink()
        os.mkfifo(files[0])
        define(self, table, files, *rest)

    def release() -> None:
        released.extend(process.place.path.glob("*.steps.parquet"))
        os.close(os.open(released[0], os.O_WRONLY | os.O_NONBLOCK))

    monkeypatch.setattr(limit, "DEFAULT_TIMEOUT_S", 0.1)
    monkeypatch.setattr(Engine, "define", swap_then_define)
    assert Run(run.place, when_stuck=release).batches(TABLES["steps"]).read_all().num_rows == 0
    assert released


def test_every_table_exists_in_an_empty_run_with_the_schemas_columns_and_types(run: RunBuilder) -> None:
    opened = Run(run.place)
    for name, table in TABLES.items():
        described = opened.rows(f"DESCRIBE {name}").values
        assert [(column.name, column.kind.sql_type) for column in table.all_columns] == [
            (row[0], row[1].lower()) for row in described
        ]
    for table in RECORDED.values():
        assert opened.sql(f"SELECT * FROM {table.name}").schema == full_schema(table)


def test_only_our_tables_are_shown(run: RunBuilder) -> None:
    process = run.process()
    process.steps(3)
    process.drain()
    opened = Run(run.place)
    opened.rows("SELECT * FROM steps")
    assert [row[0] for row in opened.rows("SHOW TABLES").values] == sorted(n for n in TABLES if "." not in n)


def test_a_table_found_through_a_function_is_loaded(run: RunBuilder) -> None:
    process = run.process()
    process.steps(3)
    process.drain()
    assert Run(run.place).rows("SELECT count(*) FROM query_table('st' || 'eps')").values == [(3,)]


def test_both_queries_of_the_live_debugging_seed_run_verbatim(run: RunBuilder) -> None:
    process = run.process()
    for step in range(30):
        process.modules(["Net", "fc1"], step=step)
        process.modules(["Net", "fc1"], "backward", step=step)
    process.drain()
    opened = Run(run.place)
    times = opened.rows(MODULE_TIMES)
    assert times.columns == ("module", "stage", "count", "avg_time", "total_time")
    assert {row[:3] for row in times.values} == {(m, s, 5) for m in ("Net", "fc1") for s in ("forward", "backward")}
    assert times.values[0][3] == pytest.approx(0.003)
    memory = opened.rows(PEAK_MEMORY)
    assert [row[0] for row in memory.values] == list(range(10, 30))
    assert memory.values[0][1:] == (15.0, 0.0)


def test_names_with_quotes_and_unicode_come_back_as_they_were(run: RunBuilder) -> None:
    names = ["it's", 'a "quoted" layer', "größe.λ", "x" * 300, ""]
    process = run.process()
    process.layers(names)
    process.drain()
    assert Run(run.place).sql("SELECT layer FROM layers").column(0).to_pylist() == names


def test_a_run_in_a_directory_with_odd_characters_can_be_queried(runs_dir: Path) -> None:
    with RunBuilder(runs_dir / "it's [a] *run* {1}") as builder:
        process = builder.process()
        process.steps(2)
        process.seal()
        assert Run(builder.place).rows("SELECT count(*) FROM steps").values == [(2,)]


def test_nan_and_infinity_are_kept_and_null_is_not_zero(run: RunBuilder) -> None:
    process = run.process()
    process.steps(3, losses=[float("nan"), float("inf"), 0.0])
    process.seal()
    rows = Run(run.place).rows("SELECT isnan(loss), isinf(loss), grad_norm FROM steps ORDER BY step").values
    assert rows == [(True, False, None), (False, True, None), (False, False, None)]


def test_processes_of_several_ranks_are_told_apart(run: RunBuilder) -> None:
    for rank in range(3):
        process = run.process(rank=rank, world_size=3)
        process.steps(rank + 1)
        process.drain()
    rows = Run(run.place).rows("SELECT rank, count(*) FROM steps GROUP BY 1 ORDER BY 1").values
    assert rows == [(0, 1), (1, 2), (2, 3)]


def test_the_catalogue_tables_have_a_value_for_every_column(run: RunBuilder) -> None:
    process = run.process()
    process.steps(3)
    process.drain()
    opened = Run(run.place)
    found = opened.sql("SELECT * FROM processes").to_pylist()[0]
    assert list(found) == [column.name for column in PROCESSES.all_columns]
    assert found["command"] == "python train.py" and found["state"] == "running" and found["steps"] == 3
    assert found["overhead_share"] == pytest.approx(3_000 / (30 * MS_NS))
    listed = opened.sql("SELECT * FROM runs").to_pylist()[0]
    assert list(listed) == [column.name for column in RUNS.all_columns]
    assert listed["rows_stored"] == 3 and listed["started_ns"] == T0_NS


def test_the_summary_gives_the_totals(run: RunBuilder) -> None:
    process = run.process(is_alive=False)
    process.steps(4)
    process.metric("accuracy", 0.9)
    process.finish()
    summary = Run(run.place).summary()
    assert summary["state"] == "ended" and summary["steps"] == 4 and summary["last_loss"] == 0.25
    assert summary["rows"]["metrics"] == 1 and summary["rows_stored"] == 5
    assert summary["size_bytes"] > 0 and summary["processes"] == 1


def test_steps_are_those_stored_where_the_process_counts_late(run: RunBuilder) -> None:
    process = run.process()
    process.steps(9)
    process.ring.set_word(HeaderWord.STEPS, 4)
    process.drain()
    assert Run(run.place).summary()["steps"] == 9


def test_a_run_is_live_while_its_process_is(run: RunBuilder) -> None:
    process = run.process()
    assert Run(run.place).is_live
    process.finish()
    assert not Run(run.place).is_live


def test_a_result_becomes_pandas_or_polars(run: RunBuilder) -> None:
    process = run.process()
    process.steps(3)
    process.drain()
    table = Run(run.place).sql("SELECT step, loss FROM steps")
    assert list(table.to_pandas()["step"]) == [0, 1, 2]
    assert polars.from_arrow(table).shape == (3, 2)


def test_rows_after_the_limit_are_left_out(run: RunBuilder) -> None:
    process = run.process()
    process.steps(30)
    process.drain()
    opened = Run(run.place)
    assert opened.sql("SELECT * FROM steps", limit_rows=7).num_rows == 7
    assert opened.sql("SELECT * FROM steps", limit_rows=0).num_rows == 0
    cut, whole = opened.rows("SELECT * FROM steps", limit_rows=29), opened.rows("SELECT * FROM steps", limit_rows=30)
    assert (len(cut.values), cut.is_cut, len(whole.values), whole.is_cut) == (29, True, 30, False)


def test_a_query_that_takes_too_long_is_stopped(run: RunBuilder) -> None:
    opened = Run(run.place)
    for ask in (opened.rows, opened.sql):
        with pytest.raises(QueryError, match=r"longer than 0.2 s\nhint: allow more with --timeout"):
            ask(ENDLESS, timeout_s=0.2)
    assert opened.rows("SELECT 1").values == [(1,)]


def test_ctrl_c_stops_a_query(run: RunBuilder) -> None:
    opened = Run(run.place)
    for ask in (opened.rows, opened.sql):
        ask("SELECT 1")  # what has to be imported is
        with pytest.raises(KeyboardInterrupt):
            threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
            ask(ENDLESS)
    assert opened.rows("SELECT 1").values == [(1,)]


def test_a_time_with_a_zone_and_columns_of_the_same_name_can_be_shown(run: RunBuilder) -> None:
    result = Run(run.place).rows("SELECT 1 AS a, 2 AS a, to_timestamp(0) AS t")
    assert result.columns == ("a", "a_1", "t")
    assert result.values[0][:2] == (1, 2) and result.values[0][2].startswith("1970-01-01")


@pytest.mark.parametrize("sql", ["SELECT INTERVAL 300000000 MONTH", "SELECT * FROM test_all_types()"])
def test_a_value_that_python_has_not_is_an_error_of_ours(run: RunBuilder, sql: str) -> None:
    with pytest.raises(QueryError, match="none that Python has") as error:
        Run(run.place).rows(sql)
    assert "Traceback" not in str(error.value)


def test_a_read_only_run_is_read(run: RunBuilder, monkeypatch: pytest.MonkeyPatch) -> None:
    process = run.process(is_alive=False)
    process.steps(3)
    process.drain()
    process.steps(2)

    def refuse(place: object) -> bool:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("stethos.store.run.ensure_drainer", refuse)
    summary = Run(run.place).summary()
    assert (summary["rows"]["steps"], summary["rows_waiting"]) == (5, 0)


def test_the_last_rows_of_a_killed_process_are_collected_by_the_reader(
    runs_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which waits for the drainer that it has started, however long that takes to be at work."""
    slow = tmp_path / "python"
    slow.write_text(f'#!/bin/sh\nsleep 4\nexec "{sys.executable}" "$@"\n', encoding="utf-8")
    slow.chmod(0o755)
    monkeypatch.setenv("STETHOS_PYTHON", str(slow))
    monkeypatch.setattr(reading, "_COLLECT_S", 240.0)
    builder = RunBuilder(runs_dir / "demo")
    process = builder.process(is_alive=False)
    process.steps(12)
    builder.close()  # gives the drainer's lock back
    opened = Run(builder.place)
    assert is_drained(builder.place) or "ended" in process.place.manifest()
    wait_until(lambda: opened.rows("SELECT count(*) FROM steps").values == [(12,)], "the last row")
    assert opened.summary()["state"] == "killed"


def test_reading_needs_neither_torch_nor_pyarrow_for_a_finished_run(run: RunBuilder) -> None:
    process = run.process()
    process.steps(3)
    process.finish()
    code = (
        "import sys, stethos\n"
        f"run = stethos.open_run({str(run.path)!r})\n"
        "assert run.rows('SELECT count(*) FROM steps').values == [(3,)]\n"
        "assert not {'torch', 'pyarrow', 'pandas', 'rich'} & set(sys.modules)\n"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (result.returncode, result.stderr) == (0, "")
