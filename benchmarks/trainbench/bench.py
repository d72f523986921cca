"""Records every training of the benchmark, diagnoses it, and counts."""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from benchmarks.child import run_child, wait_for_drainer
from benchmarks.report import Grid, say
from benchmarks.trainbench.faulty import FAULTS
from benchmarks.trainbench.healthy import HEALTHY
from benchmarks.trainbench.unseen import UNSEEN_FAULTS, UNSEEN_HEALTHY
from stethos.diagnose.api import diagnose
from stethos.diagnose.detectors import DETECTORS
from stethos.diagnose.finding import Finding, Severity

TUNED = (0, 1, 2, 3, 4)
REPORTED = (100, 101, 102, 103, 104)
_FAMILIES = ("NUM", "CON")  # clients are judged by the fault benchmark, system troubles by theirs
_OVERHEAD = {"deep": 0.5, "standard": 0.01}
_FOUND_TARGET = 0.95
_PART = 8  # trainings per child process
_FAULTS = {**FAULTS, **UNSEEN_FAULTS}
_HEALTHY = {**HEALTHY, **UNSEEN_HEALTHY}
_UNSEEN = {*UNSEEN_FAULTS, *UNSEEN_HEALTHY}


def train_of(case: str) -> Callable[[], None]:
    return _FAULTS[case].train if case in _FAULTS else _HEALTHY[case]


@dataclass(frozen=True, slots=True)
class Result:
    """One training: what was found in it. `hit` is None for a healthy one."""

    case: str
    seed: int
    is_faulty: bool
    hit: str | None
    roots: tuple[tuple[str, str, float], ...]  # name, severity, confidence
    consequences: tuple[str, ...]
    diagnose_ms: float
    train_s: float

    @property
    def accusers(self) -> tuple[str, ...]:
        """The detectors that raise a warning or an error."""
        return tuple(name for name, severity, _ in self.roots if severity != "info")

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def run_all(scratch: Path, seeds: Sequence[int], preset: str, every: int = 1) -> list[Result]:
    """Every training with every seed, some in each child process."""
    cases = [*list(_FAULTS)[::every], *list(_HEALTHY)[::every]]
    parts = [(seed, first, cases[first : first + _PART]) for seed in seeds for first in range(0, len(cases), _PART)]
    results: list[Result] = []
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), disable=not sys.stderr.isatty()) as progress:
        task = progress.add_task("trainings", total=len(cases) * len(seeds))
        for seed, first, part in parts:
            if not sys.stderr.isatty() and not first:
                say(f"trainbench: seed {seed}, {len(cases)} trainings")
            job = {"cases": part, "seed": seed, "first": first, "directory": str(scratch), "preset": preset,
                   "overhead": _OVERHEAD[preset]}  # fmt: skip
            runs = run_child("trainbench.worker", job)["runs"]
            for case, run in runs.items():
                wait_for_drainer(Path(run["path"]))
                results.append(_judged(case, seed, Path(run["path"]), run["train_s"]))
                progress.advance(task)
    return results


def _judged(case: str, seed: int, path: Path, train_s: float) -> Result:
    others = [code for code in DETECTORS if not code.startswith(_FAMILIES)]
    start = time.perf_counter()
    found = diagnose(path, silence=others)
    took_ms = (time.perf_counter() - start) * 1e3
    if found.not_checked and any("failed" in one.reason for one in found.not_checked):
        raise RuntimeError(f"{case}, seed {seed}: {found.not_checked}")
    roots = tuple((one.name, one.severity.word, one.confidence) for one in found.findings)
    rest = tuple(one.name for one in _consequences(found.findings))
    hit = None
    if case in _FAULTS:
        names = _FAULTS[case].names
        in_roots = any(name in names for name, _, _ in roots)
        hit = "root" if in_roots else "consequence" if any(name in names for name in rest) else "missed"
    return Result(case, seed, case in _FAULTS, hit, roots, rest, round(took_ms, 1), train_s)


def _consequences(findings: Sequence[Finding]) -> Iterator[Finding]:
    for one in findings:
        yield from one.consequences
        yield from _consequences(one.consequences)


