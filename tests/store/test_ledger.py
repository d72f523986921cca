"""produced = stored + dropped + lost, whatever happens."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from builders import RunBuilder, dead_pid

from stethos.record.border import read_json
from stethos.record.layout import State
from stethos.record.place import ProcessPlace
from stethos.record.segment import SegmentRows, scan
from stethos.schema import STEPS
from stethos.store import run as reading
from stethos.store.health import Grade, examine
from stethos.store.ledger import Ledger
from stethos.store.process import ProcessReader, read_ring
from stethos.store.run import Run
from stethos.store.sealed import SealChecker


def books(run: Run) -> dict[str, Any]:
    """A run's totals, after checking that they add up."""
    summary = run.summary()
    assert summary["rows_produced"] == summary["rows_stored"] + summary["rows_dropped"] + summary["rows_lost"]
    readable = sum(
        run.tables()[name] for name in ("steps", "metrics", "layers", "modules", "logs", "spans", "gaps", "host")
    )
    assert summary["rows_stored"] == readable
    return summary


def fill(builder: RunBuilder, **options: Any) -> Any:
    process = builder.process(**options)
    process.steps(20)
    process.layers(["fc1.weight", "fc2.weight"])
    process.metric("accuracy", 0.5)
    process.log("hello")
    process.host_sample()
    return process


def test_a_live_process_counts_what_was_collected_and_names_what_waits(run: RunBuilder) -> None:
    process = fill(run)
    process.drain()
    process.steps(7)
    process.layers(["fc1.weight"])
    summary = books(Run(run.place))
    assert (summary["rows_produced"], summary["rows_waiting"]) == (25, 8)


def test_a_finished_process_balances_what_it_counted_against_the_files(run: RunBuilder) -> None:
    process = fill(run)
    process.seal()
    process.steps(5)
    process.unpackable()
    process.finish()
    summary = books(Run(run.place))
    assert (summary["rows_produced"], summary["rows_stored"], summary["drops"]) == (31, 30, {"not_a_number": 1})


def test_dropped_rows_are_told_apart_by_reason(run: RunBuilder) -> None:
    process = fill(run)
    process.unpackable()
    process.layers([f"layer{index}" for index in range(20_000)])
    for is_finished in (False, True):
        process.finish() if is_finished else process.drain()
        assert books(Run(run.place))["drops"] == {"not_a_number": 1, "too_large": 20_000}


def test_a_full_ring_drops_the_newest_rows(run: RunBuilder) -> None:
    process = run.process()
    process.steps(33_000)
    process.finish()
    summary = books(Run(run.place))
    assert summary["rows_produced"] == 33_000
    assert summary["drops"] == {"ring_full": 33_000 - summary["rows_stored"]}


def test_rows_retired_for_the_size_limit_count_as_dropped(run: RunBuilder) -> None:
    process = fill(run)
    process.seal()
    process.collector.retire(next(file for file in process.collector.sealed if file["table"] == "layers"))
    for is_finished in (False, True):
        if is_finished:
            process.finish()
        summary = books(Run(run.place))
        assert summary["drops"] == {"size_limit": 2}
        assert summary["rows"]["layers"] == 0


def test_a_slot_that_was_never_finished_is_lost(run: RunBuilder) -> None:
    process = fill(run)
    process.ring.slots.take()  # a thread that died between taking its slot and filling it
    process.steps(3)
    process.drain()
    process.collector.tap.skip_hole()
    process.drain()
    assert books(Run(run.place))["rows_lost"] == 1
    process.finish()
    assert books(Run(run.place))["rows_lost"] == 1


def test_rows_between_unfinished_ones_in_a_ring_are_all_read(tmp_path: Path) -> None:
    with RunBuilder(tmp_path / "run") as run:
        process = run.process("100-200", is_alive=False)
        process.steps(100)
        process.drain()
        for _ in range(3_000):
            process.ring.slots.take()
            process.steps(1)
        process.ring.slots.take()  # nothing is behind it: perhaps in the making
        ring = process.place.path / "ring"
    rows = read_ring(ring, [], SegmentRows(0))
    assert (rows.rows_by_table[STEPS.number], rows.holes) == (3_000, 3_000)


