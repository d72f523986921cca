"""Memory of the trainer, and the time to import the package."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks.child import ROOT, Child, environment, wait_for_drainer
from benchmarks.estimate import median, quartiles
from benchmarks.report import Grid, say, verdict
from benchmarks.scale import Scale
from benchmarks.variant import BARE, RUN_NAME, STANDARD

_MORE_TARGET_MB = 30.0
_GROWTH_TARGET_MB = 2.0
_IMPORT_TARGET_MS = 150.0
_EARLY_STEPS = 2_000
_STATEMENTS = ("pass", "import stethos", "import stethos; stethos.watch", "import numpy")


def measure(scale: Scale, scratch: Path) -> list[Grid]:
    return [_memory(scale, scratch), _import_time(scale)]


def _memory(scale: Scale, scratch: Path) -> Grid:
    say(f"footprint: {scale.memory_steps:,} steps of the MLP, bare and observed side by side")
    chunk = min(_EARLY_STEPS, scale.memory_steps // 5)
    children = {}
    for name in (BARE, STANDARD):
        directory = scratch / f"memory-{name}"
        directory.mkdir()
        job = {"workload": "mlp", "variant": name, "directory": str(directory), "warmup": 0, "steps": chunk,
               "chunks": scale.memory_steps // chunk, "limit_s": 600}  # fmt: skip
        children[name] = Child("trainer", job)
    results = {name: child.finish() for name, child in children.items()}
    wait_for_drainer(scratch / f"memory-{STANDARD}" / RUN_NAME)
    rss, own = ({name: _mb(results[name], of) for name in results} for of in (_all_memory, _own_memory))
    rows = []
    for at, steps in ((0, chunk), (-1, scale.memory_steps)):
        bare_mb = rss[BARE][at]
        label = f"RSS, more than bare after {steps:,} steps (bare: {bare_mb:.0f} MB)"
        rows.append(_judged(label, rss[STANDARD][at] - bare_mb, _MORE_TARGET_MB))
    tenth = len(own[BARE]) // 10
    span = f"step {(tenth + 1) * chunk:,} to {scale.memory_steps:,}"
    rows.append([f"growth of bare, without mapped files, {span}", f"{own[BARE][-1] - own[BARE][tenth]:.1f} MB", "", ""])
    rows.append(_judged("the same of `standard`", own[STANDARD][-1] - own[STANDARD][tenth], _GROWTH_TARGET_MB))
    notes = ["Mapped files are left out of the growth: the ring has a fixed size, fills once and is then used again."]
    return Grid("Memory of the trainer", ["what", "memory", "target", "reached"], rows, notes)


def _mb(result: dict[str, list[int]], of: Callable[[int, int], int]) -> list[float]:
    """Memory at the end of every chunk."""
    return [of(rss, mapped) / 1e6 for rss, mapped in zip(result["rss_bytes"], result["mapped_bytes"], strict=True)]


def _all_memory(rss: int, mapped: int) -> int:
    return rss


def _own_memory(rss: int, mapped: int) -> int:
    return rss - mapped


def _judged(what: str, value: float, target: float) -> list[str]:
    return [what, f"{value:.1f} MB", f"{target:.0f} MB", verdict(value, target)]


def _import_time(scale: Scale) -> Grid:
    say("footprint: import time")
    times: dict[str, list[float]] = {statement: [] for statement in _STATEMENTS}
    for _ in range(scale.import_rounds):
        for statement, found in times.items():
            start = time.perf_counter()
            subprocess.run([sys.executable, "-c", statement], env=environment(), cwd=ROOT, check=True)
            found.append((time.perf_counter() - start) * 1e3)
    empty = median(times["pass"])
    rows = []
    for statement, found in times.items():
        low, high = quartiles(found)
        is_judged = statement.startswith("import stethos")
        net = median(found) - empty
        rows.append([
            f"`python -c '{statement}'`", f"{median(found):.0f} ms", f"{low:.0f} to {high:.0f}", f"{net:.0f} ms",
            f"{_IMPORT_TARGET_MS:.0f} ms" if is_judged else "", verdict(net, _IMPORT_TARGET_MS) if is_judged else "",
        ])  # fmt: skip
    return Grid(
        f"Import, median of {scale.import_rounds}",
        ["command", "wall", "quartiles", "without Python itself", "target", "reached"],
        rows,
    )
