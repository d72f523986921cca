"""What being looked at costs a training: the same live training with no server, with one open page, with several."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import psutil

from benchmarks.child import Child
from benchmarks.estimate import median, ratio_of
from benchmarks.report import Grid, say, verdict
from benchmarks.scale import Scale
from benchmarks.served import served
from benchmarks.served_training import FIELDS

_RUN = "trained"
_TARGET = 1.01
_SETTLE_S = 1.0
NOBODY, AGAIN = "no server", "no server again (the noise)"
# How many pages are open; None: not even a server.
_TRIALS: dict[str, int | None] = {NOBODY: None, AGAIN: None, "1 open page": 1, "5 open pages": 5}


@dataclass(frozen=True, slots=True)
class Look:
    """One stretch of the training: its median step, and how busy the server was."""

    wall_us: float
    cpu_us: float
    server_share: float


def measure(scale: Scale, scratch: Path) -> Grid:
    runs, notes = scratch / "served", scratch / "notes"
    rounds, stretch_s = (2, 3.0) if scale.is_quick else (12, 6.0)
    looks: dict[str, list[Look]] = defaultdict(list)
    training = Child("served_training", {"workload": "cnn", "name": _RUN, "runs": str(runs), "notes": str(notes)})
    try:
        training.wait_for_result()
        names = list(_TRIALS)
        for round_ in range(rounds):
            say(f"web: a training that is looked at, round {round_ + 1} of {rounds}")
            first = round_ % len(names)
            for name in names[first:] + names[:first]:
                with _looked_at(runs, _TRIALS[name]) as server:
                    time.sleep(_SETTLE_S)
                    looks[name].append(_look(notes, stretch_s, server))
    finally:
        training.close()
    return _grid(looks, stretch_s)


@contextmanager
def _looked_at(runs: Path, pages: int | None) -> Iterator[psutil.Process | None]:
    with ExitStack() as stack:
        if pages is None:
            yield None
            return
        url, token, server = stack.enter_context(served(runs))
        reader = Child("page_reader", {"url": url, "token": token, "run": _RUN, "page": "overview", "pages": pages})
        stack.callback(reader.close)
        reader.wait_for_result()
        yield server


def _look(notes: Path, stretch_s: float, server: psutil.Process | None) -> Look:
    start_ns, before_s = time.monotonic_ns(), _cpu_s(server)
    time.sleep(stretch_s)
    share = (_cpu_s(server) - before_s) / stretch_s
    entries = np.fromfile(notes, dtype=np.int64).reshape(-1, FIELDS)
    inside = entries[entries[:, 0] - entries[:, 1] >= start_ns]
    return Look(float(np.median(inside[:, 1])) / 1e3, float(np.median(inside[:, 2])) / 1e3, share)


def _cpu_s(server: psutil.Process | None) -> float:
    """The server's own, and of the processes it began: the diagnosis, once it has ended."""
    if server is None:
        return 0.0
    used = server.cpu_times()
    return float(used.user + used.system + used.children_user + used.children_system)


def _grid(looks: dict[str, list[Look]], stretch_s: float) -> Grid:
    bases = looks[NOBODY]
    rows = []
    for name, found in looks.items():
        wall = ratio_of([one.wall_us for one in found], [one.wall_us for one in bases])
        cpu = ratio_of([one.cpu_us for one in found], [one.cpu_us for one in bases])
        noise = ratio_of([one.wall_us for one in looks[AGAIN]], [one.wall_us for one in bases])
        is_judged = _TRIALS[name] is not None
        rows.append([
            name, f"{median([one.wall_us for one in found]):,.0f}", "" if name == NOBODY else str(wall),
            "" if name == NOBODY else wall.interval, "" if name == NOBODY else str(cpu),
            "" if name == NOBODY else cpu.interval,
            f"{median([one.server_share for one in found]):.1%}" if is_judged else "",
            f"{_TARGET:.2f}" if is_judged else "",
            verdict(wall.value, _TARGET, low=wall.low, high=wall.high, noise=abs(noise.value - 1)) if is_judged else "",
        ])  # fmt: skip
    return Grid(
        "A training that is looked at",
        ["", "us/step", "x no server", "95 % interval", "CPU x", "95 % interval", "server's core", "target", "reached"],
        rows,
        [
            f"One observed training (a CNN, one thread), in stretches of {stretch_s:g} s, {len(bases)} of each in "
            "turns, each with a server of its own. A page listens to the events and asks for the whole overview when "
            "the run has changed; no browser draws it, since that is not done by the training's machine. `CPU` is the "
            "training process's own time per step. `server's core` is the CPU time of the server and of the diagnoses "
            "it begins, which step back behind the training."
        ],
    )
