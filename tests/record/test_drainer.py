"""The drainer's rounds: what it does with rings that are dead, damaged or stuck, and that it always ends."""

from __future__ import annotations

import errno
import os
import signal
import struct
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from builders import ProcessBuilder, RunBuilder
from processes import (
    Counter,
    checked_books,
    collected,
    drainers_of,
    finish,
    metric_values,
    start,
    start_program,
    wait_until,
)

from stethos.record import drainer
from stethos.record.drainer import Drainer
from stethos.record.layout import FRAMES_BASE, SLOT_BYTES, SLOTS, SLOTS_BASE, DropReason, HeaderWord, State
from stethos.record.place import RunPlace
from stethos.store.run import Run, open_run


@pytest.fixture
def run(tmp_path: Path) -> Iterator[RunBuilder]:
    with RunBuilder(tmp_path / "runs" / "run") as made:
        yield made


def visit(one: Drainer, times: int = 1) -> bool:
    """That many rounds, each of them due for everything."""
    is_going_on = True
    for _ in range(times):
        one._next_drain = one._next_sync = 0.0
        is_going_on = one.visit(time.monotonic())
    return is_going_on


def test_a_live_process_is_drained_and_a_dead_one_is_finished(run: RunBuilder) -> None:
    live, dead = run.process(), run.process(is_alive=False)
    live.steps(3)
    dead.steps(4)
    one = Drainer(run.place)
    assert visit(one)
    assert live.place.ring().exists() and not dead.place.ring().exists()
    summary = checked_books(Run(run.place))
    assert summary["rows"]["steps"] == 7
    assert [process["state"] for process in Run(run.place).processes()] == ["running", "killed"]
    live.ring.close(State.ENDED)
    live.ring.set_word(HeaderWord.RELEASED, 1)
    assert visit(one)  # one round more: a thread may be writing its last row
    live.steps(1)
    assert not visit(one) and not live.place.ring().exists()
    assert checked_books(Run(run.place))["rows"]["steps"] == 8


def test_a_process_that_says_it_ended_is_kept_until_it_is_dead(run: RunBuilder) -> None:
    """Its exit handlers may still log."""
    process = run.process()
    process.ring.close(State.ENDED)
    one = Drainer(run.place)
    assert visit(one, 3) and process.place.ring().exists()
    process.steps(1)
    assert visit(one) and checked_books(Run(run.place))["rows"]["steps"] == 1


@pytest.mark.parametrize("is_alive", [False, True])
def test_a_damaged_ring_costs_what_waits_in_it_and_nothing_after(run: RunBuilder, is_alive: bool) -> None:
    process = run.process(is_alive=is_alive)
    process.steps(5)
    process.layers(["a", "b"])
    one = Drainer(run.place)
    if is_alive:
        visit(one)
    process.steps(6)
    head = process.ring.word(HeaderWord.FRAMES_HEAD)
    process.layers(["a", "b", "c"])
    struct.pack_into("<I", process.ring._map, FRAMES_BASE + head, 0)
    visit(one, 12)
    if is_alive:
        process.steps(7)
        process.layers(["a"])
        assert visit(one)
    else:
        assert not visit(one)
    summary = checked_books(Run(run.place))
    assert summary["rows_lost"] == (9 if is_alive else 16)
    assert summary["rows"]["steps"] == (12 if is_alive else 0) and summary["rows"]["layers"] == (3 if is_alive else 0)
    assert "DamagedRingError" in (run.path / "drainer.log").read_text()
    assert (run.path / "drainer.log").stat().st_mode & 0o777 == 0o600


def test_a_segment_that_cannot_be_sealed_stays_as_it_is_and_the_drainer_ends(
    run: RunBuilder, monkeypatch: pytest.MonkeyPatch
) -> None:
    process = run.process(is_alive=False)
    process.steps(5)

    def fail(*args: object) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr("stethos.record.collector.seal_segment", fail)
    one = Drainer(run.place)
    assert visit(one, 9)
    assert not visit(one)
    assert checked_books(Run(run.place))["rows"]["steps"] == 5
    assert "a bug" in (run.path / "drainer.log").read_text()


def test_a_disk_that_cannot_sync_for_a_while_is_no_failure(run: RunBuilder, monkeypatch: pytest.MonkeyPatch) -> None:
    """As over quota on a network file system, where the error comes with the sync."""
    process = run.process()

    def fail(descriptor: int) -> None:
        raise OSError(errno.EDQUOT, "Disk quota exceeded")

    one = Drainer(run.place)
    with monkeypatch.context() as patch:
        patch.setattr(os, "fdatasync", fail)
        for _ in range(25):
            process.steps(1)
            visit(one)
    process.steps(1)
    visit(one)
    assert checked_books(Run(run.place))["rows"]["steps"] == 26 and not (run.path / "drainer.log").exists()


