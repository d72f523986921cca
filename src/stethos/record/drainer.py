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
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from types import FrameType
from typing import Any

from stethos.guard import Guard
from stethos.record.collector import SEGMENT_BYTES, Collector, remove_leftovers, retire_file
from stethos.record.gpu import GpuSampler
from stethos.record.host import HostSampler
from stethos.record.layout import State, Word
from stethos.record.place import ProcessPlace, RunPlace, host_key, is_alive, is_at_work
from stethos.record.spawn import take_lock
from stethos.schema import GPU, TABLES
from stethos.settings import DEFAULT_LIMIT_BYTES, registry_dir

VISIT_S = 0.1
DRAIN_S = 0.5
SYNC_S = 1.0
HOLE_S = 1.0
LINGER_S = 1.0
GIVE_UP_S = 30.0
LEAST_SEGMENT_BYTES = 256 << 10
CAPTURES = "capture"  # a run's directory of captures, and who packs them
PACKER = ("stethos.replay.pack", "Packer")
_DRAIN, _SEAL, _SYNC, _FINISH = "drain", "seal", "sync", "finish"


class Drainer:
    """All collectors of one run on this host."""

    def __init__(self, run: RunPlace) -> None:
        self.run = run
        self.host = host_key()
        self.limit_bytes = int(run.facts().get("limit_bytes") or DEFAULT_LIMIT_BYTES)
        self.segment_bytes = min(SEGMENT_BYTES, max(LEAST_SEGMENT_BYTES, self.limit_bytes // 8))
        self.collectors: dict[str, Collector] = {}
        self.finished: set[str] = set()
        self._seen: set[str] = set()
        self.is_stopping = False
        self.lock: int | None = None
        self._ended: dict[str, dict[str, Any]] = {}
        self._released: set[str] = set()
        self._holes: dict[str, tuple[int, float]] = {}
        self._dead_since: dict[str, float] = {}
        self._sampler = HostSampler()
        self._gpu_sampler = GpuSampler()
        self._guard = Guard(self._note_failure)
        self._next_drain = self._next_sync = 0.0
        self.watchers: list[Callable[[float], object]] = []  # called at every visit
        self._packer: Any = None

    def serve(self) -> None:
        """Work until the run has ended."""
        idle_since = time.monotonic()
        while not self.is_stopping:
            if self.visit(time.monotonic()):
                idle_since = time.monotonic()
            elif time.monotonic() - idle_since > LINGER_S:
                break
            time.sleep(VISIT_S)
        if self._is_orphaned():
            while self.collectors:
                self.collectors.popitem()[1].close()
            return
        for name in list(self.collectors):
            self._attempt(_DRAIN, name, self._drain_fully)
            self._attempt(_SYNC, name, Collector.sync)
        self._guard.run("size limit", self._careful, self._keep_limit)
        self._guard.run("captures", self._accompany)
        if self._packer is not None:
            self._guard.run("captures", self._packer.end)
            self._packer = None

    def has_newcomers(self) -> bool:
        """Whether a process has joined the run that this drainer has not seen yet."""
        return any(place.name not in self._seen and self._is_waiting(place) for place in self.run.processes())

    def visit(self, now: float) -> bool:
        """One round over all rings; return whether the run is still going on."""
        if self._is_orphaned():
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
            is_running = self._is_running(collector)
            is_over = collector.tap.state is not State.RUNNING or not is_running
            if is_due or is_over or collector.tap.is_filling():
                self._attempt(_DRAIN, name, self._drain_fully)
            if is_sync_due and collector.wants_seal:
                self._attempt(_SEAL, name, Collector.seal)
            if is_sync_due:
                self._attempt(_SYNC, name, Collector.sync)
            if name not in self.collectors:
                continue
            if not is_running or name in self._released:
                if is_due or name not in self._dead_since:  # after a failure not at every visit
                    self._attempt(_FINISH, name, self._finish)
            elif collector.tap.word(Word.RELEASED):
                self._released.add(name)  # at the next visit: a thread may be writing its last row
        if is_sync_due:
            self._guard.run("size limit", self._careful, self._keep_limit)
            self._guard.run("captures", self._accompany)
        for watcher in self.watchers:
            self._guard.run("watchdog", watcher, now)
        return bool(self.collectors) or self._has_launcher()

    def _is_orphaned(self) -> bool:
        """Whether the run was deleted, or deleted and made anew: then another drainer holds the lock of that name."""
        if self.lock is None:
            return not self.run.path.is_dir()
        try:
            now = os.stat(self.run.drainer_lock(self.host))
        except OSError:
            return True
        return now.st_ino != os.fstat(self.lock).st_ino

    def _accompany(self) -> None:
        """Have the captures of the run packed, if it has any, by a thread of this process."""
        if self._packer is None and (self.run.path / CAPTURES).is_dir():
            module, name = PACKER
            self._packer = getattr(import_module(module), name)(self.run.path)

    # One process ---------------------------------------------------------------------------------

    def _discover(self) -> None:
        for place in self.run.processes():
            if place.name in self.collectors or place.name in self.finished:
                continue
            if place.facts().get("host_key") != self.host:
                self.finished.add(place.name)
            elif "ended" in place.manifest():
                self._guard.run(f"tidy {place.name}", remove_leftovers, place)
                self._let_go(place.name, place.manifest())
            elif self._is_waiting(place):
                self._seen.add(place.name)
                self._guard.run(f"open {place.name}", self._open, place)
                if self._guard.is_off(f"open {place.name}"):
                    self.finished.add(place.name)  # or we would wait for it for ever; its ring stays

    def _is_waiting(self, place: ProcessPlace) -> bool:
        """Whether a process of this host has a ring that is not collected to its end."""
        is_here = place.facts().get("host_key") == self.host
        return is_here and "ended" not in place.manifest() and place.ring().exists()

    def _open(self, place: ProcessPlace) -> None:
        with contextlib.suppress(OSError):  # disk full: tried again at the next visit
            self.collectors[place.name] = Collector(place, self.segment_bytes)

    def _attempt(self, what: str, name: str, action: Callable[[Collector], object]) -> None:
        """Do something with a collector; a deleted directory is let go.

        On a full disk the action changes nothing and is tried again at the next
        visit. What fails again and again for another reason is given up: rows
        that cannot be read count as lost, files that cannot be sealed stay as they are.
        """
        collector = self.collectors.get(name)
        if collector is None:
            return
        if collector.is_deleted() or not collector.place.path.is_dir():
            collector.close()
            self._let_go(name)
            return
        place = f"{what} {name}"
        self._guard.run(place, self._careful, action, collector)
        if not self._guard.is_off(place):
            return
        if what == _DRAIN:
            self._guard.failures.pop(place)
            collector.discard()
        elif name in self.collectors:
            collector.close()
            self._let_go(name)

    def _careful(self, action: Callable[..., object], *arguments: Collector) -> None:
        with contextlib.suppress(OSError):  # a full disk is no failure of ours
            action(*arguments)

    def _let_go(self, name: str, manifest: dict[str, Any] | None = None) -> None:
        """No longer look after a process; its manifest is kept if its files can still be retired."""
        self.collectors.pop(name, None)
        self.finished.add(name)
        if manifest:
            self._ended[name] = manifest

    def _drain_fully(self, collector: Collector) -> None:
        while collector.tap.has_rows() or collector.has_samples:
            if not collector.drain():
                break
        self._skip_stale_hole(collector)

    def _skip_stale_hole(self, collector: Collector) -> None:
        """Step over a slot that has stood unfinished for a while, with finished ones behind it."""
        name, slot = collector.place.name, collector.tap.slots_tail
        if not collector.tap.has_hole():
            self._holes.pop(name, None)
            return
        known, since = self._holes.get(name, (-1, 0.0))
        if known != slot:
            self._holes[name] = slot, time.monotonic()
        elif time.monotonic() - since > HOLE_S:
            collector.tap.skip_hole()
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
            if time.monotonic() - since >= GIVE_UP_S:
                collector.close()
                self._let_go(name)
            return
        self._let_go(name, collector.manifest)
        self._deregister(collector)

    def _drain_or_skip(self, collector: Collector) -> None:
        if collector.tap.has_hole():
            collector.tap.skip_hole()
        collector.drain()

    def _deregister(self, collector: Collector) -> None:
        """Take a process that could not do so itself out of the registry."""
        entry = registry_dir() / str(collector.facts["pid"])
        with contextlib.suppress(OSError):
            if entry.read_text(encoding="utf-8") == str(collector.place.path.resolve()):
                entry.unlink()

    def _is_running(self, collector: Collector) -> bool:
        return is_alive(collector.facts["pid"], collector.facts.get("start_ticks"))

    # The run ---------------------------------------------------------------------------------------

    def _has_launcher(self) -> bool:
        return any(map(is_at_work, self.run.launchers()))

    def _sample_hosts(self) -> None:
        for collector in self.collectors.values():
            sample = self._guard.run("host", self._sampler.sample, collector.facts["pid"])
            if sample is not None:
                collector.add_sample(time.time_ns(), sample)
            for row in self._guard.run("gpu", self._sample_gpus, collector) or ():
                collector.add_sample(time.time_ns(), row, GPU)

    def _sample_gpus(self, collector: Collector) -> list[dict[str, float]]:
        return self._gpu_sampler.sample(collector.facts["pid"], is_alone=len(self.collectors) == 1)

    def _keep_limit(self) -> None:
        """Delete the oldest sealed rows of this host, bulk tables first, while they are over the run's size."""
        manifests = self._ended | {name: collector.manifest for name, collector in self.collectors.items()}
        files = [
            (not TABLES[file["table"]].is_bulk, file["file"], name, file)
            for name, manifest in manifests.items()
            for file in manifest["sealed"]
        ]
        size = sum(file["bytes"] for *_, file in files) + sum(one.open_bytes for one in self.collectors.values())
        for _, _, name, file in sorted(files, key=lambda entry: entry[:3]):
            if size <= self.limit_bytes:
                break
            if name in self.collectors:
                self.collectors[name].retire(file)
            else:
                self._ended[name] = retire_file(ProcessPlace(self.run.path / name), self._ended[name], file)
            size -= file["bytes"]

    def _note_failure(self, place: str, reason: str) -> None:
        path = self.run.path / "drainer.log"
        descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        with open(descriptor, "a", encoding="utf-8") as log:
            log.write(f"{time.strftime('%Y-%m-%dT%H:%M:%S')} {place}: {reason}\n")

    def stop(self, signal_number: int, frame: FrameType | None) -> None:
        self.is_stopping = True


def main(watchdog: Callable[[Drainer], Callable[[float], object]] | None = None) -> None:
    """`python -c '... main()' RUN`: drain a run until it ends, with a watchdog that is let look at every visit."""
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())  # who started us may have blocked some
    os.nice(5)
    drainer = Drainer(RunPlace(Path(sys.argv[1])))
    signal.signal(signal.SIGTERM, drainer.stop)
    if watchdog is not None:
        drainer.watchers.append(watchdog(drainer))
    while (lock := _patient_lock(drainer)) is not None:
        drainer.lock = lock
        drainer.serve()
        os.close(lock)
        # Whoever joined before this saw the lock held and started nobody.
        if drainer.is_stopping or not drainer.has_newcomers():
            break


def _patient_lock(drainer: Drainer) -> int | None:
    """The run's lock, which another drainer may be about to give back; None if it is kept."""
    for _ in range(10):
        lock = take_lock(drainer.run.drainer_lock(drainer.host))
        if lock is not None:
            return lock
        time.sleep(0.05)
    return None


if __name__ == "__main__":
    main()
