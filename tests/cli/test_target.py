"""Which run a command takes: the newest of this directory, one that is named, and never a stranger's unasked."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from builders import T0_NS, RunBuilder

import stethos
from stethos.cli.main import main
from stethos.errors import LiveError, RunNotFoundError
from stethos.live.target import resolve


@pytest.fixture
def far(tmp_path: Path, runs_dir: Path, own_registry: Path) -> Iterator[RunBuilder]:
    """A live run in another directory, newer than anything here; it is this very process."""
    with RunBuilder(tmp_path / "other" / "far", started_ns=T0_NS + 9) as run:
        process = run.process()
        process.steps(3)
        process.drain()
        own_registry.mkdir()
        (own_registry / str(os.getpid())).write_text(str(process.place.path))
        yield run


@pytest.fixture
def near(runs_dir: Path) -> Iterator[RunBuilder]:
    """A run of this directory that has ended."""
    with RunBuilder(runs_dir / "near", started_ns=T0_NS) as run:
        process = run.process(is_alive=False)
        process.steps(5)
        process.finish()
        yield run


def test_reading_takes_the_run_of_this_directory(
    far: RunBuilder, near: RunBuilder, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["query", "SELECT count(*) AS steps FROM steps", "--json"]) == 0
    assert '"steps": 5' in capsys.readouterr().out
    with stethos.open_run() as run:
        assert run.name == "near"


def test_a_run_elsewhere_is_taken_when_asked_for_and_named_with_its_directory(
    far: RunBuilder, near: RunBuilder, capsys: pytest.CaptureFixture[str]
) -> None:
    for words in (["--anywhere"], ["-t", str(os.getpid())]):
        assert main(["doctor", *words]) == 0
        shown = capsys.readouterr()
        assert shown.err.splitlines()[0] == f"run far of {far.path.parent}" and "run far" in shown.out
    assert main(["doctor", "-t", str(far.path)]) == 0
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("command", [["lr"], ["clip", "1.0"], ["gc"], ["eval", "1"], ["checkpoint", "x.pt"], ["repl"]])
def test_commands_that_act_refuse_a_run_elsewhere_that_was_not_named(
    far: RunBuilder, near: RunBuilder, command: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(command) == LiveError.exit_code
    said = capsys.readouterr().err
    assert "no process of near is alive" in said and f"-t {far.path}" in said
    assert main([*command, "--anywhere"]) == 2
    assert "--anywhere" in capsys.readouterr().err


def test_all_and_a_rank_alone_mean_a_run_of_this_directory(far: RunBuilder, near: RunBuilder) -> None:
    assert resolve("all").run == near.place and resolve("all", anywhere=True).run == far.place
    with pytest.raises(LiveError, match="no process of near with rank 0"):
        resolve("rank:0")


def test_an_undo_elsewhere_must_be_named(far: RunBuilder, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["actions", "--undo", "1", "--anywhere"]) == 2
    assert "give -t RUN" in capsys.readouterr().err


def test_an_empty_directory_has_no_run_of_somebody_else(far: RunBuilder, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["diagnose"]) == RunNotFoundError.exit_code
    assert f"hint: live in another directory: -t {far.path}" in capsys.readouterr().err


def test_the_target_may_stand_after_the_command(near: RunBuilder, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "near"]) == 0 and "run near" in capsys.readouterr().out
    assert main(["doctor", "nera"]) == RunNotFoundError.exit_code
    assert "did you mean near?" in capsys.readouterr().err
    assert main(["doctor", "near", "near"]) == 2 and main(["-t", "near", "doctor", "near"]) == 2
    assert main(["doctor", "near", "--jsn"]) == 2


def test_the_name_of_a_run_is_no_word_of_the_command(near: RunBuilder, capsys: pytest.CaptureFixture[str]) -> None:
    """`stethos prove RUN` must not look for a client of that name in another run."""
    assert main(["tables", "near"]) == 0 and "rows of run near" in capsys.readouterr().out
    assert main(["tables", str(near.path)]) == 0 and "rows of run near" in capsys.readouterr().out
    assert main(["prove", "near"]) == 0 and "run near: no open finding" in capsys.readouterr().out
    assert main(["lr", "near"]) == LiveError.exit_code and "no process of near is alive" in capsys.readouterr().err
    assert main(["clip", "near"]) == LiveError.exit_code and "no process of near is alive" in capsys.readouterr().err
    for name in ("steps", "3"):  # what the command takes for itself comes first
        with RunBuilder(near.path.parent / name) as run:
            run.process().finish()
    assert main(["tables", "steps"]) == 0 and "loss" in capsys.readouterr().out
    assert main(["prove", "3"]) == 2 and "no finding 3 is about a client" in capsys.readouterr().err
    assert main(["tables", "nera"]) == 2 and "no table 'nera'" in capsys.readouterr().err
