"""One process of a run as it is now: its facts, its files, its books."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from stethos.record.layout import State
from stethos.record.place import MANIFEST_FILE, PROCESS_FILE, ProcessPlace, host_key, is_alive
from stethos.schema import RECORDED, TABLES
from stethos.store.header import Counters, RingHeader, counters_from, read_header
from stethos.store.ledger import Ledger, ledger_after_end, ledger_before_end
from stethos.store.openseg import OpenSegment, read_open_segment, version_of
from stethos.store.sealed import Examiner, Sealed

_QUIET_S = 120.0
_ATTEMPTS = 5


class ProcessReader:
    """Reads a process directory; `refresh` looks again and reads only what has changed."""

    def __init__(self, place: ProcessPlace) -> None:
        self.place = place
        self.facts: dict[str, Any] = {}
        self.manifest: dict[str, Any] = {}
        self.ring: RingHeader | None = None
        self.segment = OpenSegment(0)
        self.sealed: tuple[Sealed, ...] = ()
        self.is_running = False
        self._versions: dict[str, tuple[int, ...]] = {}
        self._segment_version: tuple[object, ...] = ()

    @property
    def name(self) -> str:
        return self.place.name

    @property
    def rank(self) -> int | None:
        rank = self.facts.get("rank")
        return None if rank is None else int(rank)

    @property
    def is_here(self) -> bool:
        """Whether the process runs or ran on this machine, so that its pid means something."""
        return self.facts.get("host_key") == host_key()

    @property
    def has_ended(self) -> bool:
        """Whether its drainer has collected everything."""
        return "ended" in self.manifest

    @property
    def counters(self) -> Counters | None:
        if self.has_ended:
            return counters_from(self.manifest.get("counters", {}))
        return self.ring.counters if self.ring else None

    @property
    def waiting(self) -> int:
        """Slots and bytes that its ring still holds: 0 once the drainer has taken everything."""
        return self.ring.waiting_slots + self.ring.waiting_frame_bytes if self.ring else 0

    @property
    def segment_version(self) -> tuple[object, ...]:
        return self._segment_version

    def refresh(self) -> None:
        """Look again. The ring first, then the manifest, then the segment: so that nothing is counted as lost
        that was only moving from one to the next."""
        self._reread(PROCESS_FILE)
        self.ring = read_header(self._scratch("ring"))
        for _ in range(_ATTEMPTS):
            is_new = self._reread(MANIFEST_FILE)
            try:
                self._read_segment()
                break
            except FileNotFoundError:  # sealed since the manifest was read, or not begun yet
                if not is_new and not self._reread(MANIFEST_FILE):
                    break
        self.is_running = self._looks_running()

    def ledger(self, examiner: Examiner) -> Ledger:
        """The process's books, with damage that the examiner knows of."""
        damaged = sum(
            file.rows - examiner.readable_rows(file, TABLES[file.table])
            for file in self.sealed
            if not examiner.is_whole(file)
        )
        counters = self.counters
        if self.has_ended and counters is not None:
            return ledger_after_end(self.manifest, counters, damaged)
        return ledger_before_end(self.manifest, self.ring, self.segment, damaged)

    def rows_by_table(self, examiner: Examiner) -> dict[str, int]:
        """Readable rows per table."""
        rows = {RECORDED[number].name: count for number, count in self.segment.rows_by_table.items()}
        for file in self.sealed:
            rows[file.table] = rows.get(file.table, 0) + examiner.readable_rows(file, TABLES[file.table])
        return rows

    def last_sign_ns(self) -> int:
        """When any of its files last changed."""
        paths = (self.place.path / MANIFEST_FILE, self.place.path / PROCESS_FILE, self._segment_path())
        return max((version[2] for version in map(version_of, paths) if version), default=0)

    def _scratch(self, name: str) -> Path:
        return Path(self.facts.get("scratch") or self.place.path) / name

    def _segment_path(self) -> Path:
        return self._scratch(f"{self.manifest.get('segment', 1):06d}.seg")

    def _reread(self, name: str) -> bool:
        """Read a JSON file if it has changed; return whether it had."""
        version = version_of(self.place.path / name)
        if self._versions.get(name) == version:
            return False
        self._versions[name] = version
        if name == PROCESS_FILE:
            self.facts = self.place.facts()
            return True
        self.manifest = self.place.manifest()
        listed = (Sealed.listed(self.place.path, entry) for entry in self.manifest.get("sealed", []))
        self.sealed = tuple(file for file in listed if file.table in TABLES)
        return True

    def _read_segment(self) -> None:
        rows_before = self.manifest.get("rows", 0)
        if self.has_ended:
            self.segment, self._segment_version = OpenSegment(rows_before), ()
            return
        path = self._segment_path()
        version = (path.name, *version_of(path))
        if version != self._segment_version or len(version) == 1:
            self.segment, self._segment_version = OpenSegment(rows_before), (path.name,)
            self.segment = read_open_segment(path, rows_before)
            self._segment_version = version

    def _looks_running(self) -> bool:
        if self.has_ended:
            return False
        if self.is_here:
            return is_alive(int(self.facts.get("pid", 0)), self.facts.get("start_ticks"))
        if self.ring is not None and self.ring.counters.state is not State.RUNNING:
            return False
        return time.time_ns() - self.last_sign_ns() < _QUIET_S * 1e9