def test_a_missing_segment_counts_its_rows_as_lost(run: RunBuilder) -> None:
    process = fill(run)
    process.seal()
    process.steps(9)
    process.drain()
    process.segment.unlink()
    summary = books(Run(run.place))
    assert (summary["rows_lost"], summary["rows_stored"]) == (9, 25)


@pytest.mark.parametrize("damage", ["missing", "cut", "empty", "flipped"])
def test_a_damaged_parquet_file_costs_only_its_own_rows(run: RunBuilder, damage: str) -> None:
    process = fill(run)
    process.finish()
    path = process.place.path / "000001.steps.parquet"
    data = path.read_bytes()
    match damage:
        case "missing":
            path.unlink()
        case "cut":
            path.write_bytes(data[: len(data) // 2])
        case "empty":
            path.write_bytes(b"")
        case _:
            path.write_bytes(data[:40] + bytes([data[40] ^ 0xFF]) + data[41:])
    opened = Run(run.place)
    summary = books(opened)
    assert (summary["rows_lost"], summary["rows_stored"]) == (20, 5)
    assert opened.sql("SELECT count(*) AS n FROM steps").to_pylist() == [{"n": 0}]
    assert opened.sql("SELECT count(*) AS n FROM layers").to_pylist() == [{"n": 2}]
    assert opened.rows("SELECT rows_lost FROM processes").values == [(20,)]


def segment_rows(data: bytes) -> tuple[list[tuple[int, int, int]], int]:
    """The blocks of an undamaged segment as (begin, end, rows), and all its rows."""
    blocks, begin = [], 0
    for block in scan(memoryview(data)):
        blocks.append((begin, block.end, block.rows if block.is_batch else 0))
        begin = block.end
    return blocks, sum(rows for *_, rows in blocks)


def small_segment(run: RunBuilder) -> tuple[Path, bytes]:
    process = run.process(host_key="another-host")
    for _ in range(3):
        process.steps(2)
        process.layers(["a", "b"])
        process.log("hello")
        process.drain()
    path = process.segment
    data = path.read_bytes()
    process.close()
    return path, data


def quick_books(reader: ProcessReader) -> Ledger:
    """One process's ledger as it is now, after checking that it adds up."""
    reader.refresh()
    ledger = reader.ledger(SealChecker())
    assert ledger.produced == ledger.stored + ledger.dropped + ledger.lost
    return ledger


def test_a_segment_cut_anywhere_keeps_its_whole_blocks(run: RunBuilder) -> None:
    path, data = small_segment(run)
    blocks, total = segment_rows(data)
    reader = ProcessReader(ProcessPlace(path.parent))
    for size in range(0, len(data), 8):
        path.write_bytes(data[:size])
        whole = sum(rows for _, end, rows in blocks if end <= size)
        ledger = quick_books(reader)
        assert (ledger.stored, ledger.lost) == (whole, total - whole)


def test_a_segment_with_a_flipped_bit_anywhere_loses_only_the_block_it_hits(run: RunBuilder) -> None:
    path, data = small_segment(run)
    blocks, total = segment_rows(data)
    reader = ProcessReader(ProcessPlace(path.parent))
    for place in range(0, len(data), 16):
        damaged = bytearray(data)
        damaged[place] ^= 1 << (place // 16 % 8)
        path.write_bytes(damaged)
        hit = sum(rows for begin, end, rows in blocks if begin <= place < end)
        ledger = quick_books(reader)
        assert total - hit <= ledger.stored <= total  # a flip in padding costs nothing
        assert ledger.stored + ledger.lost == total


def test_a_cut_or_flipped_segment_can_be_queried(run: RunBuilder) -> None:
    path, data = small_segment(run)
    opened = Run(run.place)
    for place in range(0, len(data), 500):
        path.write_bytes(data[:place])
        assert opened.rows("SELECT count(*) FROM steps").values[0][0] in (0, 2, 4, 6)
        books(opened)
        path.write_bytes(data[:place] + bytes([data[place] ^ 0x20]) + data[place + 1 :])
        assert opened.rows("SELECT count(*) FROM steps").values[0][0] in (4, 6)
        books(opened)


def test_a_parquet_file_with_a_flipped_bit_anywhere_never_breaks_a_query(run: RunBuilder) -> None:
    process = fill(run)
    process.finish()
    path = process.place.path / "000001.layers.parquet"
    data = path.read_bytes()
    for place in range(0, len(data), 64):
        damaged = bytearray(data)
        damaged[place] ^= 0x10
        path.write_bytes(damaged)
        with Run(run.place) as opened:
            assert opened.rows("SELECT count(*), sum(norm) FROM layers").values[0] in ((0, None), (2, 2.0))
            assert books(opened)["rows"]["layers"] in (0, 2)


@pytest.mark.parametrize("has_checksum", [True, False])
def test_damage_that_only_the_parquet_reader_notices_is_found_by_the_query(run: RunBuilder, has_checksum: bool) -> None:
    process = fill(run)
    process.finish()
    if not has_checksum:
        manifest = process.place.manifest()
        for file in manifest["sealed"]:
            del file["crc32"]
        process.place.write_manifest(manifest)
    path = process.place.path / "000001.steps.parquet"
    data = bytearray(path.read_bytes())
    footer = len(data) - 8 - int.from_bytes(data[-8:-4], "little")
    data[footer : footer + 64] = bytes(64)
    path.write_bytes(data)
    opened = Run(run.place)
    assert opened.rows("SELECT count(*) FROM steps").values == [(0,)]
    assert books(opened)["rows_lost"] == 20


def test_a_segment_damaged_before_it_is_sealed_counts_its_rows_as_lost(run: RunBuilder) -> None:
    process = run.process()
    process.steps(4)
    process.drain()
    process.steps(3)
    process.drain()
    data = process.segment.read_bytes()
    process.segment.write_bytes(data[:-8])
    process.collector.seal()
    process.steps(2)
    process.drain()
    assert books(Run(run.place))["rows_lost"] == 3
    process.finish()
    assert books(Run(run.place))["rows_lost"] == 3


def test_a_process_without_a_manifest_is_read_all_the_same(run: RunBuilder) -> None:
    run.process()
    assert books(Run(run.place))["rows_produced"] == 0


def test_a_damaged_manifest_and_process_file_do_not_break_reading(run: RunBuilder) -> None:
    process = fill(run)
    process.drain()
    (process.place.path / "manifest.json").write_text("{broken")
    (process.place.path / "process.json").write_text("[]")
    assert Run(run.place).summary()["rows"]["steps"] == 20


def damaged_files(run: RunBuilder) -> list[str]:
    return [check.found for check in examine(Run(run.place)).checks if check.what == "damaged files"]


@pytest.mark.parametrize("damage", [b"", b"{broken", b"[]", None])
def test_a_damaged_manifest_is_named_and_its_copy_read(
    run: RunBuilder, monkeypatch: pytest.MonkeyPatch, damage: bytes | None
) -> None:
    monkeypatch.setattr(reading, "_STILL_S", 0.1)  # no drainer will come
    process = run.process(is_alive=False)
    process.metric("loss", 0.5)
    process.seal()
    process.metric("loss", 0.25)  # waits in the ring: its name is known to the manifest alone
    assert not damaged_files(run)
    path = process.place.path / "manifest.json"
    content = path.read_bytes()
    path.write_bytes(content.replace(b'"loss"', b'"cost"') if damage is None else damage)
    opened = Run(run.place)
    assert opened.rows("SELECT name, value FROM metrics ORDER BY value").values == [("loss", 0.25), ("loss", 0.5)]
    assert books(opened)["rows_lost"] == 0
    (said,) = damaged_files(run)
    assert said.startswith(f"{process.place.name}/manifest.json: not as written")


def test_a_drainer_that_finds_a_damaged_manifest_goes_on_by_its_copy(run: RunBuilder) -> None:
    process = run.process(is_alive=False)
    process.metric("loss", 0.5)
    process.seal()
    process.metric("loss", 0.25)
    path = process.place.path / "manifest.json"
    path.write_bytes(path.read_bytes().replace(b'"rows": 1', b'"rows": 7', 1))
    process.restart()
    process.finish()
    opened = Run(run.place)
    assert opened.rows("SELECT name, value FROM metrics ORDER BY value").values == [("loss", 0.25), ("loss", 0.5)]
    assert books(opened)["rows_lost"] == 0 and not damaged_files(run)


def test_a_file_of_facts_that_was_altered_is_named(run: RunBuilder) -> None:
    process = run.process(rank=1)
    path = process.place.path / "process.json"
    path.write_bytes(path.read_bytes().replace(b'"rank": 1', b'"rank": 3'))
    assert [said.partition(":")[0] for said in damaged_files(run)] == [f"{process.place.name}/process.json"]


def test_files_without_a_checksum_are_read_as_they_are(run: RunBuilder) -> None:
    process = fill(run, is_alive=False)
    process.finish()
    (process.place.path / "manifest.copy.json").unlink()
    for path in (
        process.place.path / "manifest.json",
        process.place.path / "process.json",
        run.place.path / "run.json",
    ):
        path.write_text(json.dumps(read_json(path)), encoding="utf-8")
    assert Run(run.place).summary()["rows"]["steps"] == 20 and not damaged_files(run)


@pytest.mark.parametrize("name", ["manifest.json", "process.json"])
def test_files_that_nothing_lists_any_more_are_a_problem(run: RunBuilder, name: str) -> None:
    process = fill(run, is_alive=False)
    process.finish()
    files = len(list(process.place.path.glob("*.parquet")))
    assert files and not examine(Run(run.place)).has_problem
    (process.place.path / name).unlink()
    (process.place.path / "manifest.copy.json").unlink()
    (found,) = [check for check in examine(Run(run.place)).checks if check.what == "manifests"]
    assert found.grade is Grade.PROBLEM and f"{files} files of {process.place.name} cannot be read" in found.found


def test_what_an_ended_run_has_not_is_not_to_come(run: RunBuilder) -> None:
    live = run.process()
    live.steps(1)
    live.drain()
    reasons = {one.table: one.why_empty for one in examine(Run(run.place)).tables}
    assert reasons["rounds"] == "no federated round was run" and reasons["host"].startswith("no sample yet")
    live.finish(State.ENDED)
    reasons = {one.table: one.why_empty for one in examine(Run(run.place)).tables}
    assert reasons["host"] == "no sample: one is taken each second"
    assert not any("collected" in why for why in reasons.values())  # its steps are there: nothing is still to come


def test_a_run_directory_that_vanishes_leaves_empty_tables(run: RunBuilder) -> None:
    fill(run).seal()
    opened = Run(run.place)
    shutil.rmtree(run.path)
    assert opened.rows("SELECT count(*) FROM steps").values == [(0,)]


def test_the_ending_is_told_in_words(run: RunBuilder) -> None:
    endings = {}
    for name, state, error, exit_code in (
        ("fine", State.ENDED, None, 0),
        ("raised", State.FAILED, "ValueError: boom", 1),
        ("worker", State.FAILED, "ValueError: Caught in worker 0.\nTraceback:\n  File a\nValueError: item 5\n", 1),
        ("caught", State.ENDED, None, 3),
        ("status", State.RUNNING, None, 3),
        ("signal", State.RUNNING, None, -9),
        ("silent", State.RUNNING, None, None),
    ):
        process = run.process(name, is_alive=False)
        if error:
            process.fail(error)
        if exit_code is not None:
            run.launcher(process.pid, exit_code, pid=dead_pid())
        process.finish(None if error else state)
    for row in Run(run.place).processes():
        endings[row["process"]] = (row["state"], row["ending"], row["exit_code"])
    assert endings == {
        "fine": ("ended", "ended", 0),
        "raised": ("failed", "uncaught ValueError: boom", 1),
        "worker": ("failed", "uncaught ValueError: Caught in worker 0. ... ValueError: item 5", 1),
        "caught": ("failed", "exit status 3", 3),
        "status": ("failed", "exit status 3", 3),
        "signal": ("killed", "killed by SIGKILL", -9),
        "silent": ("killed", "ended without a word: killed, by os._exit, or the machine went down", None),
    }
