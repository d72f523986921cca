"""Three tries with GPT-2 on a GPU: what is sampled and at what price, where a NaN is said to begin, every step sampled.

python -m benchmarks.gpt2_experiments [--steps 300] [--batch 6]

Each training is a process of its own, bare and under `stethos run` in turns.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import stethos
from benchmarks.child import wait_for_drainer

_PROGRAM = Path(__file__).with_name("gpt2_program.py")
_COMMAND = [sys.executable, "-c", "from stethos.cli.main import console; console()"]
_SAMPLED = (
    "SELECT count(DISTINCT step) FILTER (kind = 'gradient'), count(DISTINCT step) FILTER (kind = 'weight') FROM layers"
)


def trained(scratch: Path, name: str, job: dict[str, object], options: list[str] | None) -> tuple[float, Path]:
    """Milliseconds per step, and the run; bare without options."""
    words = [sys.executable, str(_PROGRAM), json.dumps(job)]
    if options is not None:
        words = [*_COMMAND, "run", "--dir", str(scratch), "--name", name, *options, str(_PROGRAM), json.dumps(job)]
    done = subprocess.run(words, cwd=scratch, stdout=subprocess.PIPE, text=True, check=True)
    if options is not None:
        wait_for_drainer(scratch / name)
    return float(done.stdout.split()[0]), scratch / name


def told(path: Path, *words: str) -> str:
    """What a command prints about a run."""
    done = subprocess.run([*_COMMAND, *words, "-t", str(path)], stdout=subprocess.PIPE, text=True, check=False)
    return done.stdout


def compared(scratch: Path, label: str, job: dict[str, object], options: list[str], turns: int) -> None:
    """Bare and observed in turns; prints the medians, what was sampled and what `doctor` says of the price."""
    bare, observed, path = [], [], scratch
    for turn in range(turns):
        bare.append(trained(scratch, "", job, None)[0])
        took_ms, path = trained(scratch, f"{label}-{turn}", job, options)
        observed.append(took_ms)
    with stethos.open_run(path) as run:
        ((gradients, weights),) = run.rows(_SAMPLED).values
    price = next((line.strip() for line in told(path, "doctor").splitlines() if "training time" in line), "no price")
    ratio = statistics.median(observed) / statistics.median(bare)
    print(f"{label}: bare {bare} ms, observed {observed} ms, {ratio:.4f} times; gradients of {gradients}, weights of "
          f"{weights} steps of {job['steps']}; doctor: {price}", flush=True)  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--batch", type=int, default=6)
    parser.add_argument("--turns", type=int, default=2)
    asked = parser.parse_args()
    plain: dict[str, object] = {"steps": asked.steps, "batch": asked.batch}
    with tempfile.TemporaryDirectory(prefix="stethos-gpt2-", ignore_cleanup_errors=True) as named:
        scratch = Path(named)
        compared(scratch, "default", plain, [], asked.turns)
        _, path = trained(scratch, "broken", {**plain, "nan_at": asked.steps - 20}, [])
        print(told(path, "diagnose"), flush=True)
        compared(scratch, "20-percent", plain, ["--overhead", "20%"], asked.turns)
        compiled = {**plain, "compile": True}
        compared(scratch, "compiled", compiled, [], asked.turns)
        compared(scratch, "compiled-20-percent", compiled, ["--overhead", "20%"], asked.turns)


if __name__ == "__main__":
    main()
