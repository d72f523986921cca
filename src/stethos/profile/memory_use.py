"""Memory by class of tensors, and of processes; how busy processors and GPUs are."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from stethos.profile.column import known_or_none, median_of, numbers_in, records
from stethos.store.frame import Array, select
from stethos.store.literal import literal

if TYPE_CHECKING:
    from stethos.store.run import Run

CLASSES = ("model", "gradient", "optimizer", "activation", "buffer", "other", "cached")
# The largest of any process and device: ranks are alike, and what one of them cannot hold ends the training.
CLASS_SQL = """\
WITH own AS (
    SELECT process, device, "class", arg_max(bytes, t_ns) AS bytes, max(peak_bytes) AS peak_bytes,
           arg_max(bytes, t_ns) - arg_min(bytes, t_ns) AS growth_bytes, count(*) AS samples
    FROM memory WHERE "class" IS NOT NULL GROUP BY process, device, "class"
)
SELECT "class", max(bytes) AS bytes, max(peak_bytes) AS peak_bytes, max(growth_bytes) AS growth_bytes,
       sum(samples)::BIGINT AS samples
FROM own GROUP BY "class" """
KEPT_SQL = """\
SELECT process, line, any_value(holder) AS holder, median(allocated_bytes) AS step_bytes, max(step) AS steps,
       count(*) AS samples
FROM memory WHERE line IS NOT NULL AND allocated_bytes > 0
GROUP BY process, line ORDER BY step_bytes DESC"""
STEP_MEMORY_SQL = """\
SELECT max(allocated_bytes) AS allocated_bytes, max(peak_bytes) AS peak_bytes FROM steps"""
# On a CPU no allocator knows the peak: at least what is there throughout, and the most of activations beside it.
CPU_PEAK_SQL = """\
WITH own AS (
    SELECT process, "class", max(CASE "class" WHEN 'activation' THEN peak_bytes ELSE bytes END) AS bytes
    FROM memory WHERE device = 'cpu' AND "class" IN ('model', 'optimizer', 'buffer', 'activation') GROUP BY ALL),
whole AS (SELECT process, sum(bytes)::BIGINT AS bytes FROM own GROUP BY process)
SELECT max(bytes) AS peak_bytes FROM whole"""
HOST_SQL = """\
SELECT process, count(*) AS samples, avg(cpu_share) AS cpu_share, max(rss_bytes) AS rss_bytes,
       avg(machine_cpu_share) AS machine_cpu_share, min(machine_free_bytes) AS free_bytes
FROM host GROUP BY process ORDER BY process"""
GPU_SQL = """\
SELECT device, count(*) AS samples, avg(busy_share) AS busy_share, max(process_bytes) AS process_bytes,
       max(used_bytes) AS used_bytes, max(total_bytes) AS total_bytes, avg(power_w) AS power_w
FROM gpu GROUP BY device ORDER BY device"""
# What other processes took of the machine, second by second.
OTHERS_SQL = """\
WITH at_once AS (
    SELECT host.t_ns // 1000000000, processes.host, sum(cpu_share) AS own, any_value(machine_cpu_share) AS used,
           any_value(machine_cores) AS cores
    FROM host JOIN processes USING (process) GROUP BY ALL)
SELECT median(greatest(0, used - own / cores)) AS others_share FROM at_once WHERE own > 0 AND cores > 0"""
_RSS_SQL = """\
SELECT t_ns, rss_bytes, machine_free_bytes FROM host
WHERE process = {process} AND rss_bytes IS NOT NULL
  AND t_ns >= coalesce((SELECT min(t_ns) FROM steps WHERE process = {process}), 0)
ORDER BY t_ns"""
_STRETCHES = 10
_FEWEST_SAMPLES = 20  # of the resident memory: with fewer nothing is said
_GROWN_SHARE = 0.1  # of the memory held when the second half begins
_GROWN_BYTES = 20e6  # and at least so much


@dataclass(frozen=True, slots=True)
class ClassMemory:
    """One class of tensors: bytes at the last sample, the most ever, and how much more than at the first."""

    name: str
    bytes: int | None
    peak_bytes: int | None
    growth_bytes: int | None
    samples: int


@dataclass(frozen=True, slots=True)
class Growth:
    """Memory that keeps growing: over the second half of what was sampled since the first step, as imports and data
    are loaded before it.

    `free_bytes` is what the machine had left at the end; None where that was not recorded.
    """

    process: str
    start_bytes: float
    end_bytes: float
    bytes_per_s: float
    rising: float
    free_bytes: float | None = None

    @property
    def left_s(self) -> float | None:
        """How long the machine's memory lasts at this rate."""
        return None if self.free_bytes is None else self.free_bytes / self.bytes_per_s


