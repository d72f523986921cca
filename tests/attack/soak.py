"""A training, its drainer and a dashboard that is looked at, with the rows of many hours in one: nothing grows.

A reader keeps the open segment in memory, so the dashboard's memory rises while that fills up to its 16 MB and falls
when it is sealed. What must not rise is the least that a process has between one sealing and the next; of the server
that is asked both of itself and with the process that reads for it.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from processes import (
    checked_books,
    commands_under,
    drainers_of,
    environment,
    start,
    start_command,
    wait_for_rest,
    wait_until,
)

from attack.outcome import Outcome, place
from stethos.store.run import open_run

EVERY_S = 8.0
WARM_SEGMENTS = 2  # caches fill and files reach their size in them
WARM_S = 600.0
MOST_MB_PER_H = 8.0
PROGRAM = """
import logging, time, torch, stethos
watch = stethos.watch(dir='runs', name='soak')
model = torch.nn.Sequential(torch.nn.Linear(32, 32), torch.nn.ReLU(), torch.nn.Linear(32, 1))
optimizer = torch.optim.Adam(model.parameters())
step = 0
while True:
    optimizer.zero_grad()
    model(torch.randn(8, 32)).square().mean().backward()
    optimizer.step()
    stethos.log(**{f'value {index}': float(step + index) for index in range(250)})
    if step % 50 == 0:
        logging.warning('step %d', step)
    step += 1
    time.sleep(0.2)
