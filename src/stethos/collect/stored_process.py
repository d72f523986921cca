"""A client's process in a run directory, as the collector writes it: the same files as a drainer's.

Every batch is one group of blocks in the open segment, with its lane and number in their headers; so whether a batch
is stored and that it is not stored twice are one fact, on disk at the same moment. Sealing moves these numbers to the
manifest. The rows are in the schema of this version, whatever version wrote them.
"""

from __future__ import annotations

import contextlib
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pyarrow as pa

from stethos.collect.aliases import OwnNames
from stethos.collect.batch import LANES, BatchError, BatchHeader, SignedBatch, blocks_in
from stethos.collect.intervals import Intervals
from stethos.collect.meant import meant
from stethos.collect.policy import FACTS
from stethos.record.arrow import checked_batch, checked_schema, in_schema, segment_schema, serialize_batch, text_array
from stethos.record.border import checked_books, checked_counters, is_gone, map_file, version_of
from stethos.record.collector import SEGMENT_BYTES
from stethos.record.place import MANIFEST_FILE, PROCESS_FILE, ProcessPlace, RunPlace, write_facts
from stethos.record.segment import (
    FLAG_LAST,
    FLAG_NAMES,
    FLAG_SCHEMA,
    Block,
    Bytes,
    SegmentWriter,
    encode_block,
    scan,
    seal_segment,
)
from stethos.schema import CLIENT_REPORTS, RECORDED, SERVERS_OWN, Table

NOT_ALLOWED, UNREADABLE = "not_allowed", "unreadable"
# What a client may say of its process; the rest, as pids and children, means something on its own machine alone.
_TOLD_FACTS = frozenset({*FACTS, "command", "cwd", "config", "git_commit"})
Rows = tuple[Table, pa.RecordBatch]


def process_place(runs: Path, header: BatchHeader) -> ProcessPlace:
    """Where the rows of a client's process go; no two clients meet there, since '@' is in neither name.

    A client that has lost its spool counts from 1 again: then its rows go beside those of before.
    """
    place = ProcessPlace(runs / header.run / f"{header.client}@{header.process}")
    known = place.manifest().get("collected", {}).get("epoch")
    if known is None or known == header.epoch:
        return place
    return ProcessPlace(place.path.with_name(f"{place.name}@{header.epoch}"))


