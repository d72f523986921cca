"""Where the time of an optimizer step goes, per process; epochs; ranks against each other."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from stethos.profile.column import known_or_none, median_of, numbers_in, records
from stethos.store.frame import Array, Frame

if TYPE_CHECKING:
    from stethos.store.run import Run

STEP_PARTS = ("data", "forward", "backward", "optimizer", "other")
STEP_COLUMNS = frozenset(
    {"process", "rank", "step", "local_step", "step_ms", "data_ms", "forward_ms", "backward_ms", "optimizer_ms",
     "samples"}
)  # fmt: skip
SKIPPED_STEPS = 5  # of a process: they warm up
_MEASURED = STEP_PARTS[:-1]
# The first step of an optimizer is left out: what came before it, as another client's turn, would count as its own.
STEP_SQL = f"""\
SELECT process, any_value(rank) AS rank, count(*) AS steps, sum(step_ms) AS step_ms,
       {", ".join(f"sum({name}_ms) AS {name}_ms" for name in _MEASURED)},
       median(step_ms) AS median_ms, median(samples) AS samples, sum(samples) AS all_samples
FROM steps
WHERE step_ms >= 0 AND step_ms < 'Infinity'::DOUBLE AND step >= {SKIPPED_STEPS} AND coalesce(local_step, 1) > 0
GROUP BY process ORDER BY process"""
# Of `forward_ms`, which begins with the batch or the last step, what sampled steps spend inside the model. On a GPU the
# one is the device's time and the other the host's: they cannot be compared.
INSIDE_SQL = """\
SELECT process, count(*) AS samples, least(1, sum(inside_ms) / sum(forward_ms)) AS inside
FROM (SELECT process, step, module, sum(duration_ms) AS inside_ms FROM modules
      WHERE stage = 'forward' AND duration_ms >= 0 GROUP BY process, step, module) JOIN steps USING (process, step)
WHERE module = model AND forward_ms > 0
      AND process NOT IN (SELECT process FROM memory WHERE device LIKE 'cuda%')
GROUP BY process"""
_FEWEST_INSIDE = 3
COUNT_SQL = "SELECT count(*) AS steps FROM steps"
EPOCH_SQL = """\
SELECT count(*) AS epochs, median(duration_ms) AS median_ms, min(duration_ms) AS min_ms, max(duration_ms) AS max_ms
FROM spans WHERE name = 'epoch' AND duration_ms >= 0"""


@dataclass(frozen=True, slots=True)
class StepTime:
    """Steps of one process: mean ms per part, None where it was not recorded."""

    process: str
    rank: int | None
    steps: int
    mean_ms: float
    median_ms: float
    parts: dict[str, float | None]
    samples: float | None
    samples_per_s: float | None
    inside: float | None = None  # of forward, the share inside the model's modules; None if not known

    @property
    def outside_ms(self) -> float:
        """What is none of data, model, backward and optimizer: the rest, and forward outside of the model."""
        forward = self.parts["forward"] or 0.0
        return (self.parts["other"] or 0.0) + (0.0 if self.inside is None else (1 - self.inside) * forward)

    def share(self, *names: str) -> float:
        """Of a step, the part that these take; NaN if one of them was not recorded."""
        found = [self.parts[name] for name in names]
        known = [one for one in found if one is not None]
        return sum(known) / self.mean_ms if len(known) == len(found) and self.mean_ms > 0 else math.nan

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "process": self.process,
            "rank": self.rank,
            "steps": self.steps,
            "mean_ms": self.mean_ms,
            "median_ms": self.median_ms,
            "parts_ms": dict(self.parts),
            "samples": self.samples,
            "samples_per_s": self.samples_per_s,
            "forward_inside_model": self.inside,
        }


def read_step_times(run: Run) -> list[StepTime]:
    """Every process's steps, added up by the engine."""
    inside = {
        row["process"]: float(row["inside"]) for row in records(run, INSIDE_SQL) if row["samples"] >= _FEWEST_INSIDE
    }
    times = [_made(row["process"], row["rank"], row) for row in records(run, STEP_SQL)]
    return [replace(one, inside=inside.get(one.process)) for one in times]


def step_times(steps: Frame) -> list[StepTime]:
    """The same from rows of `steps`."""
    if not len(steps) or "process" not in steps:
        return []
    number, local, step = (numbers_in(steps, name) for name in ("step", "local_step", "step_ms"))
    use = np.isfinite(step) & (step >= 0) & ~(number < SKIPPED_STEPS) & ~(local < 1)
    places: dict[str, list[int]] = {}
    for at, process in enumerate(steps["process"].tolist()):
        if use[at] and process is not None:
            places.setdefault(str(process), []).append(at)
    return [_added_up(steps, process, np.array(at)) for process, at in sorted(places.items())]


