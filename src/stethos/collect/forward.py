"""In the drainer: takes what it has stored, lets the site's policy decide, and puts the rest into the spool.

Rows are read from the open segment of each process, where they are on disk already, so a killed drainer goes on where
its spool says. Nothing here is called by the training, and what fails here is counted and leaves the recording alone.
"""

from __future__ import annotations

import contextlib
import copy
import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa

from stethos.collect.batch import (
    LANES,
    MOST_BATCH_BYTES,
    MOST_RAW_BYTES,
    BatchHeader,
    compress,
    digest_of,
    encode_batch,
)
from stethos.collect.books import TOO_LARGE
from stethos.collect.filter import filtered, filtered_counters, filtered_facts, whole_seconds
from stethos.collect.forwarded import ForwardedProcess, open_forwarded
from stethos.collect.left import note_left
from stethos.collect.noise import LEDGER_FILE, NoiseLedger, NoiseSource
from stethos.collect.policy import Policy
from stethos.collect.sender import Sender
from stethos.collect.site import SiteHome, open_site
from stethos.collect.site_policy import SitePolicy
from stethos.collect.spool import SPOOL_BYTES, Spool, spools_in
from stethos.errors import UsageError
from stethos.record.arrow import checked_batch, segment_schema, serialize_batch
from stethos.record.border import make_directory, map_file, version_of
from stethos.record.collector import Collector, counters_of
from stethos.record.place import RunPlace
from stethos.record.segment import FLAG_LAST, FLAG_SCHEMA, Block, Bytes, encode_block, scan
from stethos.schema import CLIENT_REPORTS, RECORDED, Table
from stethos.settings import ride_bytes

FLUSH_S, SLOW_FLUSH_S = 2.0, 30.0  # how long rows wait for more; slowly while nobody takes them
TAKE_BYTES = 2 << 20  # of a segment, for one batch of each lane
SOON_BYTES = 256 << 10
SPLIT_BYTES = 512 << 10  # of a batch: a slow line has to carry one before the collector's patience ends
ADOPT_S = 30.0
LEAVE_S, LEAVE_AT_MOST_S = 0.9, 10.0  # at the end: since the last acknowledgement, and in all
_HEADER_ROOM = 16 << 10  # in a batch that rides along
_COUNTERS = ("spent_ns", "started_ns", "last_step_ns", "state", "steps")
FilteredRows = tuple[Table, pa.RecordBatch]


