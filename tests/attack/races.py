"""A reader comes just as the trainer is dead and its drainer dies, stops, or has not begun."""

from __future__ import annotations

import os
import random
import signal
import threading
import time

from builders import RunBuilder
from processes import drainers_of

from attack.outcome import Outcome, place
from stethos.record.spawn import ensure_drainer
from stethos.store.run import Run

ROWS = 500


def attack(tries: int, seed: int = 1) -> Outcome:
    outcome = Outcome(
        "first read as trainer and drainer die", "the first read has every row; none is missing without a word"
    )
    chance = random.Random(seed)
    for _ in range(tries):
        outcome.tries += 1
        way = chance.choice(["kill", "stop", "none", "kill again"])
        with place() as base:
            with RunBuilder(base / "run") as run:
                process = run.process("100-200", is_alive=False)
                process.steps(ROWS - 100)
                process.drain()
                process.steps(100)
            killer = threading.Thread(target=_hurt, args=(run.path, way, chance.uniform(0, 1.5)))
            if way != "none":
                ensure_drainer(run.place)
                killer.start()
                time.sleep(chance.uniform(0, 1.0))
            opened = Run(run.place)
            found = opened.rows("SELECT count(*), count(DISTINCT step) FROM steps").values[0]
            summary = opened.summary()
            outcome.check(found == (ROWS, ROWS), f"{way}: {found} of {ROWS}")
            outcome.check(
                summary["rows_produced"] == summary["rows_stored"] + summary["rows_lost"] + summary["rows_dropped"],
                f"{way}: {summary}",
            )
            opened.close()
            if way != "none":
                killer.join()
            for pid in drainers_of(base):
                os.kill(pid, signal.SIGKILL)
    return outcome


def _hurt(path: object, way: str, after_s: float) -> None:
    from pathlib import Path

    time.sleep(after_s)
    for _ in range(2 if way == "kill again" else 1):
        for pid in drainers_of(Path(str(path))):
            try:
                os.kill(pid, signal.SIGSTOP if way == "stop" else signal.SIGKILL)
            except ProcessLookupError:
                continue
        time.sleep(0.5)
