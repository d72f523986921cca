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
from pathlib import Path
from types import FrameType
from typing import Any

from stethos.guard import LIMIT, Guard
from stethos.record.border import append_file, is_gone, read_file, version_of
from stethos.record.collector import FULL, SEGMENT_BYTES, Collector, remove_leftovers, retire_file
from stethos.record.gpu import GpuSampler
from stethos.record.host import HostSampler
from stethos.record.layout import HeaderWord, State
from stethos.record.memory import return_freed_memory
from stethos.record.place import LONGEST_PATH, RING_FILE, ProcessPlace, RunPlace, host_key, is_alive, is_at_work
from stethos.record.spawn import take_lock
from stethos.schema import GPU, TABLES
from stethos.settings import DEFAULT_LIMIT_BYTES, registry_dir
from stethos.wiring import FORWARDER, INBOX, PACKER, WATCHDOG

VISIT_S = 0.1
DRAIN_S = 0.5
SYNC_S = 1.0
HOLE_S = 1.0
LINGER_S = 1.0
GIVE_UP_S = 30.0
LEAST_SEGMENT_BYTES = 256 << 10
CAPTURES = "capture"  # a run's directory of captured models
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
        self._guard = Guard(self.note_failure)
        self._next_drain = self._next_sync = 0.0
        self.watchers: list[Callable[[float], object]] = []  # called at every visit
        self._packer: Any = None
        self._inbox: Any = None
        self.forwarder: Any = None  # where this run was recorded at a site whose rows leave, see `collect`

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
            self._forward("take", self.collectors.get(name))
            self._attempt(_SYNC, name, Collector.sync)
        self._forward("leave")
        self._keep_trying("inbox", self._take_inbox, "end")
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
            self._forward("take", collector, is_last=collector.wants_seal)
            if is_sync_due and collector.wants_seal:
                self._attempt(_SEAL, name, Collector.seal)
            if is_sync_due:
                self._attempt(_SYNC, name, Collector.sync)
            if name not in self.collectors:
                continue
            if not is_running or name in self._released:
                if is_due or name not in self._dead_since:  # after a failure not at every visit
                    self._attempt(_FINISH, name, self._finish)
            elif collector.tap.word(HeaderWord.RELEASED):
                self._released.add(name)  # at the next visit: a thread may be writing its last row
        if is_sync_due:
            self._guard.run("size limit", self._careful, self._keep_limit)
            self._guard.run("captures", self._accompany)
            self._forward("visit", now)
            self._keep_trying("inbox", self._take_inbox, "visit")
        for watcher in self.watchers:
            self._guard.run("watchdog", watcher, now)
        return bool(self.collectors) or self._has_launcher()

    def _is_orphaned(self) -> bool:
        """Whether the run was deleted, or deleted and made anew: then another drainer holds the lock of that name."""
        if self.lock is None:
            return is_gone(self.run.path)
        try:
            now = os.stat(self.run.drainer_lock(self.host))
        except OSError:
            return is_gone(self.run.drainer_lock(self.host))
        return now.st_ino != os.fstat(self.lock).st_ino

    def _forward(self, what: str, *subject: Any, **how: Any) -> None:
        """Hand what is stored on to the site's forwarder, if there is one; its failures are its own."""
        if self.forwarder is not None and None not in subject:
            self._keep_trying(f"forward {what}", getattr(self.forwarder, what), *subject, **how)

    def _keep_trying(self, place: str, action: Callable[..., object], *subject: Any, **how: Any) -> None:
        """Do what can be done again however often it fails: a disk may be full for hours."""
        before = self._guard.failures[place]
        self._guard.run(place, action, *subject, **how)
        failed = self._guard.failures[place] > before
        self._guard.failures[place] = min(before + 1, LIMIT - 2) if failed else 0

    def _take_inbox(self, how: str) -> None:
        """Store rows that clients elsewhere have sent with the federation's messages."""
        if self._inbox is None and self.run.has_inbox:
            self._inbox = INBOX.load()(self.run)
        if self._inbox is not None:
            getattr(self._inbox, how)()

    def _accompany(self) -> None:
        """Have the captures of the run packed, if it has any, by a thread of this process."""
        if self._packer is None and (self.run.path / CAPTURES).is_dir():
            self._packer = PACKER.load()(self.run.path)

    # One process ---------------------------------------------------------------------------------

    def _discover(self) -> None:
        for place in self.run.processes():
            if place.name in self.collectors or place.name in self.finished:
                continue
            if place.facts().get("host_key") != self.host:
                self.finished.add(place.name)
            elif "ended" in (manifest := place.manifest()):
                self._guard.run(f"tidy {place.name}", remove_leftovers, place)
                self._let_go(place.name, manifest)
            elif self._is_waiting(place):
                self._seen.add(place.name)
                self._guard.run(f"open {place.name}", self._open, place)
                if self._guard.is_off(f"open {place.name}"):
                    self.finished.add(place.name)  # or we would wait for it for ever; its ring stays

    def _is_waiting(self, place: ProcessPlace) -> bool:
        """Whether a process of this host has a ring that is not collected to its end."""
        facts = place.facts()
        is_here = facts.get("host_key") == self.host and "pid" in facts
        return is_here and "ended" not in place.manifest() and bool(version_of(place.scratch(facts) / RING_FILE))

    def _open(self, place: ProcessPlace) -> None:
        with contextlib.suppress(OSError):  # disk full: tried again at the next visit
            collector = Collector(place, self.segment_bytes)
            if "pid" in collector.facts:
                self.collectors[place.name] = collector
            else:  # they could not be read just now
                collector.close()

    def _attempt(self, what: str, name: str, action: Callable[[Collector], object]) -> None:
        """Do something with a collector; a deleted directory is let go.

        On a full disk the action changes nothing and is tried again at the next
        visit. What fails again and again for another reason is given up: rows
        that cannot be read count as lost, files that cannot be sealed stay as they are.
        """
        collector = self.collectors.get(name)
        if collector is None:
            return
        if collector.is_deleted() or is_gone(collector.place.path):
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
        try:
            action(*arguments)
        except OSError as error:  # a full disk is not a failure of ours
            if error.errno in FULL:
                self._make_room()

    def _make_room(self) -> None:
        """On a full disk, let the oldest file of a bulk table go for what is worth more: rounds, steps, findings."""
        for name, file in self._files():
            if TABLES[file["table"]].is_bulk:
                with contextlib.suppress(OSError):
                    (self.run.path / name / file["file"]).unlink(missing_ok=True)  # first: the list needs room, too
                    self._retire(name, file)
                break

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
            self._forward("end", collector)
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
            if read_file(entry, LONGEST_PATH) == os.fsencode(collector.place.path.resolve()):
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
        files = self._files()
        size = sum(file["bytes"] for _, file in files) + sum(one.open_bytes for one in self.collectors.values())
        for name, file in files:
            if size <= self.limit_bytes:
                break
            self._retire(name, file)
            size -= file["bytes"]

    def _files(self) -> list[tuple[str, dict[str, Any]]]:
        """The sealed files of this host with their processes, in the order in which they may go."""
        manifests = self._ended | {name: collector.manifest for name, collector in self.collectors.items()}
        files = [
            (name, file)
            for name, manifest in manifests.items()
            for file in manifest.get("sealed", ())
            if file["table"] in TABLES
        ]
        return sorted(files, key=lambda entry: (not TABLES[entry[1]["table"]].is_bulk, entry[1]["file"], entry[0]))

    def _retire(self, name: str, file: dict[str, Any]) -> None:
        if name in self.collectors:
            self.collectors[name].retire(file)
        else:
            self._ended[name] = retire_file(ProcessPlace(self.run.path / name), self._ended[name], file)

    def note_failure(self, place: str, reason: str) -> None:
        line = f"{time.strftime('%Y-%m-%dT%H:%M:%S')} {place}: {reason}\n"
        append_file(self.run.path / "drainer.log", line.encode("utf-8", "replace"))

    def stop(self, signal_number: int, frame: FrameType | None) -> None:
        self.is_stopping = True


def main() -> None:
    """`python -c '... main()' RUN`: drain a run until it ends, with a watchdog that looks at every visit."""
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())  # who started us may have blocked some
    os.nice(5)
    os.umask(0o077)
    return_freed_memory()
    drainer = Drainer(RunPlace(Path(sys.argv[1])))
    signal.signal(signal.SIGTERM, drainer.stop)
    drainer.watchers.append(WATCHDOG.load()(drainer).visit)
    site = drainer.run.facts().get("site")
    if site and drainer.run.is_ours():
        drainer.forwarder = FORWARDER.load()(drainer.run, site, drainer.note_failure)
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
