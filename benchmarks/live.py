"""How long live commands take, and how long the training they look into stands still for them."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from benchmarks import live_cost
from benchmarks.child import ROOT, Child, environment
from benchmarks.estimate import median, quartiles
from benchmarks.report import Grid, say, verdict
from benchmarks.scale import Scale

_MAIN = "from stethos.cli.main import console; console()"  # what the installed `stethos` does
_STALL_TARGET_MS = 20.0
_SETTLE_S = 0.1


@dataclass(frozen=True)
class Trial:
    """A command line, and the wall time it should stay within."""

    label: str
    command: Callable[[int], list[str]]
    target_ms: float | None
    is_ours: bool = True


def _ours(*words: str) -> Callable[[int], list[str]]:
    return lambda pid: [sys.executable, "-c", _MAIN, "-t", str(pid), *words]


def _probing(*words: str) -> Callable[[int], list[str]]:
    beside = Path(sys.executable).parent / "probing"
    name = str(beside) if beside.exists() else shutil.which("probing") or "probing"
    return lambda pid: [name, "-t", str(pid), *words]


_STACK_SQL = "SELECT func, file, lineno, depth FROM python.backtrace ORDER BY depth LIMIT 10"
_TRIALS = [
    Trial("stethos backtrace", _ours("backtrace"), 150.0),
    Trial("stethos query, the stack", _ours("query", _STACK_SQL), 300.0),
    Trial("stethos query, steps", _ours("query", "SELECT step, loss FROM steps ORDER BY step DESC LIMIT 5"), 300.0),
    Trial("stethos eval, without the wait", _ours("eval", "--json", "optimizer.param_groups[0]['lr']"), 200.0),
    Trial("stethos lr", _ours("lr"), 200.0),
    Trial("stethos backtrace --native", _ours("backtrace", "--native"), None),
    Trial("nothing, for as long", lambda pid: ["sleep", "0.15"], None),
    Trial("probing backtrace", _probing("backtrace"), None, False),
    Trial("probing query", _probing("query", _STACK_SQL), None, False),
    Trial("probing eval", _probing("eval", "optimizer.param_groups[0]['lr'] *= 1"), None, False),
]


def measure(scale: Scale, scratch: Path) -> list[Grid]:
    times: dict[str, list[float]] = {}
    stalls: dict[str, list[float]] = {}
    runtime = scratch / "runtime"
    runtime.mkdir(mode=0o700)
    for is_ours in (True, False):
        if not is_ours and find_spec("probing") is None:
            continue
        extra = {"XDG_RUNTIME_DIR": str(runtime), **({} if is_ours else {"PROBING": "1"})}
        notes = scratch / f"notes-{is_ours}"
        job = {"is_ours": is_ours, "runs": str(scratch / "runs"), "notes": str(notes)}
        target = Child("live_target", job, extra)
        try:
            pid = target.wait_for_result()["pid"]
            for round_ in range(scale.command_rounds):
                say(f"live: round {round_ + 1} of {scale.command_rounds}")
                for trial in _TRIALS:
                    if trial.is_ours == is_ours:
                        wall_ms, stall_ms = _try(trial, pid, notes, environment(extra))
                        times.setdefault(trial.label, []).append(wall_ms)
                        stalls.setdefault(trial.label, []).append(stall_ms)
        finally:
            target.close()
    return [_grid(scale, times, stalls), *live_cost.measure(scale, scratch)]


def _try(trial: Trial, pid: int, notes: Path, seen: dict[str, str]) -> tuple[float, float]:
    """Wall time of one command, and the target's longest step while it ran and a little after."""
    start_ns = time.monotonic_ns()
    done = subprocess.run(trial.command(pid), env=seen, cwd=ROOT, check=True, capture_output=True, text=True)
    wall_ms = (time.monotonic_ns() - start_ns) / 1e6
    if trial.label.startswith("stethos eval"):
        wall_ms -= json.loads(done.stdout)["waited_ms"]
    time.sleep(_SETTLE_S)
    entries = np.fromfile(notes, dtype=np.int64).reshape(-1, 2)
    inside = entries[(entries[:, 0] >= start_ns) & (entries[:, 0] < time.monotonic_ns())]
    return wall_ms, float(inside[:, 1].max(initial=0)) / 1e6


def _grid(scale: Scale, times: dict[str, list[float]], stalls: dict[str, list[float]]) -> Grid:
    noise = median(stalls["nothing, for as long"])
    rows = []
    for trial in _TRIALS:
        if trial.label not in times:
            continue
        low, high = quartiles(times[trial.label])
        wall, stall = median(times[trial.label]), median(stalls[trial.label])
        is_judged = trial.target_ms is not None
        rows.append([
            f"`{trial.label}`" if "nothing" not in trial.label else trial.label, f"{wall:.0f} ms",
            f"{low:.0f} to {high:.0f}", f"{trial.target_ms:.0f} ms" if trial.target_ms is not None else "",
            verdict(wall, trial.target_ms) if trial.target_ms is not None else "", f"{stall:.1f} ms",
            f"{max(stalls[trial.label]):.1f} ms",
            verdict(stall - noise, _STALL_TARGET_MS) if is_judged else "",
        ])  # fmt: skip
    return Grid(
        f"Live commands on a training of 2 ms steps, median of {scale.command_rounds} in turns",
        ["command", "wall", "quartiles", "target", "reached", "longest step", "worst", "<= 20 ms over noise"],
        rows,
        [
            "`wall` is the whole command with the start of Python. `longest step` is the training's, while the command "
            "ran and 0.1 s after; `nothing` is the noise. The eval waits for a step, which is not counted.",
        ],
    )
