"""What fingerprints cost beside averaging the same updates, and what observing costs a round of the lab."""

from __future__ import annotations

import gc
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch

from benchmarks.lab_turn import observing
from benchmarks.report import Grid, say, verdict
from benchmarks.scale import Scale

# A million parameters in seven tensors.
SHAPES = ((900, 784), (900,), (256, 900), (256,), (256, 256), (10, 256), (10,))
_TARGET = 0.25


def measure(scale: Scale, scratch: Path) -> list[Grid]:
    return [_fingerprints(scale), observing(scale, scratch)]


def _fingerprints(scale: Scale) -> Grid:
    """Each size in a process of its own, since memory that was freed before changes what averaging costs."""
    rows = []
    sizes = (50, 200) if scale.is_quick else (50, 200, 1000)
    for clients in sizes:
        say(f"fingerprints of {clients} updates")
        line = subprocess.run(
            [sys.executable, "-m", "benchmarks.federated", str(clients), "3" if scale.is_quick else "7"],
            check=True, capture_output=True, text=True,
        ).stdout.split()  # fmt: skip
        average, finger, compare, ratio, low, high, memory = map(float, line)
        rows.append(
            [
                f"{clients} updates", f"{average:.1f}", f"{finger:.1f}", f"{compare:.1f}", f"{ratio:.2f}",
                f"{low:.2f} to {high:.2f}", f"{memory:.1f}", str(_TARGET) if clients == 50 else "",
                verdict(ratio, _TARGET, low=low, high=high) if clients == 50 else "",
            ]
        )  # fmt: skip
    headings = [
        "1 M parameters", "FedAvg ms", "fingerprints ms", "comparison ms", "x FedAvg", "range", "MB more", "target",
        "reached",
    ]  # fmt: skip
    notes = [
        "FedAvg: `sum(weight * state[key].float() for state in states)` as people write it, interleaved with the "
        "fingerprints, medians of CPU time; the ratio is that of fingerprints and comparison together. `MB more`: "
        "growth of resident memory from the first fingerprint on, beyond the updates; one update is 4 MB. FedDebug's "
        "paper reports 48 % on top of aggregation."
    ]
    return Grid("Fingerprints beside FedAvg", headings, rows, notes)


def main(clients: int, repeats: int) -> None:
    """In a process of its own: milliseconds of averaging, of fingerprints, of the comparison; ratios; memory."""
    from stethos.federate.comparison import History, compare
    from stethos.federate.fingerprint import Fingerprint, UpdateBuffer, global_row
    from stethos.federate.sketch import SketchPlan
    from stethos.federate.structure import Structure

    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(0)
    base = {f"layer{n}": torch.randn(shape, generator=generator) for n, shape in enumerate(SHAPES)}
    noise = {name: 0.01 * torch.randn(value.shape, generator=generator) for name, value in base.items()}
    updates = [{name: value + noise[name] for name, value in base.items()} for _ in range(clients)]
    gc.collect()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    plan = SketchPlan(Structure.of(base))
    row = global_row(plan, base)

    def average() -> object:
        return {name: sum(1 / clients * state[name].float() for state in updates) for name in base}

    def fingerprint() -> list[Fingerprint]:
        buffer = UpdateBuffer(plan)
        for number, state in enumerate(updates):
            buffer.add(state, str(number), row)
        return buffer.prints()

    def timed(work: Callable[[], object]) -> float:
        start = time.process_time()
        work()
        return (time.process_time() - start) * 1e3

    prints = fingerprint()
    compare(plan, prints, History())
    memory = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    averages, fingers, compares = [], [], []
    average()
    for _ in range(repeats):
        averages.append(timed(average))
        fingers.append(timed(fingerprint))
        compares.append(timed(lambda: compare(plan, prints, History())))
    ratios = [(b + c) / a for a, b, c in zip(averages, fingers, compares, strict=True)]
    middles = [statistics.median(values) for values in (averages, fingers, compares, ratios)]
    print(*middles, min(ratios), max(ratios), memory)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