def grids_of(results: Sequence[Result], seeds: Sequence[int], preset: str) -> list[Grid]:
    faulty = [one for one in results if one.is_faulty]
    healthy = [one for one in results if not one.is_faulty]
    new = [one for one in faulty if one.case in _UNSEEN]
    found = sum(one.hit != "missed" for one in faulty)
    accused = [one for one in healthy if one.accusers]
    middle = sorted(one.diagnose_ms for one in results)[len(results) // 2] if results else 0.0
    say_seeds = f"seeds {', '.join(map(str, seeds))}"
    is_tuned = not set(seeds) & set(TUNED)
    notes = [
        f"Recorded with the preset `{preset}` and a budget of {_OVERHEAD[preset]:.0%}, as these trainings last about a "
        f"second; {say_seeds}. Thresholds were set on seeds {', '.join(map(str, TUNED))}"
        + (" and not touched for these" if is_tuned else ": these are the seeds they were set on")
        + f"; {len(UNSEEN_FAULTS)} faults and {len(UNSEEN_HEALTHY)} healthy trainings (marked *) were never used to "
        "set them.",
        "Found: a detector that the fault's author named before is among the root causes or their consequences. "
        "Accused: any finding of severity warning or above. Families numbers and convergence only.",
        f"Reading and diagnosing a run takes {middle:.0f} ms (median). {_calibration(results)}",
    ]
    summary = Grid(
        "Faults of ordinary training",
        ["what", "count", "share", "target", "reached"],
        [
            _row("faults found", found, len(faulty), _FOUND_TARGET, at_least=True),
            _row("faults of unseen kind found", sum(one.hit != "missed" for one in new), len(new), _FOUND_TARGET,
                 at_least=True),
            ["found as a root cause", f"{sum(one.hit == 'root' for one in faulty)} of {len(faulty)}", "", "", ""],
            _row("healthy runs accused", len(accused), len(healthy), 0.0, at_least=False),
            _row("healthy runs of unseen kind accused", sum(one.case in _UNSEEN for one in accused),
                 sum(one.case in _UNSEEN for one in healthy), 0.0, at_least=False),
        ],
        notes,
    )  # fmt: skip
    return [summary, _fault_grid(faulty), _healthy_grid(healthy, accused)]


def _row(what: str, count: int, total: int, target: float, *, at_least: bool) -> list[str]:
    share = count / total if total else 0.0
    is_reached = share >= target if at_least else share <= target
    return [what, f"{count} of {total}", f"{share:.1%}", f"{target:.0%}", "yes" if is_reached else "no"]


def _marked(case: str) -> str:
    return f"{case} *" if case in _UNSEEN else case


def _fault_grid(faulty: Sequence[Result]) -> Grid:
    rows = []
    for case in dict.fromkeys(one.case for one in faulty):
        mine = [one for one in faulty if one.case == case]
        named = Counter(name for one in mine for name, _, _ in one.roots)
        roots = ", ".join(f"{name} {count}" if count < len(mine) else name for name, count in named.most_common(3))
        hits = sum(one.hit != "missed" for one in mine)
        rows.append([_marked(case), f"{hits} of {len(mine)}", " or ".join(_FAULTS[case].names), roots or "nothing"])
    return Grid("Fault by fault", ["fault", "found", "counts as found", "root causes named"], rows)


def _healthy_grid(healthy: Sequence[Result], accused: Sequence[Result]) -> Grid:
    rows = []
    for case in dict.fromkeys(one.case for one in healthy):
        mine = [one for one in healthy if one.case == case]
        blamed = sorted({name for one in mine for name in one.accusers})
        hints = sorted({name for one in mine for name, severity, _ in one.roots if severity == "info"})
        count = sum(one.case == case for one in accused)
        rows.append([_marked(case), f"{count} of {len(mine)}", ", ".join(blamed), ", ".join(hints)])
    return Grid("Healthy trainings", ["training", "accused", "by", "only mentioned"], rows)


def _calibration(results: Sequence[Result]) -> str:
    """How far confidences lie from the share of findings that are right: every warning in a faulty run that hit is."""
    pairs = [
        (confidence, one.is_faulty and one.hit != "missed")
        for one in results
        for _, severity, confidence in one.roots
        if severity != Severity.INFO.word
    ]
    if not pairs:
        return ""
    bins: dict[int, list[tuple[float, bool]]] = {}
    for confidence, is_right in pairs:
        bins.setdefault(min(int(confidence * 10), 9), []).append((confidence, is_right))
    error = sum(abs(sum(sure for sure, _ in part) - sum(right for _, right in part)) for part in bins.values()) / len(
        pairs
    )
    return f"Expected calibration error of {len(pairs)} root causes: {error:.3f}."
