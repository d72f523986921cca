"""Runs a case as its user would, `stethos run` at default settings, and reads the diagnosis."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import zlib
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.child import ROOT, environment
from benchmarks.wildtraining.case import seed_of
from benchmarks.wildtraining.table import Case
from stethos.diagnose.api import diagnose
from stethos.diagnose.finding import Finding, Severity
from stethos.store.run import open_run

BESIDE = Path(sys.executable).parent
_TIMEOUT_S = 300


@dataclass(frozen=True, slots=True)
class Outcome:
    """One run: what `diagnose` said of it, the gravest first; `verdict` is None for a twin."""

    name: str
    family: str
    half: str
    variant: str
    verdict: str | None
    said: list[str]  # detector:kind, of warnings and errors
    mentioned: list[str]  # the same of remarks
    titles: list[str]

    @property
    def is_accused(self) -> bool:
        return self.variant != "bug" and bool(self.said)


def jobs_of(cases: Iterable[Case], all_twins: bool = False) -> list[tuple[Case, str]]:
    """Each case with its bug and without; of the twins of mutations, which are alike, every third."""
    found = []
    for case in cases:
        if case.family != "healthy":
            found.append((case, "bug"))
        if all_twins or case.family != "mutation" or zlib.crc32(case.name.encode()) % 3 == 0:
            found.append((case, "fixed"))
    return found


def play_all(jobs: list[tuple[Case, str]], directory: Path, workers: int = 2) -> Iterator[Outcome]:
    """Outcomes in the order of the jobs; a run that is in the directory already is only read."""
    with ThreadPoolExecutor(workers) as pool:
        yield from pool.map(lambda job: play(*job, directory), jobs)


def play(case: Case, variant: str, directory: Path) -> Outcome:
    name = f"{case.name}-{variant}"
    seed = seed_of(name)
    program = [sys.executable, "-m", "benchmarks.wildtraining.program", case.name, variant, str(seed)]
    if not (directory / name).exists():
        subprocess.run(
            [BESIDE / "stethos", "run", "--quiet", "--dir", directory, "--name", name, *program],
            capture_output=True, timeout=_TIMEOUT_S, check=False, env=environment(), cwd=ROOT,
        )  # fmt: skip
    with _ONE_AT_A_TIME:
        return outcome_of(case, variant, diagnose(directory / name).findings)


def play_together(jobs: list[tuple[Case, str]], directory: Path, part: int = 16) -> Iterator[Outcome]:
    """Programs as processes of one run, so many at a time, forked from one that has torch: a third of the time."""
    for first in range(0, len(jobs), part):
        yield from _together(jobs[first : first + part], directory, f"together-{first}")


def _together(jobs: list[tuple[Case, str]], directory: Path, name: str) -> list[Outcome]:
    path = directory / f"{name}.json"
    path.write_text(json.dumps([(case.name, variant) for case, variant in jobs]), encoding="utf-8")
    program = [sys.executable, "-W", "default", "-m", "benchmarks.wildtraining.forked", path]
    subprocess.run(
        [BESIDE / "stethos", "run", "--quiet", "--dir", directory, "--name", name, *program],
        capture_output=True, check=True, env=environment(), cwd=ROOT,
    )  # fmt: skip
    pids = {int(pid): tuple(job) for pid, job in json.loads(path.read_text(encoding="utf-8")).items()}
    said: dict[tuple[str, str], list[Finding]] = {job: [] for job in pids.values()}
    with open_run(directory / name) as run:
        of_process = {row["process"]: pids.get(int(row["pid"])) for row in run.processes()}
        for finding in diagnose(run).findings:
            job = of_process.get(finding.subject.process)
            if job is not None:
                said[job].append(finding)
    return [outcome_of(case, variant, said[case.name, variant]) for case, variant in jobs]


def outcome_of(case: Case, variant: str, findings: Sequence[Finding]) -> Outcome:
    """Compare a diagnosis with what was written down beside the program."""
    grave = [one for one in findings if one.severity > Severity.INFO and one.name not in _ABOUT_SPEED]
    light = [one for one in findings if one not in grave]
    said, mentioned = ([f"{one.name}:{one.kind}" for one in part] for part in (grave, light))
    verdict = verdict_of(case, said) if variant == "bug" else None
    return Outcome(case.name, case.family, case.half, variant, verdict, said, mentioned, [one.title for one in grave])


_ONE_AT_A_TIME = threading.Lock()
_ABOUT_SPEED = ("data-loader-stall", "small-batches", "compute-bound", "launch-bound", "low-utilisation")


def verdict_of(case: Case, said: list[str]) -> str:
    """`cause` if a root cause names the bug, `symptom` for what follows from it, else `wrong` or `nothing`."""
    if any(_is_in(one, case.causes) for one in said):
        return "cause"
    if any(_is_in(one, case.symptoms) for one in said):
        return "symptom"
    return "wrong" if said else "nothing"


def _is_in(one: str, listed: tuple[str, ...]) -> bool:
    return one in listed or one.partition(":")[0] in listed


def keep(outcomes: list[Outcome], path: Path) -> None:
    path.write_text("".join(json.dumps(asdict(one)) + "\n" for one in outcomes), encoding="utf-8")
