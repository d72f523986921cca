"""What observing costs a training: bare and observed processes in turns, against bare ones."""

from __future__ import annotations

import math
import time
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.alternate_cost import alternated, cost_of, turns_of
from benchmarks.child import ChildError, run_child, wait_for_drainer
from benchmarks.estimate import Ratio, median, quartiles, ratio_of
from benchmarks.report import Grid, say, verdict
from benchmarks.scale import Scale
from benchmarks.variant import AGAIN, BARE, RUN_NAME, STANDARD, VARIANTS, variants_for
from stethos.store.run import open_run

_ALWAYS_ON_TARGET_US = 8.0
_EXIT_TARGET_MS = 1000.0
_LIMIT_S = 10.0
_IN_ONE_S = 90.0
Results = dict[str, list[dict[str, Any]]]


@dataclass(frozen=True, slots=True)
class Load:
    """How a training is measured. A chunk is long enough to hold the samples that its budget pays for."""

    title: str
    warmup: int
    steps: int
    target: float
    block: int  # steps of one kind, where one process trains bare and observed in turns
    settle: int  # steps before that do not count


LOADS = {
    "mlp": Load("MLP 32-64-10, batch 32", warmup=2_000, steps=1_000, target=1.03, block=400, settle=40),
    "cnn": Load("CNN on 28x28 images, batch 32", warmup=150, steps=100, target=1.01, block=30, settle=3),
    "transformer": Load(
        "Transformer with 10.8 M parameters, batch 4 x 64", warmup=2, steps=28, target=1.01, block=4, settle=1
    ),
}


def measure(scale: Scale, scratch: Path) -> list[Grid]:
    grids = [_in_one_process(scale, scratch)]
    say(f"\n{grids[0]}")
    for workload, load in LOADS.items():
        results = _in_turns(workload, load, scale, scratch)
        grids.append(_grid_of(load, results))
        say(f"\n{grids[-1]}")  # should the rest not come to an end
        if workload == "mlp":
            mlp = results
    return [*grids, _fixed_costs(mlp, scale, scratch)]


