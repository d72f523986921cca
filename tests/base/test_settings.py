"""What the user chose, as it is written on a command line or in the environment."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from stethos.errors import UsageError
from stethos.settings import (
    DEFAULT_HANG_S,
    Settings,
    clean_environment,
    from_environment,
    hang_after_s,
    parse_bytes,
    parse_capture,
    parse_preset,
    parse_share,
    rank_and_world,
    registry_dir,
    shared_run_name,
)

JOB = ("RANK", "WORLD_SIZE", "SLURM_PROCID", "SLURM_NTASKS", "SLURM_STEP_NUM_TASKS", "SLURM_JOB_ID", "SLURM_STEP_ID",
       "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "PMI_RANK", "PMI_SIZE")  # fmt: skip


@pytest.fixture
def nothing_set(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    for name in [*JOB, *(name for name in os.environ if name.startswith("STETHOS_"))]:
        monkeypatch.delenv(name, raising=False)
    return monkeypatch


@pytest.mark.parametrize(
    ("text", "size"),
    [("7", 7), ("7b", 7), ("2kB", 2048), ("500MB", 500 << 20), ("1.5gb", 3 << 29), ("4 GB", 4 << 30), ("1TB", 1 << 40)],
)
def test_a_size_is_a_number_with_a_unit(text: str, size: int) -> None:
    assert parse_bytes(text) == size


@pytest.mark.parametrize("text", ["", "GB", "4XB", "4GBB", "four", "-1GB", "0", "0.1", "inf", "nan", "1e400"])
def test_what_is_no_size_is_said(text: str) -> None:
    with pytest.raises(UsageError, match=r"not a size: .*\nhint: write 500MB or 4GB"):
        parse_bytes(text)


def test_a_share_is_a_number_or_per_cent() -> None:
    assert [parse_share(text) for text in ("1%", "0.01", "0", "100%")] == [0.01, 0.01, 0, 1]
    for text in ("", "much", "101%", "-0.1", "nan", "inf"):
        with pytest.raises(UsageError, match=r"write 1% or 0\.01"):
            parse_share(text)


def test_choices_that_do_not_exist_are_answered_with_those_that_do() -> None:
    assert (parse_preset("deep"), parse_capture("all"), parse_capture(""), parse_capture(None)) == (
        "deep", "all", None, None,
    )  # fmt: skip
    with pytest.raises(UsageError, match="choose one of light, standard, deep"):
        parse_preset("full")
    with pytest.raises(UsageError, match="choose one of rounds, suspects, all"):
        parse_capture("some")


@pytest.mark.parametrize(
    "chosen",
    [
        Settings(Path("/runs/a")),
        Settings(
            Path("/runs/a b"), "deep", 0.123456789, 5 << 20, Path("/scratch"), hang_after_s=7.5, hang_times=3.0,
            capture="suspects", capture_bytes=12,
        ),
    ],
    ids=["default", "all"],
)  # fmt: skip
def test_a_child_has_the_choices_of_its_parent(nothing_set: pytest.MonkeyPatch, chosen: Settings) -> None:
    environment: dict[str, str] = {}
    chosen.to_environment(environment)
    for name, value in environment.items():
        nothing_set.setenv(name, value)
    assert from_environment() == chosen
    assert not [name for name in clean_environment() if name.startswith("STETHOS_")]


def test_only_the_first_child_is_the_main_one(nothing_set: pytest.MonkeyPatch) -> None:
    nothing_set.setenv("STETHOS_MAIN", "1")
    assert from_environment().is_main and not from_environment().is_main


@pytest.mark.parametrize(
    ("variables", "found"),
    [
        ({}, (None, None)),
        ({"RANK": "3", "WORLD_SIZE": "8"}, (3, 8)),
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "2"}, (0, 2)),
        ({"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "4"}, (1, 4)),
        ({"RANK": "1", "WORLD_SIZE": "2", "SLURM_PROCID": "0", "SLURM_NTASKS": "1"}, (1, 2)),
        ({"RANK": "none", "PMI_RANK": "5"}, (5, None)),
    ],
)
def test_ranks_come_from_whoever_started_the_job(
    nothing_set: pytest.MonkeyPatch, variables: dict[str, str], found: tuple[int | None, int | None]
) -> None:
    for name, value in variables.items():
        nothing_set.setenv(name, value)
    assert rank_and_world() == found


def test_tasks_of_one_batch_job_meet_in_one_run(nothing_set: pytest.MonkeyPatch) -> None:
    assert shared_run_name() is None
    nothing_set.setenv("SLURM_JOB_ID", "4711")
    nothing_set.setenv("SLURM_NTASKS", "1")
    assert shared_run_name() is None
    nothing_set.setenv("SLURM_NTASKS", "4")
    assert shared_run_name() == "slurm-4711-0"


def test_a_time_that_is_none_leaves_the_default(nothing_set: pytest.MonkeyPatch) -> None:
    nothing_set.setenv("STETHOS_HANG_AFTER", "soon")
    assert hang_after_s() == DEFAULT_HANG_S


def test_without_a_runtime_directory_the_registry_is_the_users_own(nothing_set: pytest.MonkeyPatch) -> None:
    nothing_set.setenv("XDG_RUNTIME_DIR", "/nowhere")
    assert registry_dir() == Path("/tmp") / f"stethos-{os.getuid()}"
