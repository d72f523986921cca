"""Jobs of real ranks in one of which a bit flips: rank, layer and step are named, and healthy jobs are let alone."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch  # noqa: F401  the children import it, too: from a warm cache

BESIDE = Path(sys.executable).parent
PROGRAM = Path(__file__).parents[1] / "programs" / "corruption.py"
STEPS, AT = 120, 80


def found_in(fault: str, ranks: int, directory: Path, *options: str) -> list[dict[str, Any]]:
    """What is found in such a job, but that one rank was slow on a busy machine."""
    job = subprocess.run(
        [BESIDE / "stethos", "run", "--quiet", *options, "--dir", directory, "--name", "job",
         BESIDE / "torchrun", "--standalone", "--nproc-per-node", str(ranks), PROGRAM, fault, str(STEPS)],
        capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip
    assert job.returncode == 0, job.stderr[-3000:]
    done = subprocess.run(
        [BESIDE / "stethos", "diagnose", "-t", directory / "job", "--json"],
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    found: list[dict[str, Any]] = json.loads(done.stdout)["findings"]
    return [one for one in found if one["name"] not in ("rank-straggler",)]


def test_three_ranks_vote_on_whose_weight_is_wrong(tmp_path: Path) -> None:
    first = found_in("weight", 3, tmp_path)[0]
    assert (first["name"], first["kind"], first["ranks"]) == ("replica-divergence", "weights-changed", [2])
    assert first["layers"] == ["5.weight"] and "rank 2" in first["title"]
    assert AT <= first["first"] <= 96 + 1  # the next multiple of 16, where checksums are taken
    assert first["detail"]["equal_until"] <= AT


def test_of_two_ranks_it_is_said_that_one_is_wrong(tmp_path: Path) -> None:
    first = found_in("weight", 2, tmp_path)[0]
    assert (first["name"], first["kind"], first["ranks"]) == ("replica-divergence", "weights-changed", [0, 1])
    assert first["layers"] == ["5.weight"] and "one of the two ranks" in first["title"]


def test_a_wrong_activation_is_found_by_repeating_the_step(tmp_path: Path) -> None:
    first = found_in("activation", 2, tmp_path, "--sdc", "10%")[0]
    assert (first["name"], first["kind"], first["ranks"]) == ("silent-corruption", "activation", [1])
    assert (first["layers"], first["first"], first["detail"]["where"]) == (["2"], AT, "training")


@pytest.mark.parametrize("options", [(), ("--sdc", "10%")])
def test_healthy_ranks_are_not_accused(options: tuple[str, ...], tmp_path: Path) -> None:
    assert [one["title"] for one in found_in("none", 3, tmp_path, *options)] == []
