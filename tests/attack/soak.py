"""A training, its drainer and a dashboard that is looked at, for an hour: nothing grows."""

from __future__ import annotations

import json
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from processes import checked_books, drainers_of, environment, start, start_command, wait_for_rest, wait_until

from attack.outcome import Outcome, place
from stethos.store.run import open_run

EVERY_S = 10.0
WARM_SHARE = 1 / 3  # of the time; caches fill and files reach their size in it
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
    stethos.log(step=step, twice=2.0 * step)
    if step % 50 == 0:
        logging.warning('step %d', step)
    step += 1
    time.sleep(0.02)
"""


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
    seen: dict[str, list[tuple[float, float, int, int]]] = {}
    began = time.monotonic()
    while (now := time.monotonic() - began) < seconds:
        for path in ("/api/runs", "/api/runs/soak/panels/summary", "/api/runs/soak/findings"):
            request = urllib.request.Request(address + path, headers={"Authorization": f"Bearer {token}"})
            try:
                with urllib.request.urlopen(request, timeout=120) as answer:
                    answer.read()
            except OSError as error:
                outcome.failures.append(f"{path} after {now:.0f} s: {error}")
        for name, pid in {**pids, "drainer": drainers_of(base)[0]}.items():
            process = psutil.Process(pid)
            facts = process.memory_info().rss / 2**20, process.num_fds(), process.num_threads()
            seen.setdefault(name, []).append((now, *facts))
            sys.stderr.write(f"{now:.0f} s: {name} {facts[0]:.1f} MB, {facts[1]} files, {facts[2]} threads\n")
        time.sleep(EVERY_S)
    for name, rows in seen.items():
        late = np.array(rows[int(len(rows) * WARM_SHARE) :])
        slope = float(np.polyfit(late[:, 0], late[:, 1], 1)[0]) * 3600
        outcome.notes |= {f"{name} MB": float(late[-1, 1]), f"{name} MB/h": slope}
        outcome.check(slope < MOST_MB_PER_H, f"{name} grows by {slope:.1f} MB an hour")
        for column, what in ((2, "files"), (3, "threads")):
            few, many = np.median(late[: len(late) // 2, column]), np.median(late[len(late) // 2 :, column])
            outcome.check(many <= few, f"{name}: {few:g} {what}, then {many:g}")
    outcome.notes["disk MB"] = sum(one.stat().st_size for one in base.rglob("*") if one.is_file()) / 2**20
