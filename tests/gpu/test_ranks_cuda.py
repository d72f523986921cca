"""Several ranks on one real GPU: which of them has a wrong bit, and shards of FSDP2."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

import stethos
from stethos.guard import Guard
from stethos.observe.cuda.fused import Kernels

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")

PROGRAM = Path(__file__).parents[1] / "programs" / "gpu_ranks.py"
STETHOS = [sys.executable, "-c", "from stethos.cli.main import console; console()"]


@pytest.fixture(scope="module", autouse=True)
def kernel() -> None:
    Kernels(Guard(strict=True).run).compile(torch.float32)


def trained(directory: Path, kind: str, ranks: int, wrong_at: int = -1, *, is_observed: bool = True) -> str:
    """What the job prints: the digest of its weights."""
    job = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    job += [str(PROGRAM), kind, str(wrong_at)]
    observed = [*STETHOS, "run", "--quiet", "--overhead", "20%", "--dir", str(directory), "--name", "job", *job]
    done = subprocess.run(
        observed if is_observed else job, cwd=directory, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


@pytest.mark.parametrize("wrong_at", [-1, 100])
def test_a_wrong_bit_in_one_of_three_replicas_is_found_with_its_rank(tmp_path: Path, wrong_at: int) -> None:
    trained(tmp_path, "ddp", 3, wrong_at)
    found = [one for one in stethos.diagnose(tmp_path / "job").findings if one.name == "replica-divergence"]
    told = [(one.kind, one.subject.ranks, one.subject.first, one.subject.layers) for one in found]
    assert told == ([] if wrong_at < 0 else [("weights-changed", (1,), 128, ("2.weight",))])


def test_shards_are_read_and_end_with_the_same_weights(tmp_path: Path) -> None:
    bare = trained(tmp_path, "fsdp", 1, is_observed=False)
    assert trained(tmp_path, "fsdp", 1) == bare
    with stethos.open_run(tmp_path / "job") as run:
        ((steps, layers),) = run.rows(
            "SELECT count(DISTINCT step), count(DISTINCT layer) FROM layers WHERE kind = 'gradient' AND norm > 0"
        ).values
        gaps = run.rows("SELECT what, reason FROM gaps").values
    assert steps > 150 and layers == 6 and gaps == []
