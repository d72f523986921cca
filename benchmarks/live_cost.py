"""What being ready for live commands costs a training: the watch on collectives, and an agent that nobody asks."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.child import Child
from benchmarks.estimate import Ratio, median, quartiles, ratio_of
from benchmarks.report import Grid, say, verdict
from benchmarks.scale import Scale

_CALLS = 500
_STEPS = 300
_PATIENCE_S = 120.0
_AGENT_TARGET = 1.01
Times = dict[str, list[tuple[float, float]]]


def measure(scale: Scale, scratch: Path) -> list[Grid]:
    rounds = 3 * scale.command_rounds
    runtime = scratch / "cost-runtime"
    runtime.mkdir(mode=0o700)
    with _jobs(scratch, runtime, is_of_ranks=True) as jobs:
        calls = _in_turns(jobs, rounds, "collectives")
    with _jobs(scratch, runtime, is_of_ranks=False) as jobs:
        steps = _in_turns(jobs, rounds, "agent")
    return [_collectives(calls, rounds), _agent(steps, rounds)]


class _Job:
    """One process, or two ranks, that run a block when told."""

    def __init__(self, scratch: Path, name: str, ranks: int, runs: str, extra: dict[str, str]) -> None:
        self._blocks = 0
        self._places = [scratch / f"{name}-{rank}" for rank in range(ranks)]
        self._children = []
        for rank, place in enumerate(self._places):
            place.mkdir()
            job: dict[str, Any] = {
                "name": name, "runs": runs, "rank": rank, "directory": str(place),
                "rendezvous": str(scratch / f"{name}-meeting") if ranks > 1 else "",
                "count": _CALLS if ranks > 1 else _STEPS,
            }  # fmt: skip
            self._children.append(Child("live_block", job, {**extra, "RANK": str(rank), "WORLD_SIZE": str(ranks)}))

    def wait(self) -> None:
        for child in self._children:
            child.wait_for_result()

    def block_us(self) -> tuple[float, float]:
        """Wall and processor time of one call, or step, in a block of them: those of the first rank."""
        for child in self._children:
            child.tell("go")
        files = [place / str(self._blocks) for place in self._places]
        self._blocks += 1
        deadline = time.monotonic() + _PATIENCE_S
        while not all(file.exists() for file in files):
            if time.monotonic() > deadline:
                raise RuntimeError("a block did not end")
            time.sleep(0.005)
        wall, cpu = json.loads(files[0].read_text(encoding="utf-8"))
        return wall, cpu

    def close(self) -> None:
        for child in self._children:
            child.close()


@contextlib.contextmanager
def _jobs(scratch: Path, runtime: Path, *, is_of_ranks: bool) -> Iterator[dict[str, _Job]]:
    """Those to compare; `again` is the first one once more, as the noise."""
    runs = str(scratch / "cost-runs")
    shared = {"XDG_RUNTIME_DIR": str(runtime)}
    ranks = 2 if is_of_ranks else 1
    kind = "ranks" if is_of_ranks else "steps"
    with contextlib.ExitStack() as stack:
        without = _Job(scratch, f"{kind}-without", ranks, "" if is_of_ranks else runs, {**shared, "STETHOS_AGENT": "0"})
        stack.callback(without.close)
        watched = _Job(scratch, f"{kind}-with", ranks, runs, shared)
        stack.callback(watched.close)
        for job in (without, watched):
            job.wait()
        yield {"without": without, "with": watched, "again": without}


def _in_turns(jobs: dict[str, _Job], rounds: int, what: str) -> Times:
    say(f"live: {what}, {rounds} rounds")
    times: Times = {name: [] for name in jobs}
    names = list(jobs)
    for round_ in range(rounds):
        first = round_ % len(names)
        for name in names[first:] + names[:first]:
            times[name].append(jobs[name].block_us())
    return times


def _rows(times: Times, labels: Sequence[tuple[str, str]]) -> tuple[list[list[str]], Ratio, Ratio]:
    rows, ratios = [], {}
    for name, label in labels:
        wall = [wall for wall, _ in times[name]]
        low, high = quartiles(wall)
        ratios[name] = ratio_of(wall, [wall for wall, _ in times["without"]])
        shown = ["", ""] if name == "without" else [str(ratios[name]), ratios[name].interval]
        cpu = median([cpu for _, cpu in times[name]])
        rows.append([label, f"{median(wall):.1f} us", f"{low:.1f} to {high:.1f}", *shown, f"{cpu:.1f} us"])
    return rows, ratios["with"], ratios["again"]


def _collectives(times: Times, rounds: int) -> Grid:
    labels = [("without", "not recorded"), ("again", "not recorded, again (the noise)"), ("with", "recorded")]
    rows, _, _ = _rows(times, labels)
    added = median([late[1] - early[1] for late, early in zip(times["with"], times["without"], strict=True)])
    return Grid(
        f"A small all_reduce of 2 gloo ranks, blocks of {_CALLS} by turns, {rounds} rounds",
        ["4 kB all_reduce", "us/call", "quartiles", "x without", "95 % interval", "CPU of the thread"],
        rows,
        [
            f"Recording a collective adds {added:.1f} us of the calling thread's processor time: its number, size and "
            "times, as a row and on the board that `stethos collectives` reads.",
        ],
    )


def _agent(times: Times, rounds: int) -> Grid:
    labels = [("without", "no agent"), ("again", "no agent, again (the noise)"), ("with", "agent, idle")]
    rows, ratio, again = _rows(times, labels)
    for row, (name, _) in zip(rows, labels, strict=True):
        apart = abs(again.value - 1)
        judged = verdict(ratio.value, _AGENT_TARGET, low=ratio.low, high=ratio.high, noise=apart)
        row += [f"{_AGENT_TARGET:.2f}", judged] if name == "with" else ["", ""]
    return Grid(
        f"Idle cost of the agent: steps of the MLP, recorded, blocks of {_STEPS} by turns, {rounds} rounds",
        [
            "recorded training", "us/step", "quartiles", "x without", "95 % interval", "CPU of the thread", "target",
            "reached",
        ],
        rows,
    )  # fmt: skip
