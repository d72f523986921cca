"""Ring to segments to Parquet, exactly once, whatever interrupts it."""

from __future__ import annotations

import contextlib
import errno
import math
import os
import random
import subprocess
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from builders import T0_NS, ProcessBuilder, RunBuilder
from processes import checked_books

from stethos.record.collector import Collector
from stethos.record.layout import TABLE_END, TABLE_FACTS, HeaderWord
from stethos.schema import GPU, NULL_F64
from stethos.store.run import Run, open_run
from stethos.store.sealed import Sealed


class Crash(BaseException):
    """Stands for `kill -9`: nobody handles it."""


@pytest.fixture
def run(tmp_path: Path) -> Iterator[RunBuilder]:
    with RunBuilder(tmp_path / "runs" / "run") as made:
        yield made


def test_nothing_a_number_can_be_is_confused_with_another(run: RunBuilder) -> None:
    process = run.process()
    values = {"null": NULL_F64, "nan": math.nan, "inf": math.inf, "-inf": -math.inf, "zero": 0.0, "-zero": -0.0}
    for name, value in values.items():
        process.metric(name, value)
    process.drain()
    for is_sealed in (False, True):
        if is_sealed:
            process.finish()
        opened = Run(run.place)
        found = dict(opened.rows("SELECT name, value FROM metrics").values)
        assert found["null"] is None and math.isnan(found["nan"])
        assert (found["inf"], found["-inf"]) == (math.inf, -math.inf)
        assert math.copysign(1, found["zero"]) == 1 and math.copysign(1, found["-zero"]) == -1
        sql = "SELECT count(*) FILTER (value IS NULL), count(*) FILTER (isnan(value)), count(*) FROM metrics"
        assert opened.rows(sql).values == [(1, 1, 6)]


def test_names_survive_new_drainers(run: RunBuilder) -> None:
    """Each takes over where the last one was, between any two rows and across seals."""
    process = run.process()
    for turn in range(6):
        process.metric("always", turn)
        process.metric(f"new{turn}", turn)
        process.drain()
        process.metric(f"new{turn}", turn + 100)
        if turn % 3 == 1:
            process.seal()
        process.close()  # the next access opens another collector
    process.finish()
    sql = "SELECT name, list(value ORDER BY value) FROM metrics GROUP BY name ORDER BY name"
    found = Run(run.place).rows(sql).values
    assert found == [("always", [float(turn) for turn in range(6)]), *((f"new{t}", [t, t + 100.0]) for t in range(6))]


def test_names_with_any_text_are_kept(run: RunBuilder) -> None:
    process = run.process()
    names = ["", " ", "ünï", "'; DROP TABLE x", "a\nb", "\0", "x" * 300, "?"]
    for index, name in enumerate(names):
        process.metric(name, index)
    process.finish()
    found = Run(run.place).rows("SELECT name FROM metrics ORDER BY value").values
    assert [name for (name,) in found] == names


def test_notes_that_are_no_json_do_not_stop_the_rows(run: RunBuilder) -> None:
    process = run.process()
    for table, text in ((TABLE_FACTS, b'{"cut": "of'), (TABLE_END, b"[1]"), (TABLE_FACTS, b'{"kept": 1}')):
        process.ring.put_frame(table, 0, b"", (text,))
        process.metric("m", 1)
    process.finish()
    assert checked_books(Run(run.place))["rows"]["metrics"] == 3
    assert process.place.facts()["kept"] == 1


# Every interruption --------------------------------------------------------------------------------------


def work(process: ProcessBuilder, number: int) -> None:
    """A stretch of what a drainer does: rows, names, texts, notes, samples, a seal and a retirement."""
    for turn in range(3):
        process.steps(20)
        process.metric(f"name-{number}-{turn}", turn)
        process.layers(["a", "b", "c"], step=turn)
        process.log(f"message {number} {turn}")
    process.ring.put_frame(TABLE_FACTS, 0, b"", (b'{"noted": %d}' % number,))
    process.host_sample()
    process.drain()
    process.collector.sync()
    process.steps(5)
    process.drain()
    process.collector.seal()
    process.steps(5)
    process.drain()