def test_a_drainer_killed_after_the_last_manifest_leaves_nothing_lying_about(run: RunBuilder) -> None:
    process = run.process(is_alive=False)
    process.steps(5)
    ring = process.place.ring().read_bytes()
    process.finish()
    process.place.ring().write_bytes(ring)  # it was killed before it could remove it
    process.place.segment(2).write_bytes(b"")
    visit(Drainer(run.place))
    assert not process.place.ring().exists() and not process.place.segment(2).exists()
    assert checked_books(Run(run.place))["rows"]["steps"] == 5


def test_a_deleted_run_ends_its_drainer(run: RunBuilder) -> None:
    process = run.process()
    process.steps(1)
    one = Drainer(run.place)
    assert visit(one)
    run.path.rename(run.path.with_name("elsewhere"))
    one.serve()
    assert not run.path.exists() and not one.collectors


def test_newcomers_are_those_that_joined_after_the_last_look(run: RunBuilder) -> None:
    one = Drainer(run.place)
    run.process(is_alive=False)
    visit(one)
    assert not one.has_newcomers()
    run.process()
    assert one.has_newcomers()


def test_a_slot_left_unfinished_is_stepped_over_after_a_while(tmp_path: Path) -> None:
    """By a real drainer; the rows behind it come out, and it counts as lost."""
    code = f"""
import sys, stethos
from stethos.observe.boot import current_session
stethos.watch(dir={str(tmp_path)!r}, name="run")
stethos.log(i=0)
current_session().ring.slots.take()
stethos.log(i=1)
stethos.log(i=2)
sys.stdin.readline()
"""
    program = start("-c", code)
    wait_until(lambda: (tmp_path / "run" / "run.json").exists(), "the run")
    with open_run(tmp_path / "run") as live:
        wait_until(lambda: live.tables()["metrics"] == 3, "the rows behind the hole")
        assert checked_books(live)["rows_lost"] == 1
    finish(program, "end\n")
    opened, books = collected(tmp_path / "run")
    assert metric_values(opened) == [0, 1, 2] and books["rows_lost"] == 1


def test_a_slot_is_stepped_over_only_if_it_is_the_same_that_was_unfinished_before(
    run: RunBuilder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Threads that are about to finish theirs come and go."""
    monkeypatch.setattr(drainer, "HOLE_S", 0.0)
    process = run.process()
    one = Drainer(run.place)
    for _ in range(3):
        index = process.ring.slots.take()
        process.steps(1)
        visit(one)  # seen unfinished
        _finish_slot(process, index)
        visit(one)
    summary = checked_books(Run(run.place))
    assert (summary["rows"]["steps"], summary["rows_lost"]) == (3, 0)


def _finish_slot(process: ProcessBuilder, index: int) -> None:
    """The thread that had taken a slot comes to write it: a void one, which is no row."""
    offset = SLOTS_BASE + index % SLOTS * SLOT_BYTES
    process.ring._map[offset + 8 : offset + 10] = bytes(2)
    process.ring.drop(DropReason.NOT_A_NUMBER)
    struct.pack_into("<q", process.ring._map, offset, index + 1)


def test_a_drainer_asked_to_stop_stores_what_is_there_and_goes(tmp_path: Path) -> None:
    counter = Counter(tmp_path / "counter")
    program = start_program("count_rows.py", tmp_path, "run", counter.path, "5000")
    wait_until(lambda: counter.value == 5000, "the rows")
    (drainer,) = wait_until(lambda: drainers_of(tmp_path / "run"), "the drainer")
    wait_until(lambda: RunPlace(tmp_path / "run").processes()[0].manifest(), "the drainer at work")
    os.kill(drainer, signal.SIGTERM)
    wait_until(lambda: not drainers_of(tmp_path / "run"), "its end")
    program.kill()
    finish(program)
    opened, books = _collect(tmp_path / "run")
    assert metric_values(opened) == list(range(5000)) and books["rows_lost"] == 0


def _collect(path: Path) -> tuple[Run, dict[str, object]]:
    open_run(path).close()
    return collected(path)


def test_a_ring_that_cannot_be_opened_does_not_keep_the_drainer_for_ever(
    run: RunBuilder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a disk that stays full: its ring stays for whoever comes next."""
    process = run.process(is_alive=False)

    def fail(*args: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    one = Drainer(run.place)
    with monkeypatch.context() as patch:
        patch.setattr("stethos.record.collector.SegmentWriter", fail)
        assert not visit(one) and not one.has_newcomers()
    assert process.place.ring().exists()
    assert not visit(one) and not process.place.ring().exists()  # there is room again


def test_a_run_made_anew_under_the_same_name_is_left_to_its_own_drainer(run: RunBuilder) -> None:
    one = Drainer(run.place)
    one.lock = os.open(run.place.drainer_lock(one.host), os.O_RDWR | os.O_CREAT)
    assert not one._is_orphaned()
    run.place.drainer_lock(one.host).unlink()
    run.place.drainer_lock(one.host).touch()
    one.serve()
    assert one.is_stopping
    os.close(one.lock)
