"""Processes that read runs for pages: what they answer, when they are replaced, and how they end."""

from __future__ import annotations

import json
import os
import subprocess
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from builders import RunBuilder
from processes import commands_under, wait_until

from stethos.errors import QueryError, RunNotFoundError
from stethos.record.place import RunPlace
from stethos.store.run import Run
from stethos.web import readers as module
from stethos.web.readers import Readers
from stethos.web.run_cache import RunCache
from stethos.wiring import command_line

NAMES = "SELECT DISTINCT name FROM metrics"
SLOW = "SELECT sum(hash(a.range * b.range)) FROM range(10000000) a, range(1000000) b"


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    for name in ("one", "two"):
        with RunBuilder(tmp_path / name) as builder:
            process = builder.process(is_alive=False)
            process.metric(f"metric of {name}", 1.0)
            process.finish()
    return tmp_path


@pytest.fixture
def readers() -> Iterator[Readers]:
    with closing(Readers()) as readers:
        yield readers


def names_in(readers: Readers, run: Path) -> list[str]:
    names: list[str] = json.loads(readers.ask([run], "values", sql=NAMES))["values"]
    return names


def children() -> set[int]:
    return {child.pid for child, words in commands_under(os.getpid()).items() if "stethos.web.reading" in words}


def test_runs_are_read_in_another_process_that_stays(readers: Readers, runs: Path) -> None:
    assert names_in(readers, runs / "one") == ["metric of one"]
    first = children()
    assert names_in(readers, runs / "two") == ["metric of two"]
    assert len(first) == 1 and children() == first


def test_a_reader_that_was_begun_ahead_is_the_one_that_answers(readers: Readers, runs: Path) -> None:
    readers.begin()
    first = children()
    readers.begin()
    assert names_in(readers, runs / "one") == ["metric of one"]
    assert len(first) == 1 and children() == first


def test_a_reader_is_replaced_after_its_time(readers: Readers, runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names_in(readers, runs / "one")
    (first,) = children()
    monkeypatch.setattr(module, "_LASTS_S", 0.0)
    assert names_in(readers, runs / "one") == ["metric of one"]
    wait_until(lambda: len(children()) == 2, "its successor")
    assert [reader.process._process.pid for reader in readers._readers if reader.process._process] == [first]
    monkeypatch.setattr(module, "_WARM_S", 0.0)
    names_in(readers, runs / "one")
    (second,) = children()
    monkeypatch.setattr(module, "_LASTS_S", 1e9)
    assert second != first and names_in(readers, runs / "two") == ["metric of two"] and children() == {second}


def test_one_run_does_not_wait_for_another(readers: Readers, runs: Path) -> None:
    said: list[str] = []

    def read_slowly() -> None:
        try:
            readers.ask([runs / "one"], "values", sql=SLOW)
        except QueryError as error:
            said.append(error.message)

    slow = threading.Thread(target=read_slowly)
    slow.start()
    wait_until(lambda: any(reader.is_busy for reader in readers._readers), "the slow query")
    assert names_in(readers, runs / "two") == ["metric of two"] and len(children()) == 2
    readers.close()  # does not wait for it either
    slow.join()
    assert len(said) == 1 and not children()
    with pytest.raises(QueryError, match="stop"):
        names_in(readers, runs / "one")


def test_a_second_reader_goes_when_it_is_not_used(
    readers: Readers, runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = [readers._take("one"), readers._take("two")]
    for reader in held:
        readers._give_back(reader, ())
    wait_until(lambda: len(children()) == 2, "both processes")  # whose words are not there at once
    monkeypatch.setattr(module, "_IDLE_S", 0.0)
    names_in(readers, runs / "one")
    assert len(children()) == 1


def test_what_is_wrong_is_told_as_what_it_is(readers: Readers, runs: Path) -> None:
    with pytest.raises(QueryError, match="no column"):
        readers.ask([runs / "one"], "values", sql="SELECT nothing FROM metrics")
    with closing(RunCache(runs)) as cache, pytest.raises(RunNotFoundError):
        cache.read("three", "ranges")


def test_a_reader_that_dies_is_begun_anew(readers: Readers, runs: Path) -> None:
    names_in(readers, runs / "one")
    (first,) = children()
    process = readers._readers[0].process._process
    assert process is not None and process.pid == first
    process.kill()
    process.wait()
    assert names_in(readers, runs / "one") == ["metric of one"]


def test_a_run_that_takes_the_place_of_another_is_read_itself(readers: Readers, runs: Path) -> None:
    assert names_in(readers, runs / "one") == ["metric of one"]
    (runs / "one").rename(runs / "away")
    (runs / "two").rename(runs / "one")
    assert names_in(readers, runs / "one") == ["metric of two"]


def test_no_program_of_ours_imports_from_the_current_directory(
    readers: Readers, runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may be a run that somebody sent, with a `json.py` beside the rows."""
    marked = runs / "marked"
    for name in ("json", "psutil", "duckdb", "pyarrow", "argparse", "stethos"):
        (runs / "one" / f"{name}.py").write_text(f"open({str(marked)!r}, 'a').write(__name__)", encoding="utf-8")
    monkeypatch.chdir(runs / "one")
    assert names_in(readers, runs / "one") == ["metric of one"]
    with Run(RunPlace(runs / "one")) as run:
        assert run.sql("SELECT DISTINCT name FROM metrics").num_rows == 1
    subprocess.run([*command_line(), "ls", "--dir", str(runs)], check=True, stdout=subprocess.DEVNULL)
    assert not marked.exists()