class StoredProcess:
    """What is stored of one process of a client; rows are appended, then sealed."""

    def __init__(self, runs: Path, header: BatchHeader) -> None:
        self.place = process_place(runs, header)
        self.client, self.epoch = header.client, header.epoch
        self._create(RunPlace(runs / header.run), header)
        self.manifest: dict[str, Any] = {
            "version": 1, "segment": 1, "rows": 0, "host_rows": 0, "slots": 0, "frames": 0, "sealed": [],
            "retired": {}, "lost": 0, "names": ["?"], **self.place.manifest(is_needed=True),
        }  # fmt: skip
        self.told = {**_told_in(self.manifest.get("collected")), "epoch": header.epoch}
        self.lanes = {lane: Intervals(self.told["lanes"].get(str(lane))) for lane in LANES}
        self.rows: int = self.manifest["rows"]
        self._with_schema: set[int] = set()
        self._open: SegmentWriter | None = None
        self._recover()
        self.is_dirty = False
        if "collected" not in self.manifest:
            self._write_manifest({})

    def _create(self, run: RunPlace, header: BatchHeader) -> None:
        if not run.exists():
            run.create({"run": run.name, "host": "collected", "command": None, "started_ns": header.t_ns})
        with contextlib.suppress(FileExistsError):
            self.place.path.mkdir(mode=0o700)
        if not self.place.facts():
            self._write_facts(header)

    def _write_facts(self, header: BatchHeader) -> None:
        own = {"process": self.place.name, "host_key": f"collected:{self.client}", "host": self.client}
        facts = {name: value for name, value in header.facts.items() if name in _TOLD_FACTS}
        content = {"started_ns": header.t_ns, **facts, **own}
        write_facts(self.place.path / PROCESS_FILE, content, is_synced=False)  # the journal has what it was made from

    @property
    def _writer(self) -> SegmentWriter:
        """The open segment; thousands of processes take turns with the descriptors."""
        if self._open is None:
            self._open = SegmentWriter(self.place.segment(int(self.manifest["segment"])), is_synced=False)
        return self._open

    def park(self) -> None:
        """Give the descriptor back until the next batch."""
        if self._open is not None:
            self._open.close()
            self._open = None

    def _recover(self) -> None:
        blocks = _whole_groups(self.place, self.manifest)
        for block in blocks:
            if block.flags & FLAG_SCHEMA:
                self._with_schema.add(block.table)
            self.rows = max(self.rows, block.rows_before + block.rows)
            self.lanes[block.frames_read].add(block.slots_read)
        self._writer.truncate(blocks[-1].end if blocks else 0)

    def has(self, header: BatchHeader) -> bool:
        return header.number in self.lanes[header.lane]

    # Writing -----------------------------------------------------------------------------------------

    def store(self, batch: SignedBatch, names: OwnNames) -> int:
        """Append a batch, unless it is here; return its rows. OSError, with nothing changed, if the disk is full."""
        header = batch.header
        if self.has(header):
            return 0
        kept, drops = self._readable(batch, names)
        pieces: list[Bytes] = []
        new_schemas: set[int] = set()
        before = self.rows
        where = {"slots_read": header.number, "frames_read": header.lane}
        for table, rows in kept:
            if table.number not in self._with_schema | new_schemas:
                schema = segment_schema(table).serialize().to_pybytes()
                pieces += encode_block(table.number, FLAG_SCHEMA, 0, before, payload=schema, **where)
                new_schemas.add(table.number)
            payload = serialize_batch(rows)
            pieces += encode_block(table.number, 0, rows.num_rows, before, payload=payload, **where)
            before += rows.num_rows
        pieces += encode_block(0, FLAG_NAMES | FLAG_LAST, 0, before, payload=b"[0, []]", **where)
        self._writer.write_group(pieces)
        stored, self.rows = before - self.rows, before
        self._with_schema |= new_schemas
        self.lanes[header.lane].add(header.number)
        self._learn(header, drops)
        return stored

    def _learn(self, header: BatchHeader, drops: dict[str, int]) -> None:
        self.is_dirty = True
        own = self.told["own_drops"]
        for reason, rows in drops.items():
            own[reason] = own.get(reason, 0) + rows
        books = checked_books(header.books)
        if books["produced"] >= self.told["books"]["produced"]:
            self.told["books"] = books
        if header.withholds:
            self.told["withholds"] = _names_by_table(header.withholds)
        if header.facts:
            self._write_facts(header)
            counters = header.facts.get("counters")
            self.told["counters"] = checked_counters(counters)
        if header.ended:
            self.told["ended"] = checked_counters(header.ended)

    def _readable(self, batch: SignedBatch, names: OwnNames) -> tuple[list[Rows], dict[str, int]]:
        """The rows of a batch in our schema and under the client's own name; and those that are left out."""
        kept: list[Rows] = []
        drops: dict[str, int] = {}
        schemas: dict[int, pa.Schema] = {}
        try:
            blocks = blocks_in(batch)
        except BatchError:  # the header says another size than it has
            return [], {UNREADABLE: batch.header.rows}
        for block in blocks:
            reason = ""
            if block.flags & FLAG_SCHEMA:
                with contextlib.suppress(pa.ArrowException, OSError, ValueError):
                    schemas[block.table] = checked_schema(block.payload)
            elif block.is_batch and block.rows:
                if block.table not in RECORDED or RECORDED[block.table].name in SERVERS_OWN:
                    reason = NOT_ALLOWED
                else:
                    table, t_ns = RECORDED[block.table], batch.header.t_ns
                    rows = self._rows_of(table, block.payload, block.rows, schemas, names, t_ns)
                    kept += [rows] if rows is not None else []
                    reason = UNREADABLE if rows is None else ""
            if reason:
                drops[reason] = drops.get(reason, 0) + block.rows
        missing = batch.header.rows - sum(drops.values()) - sum(rows.num_rows for _, rows in kept)
        if missing > 0:  # blocks that their checksums refuse
            drops[UNREADABLE] = drops.get(UNREADABLE, 0) + missing
        return kept, drops

    def _rows_of(
        self, table: Table, payload: memoryview, count: int, schemas: dict[int, pa.Schema], names: OwnNames, t_ns: int
    ) -> Rows | None:
        wanted = segment_schema(table)
        try:
            rows = checked_batch(payload, schemas.get(table.number, wanted), count)
            if rows.schema != wanted:
                rows = in_schema(pa.Table.from_batches([rows]), wanted).combine_chunks().to_batches()[0]
        except (pa.ArrowException, OSError, ValueError, IndexError):
            return None
        own = {}
        if "client" in wanted.names:
            own["client"] = _own_names(rows.column(wanted.get_field_index("client")), names, self.client)
        if table is CLIENT_REPORTS:
            own["side"] = text_array(["client"] * count)
        columns = [own.get(one.name, meant(one.name, rows.column(index), t_ns)) for index, one in enumerate(wanted)]
        return table, pa.RecordBatch.from_arrays(columns, schema=wanted)

    # Sealing -----------------------------------------------------------------------------------------

    @property
    def pending(self) -> int:
        """Rows that the client has not dropped, lost or kept back, and that are not here."""
        books, own = self.told["books"], sum(self.told["own_drops"].values())
        gone = sum(books["drops"].values()) + books["lost"] + sum(books["withheld"].values())
        return int(max(0, books["produced"] - gone - own - self.rows))

    @property
    def is_over(self) -> bool:
        return bool(self.told["ended"]) and not self.pending

    @property
    def wants_seal(self) -> bool:
        return self._writer.size >= SEGMENT_BYTES or (self.is_over and "ended" not in self.manifest)

    def save(self) -> None:
        """Write what is known into the manifest; the rows are in the segment."""
        if self.wants_seal:
            self._seal()
        else:
            self._write_manifest({})
        self.is_dirty = False

    def _seal(self) -> None:
        number = int(self.manifest["segment"])
        rank = self.place.facts().get("rank")
        self._writer.sync()
        sealed, lost = seal_segment(
            self._writer.path, number, self.place.path, self.place.name, rank, self.manifest["rows"], self.rows
        )
        following = SegmentWriter(self.place.segment(number + 1))
        try:
            self._write_manifest(
                {
                    "segment": number + 1, "rows": self.rows, "lost": self.manifest["lost"] + lost,
                    "sealed": [*self.manifest["sealed"], *(asdict(file) for file in sealed)],
                    **({"ended": {"t_ns": self.told["ended"].get("t_ns", 0)}} if self.is_over else {}),
                }
            )  # fmt: skip
        except OSError:
            following.close()
            raise
        path = self._writer.path
        self.park()
        self._open = following
        self._with_schema.clear()
        path.unlink(missing_ok=True)

    def _write_manifest(self, changes: dict[str, Any]) -> None:
        collected = {**self.told, "lanes": {str(lane): found.runs for lane, found in self.lanes.items()}}
        manifest = {**self.manifest, **changes, "collected": collected}
        if changes:
            self.place.write_manifest(manifest)
        else:  # what the segment has, or the next batch brings again: no reason to wait for the disk
            write_facts(self.place.path / MANIFEST_FILE, manifest, is_synced=False)
        self.manifest = manifest

    def close(self) -> None:
        writer = self._writer
        self.park()
        if not writer.size and "ended" in self.manifest:
            writer.path.unlink(missing_ok=True)