class Forwarder:
    """Everything of one run that leaves this site, and what earlier runs have left behind."""

    def __init__(self, run: RunPlace, site: SiteHome) -> None:
        self.run = run
        self.site = site
        self.mutex = threading.Lock()
        self.processes: dict[str, ForwardedProcess] = {}
        self.adopted: dict[Path, ForwardedProcess] = {}
        self._policy = SitePolicy(site)
        self._sign = site.signer()
        self._noise = NoiseSource(NoiseLedger(site.path / LEDGER_FILE), run.name)
        self._noted: set[str] = set()
        self._next_adoption = 0.0
        self._most_bytes = (MOST_BATCH_BYTES >> 1) if site.address else ride_bytes() - _HEADER_ROOM
        self.sender = Sender(site, self) if site.address else None

    # Called by the drainer ---------------------------------------------------------------------------

    def take(self, collector: Collector, *, is_last: bool = False) -> None:
        """Take what is new of a process, if enough or for long enough; `is_last` before its segment is sealed."""
        now = time.monotonic()
        one = self._of(collector)
        if one is None:
            return
        spool = one.spool
        segment, at = spool.source if spool.source[0] == collector.number else (collector.number, 0)
        waiting = collector.open_bytes - at
        if not is_last and now < one.next_flush and waiting < SOON_BYTES:
            return
        is_slow = self.sender is not None and self.sender.is_failing
        one.next_flush = now + (SLOW_FLUSH_S if is_slow else FLUSH_S)
        with self.mutex:
            self._withdraw_old()
            spool.take_told_acks()
            while at < collector.open_bytes:
                with one.as_a_whole():
                    at = self._take_part(one, collector, at)
                    spool.source = segment, at
                    self._save(one, collector)
                self._keep_bound(one)
            with one.as_a_whole():
                self._tell(one, collector)
                self._save(one, collector)

    def end(self, collector: Collector) -> None:
        """A process is over and its last rows are stored: take them, and say how it ended."""
        self.take(collector, is_last=True)
        one = self.processes.get(collector.place.name)
        if one is not None:
            with self.mutex, one.as_a_whole():
                counters = self._counters(collector)
                self._tell(one, collector, {"t_ns": whole_seconds(time.time_ns()), **counters})
                self._save(one, collector)

    def visit(self, now: float) -> None:
        """Look after spools that ended processes have left; called about once a second."""
        with self.mutex:
            self._withdraw_old()
        if now < self._next_adoption:
            return
        self._next_adoption = now + ADOPT_S
        mine = {one.spool.path for one in self.processes.values()}
        for path in spools_in(self.site.spool):
            if path in mine or path in self.adopted:
                continue
            one = open_forwarded(path)
            if one is not None:
                with self.mutex:
                    self.adopted[path] = one
                    self._withdraw_old()
        with self.mutex:
            for path, one in self.adopted.items():
                self._tell_drops(path, one)
            self._let_go()

    def leave(self) -> None:
        """The run is over: give the collector a moment, and leave the rest to whoever comes next."""
        if self.sender is not None:
            self.sender.leave(LEAVE_S, LEAVE_AT_MOST_S)
        with self.mutex:
            self.adopted |= {one.spool.path: one for one in self.processes.values()}
            self.processes = {}
            for one in self.adopted.values():
                one.spool.take_told_acks()
                with contextlib.suppress(OSError):
                    one.spool.save()
            self._let_go()
            for one in self.adopted.values():
                one.close()
            self.adopted = {}

    def spools(self) -> list[Spool]:
        """All spools that this process sends from; to be used with `mutex` held."""
        return [one.spool for one in (*self.processes.values(), *self.adopted.values())]

    # Taking ------------------------------------------------------------------------------------------

    def policy(self) -> Policy:
        """What the site's file says now; nothing leaves while it cannot be understood."""
        return self._policy.current()

    def _of(self, collector: Collector) -> ForwardedProcess | None:
        name = collector.place.name
        if name not in self.processes:
            path = self.site.spool / self.run.name / name
            make_directory(path)
            one = self.adopted.pop(path, None) or open_forwarded(path)
            if one is None:  # another drainer is at it
                return None
            with self.mutex:
                self.processes[name] = one  # first: it holds the lock
                self._withdraw_old()
        return self.processes[name]

    def _take_part(self, one: ForwardedProcess, collector: Collector, at: int) -> int:
        """Put the next blocks of the open segment into batches; return the place behind them."""
        buffer = map_file(collector.segment_path, parts=2)[at : collector.open_bytes]
        found: dict[int, list[Block]] = {}
        taken = 0
        for block in scan(buffer):
            one.books.lost += max(0, block.rows_before - one.books.offered)
            one.books.offered = max(one.books.offered, block.rows_before + block.rows)
            if block.is_batch and block.table in RECORDED and block.rows:
                found.setdefault(block.table, []).append(block)
            taken = block.end
            if taken >= TAKE_BYTES and block.flags & FLAG_LAST:
                break
        self._put(one, collector, found)
        return at + taken if taken else collector.open_bytes

    def _put(self, one: ForwardedProcess, collector: Collector, found: dict[int, list[Block]]) -> None:
        policy = self.policy()
        lanes: dict[int, list[FilteredRows]] = {}
        for number, blocks in found.items():
            table, rows = RECORDED[number], sum(block.rows for block in blocks)
            batch = None
            if policy.allows(table.name):
                batch = _joined(table, blocks)
                if batch is None:
                    one.books.lost += rows
                    continue
                batch = self._filtered(policy, table, batch)
            if batch is None:
                one.books.withheld[table.name] = one.books.withheld.get(table.name, 0) + rows
                continue
            lanes.setdefault(_lane_of(table), []).append((table, batch))
        for lane in sorted(lanes):
            self._append_rows(one, collector, lane, lanes[lane])

    def _filtered(self, policy: Policy, table: Table, batch: pa.RecordBatch) -> pa.RecordBatch | None:
        """The rows as they may leave; where noise cannot be had or paid, what would need it stays."""
        try:
            return filtered(policy, table, batch, self._noise)
        except (UsageError, ImportError, OSError) as error:
            if str(error) not in self._noted:
                self._noted.add(str(error))
                self.site.note(what="noise", outcome="numbers about the data stay", why=str(error)[:500])
            return filtered(policy, table, batch)

    def _append_rows(self, one: ForwardedProcess, collector: Collector, lane: int, content: list[FilteredRows]) -> None:
        """Put rows into a batch, or into several if they do not fit into one."""
        rows = sum(batch.num_rows for _, batch in content)
        raw = b"".join(piece for table, batch in content for piece in _blocks_of(table, batch))
        size = len(compress(raw)) if len(raw) <= MOST_RAW_BYTES else MOST_RAW_BYTES
        if size <= min(SPLIT_BYTES, self._most_bytes) or (rows == 1 and size <= self._most_bytes):
            one.books.taken += rows
            self._append(one, collector, lane, rows, raw)
        elif rows == 1:
            one.books.drops[TOO_LARGE] = one.books.drops.get(TOO_LARGE, 0) + 1
        else:
            for part in _halves(content):
                self._append_rows(one, collector, lane, part)

    def _append(
        self, one: ForwardedProcess, collector: Collector, lane: int, rows: int, raw: bytes,
        facts: dict[str, Any] | None = None, ended: dict[str, Any] | None = None,
    ) -> None:  # fmt: skip
        self._put_header(
            one, self.run.name, collector.place.name, lane, raw, rows=rows, books=self._books(one, collector),
            withholds=self.policy().withholds() if lane == 0 else {}, facts=facts or {}, ended=ended or {},
        )  # fmt: skip

    def _put_header(
        self, one: ForwardedProcess, run: str, process: str, lane: int, raw: bytes = b"", rows: int = 0, **told: Any
    ) -> None:
        spool, body = one.spool, compress(raw) if raw else b""
        number = spool.next_numbers[lane]
        header = BatchHeader(
            client=self.site.name, run=run, process=process, epoch=spool.epoch, lane=lane, number=number, rows=rows,
            raw_bytes=len(raw), digest=digest_of(body), t_ns=whole_seconds(time.time_ns()), **told,
        )  # fmt: skip
        spool.append(lane, number, rows, encode_batch(header, body, self._sign))

    def _tell(self, one: ForwardedProcess, collector: Collector, ended: dict[str, Any] | None = None) -> None:
        """Say what is new of the process itself and of its books, in a batch without rows."""
        policy = self.policy()
        if policy.level == "L0":
            return
        told: dict[str, Any] = {
            "facts": {**filtered_facts(policy, collector.facts), "counters": self._counters(collector)},
            "books": self._books(one, collector), "level": policy.level,
        }  # fmt: skip
        is_waiting = one.told_in > one.spool.acked[0]  # in an outage, or a long turn, one is enough
        if ended is None and (is_waiting or one.spool.kept.get("told") == told):
            return
        one.spool.kept["told"], one.told_in = told, one.spool.next_numbers[0]
        self._append(one, collector, 0, 0, b"", told["facts"], ended)

    def _counters(self, collector: Collector) -> dict[str, Any]:
        counters = counters_of(collector.tap)
        return filtered_counters(self.policy(), {name: counters[name] for name in _COUNTERS})

    def _books(self, one: ForwardedProcess, collector: Collector) -> dict[str, Any]:
        one.books.drops |= one.spool.drops
        told = one.books.as_dict(collector.tap.dropped())
        if self.policy().level != "L4":  # by table, they would tell the number of steps
            told["withheld"] = {"rows": sum(told["withheld"].values())}
        return told

    # The bound -----------------------------------------------------------------------------------------

    def _keep_bound(self, one: ForwardedProcess) -> None:
        """Stay within the spool's size, whatever has been left by others."""
        size = sum(_size_of(path) for path in spools_in(self.site.spool))
        over = size - SPOOL_BYTES
        others = dict.fromkeys((*self.adopted.values(), *self.processes.values(), one))
        for lane in reversed(LANES[1:]):  # of all processes bulk tables first
            for other in others:
                if over > 0:
                    over -= other.spool.make_room(over, lane)

    def _save(self, one: ForwardedProcess, collector: Collector) -> None:
        one.spool.kept["own"] = one.books.as_own()
        one.spool.kept["books"] = self._books(one, collector)
        one.spool.save()

    # A policy that changed ---------------------------------------------------------------------------

    def _withdraw_old(self) -> None:
        """What waits and may not leave any more stays, from the moment at which the site's file says so."""
        policy = self.policy()
        for one in (*self.processes.values(), *self.adopted.values()):
            rows = one.follow(policy)
            if rows:
                why = f"level {policy.level} now"
                self.site.note(what="policy", outcome=f"{rows} rows that waited stay", why=why)

    def _tell_drops(self, path: Path, one: ForwardedProcess) -> None:
        """Rows of a process that is over were dropped or withdrawn since: nobody else tells the collector."""
        kept, policy = one.spool.kept, self.policy()
        books = kept.get("books")
        if not isinstance(books, dict) or policy.level == "L0":
            return
        books["drops"] = {**books["drops"], **one.spool.drops}
        if books == kept.get("told", {}).get("books"):
            return
        with one.as_a_whole():
            kept["told"] = {**kept.get("told", {}), "books": copy.deepcopy(books)}
            self._put_header(one, path.parent.name, path.name, 0, books=books, withholds=policy.withholds())
            one.spool.save()

    def _let_go(self) -> None:
        """Remove the spools of ended processes from which everything was acknowledged."""
        for path, one in list(self.adopted.items()):
            one.spool.take_told_acks()
            if one.spool.is_empty:
                with contextlib.suppress(OSError):  # a full disk: the account goes, not the recording
                    note_left(self.site.path, path, one.spool)
                one.close()
                del self.adopted[path]
                shutil.rmtree(path, ignore_errors=True)
                with contextlib.suppress(OSError):
                    path.parent.rmdir()


