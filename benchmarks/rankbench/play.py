"""Runs a job as its user would, `stethos run torchrun` at default settings, and reads the diagnosis."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil

from benchmarks.child import ROOT, environment
from benchmarks.rankbench.table import Kind
from stethos.diagnose.api import diagnose
from stethos.diagnose.finding import Finding, Severity
from stethos.store.run import open_run

BESIDE = Path(sys.executable).parent
_TIMEOUT_S = 120.0
_GRACE_S = 5.0
_AFTER_HANG_S = 3.0  # how long a job is left alone after its hang was told
_ABOUT_SPEED = ("data-loader-stall", "small-batches", "compute-bound", "launch-bound", "low-utilisation")


@dataclass(frozen=True, slots=True)
class Outcome:
    """One job. `verdict` of a faulty one: right, other rank (cause right), symptom (it is said second), wrong, nothing;
    of a healthy one: quiet, accused."""

    name: str
    variant: str
    world: int
    verdict: str
    said: list[str]
    titles: list[str]
    took_s: float
    hang_s: float | None  # from the last step to the verdict about a hang


def play(kind: Kind, variant: str, world: int, directory: Path) -> Outcome:
    name = f"{kind.name}-{variant}-{world}"
    began = time.monotonic()
    if not (directory / name).exists():
        _run(kind, variant, world, directory, name)
    took_s = time.monotonic() - began
    findings = [
        one for one in diagnose(directory / name).findings
        if one.severity > Severity.INFO and one.name not in _ABOUT_SPEED
    ]  # fmt: skip
    said = [f"{one.name}:{one.kind} {list(one.subject.ranks)}" for one in findings]
    verdict = verdict_of(kind, variant, world, findings)
    hang_s = _hang_s(directory / name) if kind.is_hang and variant == "faulty" else None
    return Outcome(kind.name, variant, world, verdict, said, [one.title for one in findings], took_s, hang_s)


def _run(kind: Kind, variant: str, world: int, directory: Path, name: str) -> None:
    """Run the job; one that hangs is stopped, as its user would do, once that was told."""
    launcher = [BESIDE / "torchrun", "--standalone", "--nproc-per-node", str(world)]
    program = [ROOT / "benchmarks" / "rankbench" / "rank.py", kind.name, variant]
    process = subprocess.Popen(
        [BESIDE / "stethos", "run", "--quiet", "--dir", directory, "--name", name, *launcher, *program],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment(), cwd=ROOT, start_new_session=True,
    )  # fmt: skip
    deadline = time.monotonic() + _TIMEOUT_S
    while process.poll() is None and time.monotonic() < deadline:
        if list((directory / name).glob("hang-*.json")):
            deadline = min(deadline, time.monotonic() + _AFTER_HANG_S)
        time.sleep(0.2)
    if process.poll() is None:
        tree = psutil.Process(process.pid).children(recursive=True)
        process.send_signal(signal.SIGINT)
        try:
            process.wait(_GRACE_S)
        except subprocess.TimeoutExpired:
            for child in tree:  # ranks that wait in C++ hear no signal but this one
                with contextlib.suppress(psutil.Error):
                    child.kill()
            process.wait()


def verdict_of(kind: Kind, variant: str, world: int, findings: Sequence[Finding]) -> str:
    """Compare a diagnosis with what was written down beside the job; only the first finding is the answer."""
    if not kind.causes or variant == "healthy":
        return "accused" if findings else "quiet"
    if not findings:
        return "nothing"
    is_cause = [one.name in kind.causes or f"{one.name}:{one.kind}" in kind.causes for one in findings]
    if is_cause[0]:
        return "right" if kind.are_right(findings[0].subject.ranks, world) else "other rank"
    return "second" if any(is_cause) else "wrong"


def _hang_s(path: Path) -> float | None:
    told = [one["t_ns"] for file in path.glob("hang-*.json") for one in json.loads(file.read_text())["hangs"]]
    with open_run(path) as run:
        last = run.sql("SELECT max(t_ns) AS t_ns FROM steps").to_pylist()[0]["t_ns"]
    return (min(told) - last) / 1e9 if told and last is not None else None


def keep(outcomes: list[Outcome], path: Path) -> None:
    path.write_text("".join(json.dumps(asdict(one)) + "\n" for one in outcomes), encoding="utf-8")
