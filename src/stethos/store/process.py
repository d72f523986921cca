"""One process of a run as it is now: its facts, its files, its books."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stethos.record.border import checked_counters, read_file, version_of
from stethos.record.layout import State
from stethos.record.place import MANIFEST_FILE, PROCESS_FILE, RING_FILE, ProcessPlace, boot_id, host_key, is_alive
from stethos.record.segment import SegmentRows, concatenated, with_process
from stethos.schema import RECORDED, SERVERS_OWN, TABLES, Table
from stethos.store.header import Counters, RingHeader, counters_from, read_header
from stethos.store.ledger import Ledger, ledger_after_end, ledger_before_end, ledger_of_collected
from stethos.store.sealed import SealChecker, Sealed

if TYPE_CHECKING:
    import pyarrow as pa


_QUIET_S = 120.0
_ATTEMPTS = 5
_LARGEST_SEGMENT = 512 << 20  # a drainer seals at 16 MB


@dataclass(frozen=True, slots=True)
class RingRows:
    """Rows behind those of the segment, by table; `holes` are rows that were begun and never finished."""

    batches: dict[int, pa.RecordBatch] = field(default_factory=dict)
    holes: int = 0

    @property
    def rows_by_table(self) -> dict[int, int]:
        return {number: batch.num_rows for number, batch in self.batches.items()}

    @property
    def rows(self) -> int:
        return sum(self.rows_by_table.values())


class ProcessReader:
    """Reads a process directory; `refresh` looks again and reads only what has changed."""

    def __init__(self, place: ProcessPlace) -> None:
        self.place = place
        self.facts: dict[str, Any] = {}
        self.manifest: dict[str, Any] = {}
        self.ring: RingHeader | None = None
        self.segment = SegmentRows(0)
        self.sealed: tuple[Sealed, ...] = ()
        self.is_running = False
        self.reads_ring = False  # whether rows that no drainer has taken are read from the ring itself
        self.ring_rows = RingRows()
        self._versions: dict[str, tuple[int, ...]] = {}
        self._segment_version: tuple[object, ...] = ()

    @property
    def name(self) -> str:
        return self.place.name

    @property
    def rank(self) -> int | None:
        return self.facts.get("rank")

    @property
    def is_here(self) -> bool:
        """Whether the process runs or ran on this machine, so that its pid means something."""
        return self.facts.get("host_key") == host_key()

    @property
    def has_ended(self) -> bool:
        """Whether its drainer has collected everything."""
        return "ended" in self.manifest

    @property
    def is_collected(self) -> bool:
        """Whether its rows came from a client elsewhere, see `collect`."""
        return "collected" in self.manifest

    @property
    def has_said_its_end(self) -> bool:
        """Whether the site of a client elsewhere has said how it ended."""
        return self.has_ended or bool(self.manifest.get("collected", {}).get("ended"))

    @property
    def withholds(self) -> dict[str, list[str]]:
        """The columns that its site keeps back, by table; ["*"] for all. Tables of the server are none of its own."""
        told = self.manifest.get("collected", {}).get("withholds")
        return {
            str(name): list(map(str, columns))
            for name, columns in (told.items() if isinstance(told, dict) else ())
            if isinstance(columns, list) and name not in SERVERS_OWN
        }

    @property
    def counters(self) -> Counters | None:
        if self.is_collected:
            told = self.manifest["collected"]
            found = told.get("ended") or told.get("counters")
            return counters_from(checked_counters(found)) if found else None
        if self.has_ended:
            return counters_from(self.manifest.get("counters", {}))
        return self.ring.counters if self.ring else None

    @property
    def waiting(self) -> int:
        """Slots and bytes that its ring still holds: 0 once the drainer has taken everything."""
        return self.ring.waiting_slots + self.ring.waiting_frame_bytes if self.ring else 0

    @property
    def growing_version(self) -> tuple[object, ...]:
        """Changes with the rows that are not in sealed files."""
        return (*self._segment_version, self.ring_rows.rows)

    def growing(self, table: Table) -> pa.Table | None:
        """The rows of a table that are not in sealed files; None if there are none."""
        parts = []
        if self.segment.rows_by_table.get(table.number):
            parts.append(self.segment.arrow(table, self.name, self.rank))
        if table.number in self.ring_rows.batches:
            import pyarrow as pa

            rows = pa.Table.from_batches([self.ring_rows.batches[table.number]])
            parts.append(with_process(rows, table, self.name, self.rank))
        return concatenated(parts)

    def refresh(self) -> None:
        """Look again. The ring first, then the manifest, then the segment: so that nothing is counted as lost
        that was only moving from one to the next; then what only the ring has."""
        self._look()
        self.ring_rows = RingRows()
        if self.reads_ring and not self.has_ended and self.waiting and _is_trusted(self.facts):
            try:
                ring = self.place.scratch(self.facts) / RING_FILE
                self.ring_rows = read_ring(ring, self.manifest.get("names", []), self.segment)
            except FileNotFoundError:  # collected since we looked
                self._look()
            except (OSError, ValueError, RecursionError, KeyError, IndexError, TypeError):
                pass  # damaged: its rows stay counted as waiting

    def _look(self) -> None:
        self._reread(PROCESS_FILE)
        self.ring = read_header(self.place.scratch(self.facts) / RING_FILE)
        for _ in range(_ATTEMPTS):
            is_new = self._reread(MANIFEST_FILE)
            try:
                self._read_segment()
                break
            except FileNotFoundError:  # sealed since the manifest was read, or not begun yet
                if not is_new and not self._reread(MANIFEST_FILE):
                    break
        self.is_running = self._looks_running()

    def ledger(self, examiner: SealChecker) -> Ledger:
        """The process's books, with damage that the examiner knows of."""
        damaged = sum(
            file.rows - examiner.readable_rows(file, TABLES[file.table])
            for file in self.sealed
            if not examiner.is_whole(file)
        )
        if self.is_collected:
            return ledger_of_collected(self.manifest, self.segment, damaged)
        counters = self.counters
        if self.has_ended and counters is not None:
            return ledger_after_end(self.manifest, counters, damaged)
        return ledger_before_end(self.manifest, self.ring, self.segment, damaged, self.ring_rows)

    def rows_by_table(self, examiner: SealChecker) -> dict[str, int]:
        """Readable rows per table."""
        rows = {RECORDED[number].name: count for number, count in self.segment.rows_by_table.items()}
        for number, count in self.ring_rows.rows_by_table.items():
            rows[RECORDED[number].name] = rows.get(RECORDED[number].name, 0) + count
        for file in self.sealed:
            rows[file.table] = rows.get(file.table, 0) + examiner.readable_rows(file, TABLES[file.table])
        return rows

    def last_sign_ns(self) -> int:
        """When any of its files last changed."""
        paths = (self.place.path / MANIFEST_FILE, self.place.path / PROCESS_FILE, self._segment_path())
        return max((version[2] for version in map(version_of, paths) if version), default=0)

    def _segment_path(self) -> Path:
        return self.place.scratch(self.facts) / f"{self.manifest.get('segment', 1):06d}.seg"

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
        listed = (Sealed.listed(self.place.path, entry) for entry in self.manifest.get("sealed", ()))
        self.sealed = tuple(file for file in listed if file.table in TABLES)
        return True

    def _read_segment(self) -> None:
        rows_before = self.manifest.get("rows", 0)
        if self.has_ended:
            self.segment, self._segment_version = SegmentRows(rows_before), ()
            return
        path = self._segment_path()
        version = (path.name, *version_of(path))
        if version != self._segment_version or len(version) == 1:
            self.segment, self._segment_version = SegmentRows(rows_before), (path.name,)
            tails = (self.ring.counters.slots, self.ring.frames_tail) if self.ring else None
            try:
                # Copied: its writer may cut it back meanwhile.
                self.segment = SegmentRows(rows_before, read_file(path, _LARGEST_SEGMENT, parts=2), tails)
            except FileNotFoundError:
                raise
            except OSError:  # a link, a device or too large: nothing a drainer has written
                return
            self._segment_version = version

    def _looks_running(self) -> bool:
        if self.has_said_its_end:
            return False
        if self.is_here:
            return is_alive(int(self.facts.get("pid", 0)), self.facts.get("start_ticks"))
        if self.ring is not None and self.ring.counters.state is not State.RUNNING:
            return False
        return time.time_ns() - self.last_sign_ns() < _QUIET_S * 1e9