"""
PATHS = ("/api/runs", "/api/runs/soak/panels/summary", "/api/runs/soak/findings", "/metrics",
         "/api/runs/soak/panels/step-loss", "/api/runs/soak/panels/step-gradient")  # fmt: skip


def attack(tries: int, seed: int = 1) -> Outcome:
    """That many seconds."""
    outcome = Outcome(
        "seconds of training, draining and being looked at",
        "memory of the three processes does not grow; files and threads stay as many; every row is accounted for",
        tries=tries,
    )
    with place() as base:
        around = environment(XDG_RUNTIME_DIR=str(base), HOME=str(base))
        quiet: dict[str, Any] = {"cwd": base, "env": around, "stderr": subprocess.DEVNULL, "stdin": subprocess.DEVNULL}
        training = start("-c", PROGRAM, **quiet, stdout=subprocess.DEVNULL)
        server = start_command("serve", "--dir", base / "runs", "--port", "0", "--json", **quiet)
        try:
            address, token = _address(server)
            wait_until(lambda: drainers_of(base), "the drainer")
            _watch(outcome, base, {"training": training.pid, "serve": server.pid}, address, token, tries)
        finally:
            server.terminate()
            training.terminate()
            training.wait()
            server.communicate()
        wait_for_rest(base / "runs" / "soak")
        with open_run(base / "runs" / "soak") as run:
            books = checked_books(run)
            outcome.notes["rows"] = books["rows_stored"]
            outcome.check(not books["rows_lost"] and not books["rows_dropped"], str(books))
    return outcome


def _address(server: subprocess.Popen[str]) -> tuple[str, str]:
    assert server.stdout is not None
    text = ""
    while not text.rstrip().endswith("}"):
        line = server.stdout.readline()
        assert line, "the server did not start"
        text += line
    address, _, token = json.loads(text)["url"].partition("/#token=")
    return address, token


def _watch(outcome: Outcome, base: Path, pids: dict[str, int], address: str, token: str, seconds: float) -> None:
    seen: dict[str, list[tuple[float, ...]]] = {}
    began = time.monotonic()
    requests = 0
    while (now := time.monotonic() - began) < seconds:
        with ThreadPoolExecutor(len(PATHS)) as pool:  # all at once, so that several threads of the server read
            failures = list(pool.map(lambda path: _asked(address + path, token), PATHS))
        outcome.failures += [f"after {now:.0f} s: {failure}" for failure in failures if failure]
        requests += len(PATHS)
        segments = _sealed_segments(base)
        looked_at = {**pids, "drainer": drainers_of(base)[0]}
        groups = {name: [psutil.Process(pid)] for name, pid in looked_at.items()}
        groups["serve and readers"] = [*groups["serve"], *_readers_of(groups["serve"][0])]
        for name, processes in groups.items():
            with suppress(psutil.NoSuchProcess):  # a reader that is being replaced
                seen.setdefault(name, []).append((now, *_facts_of(processes, segments)))
        told = ", ".join(f"{name} {rows[-1][1]:.1f} ({rows[-1][5]:.1f} own)" for name, rows in seen.items())
        sys.stderr.write(f"{now:.0f} s: {requests} requests, {segments} segments: {told} MB\n")
        time.sleep(EVERY_S)
    outcome.notes |= {"requests": requests, "segments": segments}
    for name, rows in seen.items():
        _judge(outcome, name, np.array(rows))
    outcome.notes["disk MB"] = sum(one.stat().st_size for one in base.rglob("*") if one.is_file()) / 2**20


def _readers_of(server: psutil.Process) -> list[psutil.Process]:
    """The processes that read runs for it."""
    return [child for child, words in commands_under(server.pid).items() if "stethos.web.reading" in words]


def _facts_of(processes: list[psutil.Process], segments: int) -> tuple[float, int, int, int, float]:
    """Memory, files and threads of processes together; the segments; and the memory that they share with nobody."""
    memory = [process.memory_info() for process in processes]
    files, threads = sum(one.num_fds() for one in processes), sum(one.num_threads() for one in processes)
    own = sum(one.rss - one.shared for one in memory)
    return sum(one.rss for one in memory) / 2**20, files, threads, segments, own / 2**20


def _asked(url: str, token: str) -> str | None:
    """What is wrong with the answer, if anything."""
    request = urllib.request.Request(url, headers={"Authorization": f"Bearer {token}"})
    try:
        with urllib.request.urlopen(request, timeout=120) as answer:
            answer.read()
    except OSError as error:
        return f"{url}: {error}"
    return None


def _sealed_segments(base: Path) -> int:
    """How many segments were sealed until now."""
    return len({path.name[:6] for path in base.glob("runs/soak/*/*.parquet")})


def _judge(outcome: Outcome, name: str, rows: np.ndarray[Any, Any]) -> None:
    """The least memory of each segment, and what it grows by."""
    warm = rows[rows[:, 4] >= WARM_SEGMENTS]
    floors = []
    for segment in np.unique(warm[:, 4])[:-1]:  # the last one may only have begun
        during = warm[warm[:, 4] == segment]
        floors.append(during[during[:, 5].argmin()][[0, 5]])  # of what it shares with nobody: a ring is touched slowly
    later = rows[rows[:, 0] >= WARM_S]
    outcome.notes |= {f"{name} most MB": float(rows[:, 1].max())}
    if len(later) > 2:
        for column, what in ((1, "MB/h of all samples"), (5, "MB/h that it does not share")):
            outcome.notes[f"{name} {what}"] = float(np.polyfit(later[:, 0], later[:, column], 1)[0]) * 3600
    if len(floors) < 3:
        outcome.failures.append(f"{name}: only {len(floors)} whole segments after the first {WARM_SEGMENTS}")
        return
    slope = float(np.polyfit(*np.array(floors).T, 1)[0]) * 3600
    outcome.notes |= {f"{name} least MB": float(floors[-1][1]), f"{name} MB/h": slope}
    outcome.check(slope < MOST_MB_PER_H, f"{name} grows by {slope:.1f} MB an hour: {np.array(floors).tolist()}")
    for column, what in ((2, "files"), (3, "threads")):
        few, many = np.median(warm[: len(warm) // 2, column]), np.median(warm[len(warm) // 2 :, column])
        outcome.check(many <= few, f"{name}: {few:g} {what}, then {many:g}")