def inside_of(steps: Frame, modules: Frame) -> dict[str, float]:
    """`INSIDE_SQL` over rows of `steps` and `modules`, those of a GPU left out before."""
    if not len(steps) or not len(modules) or "model" not in steps or "module" not in modules:
        return {}
    forward = {
        (process, step): (model, ms)
        for process, step, model, ms in zip(
            steps["process"].tolist(), numbers_in(steps, "step").tolist(), steps["model"].tolist(),
            numbers_in(steps, "forward_ms").tolist(), strict=True,
        )
    }  # fmt: skip
    inside: dict[tuple[Any, float], list[float]] = {}  # of a step: all calls of the model, and forward
    for process, step, module, stage, ms in zip(
        modules["process"].tolist(), numbers_in(modules, "step").tolist(), modules["module"].tolist(),
        modules["stage"].tolist(), numbers_in(modules, "duration_ms").tolist(), strict=True,
    ):  # fmt: skip
        model, whole = forward.get((process, step), (None, math.nan))
        if stage == "forward" and module == model and ms >= 0 and whole > 0:
            inside.setdefault((process, step), [0.0, whole])[0] += ms
    sums: dict[str, list[float]] = {}
    for (process, _), (ms, whole) in inside.items():
        found = sums.setdefault(str(process), [0.0, 0.0, 0.0])
        found[0], found[1], found[2] = found[0] + 1, found[1] + ms, found[2] + whole
    return {name: min(1.0, ms / whole) for name, (count, ms, whole) in sums.items() if count >= _FEWEST_INSIDE}


def _added_up(steps: Frame, process: str, at: Array) -> StepTime:
    columns = {name: numbers_in(steps, name)[at] for name in (*(f"{part}_ms" for part in _MEASURED), "step_ms")}
    sums = {name: None if np.isnan(values).all() else float(np.nansum(values)) for name, values in columns.items()}
    samples, ranks = numbers_in(steps, "samples")[at], numbers_in(steps, "rank")[at]
    known = np.isfinite(samples)
    row = {
        **sums, "steps": len(at), "median_ms": median_of(columns["step_ms"]),
        "samples": known_or_none(median_of(samples)),
        "all_samples": float(samples[known].sum()) if known.any() else None,
    }  # fmt: skip
    return _made(process, None if math.isnan(ranks[0]) else int(ranks[0]), row)


def _made(process: str, rank: int | None, row: dict[str, Any]) -> StepTime:
    count, total = row["steps"], float(row["step_ms"])
    parts: dict[str, float | None] = {
        name: None if row[f"{name}_ms"] is None else max(0.0, row[f"{name}_ms"] / count) for name in _MEASURED
    }
    known = sum(one for one in parts.values() if one is not None)
    mean = total / count
    if known > mean > 0:  # rounding, or clocks of a device: never a negative rest
        parts = {name: None if one is None else one * mean / known for name, one in parts.items()}
    parts["other"] = max(0.0, mean - known)
    per_s = None if not row["all_samples"] or total <= 0 else row["all_samples"] / (total / 1e3)
    return StepTime(process, rank, count, mean, row["median_ms"], parts, row["samples"], per_s)


@dataclass(frozen=True, slots=True)
class Epochs:
    """Passes over a training data loader."""

    count: int
    median_ms: float
    min_ms: float
    max_ms: float


def read_epochs(run: Run) -> Epochs | None:
    """How long passes over the training data took; None if none was recorded."""
    row = records(run, EPOCH_SQL)[0]
    return Epochs(row["epochs"], row["median_ms"], row["min_ms"], row["max_ms"]) if row["epochs"] else None


def together(times: Sequence[StepTime]) -> StepTime | None:
    """All processes as one: means weighted by steps, a part only where every process has it."""
    if not times:
        return None
    steps = sum(one.steps for one in times)
    parts: dict[str, float | None] = {}
    for name in STEP_PARTS:
        known = [(one.parts[name], one.steps) for one in times]
        values = [value * count for value, count in known if value is not None]
        parts[name] = sum(values) / steps if len(values) == len(known) else None
    mean = sum(one.mean_ms * one.steps for one in times) / steps
    if None in parts.values():
        parts["other"] = max(0.0, mean - sum(v for n, v in parts.items() if v is not None and n != "other"))
    inside = [one.inside for one in times if one.inside is not None]
    samples = [one.samples for one in times if one.samples is not None]
    rates = [one.samples_per_s for one in times if one.samples_per_s is not None]
    return StepTime(
        "all",
        None,
        steps,
        mean,
        float(np.median([one.median_ms for one in times])),
        parts,
        float(np.median(samples)) if samples else None,
        sum(rates) / len(rates) if rates else None,
        sum(inside) / len(inside) if len(inside) == len(times) else None,
    )
