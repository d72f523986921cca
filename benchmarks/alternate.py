"""Trains in one process, bare and observed in turns: python -m benchmarks.alternate RESULT JOB

The callbacks are taken out of torch and put back between blocks of steps. The first steps of a block are left out;
what recording may spend on samples is what it had when its last block ended, so that pauses earn nothing. Times are
those between the ends of steps: on a GPU by events that are read at the end, so that nothing waits for them; on a CPU
the training thread's own, as other processes take more than there is to measure.
"""

from __future__ import annotations

import hashlib
import itertools
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

import stethos
from benchmarks.child import job_of_child, leave_result
from benchmarks.gpu_model import make_training
from benchmarks.workload import WORKLOADS
from stethos.observe import boot

_KINDS = ("bare", "observed")
_SAMPLED_SQL = """\
SELECT DISTINCT step FROM layers WHERE kind <> 'gradient'
UNION SELECT DISTINCT step FROM modules UNION SELECT DISTINCT step FROM memory"""
_NORM_SQL = "SELECT step FROM steps WHERE grad_norm IS NOT NULL"


class Clock:
    """The time at which work that was begun so far is done, read when all is over."""

    def __init__(self, is_cuda: bool) -> None:
        self._is_cuda = is_cuda

    def mark(self) -> Any:
        if not self._is_cuda:
            return time.thread_time_ns()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def wait(self) -> None:
        if self._is_cuda:
            torch.cuda.synchronize()

    def between_ms(self, first: Any, second: Any) -> float:
        return float(first.elapsed_time(second) if self._is_cuda else (second - first) / 1e6)


class Recorder:
    """Puts the callbacks into torch and takes them out again; without a preset it does nothing."""

    def __init__(self, job: dict[str, Any]) -> None:
        self._watch = None
        if job["preset"]:
            self._watch = stethos.watch(
                dir=job["directory"], name=job["name"], preset=job["preset"], overhead=job.get("overhead")
            )
        recording = boot.current()
        self._torch_hooks = recording.torch_hooks if recording is not None else None
        self._savings: dict[str, float] = {}
        self._began = self._spent_before = 0
        self.spent_ns = self.observed_ns = 0  # what it says itself that it took, and of how much
        self.gradient_steps = 0

    def pause(self) -> None:
        if self._torch_hooks is not None:
            self.spent_ns += self._torch_hooks.steps.spent_ns - self._spent_before
            self.observed_ns += time.monotonic_ns() - self._began
            self._savings = {
                name: sample_budget.saved_ns for name, sample_budget in self._torch_hooks.steps.budget.by_kind.items()
            }
            self._torch_hooks.uninstall()

    def resume(self) -> None:
        if self._torch_hooks is not None:
            self._torch_hooks.install()
            self._began, self._spent_before = time.monotonic_ns(), self._torch_hooks.steps.spent_ns

    def settle(self) -> None:
        """Give back what the pause earned."""
        if self._torch_hooks is not None:
            for name, saved_ns in self._savings.items():
                self._torch_hooks.steps.budget.by_kind[name].saved_ns = saved_ns

    def close(self, job: dict[str, Any]) -> tuple[set[int], int]:
        """End the recording; the observed steps into which a sample fell or right after one, and how many there are."""
        if self._watch is None:
            return set(), 0
        self._watch.close()
        with stethos.open_run(Path(job["directory"]) / job["name"]) as run:
            found = {step for (step,) in run.rows(_SAMPLED_SQL).values}
            norms = {step for (step,) in run.rows(_NORM_SQL).values}
            ((steps,),) = run.rows("SELECT count(*) FROM steps").values
            ((self.gradient_steps,),) = run.rows(
                "SELECT count(DISTINCT step) FROM layers WHERE kind = 'gradient'"
            ).values
        if len(norms) < steps / 2:  # else the plain step has one
            found |= norms
        return found | {step + 1 for step in found}, steps


def main() -> None:
    path, job = job_of_child()
    clock = Clock(job["device"] == "cuda")
    model, step = _training(job)
    recorder = Recorder(job)
    for count in job["warmup"]:  # the kernel is compiled beside the first steps: not a matter of steps
        for _ in range(count):
            step()
        clock.wait()
        time.sleep(job["pause_s"])
    recorder.pause()
    recorder.spent_ns = recorder.observed_ns = 0
    marks: list[tuple[str, list[Any]]] = []
    began = time.monotonic()
    for turn in range(job["turns"]):
        if turn and time.monotonic() - began > job["limit_s"]:
            break
        for kind in _KINDS[:: -1 if turn % 2 else 1]:
            marks.append((kind, _block(job, clock, recorder, step, is_observed=kind == "observed")))
    clock.wait()
    times = [(kind, [clock.between_ms(*pair) for pair in itertools.pairwise(own)]) for kind, own in marks]
    sampled, recorded = recorder.close(job)
    observed = sum(job["warmup"]) + (job["settle"] + job["steps"]) * (len(times) // len(_KINDS))
    if job["preset"] and recorded != observed:  # else the samples would be counted at the wrong steps
        raise RuntimeError(f"{observed} steps were observed and {recorded} recorded")
    leave_result(path, {
        "turns": _turns(job, times, sampled), "steps": job["steps"], "digest": _digest(model),
        "parameters": sum(one.numel() for one in model.parameters()),
        "own_share": recorder.spent_ns / max(recorder.observed_ns, 1), "gradient_steps": recorder.gradient_steps,
        "observed_steps": observed,
    })  # fmt: skip


def _block(
    job: dict[str, Any], clock: Clock, recorder: Recorder, step: Callable[[], None], *, is_observed: bool
) -> list[Any]:
    """Some steps of one kind: a mark before the first that counts, and one after each."""
    if is_observed:
        recorder.resume()
    for _ in range(job["settle"]):
        step()
    if is_observed:
        recorder.settle()
    marks = [clock.mark()]
    for _ in range(job["steps"]):
        step()
        marks.append(clock.mark())
    clock.wait()
    if is_observed:
        recorder.pause()
    return marks


def _turns(job: dict[str, Any], times: list[tuple[str, list[float]]], sampled: set[int]) -> list[dict[str, Any]]:
    """The blocks of each turn by kind, and which observed steps had samples; steps are numbered as recorded."""
    number = sum(job["warmup"])
    turns = []
    for place in range(0, len(times), len(_KINDS)):
        blocks = dict(times[place : place + len(_KINDS)])
        number += job["settle"]
        flags = [number + at in sampled for at in range(job["steps"])]
        number += job["steps"]
        turns.append({**{f"{kind}_ms": blocks[kind] for kind in _KINDS}, "is_sampled": flags})
    return turns


def _training(job: dict[str, Any]) -> tuple[nn.Module, Callable[[], None]]:
    torch.manual_seed(0)
    if job["device"] == "cuda":
        return make_training(job)
    torch.set_num_threads(1)
    training = WORKLOADS[job["workload"]]()
    return training.model, lambda: training.train(1, None)


def _digest(model: nn.Module) -> str:
    digest = hashlib.sha256()
    for parameter in model.parameters():
        digest.update(parameter.detach().cpu().numpy().tobytes())
    return digest.hexdigest()


if __name__ == "__main__":
    main()
