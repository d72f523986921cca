"""Jobs of two ranks in which one does something else, under `stethos run torchrun`."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

BESIDE = Path(sys.executable).parent
PROGRAM = Path(__file__).parents[1] / "programs" / "rank_faults.py"


def found_in(fault: str, directory: Path) -> list[dict[str, Any]]:
    """The root causes that are found in such a job."""
    subprocess.run(
        [BESIDE / "stethos", "run", "--quiet", "--dir", directory, "--name", "job",
         BESIDE / "torchrun", "--standalone", "--nproc-per-node", "2", PROGRAM, fault],
        capture_output=True, timeout=300, check=False,
    )  # fmt: skip
    done = subprocess.run(
        [BESIDE / "stethos", "diagnose", "-t", directory / "job", "--json"],
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    found: list[dict[str, Any]] = json.loads(done.stdout)["findings"]
    return found


@pytest.mark.parametrize("fault", ["none", "sharded"])
def test_ranks_that_do_as_they_should_are_not_accused(fault: str, tmp_path: Path) -> None:
    found = found_in(fault, tmp_path)  # on a busy machine one rank may be slower than the other
    assert [one["title"] for one in found if one["name"] != "rank-straggler"] == []


@pytest.mark.parametrize(
    ("fault", "name", "kind", "ranks"),
    [
        ("bypass", "replica-divergence", "gradients-not-exchanged", [0, 1]),
        ("clip", "replica-divergence", "gradients-differ", [1]),
        ("flip", "replica-divergence", "weights-changed", [0, 1]),
        ("dtype", "collective-mismatch", "collective-mismatch", [1]),
        ("skipped", "collective-mismatch", "collective-mismatch", [1]),
        ("early", "process-failure", "failed", [1]),
    ],
)
def test_the_fault_and_its_rank_are_named(fault: str, name: str, kind: str, ranks: list[int], tmp_path: Path) -> None:
    first = found_in(fault, tmp_path)[0]
    assert (first["name"], first["kind"], first["ranks"]) == (name, kind, ranks), first["title"]