# Rows that only the ring of an ended process holds: read in place, so that none is missing and nothing changes


def _is_trusted(facts: dict[str, Any]) -> bool:
    """Whether a ring's memory is what its process wrote: after a restart of the machine it may be torn."""
    return facts.get("boot_id") in (None, boot_id())


def read_ring(path: Path, names: list[str], segment: SegmentRows) -> RingRows:
    """What the ring at a path holds behind the segment; `names` are those of the manifest.

    Only for a process that puts nothing more. Raises OSError or ValueError if the ring is gone or damaged.
    """
    from stethos.record.arrow import Names, frame_batches, slot_batches
    from stethos.record.layout import MOST_NAMES, TABLE_NAME
    from stethos.record.tap import Tap
    from stethos.redact import redact

    tap = Tap(path, is_writable=False)
    try:
        tap.slots_tail = max(tap.slots_tail, segment.slots_read)
        tap.frames_tail = max(tap.frames_tail, segment.frames_read)
        frames, _ = tap.read_frames()
        known = dict(enumerate(names)) | segment.names()
        known |= {frame.step: redact(frame.texts[0]) for frame in frames if frame.table == TABLE_NAME}
        listed = Names([known.get(number, "?") for number in range(min(max(known, default=0), MOST_NAMES + 1) + 1)])
        slots, holes = tap.read_rest()
        return RingRows(frame_batches(frames, listed) | slot_batches(slots, listed, tap.slot_dtypes), holes)
    finally:
        tap.close()