def _in_one_process(scale: Scale, scratch: Path) -> Grid:
    """Bare and observed in turns: what differs between processes, such as where memory lies, cancels."""
    rows = []
    for workload, load in LOADS.items():
        for name, preset in (("bare again (the noise)", ""), ("Stethos, standard", "standard")):
            say(f"overhead {workload}, in one process: {name}")
            limit_s = 3.0 if scale.is_quick else _IN_ONE_S if preset else _IN_ONE_S / 2
            job = {
                "device": "cpu", "workload": workload, "preset": preset, "warmup": [max(load.warmup // 2, 15)] * 2,
                "pause_s": 1.0, "turns": 4_000, "steps": load.block, "settle": load.settle, "limit_s": limit_s,
            }  # fmt: skip
            found = alternated(scratch / f"{workload}-in-one{preset}", job)
            cost = cost_of(turns_of(found))
            target = load.target if preset else None
            rows.append([
                f"{load.title.partition(',')[0]}: {name}", f"{cost.bare_ms * 1e3:,.1f}", f"{cost.plain.value:.4f}",
                f"{cost.observed.value:.4f}", f"{cost.observed.low:.4f} to {cost.observed.high:.4f}",
                f"{target:g}" if target else "",
                verdict(cost.observed.value, target, low=cost.observed.low, high=cost.observed.high) if target else "",
                f"{cost.sampled_share:.1%}" if preset else "", f"{len(found['turns']) * load.block:,}",
            ])  # fmt: skip
    columns = ["training", "bare us/step", "without samples, x bare", "x bare", "95 % interval", "target", "reached",
               "steps with samples", "steps of each kind"]  # fmt: skip
    return Grid("One process that trains bare and observed in turns", columns, rows, [
        "The thread's processor time between the ends of steps. Neighbouring blocks are compared by interquartile "
        "means, samples in full; intervals from resampled turns. A step right after one with a sample counts as one."
    ])  # fmt: skip


def _in_turns(workload: str, load: Load, scale: Scale, scratch: Path) -> Results:
    """Every variant once per round, beginning with another one each time, until the time is used up."""
    names = variants_for(workload, is_quick=scale.is_quick, without=scale.without)
    results: Results = defaultdict(list)
    start = time.monotonic()
    for round_ in range(scale.most_rounds):
        spent_s = time.monotonic() - start
        if round_ >= scale.least_rounds and spent_s + spent_s / round_ > scale.overhead_s[workload]:
            break
        first = round_ % len(names)
        for name in names[first:] + names[:first]:
            say(f"overhead {workload}, round {round_ + 1} of at most {scale.most_rounds}: {VARIANTS[name].label}")
            directory = scratch / f"{workload}-{round_}-{name}"
            directory.mkdir()
            job = {"workload": workload, "variant": name, "directory": str(directory), "warmup": load.warmup,
                   "chunks": scale.chunks[workload], "steps": load.steps, "limit_s": _LIMIT_S}  # fmt: skip
            try:
                result = run_child("trainer", job, VARIANTS[name].environment)
            except ChildError as error:
                if VARIANTS[name].needs is None:
                    raise
                say(f"{VARIANTS[name].label} failed and is left out from here on: {error}")
                names.remove(name)
                continue
            if VARIANTS[name].is_ours:
                wait_for_drainer(directory / RUN_NAME)
                result["own_share"] = open_run(directory / RUN_NAME).processes()[0]["overhead_share"]
            results[name].append(result)
    return results


def _grid_of(load: Load, results: Results) -> Grid:
    rows = []
    bare, bare_cpu = _steps_us(results[BARE]), _steps_us(results[BARE], "cpu_us")
    noise = ratio_of(_steps_us(results[AGAIN]), bare)
    for name, variant in VARIANTS.items():
        if name not in results:
            if variant.needs is not None:
                rows.append([variant.label, "not measured" if variant.is_there else "not installed", *[""] * 7])
            continue
        found = _steps_us(results[name])
        low, high = quartiles(found)
        ratio, cpu = ratio_of(found, bare), ratio_of(_steps_us(results[name], "cpu_us"), bare_cpu)
        is_judged = name == STANDARD
        own = [result["own_share"] for result in results[name] if result.get("own_share") is not None]
        rows.append([
            variant.label,
            _us(median(found)),
            f"{_us(low)} to {_us(high)}",
            "" if name == BARE else str(ratio),
            "" if name == BARE else ratio.interval,
            "" if name == BARE else str(cpu),
            f"{median(own):.2%}" if own else "",
            f"{load.target:.2f}" if is_judged else "",
            _verdict(ratio, load.target, noise) if is_judged else "",
        ])  # fmt: skip
    return Grid(
        load.title,
        ["variant", "us/step", "quartiles", "x bare", "95 % interval", "CPU x bare", "own figure", "target", "reached"],
        rows,
        [
            f"Processes of each, in turns: {len(bare)}, with {len(results[BARE][0]['wall_us'])} x {load.steps:,} steps "
            f"after {load.warmup:,} of warm-up. Noise: the second bare training came out at {noise} of the first"
            f"{f' ({noise.interval})' if noise.interval else ''}. `own figure` is the run's own `overhead_share`."
        ],
    )


def _verdict(ratio: Ratio, target: float, noise: Ratio) -> str:
    """Nothing is certain on a machine where bare and bare differ by more than the target allows."""
    apart = abs(noise.value - 1)
    return verdict(ratio.value, target, low=ratio.low, high=ratio.high, noise=math.inf if apart > target - 1 else apart)


def _fixed_costs(mlp: Results, scale: Scale, scratch: Path) -> Grid:
    say("overhead: always-on callbacks in a tight loop")
    directory = scratch / "tight-loop"
    job = {"directory": str(directory), "rounds": 5 if scale.is_quick else 20}
    tight_us = run_child("tight_loop", job)["always_on_us"]
    wait_for_drainer(directory / "measured")
    rows = [_judged("always-on part, callbacks in a tight loop", tight_us, "us", _ALWAYS_ON_TARGET_US)]
    if "rows" in mlp:
        inside_us = median(_steps_us(mlp["rows"])) - median(_steps_us(mlp[BARE]))
        noise_us = abs(median(_steps_us(mlp[AGAIN])) - median(_steps_us(mlp[BARE])))
        label = f"the same inside MLP steps (noise {noise_us:.1f} us)"
        rows.append(_judged(label, inside_us, "us", _ALWAYS_ON_TARGET_US, noise_us))
    bare_ms, ours_ms = (median([result["exit_ms"] for result in mlp[name]]) for name in (BARE, STANDARD))
    rows.append([f"end of a bare process: {bare_ms:.0f} ms; `standard` adds", f"{ours_ms - bare_ms:.0f} ms",
                 f"{_EXIT_TARGET_MS:.0f} ms", verdict(ours_ms - bare_ms, _EXIT_TARGET_MS)])  # fmt: skip
    return Grid("Fixed costs", ["what", "cost", "target", "reached"], rows)


def _judged(what: str, value: float, unit: str, target: float, noise: float = 0.0) -> list[str]:
    return [what, f"{value:.1f} {unit}", f"{target:g} {unit}", verdict(value, target, noise=noise)]


def _steps_us(results: list[dict[str, Any]], clock: str = "wall_us") -> list[float]:
    """Each process's median chunk."""
    return [median(result[clock]) for result in results]


def _us(value: float) -> str:
    return f"{value:,.1f}" if value < 10_000 else f"{value:,.0f}"