def start_forwarding(run: RunPlace, directory: str, on_failure: Callable[[str, str], object]) -> Forwarder | None:
    """For the drainer of a run that was recorded at a site; None where there is no site any more."""
    try:
        site = open_site(Path(directory))
        make_directory(site.spool)
        return Forwarder(run, site)
    except (UsageError, OSError, ImportError) as error:
        on_failure("site", f"rows of this run do not leave: {error}")
        return None


def _lane_of(table: Table) -> int:
    return 0 if table is CLIENT_REPORTS else 2 if table.is_bulk else 1


def _joined(table: Table, blocks: list[Block]) -> pa.RecordBatch | None:
    """The rows of several blocks as one batch; None if they cannot be read."""
    schema = segment_schema(table)
    try:
        batches = [checked_batch(block.payload, schema, block.rows) for block in blocks]
    except (pa.ArrowException, OSError, ValueError):
        return None
    if len(batches) == 1:
        return batches[0]
    columns = [pa.concat_arrays([batch.column(index) for batch in batches]) for index in range(len(schema))]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _blocks_of(table: Table, batch: pa.RecordBatch) -> list[Bytes]:
    schema = batch.schema.serialize().to_pybytes()
    pieces = encode_block(table.number, FLAG_SCHEMA, 0, 0, 0, 0, schema)
    return [*pieces, *encode_block(table.number, FLAG_LAST, batch.num_rows, 0, 0, 0, serialize_batch(batch))]


def _halves(content: list[FilteredRows]) -> list[list[FilteredRows]]:
    """Some rows in two parts: by table, or of one table by rows."""
    if len(content) > 1:
        middle = len(content) // 2
        return [content[:middle], content[middle:]]
    ((table, batch),) = content
    middle = batch.num_rows // 2
    return [[(table, batch.slice(0, middle))], [(table, batch.slice(middle))]]


def _size_of(path: Path) -> int:
    return sum(found[1] for found in map(version_of, path.glob("*.spool")) if found)
