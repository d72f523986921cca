"""What a row costs, what the drainer takes, and how long a group-by over many rows is."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

import psutil

from benchmarks.child import Child, run_child, wait_for_drainer
from benchmarks.estimate import median, quartiles
from benchmarks.report import Grid, say, verdict
from benchmarks.scale import Scale

_RATE = 5_000
_SETTLE_S = 2.0
_PUT_TARGET_NS, _DRAIN_TARGET_NS, _VECTOR_TARGET_NS = 700.0, 300.0, 100.0
_DRAINER_CPU_TARGET, _DRAINER_RSS_TARGET_MB = 0.02, 200.0
_GROUP_BY_TARGET_MS = 150.0


def measure(scale: Scale, scratch: Path) -> list[Grid]:
    return [_row_cost(scale, scratch), _drainer(scale, scratch), _group_by(scale, scratch)]


# Cost of a row ---------------------------------------------------------------------------------------


def _row_cost(scale: Scale, scratch: Path) -> Grid:
    say("store: cost of a row")
    directory = scratch / "rows"
    directory.mkdir()
    found = run_child("row_cost", {"directory": str(directory), "rounds": scale.row_rounds})
    wait_for_drainer(directory / "watched")
    ring, session = found["ring"], found["session"]
    ways = [
        ("`metrics` by Ring.writer", ring["metrics"]["put_ns"], ring["metrics"]),
        ("`metrics` by Session.put_metric", session["Session.put_metric"], ring["metrics"]),
        ("`metrics` by stethos.log", session["stethos.log"], ring["metrics"]),
        ("`steps` by Ring.writer", ring["steps"]["put_ns"], ring["steps"]),
    ]
    rows = []
    for label, put_ns, cost in ways:
        drain_ns = cost["drain_10000_ns"]
        are_reached = f"{verdict(put_ns, _PUT_TARGET_NS)} / {verdict(drain_ns, _DRAIN_TARGET_NS)}"
        rows.append(_costs(label, put_ns, cost, f"{_PUT_TARGET_NS:.0f} / {_DRAIN_TARGET_NS:.0f}", are_reached))
    for label in ("layers, vectors of 60", "layers, vectors of 1,000"):
        put_ns, cost = session[label], ring[label]
        is_reached = verdict(put_ns + cost["drain_10000_ns"], _VECTOR_TARGET_NS)
        label = label.replace("layers", "`layers`", 1)
        rows.append(_costs(label, put_ns, cost, f"{_VECTOR_TARGET_NS:.0f} in all", is_reached))
    return Grid(
        "Cost of a row, ns of CPU",
        ["rows", "trainer", "drainer, 10,000 a visit", "2,500 a visit", "sealing", "target", "reached"],
        rows,
        [
            f"Medians of {scale.row_rounds} bursts. The drainer's work is to read the ring and write the segment; "
            "targets are compared with visits of 10,000 rows. Sealing (to Parquet, once per 16 MB) comes on top."
        ],
    )


def _costs(label: str, put_ns: float, cost: dict[str, float], target: str, reached: str) -> list[str]:
    drain = [f"{cost[key]:.0f}" for key in ("drain_10000_ns", "drain_2500_ns", "seal_ns")]
    return [label, f"{put_ns:.0f}", *drain, target, reached]


# The drainer as a process ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Usage:
    cpu_share: float
    rss_mb: float


def _drainer(scale: Scale, scratch: Path) -> Grid:
    rows = []
    for rate, as_vectors, label in (
        (_RATE, False, f"{_RATE:,} rows/s, singly"),
        (_RATE, True, f"{_RATE:,} rows/s, vectors of 60"),
        (60, True, "60 rows/s: the drainer's own upkeep"),
    ):
        say(f"store: drainer at {label}")
        usage = _watch_drainer(scale, scratch, rate, as_vectors)
        is_judged = rate == _RATE
        rows.append([
            label,
            f"{usage.cpu_share:.2%}",
            f"{_DRAINER_CPU_TARGET:.0%}" if is_judged else "",
            verdict(usage.cpu_share, _DRAINER_CPU_TARGET) if is_judged else "",
            f"{usage.rss_mb:.0f} MB",
            f"{_DRAINER_RSS_TARGET_MB:.0f} MB" if is_judged else "",
            verdict(usage.rss_mb, _DRAINER_RSS_TARGET_MB) if is_judged else "",
        ])  # fmt: skip
    return Grid(
        f"The drainer beside a process that writes for {scale.steady_s:.0f} s",
        ["load", "share of a core", "target", "reached", "RSS at most", "target", "reached"],
        rows,
    )


def _watch_drainer(scale: Scale, scratch: Path, rate: int, as_vectors: bool) -> _Usage:
    """CPU and memory of the drainer of a real process, from its settling down to the last row."""
    name = f"steady-{rate}-{'vectors' if as_vectors else 'singly'}"
    job = {"name": name, "directory": str(scratch), "rows_per_s": rate, "as_vectors": as_vectors,
           "seconds": scale.steady_s + _SETTLE_S}  # fmt: skip
    child = Child("steady_writer", job)
    run = Path(child.wait_for_result()["run"])
    time.sleep(_SETTLE_S)
    drainer = _drainer_of(run)
    start, before, rss = time.monotonic(), _cpu_s(drainer), 0
    while time.monotonic() - start < scale.steady_s:
        time.sleep(0.25)
        rss = max(rss, drainer.memory_info().rss)
    share = (_cpu_s(drainer) - before) / (time.monotonic() - start)
    child.tell("enough")
    child.finish()
    wait_for_drainer(run)
    return _Usage(share, rss / 1e6)


def _drainer_of(run: Path) -> psutil.Process:
    for process in psutil.process_iter():
        try:
            words = process.cmdline()
        except psutil.Error:
            continue
        if str(run) in words and any("stethos.record.drainer" in word for word in words):
            return process
    raise RuntimeError(f"no drainer of {run}")


def _cpu_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


# Group-by --------------------------------------------------------------------------------------------------


def _group_by(scale: Scale, scratch: Path) -> Grid:
    say(f"store: group-by over {scale.group_by_rows:,} rows")
    run = scratch / "many-rows"
    child = Child("live_run", {"run": str(run), "rows": scale.group_by_rows})
    try:
        built = child.wait_for_result()
        still = _asked("Run.sql, live run", run, scale)
        plain = _asked("plain DuckDB, same Parquet", run, scale, is_plain=True)
        child.tell("grow")
        growing = _asked("Run.sql, live run that grows by 5,000 rows/s", run, scale, pause_s=0.3)
        child.tell("enough")
        child.finish()
    finally:
        child.close()
    return Grid(
        f"Group-by over {scale.group_by_rows:,} rows of `layers`",
        ["how", "first", "then, median", "quartiles", "target", "reached"],
        [still, growing, plain],
        [
            f"The run was built by the real collector in {built['build_s']:.1f} s ({built['files']} Parquet files and "
            "an open segment) by a process that is alive. `first` is the first query of a fresh process, imports done."
        ],
    )


def _asked(label: str, run: Path, scale: Scale, *, is_plain: bool = False, pause_s: float = 0.0) -> list[str]:
    found = run_child(
        "group_by", {"run": str(run), "rounds": scale.group_by_rounds, "is_plain": is_plain, "pause_s": pause_s}
    )
    warm = found["warm_ms"]
    low, high = quartiles(warm)
    judged = ["", ""] if is_plain else [f"{_GROUP_BY_TARGET_MS:.0f} ms", verdict(median(warm), _GROUP_BY_TARGET_MS)]
    return [label, f"{found['cold_ms']:.0f} ms", f"{median(warm):.0f} ms", f"{low:.0f} to {high:.0f}", *judged]
