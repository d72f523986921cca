"""Memory of the trainer, and the time to import the package."""

from __future__ import annotations

import subprocess
import sys
import time
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
               "chunks": scale.memory_steps // chunk}  # fmt: skip
        children[name] = Child("trainer", job)
    rss_mb = {name: [value / 1e6 for value in child.finish()["rss_bytes"]] for name, child in children.items()}
    wait_for_drainer(scratch / f"memory-{STANDARD}" / RUN_NAME)
    bare, ours = rss_mb[BARE], rss_mb[STANDARD]
    tenth = len(ours) // 10
    rows = []
    for at in (0, -1):
        steps = chunk if at == 0 else scale.memory_steps
        label = f"more than bare after {steps:,} steps (bare: {bare[at]:.0f} MB)"
        rows.append(_judged(label, ours[at] - bare[at], _MORE_TARGET_MB))
    label = f"growth of bare, step {(tenth + 1) * chunk:,} to {scale.memory_steps:,}"
    rows.append([label, f"{bare[-1] - bare[tenth]:.1f} MB", "", ""])
    rows.append(_judged("growth of `standard` over the same steps", ours[-1] - ours[tenth], _GROWTH_TARGET_MB))
    return Grid("Memory of the trainer (RSS)", ["what", "RSS", "target", "reached"], rows)


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