class Interruptions:
    """Counts calls that change files, and interrupts one of them, before or after it has happened."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls = 0
        self.at = -1
        self.make: Callable[[], BaseException] = Crash
        self.is_after = False
        for owner, name in (
            (os, "pwritev"), (os, "ftruncate"), (os, "replace"), (os, "fsync"), (os, "fdatasync"), (os, "open"),
            (Path, "unlink"), (Collector, "_write_manifest"), (Collector, "_write_group"),
        ):  # fmt: skip
            monkeypatch.setattr(owner, name, self._wrap(getattr(owner, name)))

    def _wrap(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def interrupted(*args: Any, **kwargs: Any) -> Any:
            is_due = self.calls == self.at
            self.calls += 1
            if is_due and not self.is_after:
                raise self.make()
            result = original(*args, **kwargs)
            if is_due:
                raise self.make()
            return result

        return interrupted


@pytest.mark.parametrize("is_after", [False, True], ids=["before", "after"])
def test_a_drainer_killed_at_any_change_to_a_file_neither_loses_nor_doubles_a_row(
    tmp_path: Path, is_after: bool
) -> None:
    number = crashes = 0
    while True:
        with RunBuilder(tmp_path / f"run-{number}") as run, pytest.MonkeyPatch.context() as monkeypatch:
            process = run.process()
            process.steps(1)
            process.drain()
            interruptions = Interruptions(monkeypatch)
            interruptions.at, interruptions.is_after = number, is_after
            try:
                work(process, number)
                process.finish()
                is_over = True
            except Crash:
                is_over = False
                crashes += 1
            interruptions.at = -1
            if not is_over:
                process._collector = None  # as if it had never been
                if "ended" not in process.place.manifest():
                    process.finish()
            check_rows(run, number)
        if is_over:
            break
        number += 1
    assert crashes == number > 40


def check_rows(run: RunBuilder, number: int) -> None:
    """Whatever was put is there once, and the books are right. (Without an engine: there are many of these.)"""
    opened = Run(run.place)
    (books,) = opened.processes()
    assert books["rows_produced"] == books["rows_stored"] and not books["rows_dropped"] and not books["rows_lost"]
    sealed = opened.readers()[0].sealed
    assert sum(file.rows for file in sealed) == books["rows_stored"]
    steps = _column(sealed, "steps", "step")
    assert steps == list(range(len(steps)))
    messages = _column(sealed, "logs", "message")
    assert messages == [f"message {number} {turn}" for turn in range(len(messages))]


def _column(sealed: Sequence[Sealed], table: str, column: str) -> list[object]:
    files = sorted(file.path for file in sealed if file.table == table)
    return [value for path in files for value in pq.read_table(path)[column].to_pylist()]


def test_a_disk_full_at_any_change_to_a_file_is_got_over(tmp_path: Path) -> None:
    """The same collector goes on, and tries the same again."""
    number = 0
    while True:
        with RunBuilder(tmp_path / f"run-{number}") as run, pytest.MonkeyPatch.context() as monkeypatch:
            process = run.process()
            process.steps(1)
            process.drain()
            interruptions = Interruptions(monkeypatch)
            interruptions.at = number
            interruptions.make = lambda: OSError(errno.ENOSPC, "No space left on device")
            with contextlib.suppress(OSError):
                work(process, number)
            with contextlib.suppress(OSError):
                process.finish()
            calls, interruptions.at = interruptions.calls, -1
            if "ended" not in process.place.manifest():
                process.finish()
            check_rows(run, number)
        if calls <= number:
            break
        number += 1
    assert number > 40


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    path = tmp_path / "disk"
    path.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=14m", "tmpfs", path], check=True)
    yield path
    subprocess.run(["umount", "-l", path], check=True)


def test_fifty_times_a_full_disk_and_every_row_is_there_once(small_disk: Path) -> None:
    """A real one, full at random moments and to random bytes, while rows are stored and segments sealed."""
    chance = random.Random(1)
    filler = small_disk / "filler"
    failures = 0
    with RunBuilder(small_disk / "run") as run:
        process = run.process()
        for turn in range(50):
            with filler.open("wb", buffering=0) as file:
                free = os.statvfs(small_disk).f_bfree * 4096 - chance.choice([0, 4096, 8192, 65536, 300_000])
                os.posix_fallocate(file.fileno(), 0, max(free, 1))
            process.steps(chance.randrange(300))
            process.log(chance.randbytes(chance.randrange(30_000)).hex())
            process.ring.put_frame(TABLE_FACTS, 0, b"", (b'{"turn": %d}' % turn,))
            for action in chance.choices(["drain", "seal", "restart"], weights=[4, 3, 1], k=3):
                try:
                    match action:
                        case "drain":
                            process.drain()
                        case "seal":
                            process.collector.seal()
                        case _:
                            process.close()
                            assert process.collector
                except OSError as error:
                    failures += error.errno == errno.ENOSPC
            filler.unlink()
            if turn % 5 == 0:
                process.drain()
        process.finish()
        opened = Run(run.place)
        summary = checked_books(opened)
        assert (summary["rows_lost"], summary["rows_dropped"]) == (0, 0)
        count, distinct, last = opened.rows("SELECT count(*), count(DISTINCT step), max(step) FROM steps").values[0]
        assert count == distinct == last + 1 and summary["rows"]["logs"] == 50
        assert process.place.facts()["turn"] == 49
    assert failures > 20


def test_the_counters_of_a_dead_process_are_in_its_manifest_and_its_ring_is_gone(run: RunBuilder) -> None:
    process = run.process()
    process.steps(3)
    process.ring.set_word(HeaderWord.SPENT_NS, 123)
    process.finish()
    manifest = process.place.manifest()
    assert manifest["counters"]["spent_ns"] == 123 and manifest["counters"]["slots"] == 3
    assert sorted(path.name for path in process.place.path.iterdir()) == [
        "000001.steps.parquet",
        "manifest.copy.json",
        "manifest.json",
        "process.json",
    ]


def test_samples_of_gpus_are_rows_of_their_own(run: RunBuilder) -> None:
    process = run.process()
    process.steps(2)
    process.host_sample()
    names = [column.name for column in GPU.columns]
    for device in (0, 1):
        process.collector.add_sample(T0_NS + device, {**dict.fromkeys(names, 0.5), "device": device}, GPU)
    process.collector.add_sample(T0_NS + 2, {**dict.fromkeys(names, NULL_F64), "device": 0}, GPU)
    process.finish()
    with open_run(run.path) as reader:
        rows = reader.rows("SELECT process, device, busy_share, power_w FROM gpu ORDER BY t_ns").values
        assert [tuple(row) for row in rows] == [("p0", 0, 0.5, 0.5), ("p0", 1, 0.5, 0.5), ("p0", 0, None, None)]
        summary = reader.summary()
        assert summary["rows_produced"] == summary["rows_stored"] == 2 + 1 + 3 and summary["rows_lost"] == 0


def test_rows_are_stored_as_long_as_a_block_fits_and_the_gap_names_the_disk(small_disk: Path) -> None:
    """A ring full of rows on a disk with half a megabyte: what fits is kept, what comes later is, too."""
    filler = small_disk / "filler"
    with RunBuilder(small_disk / "run") as run:
        process = run.process()
        process.steps(1)
        process.drain()
        for turn in range(20_000):
            process.steps(1)
            if turn % 4 == 0:
                process.layers(["a", "b", "c"], step=turn)
        with filler.open("wb", buffering=0) as file:
            os.posix_fallocate(file.fileno(), 0, os.statvfs(small_disk).f_bfree * 4096 - (1 << 19))
        with pytest.raises(OSError, match="No space"):
            for _ in range(1000):
                process.drain()
        stored = Run(run.place).summary()["rows_stored"]
        assert stored > 2_000
        filler.unlink()
        while process.collector.tap.has_rows():
            process.drain()
        process.finish()
    run_ = Run(run.place)
    assert checked_books(run_)["rows"]["steps"] == 20_001
    assert [row[0] for row in run_.rows("SELECT what FROM gaps WHERE reason LIKE 'the disk was full%'").values] == [
        "disk"
    ]
