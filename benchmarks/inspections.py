"""What looking at the program costs: the same training recorded with inspections and without, in turns.

python -m benchmarks.inspections [--pairs N] [--short] [--only mlp|cnn|transformer ...] [--write docs/benchmarks]

Each training is forked from one process that has torch, so that all have the same memory and nothing to load; the
figure is the processor time of the process from the first step to the last. Compared are pairs of neighbours.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from pathlib import Path

import numpy as np
import torch

from benchmarks.report import Grid, machine, say, section_text, write_section
from benchmarks.workload import WORKLOADS
from stethos.observe import boot
from stethos.observe.inspection import Inspector

_STEPS = {"mlp": (2_000, 16_000), "cnn": (100, 800), "transformer": (8, 40)}
_TARGET = 1.02


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.inspections", description=__doc__.partition("\n")[0])
    parser.add_argument("--pairs", type=int, default=9)
    parser.add_argument("--short", action="store_true", help="only the shorter training of each kind")
    parser.add_argument("--only", nargs="+", choices=sorted(_STEPS))
    parser.add_argument("--write", type=Path, metavar="PLACE", help="put the table onto this page, or a page of these")
    arguments = parser.parse_args()
    print(machine(), flush=True)
    torch.set_num_threads(1)
    rows = []
    with tempfile.TemporaryDirectory(prefix="stethos-inspections-", ignore_cleanup_errors=True) as place:
        for name in arguments.only or _STEPS:
            for steps in _STEPS[name][: 1 if arguments.short else None]:
                rows.append(_row(name, steps, arguments.pairs, Path(place)))
                say(" ".join(rows[-1]))
    headings = ["training", "steps", "CPU ms without", "x without", "95 % interval", "own figure"]
    notes = [
        f"Medians of {arguments.pairs} pairs, each in another order than the one before; intervals from resampled "
        f"pairs. Target {_TARGET}. The own figure is what inspections took by their own clock, as a share."
    ]
    grid = Grid("Recorded with and without inspections", headings, rows, notes)
    print("", grid, sep="\n", flush=True)
    if arguments.write:
        command = f"python -m benchmarks.inspections --pairs {arguments.pairs}" + " --short" * arguments.short
        write_section(arguments.write, "inspections", section_text([grid], command))


def _row(name: str, steps: int, pairs: int, place: Path) -> list[str]:
    _trained(name, steps, True, place)  # the first one pages everything in
    found = []
    for pair in range(pairs):
        order = (True, False) if pair % 2 else (False, True)
        both = {is_inspected: _trained(name, steps, is_inspected, place) for is_inspected in order}
        found.append((both[True], both[False]))
    ratios = np.array([on["cpu_ms"] / off["cpu_ms"] for on, off in found])
    draws = np.random.default_rng(0).choice(ratios, (2_000, len(ratios)))
    low, high = np.percentile(np.median(draws, axis=1), [2.5, 97.5])
    own = float(np.median([on["inspected_ms"] / on["cpu_ms"] for on, _ in found]))
    plain_ms = float(np.median([off["cpu_ms"] for _, off in found]))
    return [
        name, f"{steps:,}", f"{plain_ms:,.0f}", f"{np.median(ratios):.4f}", f"{low:.4f} to {high:.4f}",
        f"{own:.2%}",
    ]  # fmt: skip


def _trained(name: str, steps: int, is_inspected: bool, place: Path) -> dict[str, float]:
    reader, writer = os.pipe()
    pid = os.fork()
    if not pid:
        os.close(reader)
        status = 1
        try:
            os.write(writer, json.dumps(_train(name, steps, is_inspected, place)).encode())
            status = 0
        finally:
            os._exit(status)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        answer = pipe.read()
    os.waitpid(pid, 0)
    return json.loads(answer)  # type: ignore[no-any-return]


def _train(name: str, steps: int, is_inspected: bool, place: Path) -> dict[str, float]:
    import stethos

    torch.manual_seed(0)
    if not is_inspected:
        for method in ("install", "account", "pass_began"):
            setattr(Inspector, method, lambda *_: None)
    training = WORKLOADS[name]()
    stethos.watch(dir=place, name=f"run-{os.getpid()}")
    recording = boot.current()
    assert recording is not None and recording.torch_hooks is not None
    inspector = recording.torch_hooks.steps.inspector
    began_ns = time.process_time_ns()
    training.train(steps, None)
    cpu_ns = time.process_time_ns() - began_ns
    return {"cpu_ms": cpu_ns / 1e6, "inspected_ms": inspector._spent_ns / 1e6}


if __name__ == "__main__":
    main()
