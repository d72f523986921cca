"""Collects one process's rows: ring to segments, segments to Parquet, exactly once."""

from __future__ import annotations

import contextlib
import json
import os
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from stethos.record.arrow import name_array, number_array, segment_schema, serialize_batch, stored_columns, text_array
from stethos.record.compact import map_file, seal_segment
from stethos.record.layout import TABLE_END, TABLE_FACTS, TABLE_NAME, Word
from stethos.record.place import MANIFEST_FILE, PROCESS_FILE, ProcessPlace, write_json
from stethos.record.segment import FLAG_LAST, FLAG_NAMES, FLAG_SCHEMA, SegmentWriter, encode_block, scan, whole_groups
from stethos.record.tap import SLOT_DTYPES, Frame, Tap
from stethos.redact import redact
from stethos.schema import HOST, NULL_F64, NULL_I32, RECORDED, STEPS, Column, Kind

SEGMENT_BYTES = 16 << 20
_CONTEXT = ("client", "round", "optimizer", "step", "t_ns")
Columns = dict[str, pa.Array]


class Collector:
    """The drainer's state for one process directory.

    Starting again after a crash continues behind the last complete group of
    the open segment. OSErrors (disk full) come out of `drain` and `seal`
    with nothing lost: the rows stay in the ring or in the segment.
    """

    def __init__(self, place: ProcessPlace) -> None:
        self.place = place
        self.facts = place.facts()
        self.tap = Tap(place.ring())
        manifest = place.manifest()
        self.number: int = manifest.get("segment", 1)
        self.sealed: list[dict[str, Any]] = manifest.get("sealed", [])
        self.names: list[str] = manifest.get("names", [""])
        self.retired: dict[str, int] = manifest.get("retired", {})
        self.lost: int = manifest.get("lost", 0)
        self.rows_at_seal: int = manifest.get("rows", 0)
        self.written = self.rows_at_seal
        self.host_rows: int = manifest.get("host_rows", 0)
        self._host_rows_at_seal = self.host_rows
        self._ending: dict[str, Any] = {}
        self._host: list[dict[str, float]] = []
        self._host_times: list[int] = []
        self._with_schema: set[int] = set()
        self._names_array: pa.Array | None = None
        self._writer = self._recover()
        if not manifest:
            self._write_manifest()

    def _recover(self) -> SegmentWriter:
        """Open the segment behind its last whole group and move the ring's tails there."""
        directory = self.place.scratch()
        for old in directory.glob("*.seg"):
            if old.stem.isdigit() and int(old.stem) < self.number:
                old.unlink()
        writer = SegmentWriter(self.place.segment(self.number))
        if writer.size:
            buffer = map_file(writer.path)
            end, last = whole_groups(buffer)
            for block in scan(buffer[:end]):
                if block.flags & FLAG_SCHEMA:
                    self._with_schema.add(block.table)
                if block.flags & FLAG_NAMES:
                    first, names = json.loads(bytes(block.payload))
                    self._learn_names({first + index: name for index, name in enumerate(names)})
                if block.is_batch and block.table == HOST.number:
                    self.host_rows += block.rows
            if last is not None:
                self.written = last.rows_before + last.rows
                # Never back: what the ring has freed may be overwritten. Rows between are lost, and sealing counts them.
                slots, frames = max(last.slots_read, self.tap.slots_tail), max(last.frames_read, self.tap.frames_tail)
                self.tap.advance(slots, frames, max(self.written, self.tap.word(Word.WRITTEN_ROWS)))
            writer.truncate(end)
        self.written = max(self.written, self.tap.word(Word.WRITTEN_ROWS))
        return writer

    # Draining --------------------------------------------------------------------------------

    def add_host_sample(self, t_ns: int, sample: dict[str, float]) -> None:
        self._host.append(sample)
        self._host_times.append(t_ns)

    @property
    def has_samples(self) -> bool:
        return bool(self._host)

    def drain(self) -> int:
        """Store every complete row of the ring; return how many."""
        slots = self.tap.read_slots()  # before the frames, which define the names slots use
        frames, frames_read = self.tap.read_frames()
        slots_read = self.tap.slots_tail + len(slots)
        if frames_read == self.tap.frames_tail and not len(slots) and not self._host:
            return 0
        new_names = {frame.step: frame.texts[0] for frame in frames if frame.table == TABLE_NAME}
        self._learn_names(new_names)
        batches = {**self._slot_batches(slots), **self._frame_batches(frames)}
        if self._host:
            batches[HOST.number] = self._host_batch()
        rows = self._write_group(batches, new_names, slots_read, frames_read)
        self._take_notes(frames)
        self.host_rows += len(self._host)
        self._host, self._host_times = [], []
        self.tap.advance(slots_read, frames_read, self.written)
        return rows

    def _write_group(
        self, batches: dict[int, pa.RecordBatch], names: dict[int, str], slots_read: int, frames_read: int
    ) -> int:
        parts: list[tuple[int, int, int, bytes]] = []  # table, flags, rows, payload
        if names:
            first = min(names)
            listed = [names.get(first + index, "") for index in range(max(names) - first + 1)]
            parts.append((0, FLAG_NAMES, 0, json.dumps([first, listed]).encode()))
        new_schemas = [table for table in batches if table not in self._with_schema]
        for table in new_schemas:
            parts.append((table, FLAG_SCHEMA, 0, segment_schema(RECORDED[table]).serialize().to_pybytes()))
        for table, batch in batches.items():
            parts.append((table, 0, batch.num_rows, serialize_batch(batch)))
        if not parts:
            parts.append((0, FLAG_NAMES, 0, b"[0, []]"))
        blocks, written = [], self.written
        for index, (table, flags, rows, payload) in enumerate(parts):
            flags |= FLAG_LAST if index == len(parts) - 1 else 0
            blocks.append(encode_block(table, flags, rows, written, slots_read, frames_read, payload))
            written += rows
        self._writer.write_group(blocks)
        rows = written - self.written
        self.written = written
        self._with_schema.update(new_schemas)
        return rows

    def _slot_batches(self, slots: npt.NDArray[np.uint8]) -> dict[int, pa.RecordBatch]:
        if not len(slots):
            return {}
        tables = slots[:, 8:10].copy().view("<u2").ravel()
        batches = {}
        for number in np.unique(tables).tolist():
            if number not in SLOT_DTYPES:
                continue
            mine = slots[tables == number] if len(tables) > 1 else slots
            rows = np.ascontiguousarray(mine).view(SLOT_DTYPES[number]).ravel()
            if number == STEPS.number:
                rows = _finished_steps(rows)
            columns = [self._column(column, rows[column.name]) for column in stored_columns(RECORDED[number])]
            batches[number] = pa.RecordBatch.from_arrays(columns, schema=segment_schema(RECORDED[number]))
        return batches

    def _column(self, column: Column, values: npt.NDArray[Any]) -> pa.Array:
        if column.kind is Kind.NAME:
            return name_array(np.ascontiguousarray(values), self._known_names())
        return number_array(values, column.kind)

    def _frame_batches(self, frames: Sequence[Frame]) -> dict[int, pa.RecordBatch]:
        grouped: dict[int, list[Frame]] = defaultdict(list)
        for frame in frames:
            if frame.table in RECORDED:
                grouped[frame.table].append(frame)
        return {table: self._frame_batch(table, group) for table, group in grouped.items()}

    def _frame_batch(self, number: int, frames: list[Frame]) -> pa.RecordBatch:
        table = RECORDED[number]
        names, texts = table.of_kind(Kind.NAME), table.of_kind(Kind.TEXT)
        numbers = table.of_kind(Kind.I32, Kind.I64, Kind.F64, Kind.BOOL)
        counts = np.array([frame.rows for frame in frames])
        columns: Columns = {}
        for column in stored_columns(table)[: len(_CONTEXT)]:
            dtype = np.int64 if column.kind is Kind.I64 else np.int32
            values = np.array([getattr(frame, column.name) for frame in frames], dtype=dtype)
            columns[column.name] = self._column(column, np.repeat(values, counts))
        ids = np.concatenate(
            [np.frombuffer(f.body, "<i4", len(names) * f.rows).reshape(len(names), f.rows) for f in frames], axis=1
        )
        values = np.concatenate(
            [
                np.frombuffer(f.body, "<f8", len(numbers) * f.rows, 4 * len(names) * f.rows).reshape(-1, f.rows)
                for f in frames
            ],
            axis=1,
        ) if numbers else np.empty((0, int(counts.sum())))  # fmt: skip
        columns |= {column.name: self._column(column, ids[index]) for index, column in enumerate(names)}
        columns |= {column.name: number_array(values[index], column.kind) for index, column in enumerate(numbers)}
        for index, column in enumerate(texts):
            columns[column.name] = text_array([redact(frame.texts[index]) or None for frame in frames])
        return pa.RecordBatch.from_arrays(
            [columns[column.name] for column in stored_columns(table)], schema=segment_schema(table)
        )

    def _host_batch(self) -> pa.RecordBatch:
        columns = [number_array(np.array(self._host_times, np.int64), Kind.I64)]
        for column in HOST.columns:
            values = np.array([sample[column.name] for sample in self._host], dtype=np.float64)
            columns.append(number_array(values, column.kind))
        return pa.RecordBatch.from_arrays(columns, schema=segment_schema(HOST))

    def _learn_names(self, names: dict[int, str]) -> None:
        for number, name in names.items():
            self.names.extend("?" for _ in range(number + 1 - len(self.names)))
            self.names[number] = redact(name)
        if names:
            self._names_array = None

    def _known_names(self) -> pa.Array:
        if self._names_array is None:
            self._names_array = text_array(self.names or [""])
        return self._names_array

    def _take_notes(self, frames: Sequence[Frame]) -> None:
        """Facts about the process that came through the ring go into its `process.json`."""
        notes: dict[str, Any] = {}
        for frame in frames:
            if frame.table in (TABLE_END, TABLE_FACTS):
                notes.update(json.loads(frame.texts[0]))
        if notes:
            if "traceback" in notes:
                notes["traceback"] = redact(notes["traceback"])
            self.facts.update(notes)
            write_json(self.place.path / PROCESS_FILE, self.facts)

    # Sealing -----------------------------------------------------------------------------------

    @property
    def wants_seal(self) -> bool:
        return self._writer.size >= SEGMENT_BYTES

    def sync(self) -> None:
        self._writer.sync()

    def is_deleted(self) -> bool:
        return self._writer.is_deleted()

    def seal(self) -> None:
        """Turn the open segment into Parquet files and begin the next one."""
        if not self._writer.size:
            self.lost += self.written - self.rows_at_seal  # only if the segment was emptied behind our back
            self.rows_at_seal = self.written
            return
        sealed, lost = seal_segment(
            self._writer.path, self.number, self.place.path, self.place.name, self.facts.get("rank"),
            self.rows_at_seal, self.written,
        )  # fmt: skip
        self.sealed.extend(asdict(file) for file in sealed)
        self.lost += lost
        self.number += 1
        self.rows_at_seal = self.written
        self._host_rows_at_seal = self.host_rows
        self._write_manifest()
        self._writer.close()
        self._writer.path.unlink(missing_ok=True)
        self._with_schema.clear()
        self._writer = SegmentWriter(self.place.segment(self.number))

    def finish(self, ending: dict[str, Any]) -> None:
        """Seal what is left of a dead process and remove its ring; its counters move to the manifest."""
        self.seal()
        self.lost += self.tap.word(Word.HOLES)
        self._ending = {"ended": ending, "counters": counters_of(self.tap)}
        self._write_manifest()
        ring, segment = self.place.ring(), self._writer.path
        self.close()
        for path in (ring, segment):
            path.unlink(missing_ok=True)
        if self.place.scratch() != self.place.path:
            with contextlib.suppress(OSError):
                os.rmdir(self.place.scratch())

    def close(self) -> None:
        self._writer.close()
        self.tap.close()

    def retire(self, file: dict[str, Any]) -> None:
        """Delete a sealed file to keep the run within its size limit; its rows count as dropped."""
        self.sealed.remove(file)
        self.retired[file["table"]] = self.retired.get(file["table"], 0) + file["rows"]
        self._write_manifest()
        (self.place.path / file["file"]).unlink(missing_ok=True)

    def _write_manifest(self) -> None:
        content = {
            "version": 1,
            "segment": self.number,
            "rows": self.rows_at_seal,
            "host_rows": self._host_rows_at_seal,
            "sealed": self.sealed,
            "retired": self.retired,
            "lost": self.lost,
            "names": self.names,
            **self._ending,
        }
        write_json(self.place.path / MANIFEST_FILE, content)