@dataclass(frozen=True, slots=True)
class KeptByLine:
    """A line of the program whose tensors outlive their steps: bytes per step, as sampled."""

    process: str
    line: str
    holder: str | None
    step_bytes: float
    steps: int
    samples: int


@dataclass(frozen=True, slots=True)
class MemoryUse:
    """What is known of memory and processors; empty or None where nothing was recorded."""

    classes: tuple[ClassMemory, ...]
    allocated_bytes: int | None
    peak_bytes: int | None
    rss_bytes: int | None
    cpu_share: float | None
    machine_cpu_share: float | None
    others_share: float | None
    gpus: tuple[dict[str, Any], ...]
    growth: Growth | None
    kept: KeptByLine | None = None
    processes: int = 0  # over which `cpu_share` is a mean

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


def read_memory_use(run: Run) -> MemoryUse:
    """Memory and processors of a whole run."""
    steps, least = records(run, STEP_MEMORY_SQL)[0], records(run, CPU_PEAK_SQL)[0]["peak_bytes"]
    peaks = [peak for peak in (steps["peak_bytes"], least) if peak is not None]
    host = records(run, HOST_SQL)
    weights = sum(row["samples"] for row in host if row["cpu_share"] is not None)
    cpu = sum(row["cpu_share"] * row["samples"] for row in host if row["cpu_share"] is not None)
    machine = [row["machine_cpu_share"] for row in host if row["machine_cpu_share"] is not None]
    growths = [grown for row in host if (grown := read_growth(run, row["process"])) is not None]
    growth = max(growths, key=lambda one: one.bytes_per_s, default=None)
    return MemoryUse(
        tuple(_classes(run)),
        steps["allocated_bytes"],
        max(peaks, default=None),
        max((row["rss_bytes"] for row in host if row["rss_bytes"] is not None), default=None),
        cpu / weights if weights else None,
        sum(machine) / len(machine) if machine else None,
        read_others_share(run),
        tuple(records(run, GPU_SQL)),
        growth,
        _kept(run, growth),
        len(host),
    )


def read_others_share(run: Run) -> float | None:
    """How much of the machine other processes kept busy; None where nothing was sampled."""
    found = records(run, OTHERS_SQL)[0]["others_share"]
    return None if found is None else float(found)


def _kept(run: Run, growth: Growth | None) -> KeptByLine | None:
    """The line that leaves most behind: of the process that grows, if one does."""
    rows = records(run, KEPT_SQL)
    own = [row for row in rows if growth is not None and row["process"] == growth.process]
    return KeptByLine(**(own or rows)[0]) if own or rows else None


def _classes(run: Run) -> list[ClassMemory]:
    rows = {row["class"]: row for row in records(run, CLASS_SQL)}
    order = [*(name for name in CLASSES if name in rows), *sorted(set(rows) - set(CLASSES))]
    return [
        ClassMemory(
            name, rows[name]["bytes"], rows[name]["peak_bytes"], rows[name]["growth_bytes"], rows[name]["samples"]
        )
        for name in order
    ]


def read_growth(run: Run, process: str) -> Growth | None:
    """Whether the resident memory of a process keeps growing; None if not, or with too few samples."""
    found = select(run, _RSS_SQL.format(process=literal(process)))
    if not len(found):
        return None
    free = median_of(numbers_in(found, "machine_free_bytes")[-5:])
    growth = growth_of(process, found["t_ns"], found["rss_bytes"])
    return None if growth is None else replace(growth, free_bytes=known_or_none(free))


def growth_of(process: str, t_ns: Array, rss: Array) -> Growth | None:
    """The second half in stretches: it grows if nearly each is above the one before, and clearly more in all."""
    if len(rss) < _FEWEST_SAMPLES:
        return None
    order = np.argsort(t_ns, kind="stable")
    seconds, rss = (t_ns[order] - t_ns[order][0]) / 1e9, rss[order]
    half = len(rss) // 2
    stretches = min(_STRETCHES, len(rss) - half)
    levels = np.array([np.median(part) for part in np.array_split(rss[half:], stretches)])
    times = np.array([np.median(part) for part in np.array_split(seconds[half:], stretches)])
    rising = float((np.diff(levels) > 0).mean())
    spent = float(times[-1] - times[0])
    grown = float(levels[-1] - levels[0])
    if rising < 0.8 or spent <= 0 or grown < max(_GROWN_SHARE * levels[0], _GROWN_BYTES) or not math.isfinite(grown):
        return None
    early, late = np.triu_indices(len(levels), 1)
    apart = times[late] > times[early]  # the median of all slopes: a pause, or the end, does not bend it
    slopes = (levels[late] - levels[early])[apart] / (times[late] - times[early])[apart]
    rate = float(np.median(slopes))
    return Growth(process, float(levels[0]), float(levels[-1]), rate, rising) if rate > 0 else None
