"""Collects one process's rows: ring to segments, segments to Parquet, exactly once."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from stethos.record.arrow import (
    Names,
    frame_batches,
    number_array,
    segment_schema,
    serialize_batch,
    slot_batches,
    stored_columns,
    text_array,
)
from stethos.record.board import groups_in
from stethos.record.border import map_file
from stethos.record.layout import MOST_NAMES, TABLE_END, TABLE_FACTS, TABLE_NAME, DropReason, HeaderWord
from stethos.record.place import PROCESS_FILE, RING_FILE, ProcessPlace, boot_id, write_facts
from stethos.record.provenance import plain_facts
from stethos.record.segment import (
    FLAG_LAST,
    FLAG_NAMES,
    FLAG_SAMPLED,
    FLAG_SCHEMA,
    Bytes,
    SegmentWriter,
    encode_block,
    seal_segment,
    stored_blocks,
)
from stethos.record.tap import RingFrame, Tap
from stethos.redact import redact
from stethos.schema import GAPS, HOST, NULL_F64, RECORDED, Kind, Table

SEGMENT_BYTES = 16 << 20
FULL = (errno.ENOSPC, errno.EDQUOT)
_LEAST_SHARE = 1 / 4096
_NEW_MANIFEST: dict[str, Any] = {
    "version": 1, "segment": 1, "rows": 0, "host_rows": 0, "slots": 0, "frames": 0,
    "sealed": [], "retired": {}, "lost": 0, "names": ["?"],
}  # fmt: skip


class Collector:
    """The drainer's state for one process directory.

    Starting again after a crash continues behind the last complete group of
    the open segment. OSErrors (disk full) come out of `drain`, `seal` and
    `finish` with nothing changed: the rows stay in the ring or in the
    segment, and the same call can be tried again.
    """

    def __init__(self, place: ProcessPlace, segment_bytes: int = SEGMENT_BYTES) -> None:
        self.place = place
        self.segment_bytes = segment_bytes
        self.facts = place.facts(is_needed=True)
        found = place.manifest(is_needed=True)
        self.tap = Tap(place.ring())
        self.manifest: dict[str, Any] = {**_NEW_MANIFEST, **found}
        self.names: list[str] = list(self.manifest["names"])
        self.written: int = self.manifest["rows"]
        self.host_rows: int = self.manifest["host_rows"]
        self._samples: dict[int, list[tuple[int, Mapping[str, Any]]]] = {}
        self._with_schema: set[int] = set()
        self._known: Names | None = None
        self._has_gap = False
        self._share = 1.0  # of what waits, that fitted on the disk last
        self._full_since_ns = 0
        self._writer = self._recover()
        if self.facts.get("boot_id") not in (None, boot_id()):
            self.discard()  # the machine went down: what had not reached the disk may be torn
        if not found:
            self._write_manifest({})

    @property
    def number(self) -> int:
        """The number of the open segment."""
        return int(self.manifest["segment"])

    @property
    def sealed(self) -> list[dict[str, Any]]:
        return list(self.manifest["sealed"])

    def _recover(self) -> SegmentWriter:
        """Open the segment behind its last whole group, with the ring's tails behind what is stored.

        Whichever has come further is right: the segment after a crash between
        writing and advancing, the ring where the end of the segment is damaged.
        """
        directory = self.place.scratch()
        for old in directory.glob("*.seg"):
            if old.stem.isdigit() and int(old.stem) < self.number:
                old.unlink()
        writer = SegmentWriter(self.place.segment(self.number))
        buffer = map_file(writer.path, parts=2) if writer.size else memoryview(b"")
        end, readable = 0, self.written
        slots, frames = self.manifest["slots"], self.manifest["frames"]
        for block in stored_blocks(buffer, self.tap.slots_tail, self.tap.frames_tail):
            if block.flags & FLAG_SCHEMA:
                self._with_schema.add(block.table)
            if block.flags & FLAG_NAMES:
                first, names = json.loads(bytes(block.payload))
                self._learn_names({first + index: name for index, name in enumerate(names) if name is not None})
            if block.flags & FLAG_SAMPLED:
                self.host_rows += block.rows
            readable += block.rows
            self.written = max(self.written, block.rows_before + block.rows)
            slots, frames, end = max(slots, block.slots_read), max(frames, block.frames_read), block.end
        writer.truncate(end)
        self.written = max(self.written, self.tap.word(HeaderWord.WRITTEN_ROWS))
        self._has_gap = readable < self.written
        self.tap.advance(max(slots, self.tap.slots_tail), max(frames, self.tap.frames_tail), self.written)
        return writer

    # Draining --------------------------------------------------------------------------------

    def add_sample(self, t_ns: int, sample: Mapping[str, Any], table: Table = HOST) -> None:
        """A row of a table that is sampled from outside the process; a column that it lacks is NULL."""
        self._samples.setdefault(table.number, []).append((t_ns, sample))

    @property
    def has_samples(self) -> bool:
        return bool(self._samples)

    def drain(self) -> int:
        """Store every complete row of the ring, or as many as the disk has room for; return how many."""
        while True:
            try:
                rows = self._drain_share(self._share)
                break
            except OSError as error:
                if error.errno not in FULL:
                    raise
                self._full_since_ns = self._full_since_ns or time.time_ns()
                if self._share <= _LEAST_SHARE:
                    raise
                self._share /= 8
        if self._full_since_ns and self._share == 1:
            now_ns = time.time_ns()
            lasted_s = (now_ns - self._full_since_ns) / 1e9
            self.add_sample(now_ns, {"what": "disk", "reason": f"the disk was full for {lasted_s:.1f} s"}, GAPS)
            self._full_since_ns = 0
        self._share = min(1.0, 8 * self._share)
        return rows

    def _drain_share(self, share: float) -> int:
        slots = self.tap.read_slots()  # before the frames, which define the names slots use
        frames, frames_read = self.tap.read_frames()
        if frames_read == self.tap.frames_tail and not len(slots) and not self._samples:
            return 0
        self._learn_names(_names_in(frames))
        if share < 1:
            slots = slots[: max(1, int(len(slots) * share))]
            frames, frames_read = self.tap.read_frames(share)
        slots_read = self.tap.slots_tail + len(slots)
        self._take_notes(frames)  # first: done twice it does no harm
        known = self._known_names()
        batches = {**slot_batches(slots, known, self.tap.slot_dtypes), **frame_batches(frames, known)}
        samples = {table: _sample_batch(RECORDED[table], rows) for table, rows in self._samples.items()}
        rows = self._write_group(batches, samples, _names_in(frames), slots_read, frames_read)
        self.host_rows += sum(map(len, self._samples.values()))
        self._samples = {}
        self.tap.advance(slots_read, frames_read, self.written)
        return rows

    def discard(self) -> None:
        """Count everything that waits in the ring as lost, because it cannot be read."""
        self.tap.discard()
        self.written = max(self.written, self._rows_put() + self.host_rows)
        self.tap.advance(self.tap.slots_tail, self.tap.frames_tail, self.written)

    def _write_group(
        self, batches: dict[int, pa.RecordBatch], samples: dict[int, pa.RecordBatch], names: dict[int, str],
        slots_read: int, frames_read: int,
    ) -> int:  # fmt: skip
        parts: list[tuple[int, int, int, Bytes]] = []  # table, flags, rows, payload
        if names:
            first = min(names)
            listed = [names.get(number) for number in range(first, max(names) + 1)]
            parts.append((0, FLAG_NAMES, 0, json.dumps([first, listed]).encode()))
        new_schemas = [table for table in {**batches, **samples} if table not in self._with_schema]
        for table in new_schemas:
            parts.append((table, FLAG_SCHEMA, 0, segment_schema(RECORDED[table]).serialize().to_pybytes()))
        for found, flag in ((batches, 0), (samples, FLAG_SAMPLED)):
            for table, batch in found.items():
                parts.append((table, flag, batch.num_rows, serialize_batch(batch)))
        if not parts:
            parts.append((0, FLAG_NAMES, 0, b"[0, []]"))
        pieces: list[Bytes] = []
        stored, written = 0, self.written + self.tap.holes  # a hole is a row that never came
        for index, (table, flags, rows, payload) in enumerate(parts):
            flags |= FLAG_LAST if index == len(parts) - 1 else 0
            pieces += encode_block(table, flags, rows, written, slots_read, frames_read, payload)
            stored, written = stored + rows, written + rows
        self._writer.write_group(pieces)
        self.written = written
        self._with_schema.update(new_schemas)
        return stored

    def _learn_names(self, names: dict[int, str]) -> None:
        for number, name in names.items():
            if not 0 <= number <= MOST_NAMES + 1:  # the last one is of all further names
                continue
            self.names.extend("?" for _ in range(number + 1 - len(self.names)))
            self.names[number] = name
        if names:
            self._known = None

    def _known_names(self) -> Names:
        if self._known is None:
            self._known = Names(self.names)
        return self._known

    def _take_notes(self, frames: Sequence[RingFrame]) -> None:
        """Facts about the process that came through the ring go into its `process.json`."""
        notes: dict[str, Any] = {}
        for frame in frames:
            if frame.table in (TABLE_END, TABLE_FACTS):
                with contextlib.suppress(ValueError):  # not JSON: nothing we could have meant
                    note = json.loads(frame.texts[0])
                    notes |= note if isinstance(note, dict) else {}
        if notes:
            self.facts |= plain_facts(notes)
            write_facts(self.place.path / PROCESS_FILE, self.facts)

    # Sealing -----------------------------------------------------------------------------------

    @property
    def wants_seal(self) -> bool:
        return self._writer.size >= self.segment_bytes

    @property
    def segment_path(self) -> Path:
        return self._writer.path

    @property
    def open_bytes(self) -> int:
        return self._writer.size

    def sync(self) -> None:
        self._writer.sync()

    def is_deleted(self) -> bool:
        return self._writer.is_deleted()

    def seal(self) -> None:
        """Turn the open segment into Parquet files and begin the next one."""
        if self._writer.size:
            self._seal({})

    def _seal(self, ending: dict[str, Any]) -> None:
        sealed, lost = seal_segment(
            self._writer.path, self.number, self.place.path, self.place.name, self.facts.get("rank"),
            self.manifest["rows"], self.written,
        )  # fmt: skip
        following = SegmentWriter(self.place.segment(self.number + 1))
        try:
            self._write_manifest({
                "segment": self.number + 1,
                "rows": self.written,
                "host_rows": self.host_rows,
                "slots": self.tap.slots_tail,
                "frames": self.tap.frames_tail,
                "sealed": [*self.sealed, *(asdict(file) for file in sealed)],
                "lost": self.manifest["lost"] + lost,
                **ending,
            })  # fmt: skip
        except OSError:
            following.close()
            raise
        sealed_writer, self._writer = self._writer, following
        self._with_schema.clear()
        sealed_writer.close()
        with contextlib.suppress(OSError):  # else the next drainer removes it
            sealed_writer.path.unlink(missing_ok=True)

    def finish(self, ending: dict[str, Any]) -> None:
        """Seal what is left of a dead process and remove its ring; its counters move to the manifest."""
        if self._has_gap:  # blocks were damaged: what they held is known only by their number of rows
            self.host_rows = self.written - self._rows_put()
        self._seal({"ended": ending, "counters": counters_of(self.tap), "groups": groups_in(self.tap.word)})
        self.close()
        with contextlib.suppress(OSError):  # else the next drainer does
            remove_leftovers(self.place)

    def _rows_put(self) -> int:
        """Rows that its process has put into the part of the ring that was read."""
        unpackable = self.tap.dropped().get(DropReason.NOT_A_NUMBER.name.lower(), 0)
        return self.tap.slots_tail - unpackable + self.tap.frame_rows

    def close(self) -> None:
        self._writer.close()
        self.tap.close()

    def retire(self, file: dict[str, Any]) -> None:
        """Delete a sealed file to keep the run within its size limit; its rows count as dropped."""
        self.manifest = retire_file(self.place, self.manifest, file)

    def _write_manifest(self, changes: dict[str, Any]) -> None:
        """Replace the manifest; nothing in here has changed if that fails."""
        manifest = {**self.manifest, **changes, "names": list(self.names)}
        self.place.write_manifest(manifest)
        self.manifest = manifest


def retire_file(place: ProcessPlace, manifest: dict[str, Any], file: dict[str, Any]) -> dict[str, Any]:
    """Take a sealed file off a process's manifest and delete it; return the new manifest."""
    retired = dict(manifest.get("retired", {}))
    retired[file["table"]] = retired.get(file["table"], 0) + file["rows"]
    kept = [other for other in manifest["sealed"] if other != file]
    manifest = {**manifest, "sealed": kept, "retired": retired}
    place.write_manifest(manifest)
    (place.path / file["file"]).unlink(missing_ok=True)
    return manifest