def _finished_steps(rows: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Steps come with durations in ns and zeros for what did not happen; give them their units and NULLs."""
    rows = rows.copy()
    is_first = rows["local_step"] == 0
    has_batch = rows["data_ms"] > 0
    missing = {
        "step_ms": is_first,  # the previous step was another optimizer's
        "data_ms": ~has_batch,
        "forward_ms": (is_first & ~has_batch) | (rows["backwards"] == 0),
        "backward_ms": rows["backwards"] == 0,
    }
    for name in ("step_ms", "data_ms", "forward_ms", "backward_ms", "optimizer_ms"):
        rows[name] = np.where(missing.get(name, False), NULL_F64, rows[name] * 1e-6)
    rows["samples"] = np.where(has_batch, rows["samples"], NULL_I32)
    return rows


def counters_of(tap: Tap) -> dict[str, Any]:
    """What a ring's header says about its process, for the manifest and for readers of a live run."""
    return {
        "drops": tap.dropped(),
        "slots": tap.slots_tail,
        "frame_rows": tap.word(Word.FRAME_ROWS),
        "holes": tap.word(Word.HOLES),
        "spent_ns": tap.word(Word.SPENT_NS),
        "steps": tap.word(Word.STEPS),
        "started_ns": tap.word(Word.STARTED_NS),
        "last_step_ns": tap.word(Word.LAST_STEP_NS),
        "state": int(tap.state),
    }
