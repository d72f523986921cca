"""A run as a Perfetto trace, read by Perfetto's trace processor."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from builders import MS_NS, T0_NS, RunBuilder
from federated_rows import build_federation
from perfetto_reader import TraceProcessor, trace_processor

from stethos.export import perfetto
from stethos.export.output import ExportResult
from stethos.record.layout import SLOT_PACKERS
from stethos.schema import COLLECTIVES, NULL_I32, NULL_I64
from stethos.store.run import open_run

PLACES = """
SELECT slice.id, slice.name AS name, slice.category AS category, slice.ts AS ts, slice.dur AS dur, slice.arg_set_id,
thread.name AS track, process.name AS home
FROM slice JOIN thread_track ON slice.track_id = thread_track.id JOIN thread USING (utid) JOIN process USING (upid)
"""


@pytest.fixture(scope="module")
def made(
    federation_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[ExportResult, TraceProcessor]]:
    path = tmp_path_factory.mktemp("traces") / "wards.json.gz"
    with open_run(federation_path) as run:
        written = perfetto.write(run, path)
    with trace_processor(path) as ask:
        yield written, ask


@pytest.fixture
def ask(made: tuple[ExportResult, TraceProcessor]) -> TraceProcessor:
    return made[1]


def test_the_trace_processor_has_no_complaint(ask: TraceProcessor) -> None:
    assert ask.complaints() == []
    assert ask("SELECT count(*) AS n FROM slice WHERE dur < 0 OR ts < 0") == [(0,)]


def test_everything_recorded_is_there(made: tuple[ExportResult, TraceProcessor]) -> None:
    written, ask = made
    found = dict(ask("SELECT category, count(*) AS n FROM slice GROUP BY category"))
    assert found == dict(written.counts)
    assert (found["round"], found["phase"], found["turn"], found["span"], found["step"]) == (3, 3, 9, 15, 27)
    assert written.notes[0].startswith("clocks of 2 processes were moved")


def test_there_is_a_group_per_side_and_process_and_a_track_per_client(ask: TraceProcessor) -> None:
    groups = [name for (name,) in ask("SELECT name FROM process WHERE name IS NOT NULL ORDER BY pid")]
    assert groups[:2] == ["server: wards", "clients: wards"] and len(groups) == 6
    tracks = ask(f"SELECT DISTINCT track FROM ({PLACES}) WHERE home = 'clients: wards' ORDER BY track")
    assert tracks == [("client c1",), ("client c2",), ('client \ufffd[31m<script>"c\\3"\ufffd[0m\ufffd',)]


def test_arrows_lead_from_each_round_to_its_turns_in_other_processes(ask: TraceProcessor) -> None:
    arrows = ask(f"""
        SELECT origin.name AS a, target.name AS b, target.track AS c FROM flow
        JOIN ({PLACES}) AS origin ON flow.slice_out = origin.id JOIN ({PLACES}) AS target ON flow.slice_in = target.id
        WHERE origin.home = 'server: wards' AND origin.category = 'round' ORDER BY target.ts, c""")
    assert [(one, other.partition(":")[0]) for one, other, _ in arrows] == [
        (f"round {number}", f"round {number}") for number in (1, 1, 1, 2, 2, 2, 3, 3, 3)
    ]
    spans = ask(f"""
        SELECT origin.name AS a, target.name AS b, count(DISTINCT target.home) AS n, count(*) AS m FROM flow
        JOIN ({PLACES}) AS origin ON flow.slice_out = origin.id JOIN ({PLACES}) AS target ON flow.slice_in = target.id
        WHERE origin.category = 'span' AND origin.home <> target.home GROUP BY 1, 2""")
    assert spans == [("round", "client", 3, 9)]


def test_wrong_clocks_are_moved_so_that_turns_lie_in_their_round(ask: TraceProcessor) -> None:
    outside = ask(f"""
        SELECT turn.name AS name, turn.ts - whole.ts AS early, whole.ts + whole.dur - turn.ts - turn.dur AS late
        FROM ({PLACES}) AS turn JOIN ({PLACES}) AS whole ON whole.category = 'round'
        AND whole.name = substr(turn.name, 1, 7)
        WHERE turn.category = 'turn' AND (turn.ts < whole.ts OR turn.ts + turn.dur > whole.ts + whole.dur)""")
    assert outside == []
    lengths = ask("SELECT DISTINCT dur FROM slice WHERE category = 'turn'")
    assert lengths == [(480_000_000,)]  # download, training and upload


def test_phases_lie_inside_what_they_are_phases_of(ask: TraceProcessor) -> None:
    inside = """SELECT count(*) AS n FROM slice JOIN slice AS whole ON slice.parent_id = whole.id
        WHERE slice.category = '{}' AND whole.category = '{}'"""
    assert ask(inside.format("step phase", "step")) == [(27 * 4,)]
    assert ask(inside.format("turn phase", "turn")) == [(9 * 3,)]
    assert ask(inside.format("phase", "round")) == [(3,)]


def test_what_was_measured_comes_as_arguments(ask: TraceProcessor) -> None:
    sql = "SELECT EXTRACT_ARG(arg_set_id, 'args.{}') AS value FROM slice WHERE category = '{}' ORDER BY ts"
    assert [value for (value,) in ask(sql.format("loss", "round"))] == [1.0, "NaN", pytest.approx(1 / 3)]
    assert {value for (value,) in ask(sql.format("samples", "turn"))} == {32}
    assert [value for (value,) in ask(sql.format("status", "turn"))].count("failed") == 1


def test_a_run_without_rows_is_a_trace_without_slices(run: RunBuilder, tmp_path: Path) -> None:
    with open_run(run.path) as opened:
        perfetto.write(opened, tmp_path / "empty.json.gz")
    with trace_processor(tmp_path / "empty.json.gz") as ask:
        assert ask("SELECT count(*) AS n FROM slice") == [(0,)]


def test_a_long_run_is_thinned_and_says_so(tmp_path: Path) -> None:
    build_federation(tmp_path / "run", rounds=8)
    with open_run(tmp_path / "run") as run:
        written = perfetto.write(run, tmp_path / "thin.json.gz", limit=6)
    assert written.counts["round"] == 4 and written.counts["step"] <= 6
    assert "rounds thinned: 1 of 2" in written.notes and "steps thinned: 1 of 12" in written.notes


def test_a_failure_leaves_what_was_there(federation_path: Path, tmp_path: Path) -> None:
    path = tmp_path / "kept.json.gz"
    path.write_bytes(b"before")

    def fail(count: int) -> None:
        raise KeyboardInterrupt

    with open_run(federation_path) as run, pytest.raises(KeyboardInterrupt):
        perfetto.write(run, path, advance=fail)
    assert path.read_bytes() == b"before" and [one.name for one in tmp_path.iterdir()] == ["kept.json.gz"]


def test_collectives_of_ranks_are_there(run: RunBuilder, tmp_path: Path) -> None:
    for rank in range(2):
        process = run.process(rank=rank, world_size=2)
        op, group, via = process.name_id("all_reduce"), process.name_id("world"), process.name_id("python")
        for seq, completed_ns in ((1, T0_NS + after(1) + 5 * MS_NS), (2, NULL_I64)):
            process.ring.put(
                SLOT_PACKERS[COLLECTIVES.number].pack_into, COLLECTIVES.number, 0, NULL_I32, NULL_I32, NULL_I32, seq,
                T0_NS + after(seq), op, group, via, seq, 4096, completed_ns, int(completed_ns != NULL_I64),
            )  # fmt: skip
        process.drain()
    with open_run(run.path) as opened:
        assert perfetto.write(opened, tmp_path / "ranks.json.gz").counts == {"collective": 4}
    with trace_processor(tmp_path / "ranks.json.gz") as ask:
        rows = ask(f"SELECT home, name, dur FROM ({PLACES}) WHERE track = 'collectives' ORDER BY home, ts")
    assert [(home[:7], *rest) for home, *rest in rows] == [
        ("rank 0,", "all_reduce", 5 * MS_NS), ("rank 0,", "all_reduce", 0),
        ("rank 1,", "all_reduce", 5 * MS_NS), ("rank 1,", "all_reduce", 0),
    ]  # fmt: skip


def after(seq: int) -> int:
    return seq * 10 * MS_NS