def stored_numbers(runs: Path, header: BatchHeader) -> dict[int, Intervals]:
    """Which batches of a process are on disk, by lane; nothing is made where there is none."""
    place = process_place(runs, header)
    if is_gone(place.path):
        return {lane: Intervals() for lane in LANES}
    manifest = place.manifest()
    told = _told_in(manifest.get("collected"))
    lanes = {lane: Intervals(told["lanes"].get(str(lane))) for lane in LANES}
    for block in _whole_groups(place, {"segment": 1, **manifest}):
        if block.frames_read in lanes:
            lanes[block.frames_read].add(block.slots_read)
    return lanes


def _whole_groups(place: ProcessPlace, manifest: dict[str, Any]) -> list[Block]:
    """The blocks of the open segment, without those of a group that was not finished."""
    path = place.segment(int(manifest["segment"]))
    blocks = list(scan(map_file(path, parts=2))) if version_of(path) else []
    while blocks and not blocks[-1].flags & FLAG_LAST:
        blocks.pop()
    return blocks


def _told_in(content: Any) -> dict[str, Any]:
    content = content if isinstance(content, dict) else {}
    lanes = content.get("lanes")
    return {
        "lanes": lanes if isinstance(lanes, dict) else {},
        "books": checked_books(content.get("books")),
        "own_drops": checked_books({"drops": content.get("own_drops")})["drops"],
        "withholds": _names_by_table(content.get("withholds")),
        "counters": checked_counters(content.get("counters")),
        "ended": checked_counters(content.get("ended")),
    }


def _names_by_table(content: Any) -> dict[str, list[str]]:
    content = content if isinstance(content, dict) and len(content) <= 100 else {}
    return {
        str(table)[:60]: [str(name)[:60] for name in names[:200]]
        for table, names in content.items()
        if isinstance(names, list)
    }


def _own_names(column: pa.Array, names: OwnNames, name: str) -> pa.Array:
    """A column of clients' names in which no other client's stands."""
    texts = column.to_pylist()
    told = {text: text if text is None or text in names else name for text in dict.fromkeys(texts)}
    return column if all(told[text] == text for text in told) else text_array([told[text] for text in texts])
