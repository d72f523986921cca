"""The process beside the training: one per run and host.

It visits every ring of the run a few times a second, stores the rows, syncs
about once a second, samples the machine, keeps the size limit, and ends when
its run has ended. It outlives a killed trainer to collect its last rows.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from pathlib import Path
from types import FrameType
from typing import Any

from stethos.guard import Guard
from stethos.record.collector import Collector
from stethos.record.host import HostSampler
from stethos.record.layout import State
from stethos.record.place import ProcessPlace, RunPlace, host_key, is_alive
from stethos.record.spawn import take_lock
from stethos.schema import TABLES
from stethos.settings import DEFAULT_LIMIT_BYTES

VISIT_S = 0.1
DRAIN_S = 0.5
SYNC_S = 1.0
HOLE_S = 1.0
LINGER_S = 1.0
GIVE_UP_S = 30.0


class Drainer:
    """All collectors of one run on this host."""

    def __init__(self, run: RunPlace) -> None:
        self.run = run
        self.host = host_key()
        self.limit_bytes = int(run.facts().get("limit_bytes") or DEFAULT_LIMIT_BYTES)
        self.collectors: dict[str, Collector] = {}
        self.finished: set[str] = set()
        self.is_stopping = False
        self._holes: dict[str, float] = {}
        self._dead_since: dict[str, float] = {}
        self._sampler = HostSampler()
        self._guard = Guard(self._note_failure)
        self._next_drain = self._next_sync = 0.0

    def serve(self) -> None:
        """Work until the run has ended."""
        idle_since = time.monotonic()
        while not self.is_stopping:
            if self.visit(time.monotonic()):
                idle_since = time.monotonic()
            elif time.monotonic() - idle_since > LINGER_S:
                break
            time.sleep(VISIT_S)
        for name in list(self.collectors):
            self._attempt(name, self._drain_fully)
            self.collectors[name].sync()

    def visit(self, now: float) -> bool:
        """One round over all rings; return whether the run is still going on."""
        if not self.run.path.is_dir():
            self.is_stopping = True
            return False
        self._discover()
        is_due = now >= self._next_drain
        if is_due:
            self._next_drain = now + DRAIN_S
        is_sync_due = now >= self._next_sync
        if is_sync_due:
            self._next_sync = now + SYNC_S
            self._sample_hosts()
        for name, collector in list(self.collectors.items()):
            is_dead = not self._is_running(collector)
            is_over = is_dead or collector.tap.state is not State.RUNNING
            if is_due or is_over or collector.tap.is_filling():
                self._attempt(name, self._drain_fully)
            if is_sync_due and name in self.collectors:
                self._attempt(name, lambda collector: collector.sync())
            if name in self.collectors and (is_dead or collector.tap.state is State.ENDED):
                self._attempt(name, self._finish)
        if is_sync_due:
            self._guard.run("size limit", self._keep_limit)
        return bool(self.collectors) or self._has_launcher()

    # One process ---------------------------------------------------------------------------------

    def _discover(self) -> None:
        for place in self.run.processes():
            if place.name in self.collectors or place.name in self.finished:
                continue
            if place.facts().get("host_key") != self.host or "ended" in place.manifest():
                self.finished.add(place.name)
            elif place.ring().exists():
                self._guard.run(f"open {place.name}", self._open, place)

    def _open(self, place: ProcessPlace) -> None:
        with contextlib.suppress(OSError):  # disk full: tried again at the next visit
            self.collectors[place.name] = Collector(place)

    def _attempt(self, name: str, action: Any) -> None:
        """Do something with a collector; a full disk is tried again later, a deleted directory is let go."""
        collector = self.collectors[name]
        try:
            if collector.is_deleted() or not collector.place.path.is_dir():
                collector.close()
                del self.collectors[name]
                self.finished.add(name)
                return
            self._guard.run(name, action, collector)
        except OSError:
            self._next_drain = time.monotonic() + DRAIN_S

    def _drain_fully(self, collector: Collector) -> None:
        with contextlib.suppress(OSError):  # disk full: the rows stay in the ring, the next visit tries again
            while collector.tap.has_rows() or collector.has_samples:
                if not collector.drain():
                    break
            self._skip_stale_hole(collector)
            if collector.wants_seal:
                collector.seal()

    def _skip_stale_hole(self, collector: Collector) -> None:
        name = collector.place.name
        if not collector.tap.has_hole():
            self._holes.pop(name, None)
            return
        since = self._holes.setdefault(name, time.monotonic())
        if time.monotonic() - since > HOLE_S or not self._is_running(collector):
            collector.tap.skip_hole()
            del self._holes[name]
            collector.drain()

    def _finish(self, collector: Collector) -> None:
        """Seal a dead process's rows; on a full disk keep trying for a while, then leave ring and segment."""
        name = collector.place.name
        since = self._dead_since.setdefault(name, time.monotonic())
        try:
            while collector.tap.has_rows() or collector.tap.has_hole():
                self._drain_or_skip(collector)
            collector.finish({"t_ns": time.time_ns()})
        except OSError:
            if time.monotonic() - since < GIVE_UP_S:
                return
            collector.close()
        del self.collectors[name]
        self.finished.add(name)

    def _drain_or_skip(self, collector: Collector) -> None:
        if collector.tap.has_hole():
            collector.tap.skip_hole()
        collector.drain()

    def _is_running(self, collector: Collector) -> bool:
        return is_alive(collector.facts["pid"], collector.facts.get("start_ticks"))

    # The run ---------------------------------------------------------------------------------------

    def _has_launcher(self) -> bool:
        return any(
            launcher.get("host_key") == self.host
            and "ended_ns" not in launcher
            and is_alive(launcher.get("pid", 0), launcher.get("start_ticks"))
            for launcher in self.run.launchers()
        )

    def _sample_hosts(self) -> None:
        for collector in self.collectors.values():
            sample = self._guard.run("host", self._sampler.sample, collector.facts["pid"])
            if sample is not None:
                collector.add_host_sample(time.time_ns(), sample)

    def _keep_limit(self) -> None:
        """Delete the oldest sealed rows, bulk tables first, while the run is over its size."""
        files = [
            (not TABLES[file["table"]].is_bulk, file["file"], collector, file)
            for collector in self.collectors.values()
            for file in collector.sealed
        ]
        size = sum(file["bytes"] for *_, file in files)
        for _, _, collector, file in sorted(files, key=lambda entry: entry[:2]):
            if size <= self.limit_bytes:
                break
            collector.retire(file)
            size -= file["bytes"]

    def _note_failure(self, place: str, reason: str) -> None:
        with (self.run.path / "drainer.log").open("a", encoding="utf-8") as log:
            log.write(f"{time.strftime('%Y-%m-%dT%H:%M:%S')} {place}: {reason}\n")

    def stop(self, signal_number: int, frame: FrameType | None) -> None:
        self.is_stopping = True


def main() -> None:
    """`python -c '... main()' RUN`: drain a run until it ends."""
    run = RunPlace(Path(sys.argv[1]))
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    lock = take_lock(run.drainer_lock(host_key()))
    for _ in range(10):  # somebody may only be looking whether it is held
        if lock is not None:
            break
        time.sleep(0.05)
        lock = take_lock(run.drainer_lock(host_key()))
    if lock is None:
        return
    os.nice(5)
    drainer = Drainer(run)
    signal.signal(signal.SIGTERM, drainer.stop)
    drainer.serve()


if __name__ == "__main__":
    main()
