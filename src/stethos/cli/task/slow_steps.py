"""Waits for the moment at which a live training becomes slow."""

from __future__ import annotations

import time

from stethos.errors import LiveError, QueryError, UsageError
from stethos.live.registry import LiveProcess
from stethos.record.place import is_alive

EVERY_S = 1.0
_USUAL = 50


def wait_for_slow_steps(process: LiveProcess, times: float) -> tuple[float, float]:
    """Wait until the last steps of a process take so many times as long as the thousand before; both medians in ms.

    LiveError if the process ends first.
    """
    if not times > 1:
        raise UsageError(f"--when-slow {times:g}", hint="give a number above 1: how many times as slow as usual")
    from stethos.store.run import open_run
    from stethos.view.step import PACE

    with open_run(process.run_dir) as run:
        while True:
            try:
                ((now_ms, usual_ms, count),) = PACE.ask(run, process=process.process).values
            except QueryError:
                now_ms = usual_ms = None  # no steps yet
            if now_ms is not None and usual_ms is not None and count >= _USUAL and now_ms >= times * usual_ms:
                return now_ms, usual_ms
            if not is_alive(process.pid, process.start_ticks):
                raise LiveError(f"process {process.pid} ended before its steps became slow")
            time.sleep(EVERY_S)
