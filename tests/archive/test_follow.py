"""A run is archived while it goes on: to its last row, and over a store that fails for a while."""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from builders import RunBuilder
from processes import DEADLINE_S, wait_until

import stethos
from stethos.archive.address import parse_address
from stethos.archive.committer import Outcome
from stethos.archive.follow import follow, note_of
from stethos.errors import ArchiveError
from stethos.record.place import host_key, start_ticks, write_facts


class Follower(threading.Thread):
    """An archiver at work, and what it said."""

    def __init__(self, run: RunBuilder, archive: Path) -> None:
        super().__init__(daemon=True)
        self.run_place, self.archive = run.place, parse_address(archive)
        self.done: list[tuple[Outcome, bool]] = []
        self.failed: list[ArchiveError] = []

    def run(self) -> None:
        follow(
            self.run_place, self.archive, 0.05, tell=None,
            done=lambda outcome, is_going: self.done.append((outcome, is_going)), failed=self.failed.append,
        )  # fmt: skip


@pytest.fixture
def launcher(run: RunBuilder) -> Iterator[subprocess.Popen[bytes]]:
    """What the run goes on with; killed, the run is over."""
    with subprocess.Popen(["sleep", "600"]) as child:
        facts = {"pid": child.pid, "start_ticks": start_ticks(child.pid), "host_key": host_key(), "started_ns": 1}
        write_facts(run.path / f"launcher-{child.pid}.json", facts)
        yield child
        child.kill()


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def steps_in(address: Path) -> int:
    with stethos.open_run(address) as run:
        return int(run.rows("SELECT count(*) FROM steps").values[0][0])


def test_rows_that_are_sealed_after_the_end_are_archived(
    run: RunBuilder, launcher: subprocess.Popen[bytes], tmp_path: Path
) -> None:
    process = run.process("p0", is_alive=False)
    process.steps(7)
    process.seal()
    archiver = Follower(run, tmp_path / "archive")
    archiver.start()
    wait_until(lambda: archiver.done, "the first copy")
    launcher.kill()
    launcher.wait()
    wait_until(lambda: not archiver.done[-1][1], "a copy after the end")
    assert archiver.is_alive() and steps_in(tmp_path / "archive" / "demo") == 7
    process.steps(3)
    process.finish()
    archiver.join(DEADLINE_S)
    assert not archiver.is_alive() and archiver.done[-1][0].is_complete
    assert steps_in(tmp_path / "archive" / "demo") == 10


def test_a_store_that_fails_over_the_end_is_tried_again(
    run: RunBuilder, launcher: subprocess.Popen[bytes], tmp_path: Path
) -> None:
    process = run.process("p0", is_alive=False)
    process.steps(7)
    process.finish()
    assert note_of(run.place) is None
    place = tmp_path / "archive"
    place.write_text("in the way")
    archiver = Follower(run, place)
    archiver.start()
    wait_until(lambda: archiver.failed, "a failure")
    launcher.kill()
    launcher.wait()
    failures = len(archiver.failed)
    wait_until(lambda: len(archiver.failed) > failures + 1, "failures after the end")
    note = note_of(run.place)
    assert archiver.is_alive() and note is not None and note.reason and note.address == str(place)
    place.unlink()
    archiver.join(DEADLINE_S)
    assert not archiver.is_alive() and steps_in(place / "demo") == 7
    note = note_of(run.place)
    assert note is not None and note.reason is None


def test_of_a_run_that_is_over_the_first_failure_is_the_last(run: RunBuilder, tmp_path: Path) -> None:
    run.process("p0", is_alive=False).finish()
    (tmp_path / "archive").write_text("in the way")
    with pytest.raises(ArchiveError):
        follow(run.place, parse_address(tmp_path / "archive"), 60.0, tell=None, done=print, failed=print)