def remove_leftovers(place: ProcessPlace) -> None:
    """Remove the ring and segments of a process whose manifest says that everything is collected."""
    scratch = place.scratch()
    for path in (scratch / RING_FILE, *scratch.glob("*.seg")):
        path.unlink(missing_ok=True)
    if scratch != place.path:
        with contextlib.suppress(OSError):
            os.rmdir(scratch)


def _names_in(frames: Sequence[RingFrame]) -> dict[int, str]:
    return {frame.step: redact(frame.texts[0]) for frame in frames if frame.table == TABLE_NAME}


def _sample_batch(table: Table, samples: Sequence[tuple[int, Mapping[str, Any]]]) -> pa.RecordBatch:
    columns = []
    for column in stored_columns(table):
        values = [t_ns if column.name == "t_ns" else sample.get(column.name) for t_ns, sample in samples]
        if column.kind in (Kind.NAME, Kind.TEXT):
            columns.append(text_array([None if value is None else redact(str(value)) for value in values]))
        elif column.name == "t_ns":
            columns.append(number_array(np.array(values, np.int64), Kind.I64))
        else:
            numbers = [NULL_F64 if value is None else float(value) for value in values]
            columns.append(number_array(np.array(numbers, dtype=np.float64), column.kind))
    return pa.RecordBatch.from_arrays(columns, schema=segment_schema(table))


def counters_of(tap: Tap) -> dict[str, Any]:
    """What a ring's header says about its process, for the manifest and for readers of a live run."""
    return {
        "drops": tap.dropped(),
        "slots": tap.slots_tail,
        "frame_rows": tap.frame_rows,
        "spent_ns": tap.word(HeaderWord.SPENT_NS),
        "steps": tap.word(HeaderWord.STEPS),
        "started_ns": tap.word(HeaderWord.STARTED_NS),
        "last_step_ns": tap.word(HeaderWord.LAST_STEP_NS),
        "state": int(tap.state),
    }
