"""How long the reading commands take, from the shell's point of view."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

from benchmarks.child import ROOT, environment
from benchmarks.estimate import median, quartiles, ratio_of
from benchmarks.made_run import MadeRun
from benchmarks.report import Grid, say, verdict
from benchmarks.scale import Scale

_MAIN = "from stethos.cli.main import console; console()"  # what the installed `stethos` does
_SQL = "SELECT step, loss FROM steps ORDER BY step DESC LIMIT 5"
_BASE = 'python -c "import pyarrow, duckdb"'
_TARGET = 2.0


def measure(scale: Scale, scratch: Path) -> list[Grid]:
    runs = scratch / "small-runs"
    finished, live = runs / "finished", runs / "live"
    _small_run(finished).finish()
    growing = _small_run(live)
    try:
        return [_latencies(scale, runs, finished, live)]
    finally:
        growing.close()


def _small_run(path: Path) -> MadeRun:
    run = MadeRun(path)
    run.step_writer()(2_000)
    run.metric_writer()(500)
    run.layer_writer(60)(3_000)
    run.drain()
    return run


def _latencies(scale: Scale, runs: Path, finished: Path, live: Path) -> Grid:
    stethos = [sys.executable, "-c", _MAIN]
    commands = {
        _BASE: [sys.executable, "-c", "import pyarrow, duckdb"],
        "stethos query, finished run": [*stethos, "query", _SQL, "-t", str(finished)],
        "stethos query, live run": [*stethos, "query", _SQL, "-t", str(live)],
        "stethos ls": [*stethos, "ls"],
        "stethos tables": [*stethos, "tables", "-t", str(finished)],
        "stethos doctor": [*stethos, "doctor", "-t", str(live)],
        "stethos --help": [*stethos, "--help"],
        "python -c pass": [sys.executable, "-c", "pass"],
    }
    seen = environment({"STETHOS_DIR": str(runs)})
    times: dict[str, list[float]] = {name: [] for name in commands}
    for round_ in range(scale.command_rounds):
        say(f"commands: round {round_ + 1} of {scale.command_rounds}")
        for name, command in commands.items():
            start = time.perf_counter()
            subprocess.run(command, env=seen, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
            times[name].append((time.perf_counter() - start) * 1e3)
    rows = []
    for name, found in times.items():
        low, high = quartiles(found)
        ratio = ratio_of(found, times[_BASE])
        is_judged = name.startswith("stethos query")
        rows.append([
            f"`{name}`", f"{median(found):.0f} ms", f"{low:.0f} to {high:.0f}", f"{ratio.value:.2f}",
            ratio.interval, f"{_TARGET:.1f}" if is_judged else "",
            verdict(ratio.value, _TARGET, low=ratio.low, high=ratio.high) if is_judged else "",
        ])  # fmt: skip
    return Grid(
        f"Reading commands on small runs, median of {scale.command_rounds} in turns",
        ["command", "wall", "quartiles", "x imports", "95 % interval", "target", "reached"],
        rows,
        [f"`x imports` is against {_BASE}: what any tool on these two libraries pays before it begins."],
    )
