"""A run, opened for reading: `stethos.open_run(path).sql("SELECT ...")`."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from stethos.record.layout import State
from stethos.record.place import RunPlace, is_alive
from stethos.record.spawn import ensure_drainer, is_drained
from stethos.schema import (
    BACKTRACE,
    CLIENT_REPORTS,
    CLIENT_ROUNDS,
    FINDINGS,
    MODULES,
    PROCESSES,
    RECORDED,
    RUNS,
    STACKS,
    TABLES,
    TORCH_TRACE,
    Table,
)
from stethos.store.captures import count_stacks, read_stacks
from stethos.store.catalogue import Row, overhead_share, process_rows, run_row
from stethos.store.find import find_run
from stethos.store.ledger import Ledger
from stethos.store.process import ProcessReader
from stethos.store.sealed import CHECKED_BYTES, Examiner, Sealed
from stethos.store.statement import lists_tables, tables_named, with_sources

if TYPE_CHECKING:
    import pyarrow as pa

    from stethos.export.plot import Plots
    from stethos.store.engine import Engine, Rows

Result = TypeVar("Result")
MAIN_THREAD = "MainThread"
_COLLECT_S = 15.0  # the longest wait for the last rows of an ended recording
_STILL_S = 3.0  # a drainer that moves none of them for so long is stuck
_POLL_S = 0.02
_ATTEMPTS = 20
_RESTLESS_S = 30.0  # for which a query is repeated at least, while files come and go faster than it can read them
_CAPTURED = {BACKTRACE.qualified_name, STACKS.name}
_LAST_LOSS = "SELECT loss FROM steps WHERE loss IS NOT NULL ORDER BY t_ns DESC LIMIT 1"


def open_run(path: str | Path | None = None) -> Run:
    """Open a run by name, directory or pid; without one the newest live run, else the newest."""
    return Run(find_run(None if path is None else str(path)))


class Run:
    """Reads one run, whether it is growing, finished or killed.

    Every call looks at the directory again, so a growing run is seen as it is
    now. What was read stays in memory as long as it is valid, so keep the
    object for a series of queries. Not for use by several threads at once. Queries
    may use `memory_bytes`, or a quarter of the machine's memory.
    """

    def __init__(self, place: RunPlace, *, memory_bytes: int | None = None) -> None:
        self._place = place
        self._memory_bytes = memory_bytes
        self._readers: dict[str, ProcessReader] = {}
        self.examiner = Examiner()
        self._engine: Engine | None = None
        self._loaded: dict[str, object] = {}
        self.capture: Callable[[], list[Row]] = list  # the stacks of its live processes now, as rows of `stacks`
        self._captured: Callable[[], list[Row]] = list  # what the last query began to capture
        self._refresh()
        self._collect_rest()

    def __enter__(self) -> Run:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Run {self.name} at {self.path}>"

    def close(self) -> None:
        """Give the memory back; the object can be used again."""
        if self._engine is not None:
            self._engine.close()
        self._engine = None
        self._loaded = {}

    @property
    def name(self) -> str:
        return str(self._place.facts().get("run") or self._place.path.resolve().name)

    @property
    def path(self) -> Path:
        return self._place.path

    @property
    def place(self) -> RunPlace:
        return self._place

    @property
    def is_live(self) -> bool:
        """Whether a process of the run, or the command that started it, is still running."""
        self._refresh()
        rows, _ = self._process_rows()
        return bool(run_row(self._place, rows, 0)["state"] == "running")

    # SQL -------------------------------------------------------------------------------------------

    def sql(self, query: str, *, limit_rows: int | None = None, timeout_s: float | None = None) -> pa.Table:
        """The result of one reading statement as an Arrow table (`.to_pandas()`, `polars.from_arrow`).

        QueryError if the statement is wrong, would write, or takes longer
        than `timeout_s` (30 s if not given); rows after `limit_rows` are left out.
        """
        return self._attempt(_ask_arrow, query, limit_rows, timeout_s)

    def rows(self, query: str, *, limit_rows: int | None = None, timeout_s: float | None = None) -> Rows:
        """As `sql`, but as Python values and without importing pyarrow where nothing is in memory."""
        return self._attempt(_ask_rows, query, limit_rows, timeout_s)

    def rows_by_rank(
        self, query: str, rank: int | None = None, *, limit_rows: int | None = None, timeout_s: float | None = None
    ) -> Rows:
        """As `rows`, with rank and host: of all ranks, or of one. See `store.ranks`."""
        from stethos.store.ranks import Member, rows_of_ranks

        self._refresh()
        members: list[Member] = [
            (reader.name, reader.rank, str(reader.facts.get("host") or ""))
            for reader in self._readers.values()
            if reader.rank is not None and (rank is None or reader.rank == rank)
        ]
        if not members:
            members = [(reader.name, None, str(reader.facts.get("host") or "")) for reader in self._readers.values()]
        members.sort(key=lambda member: (member[1] or 0, member[0]))

        def ask(engine: Engine, sql: str, named: set[str], **limits: Any) -> Rows:
            self._load(named | {PROCESSES.name})
            return rows_of_ranks(engine, sql, named, members, is_single=rank is not None, **limits)

        return self._attempt(ask, query, limit_rows, timeout_s)

    def batches(self, table: Table) -> pa.RecordBatchReader:
        """All rows of a table as a stream of Arrow batches; damaged files have been sorted out before."""
        self._refresh()
        self._captured = self.capture
        self.verify({table.qualified_name})
        self._load({table.qualified_name})
        return self._open_engine().batches(f"SELECT * FROM {table.qualified_name}")

    def _attempt(
        self, ask: Callable[..., Result], query: str, limit_rows: int | None, timeout_s: float | None
    ) -> Result:
        """Run a query; if a file is damaged or has gone meanwhile, look again and repeat.

        Files of a run at its size limit are retired while it is read: as long as the list of files changes, a
        query that failed has done so because of that.
        """
        named = tables_named(query)
        self._captured = self._begin_capture() if named & _CAPTURED else self.capture  # while DuckDB is imported
        from stethos.store.complaint import explain_error
        from stethos.store.engine import FileTroubleError

        is_second = False
        until = time.monotonic() + _RESTLESS_S
        for attempt in itertools.count(1):
            self._refresh()
            seen = self._sealed_of(with_sources(named))
            try:
                self._load(named)
                if lists_tables(query):
                    self._open_engine().require(TABLES)
                statement = self._open_engine().check(query)
                return ask(self._open_engine(), statement, named, limit_rows=limit_rows, timeout_s=timeout_s)
            except FileTroubleError as error:  # a file may have been retired meanwhile, or be damaged
                failure = explain_error(error, named)
            self.close()  # an internal error leaves the engine unusable
            if attempt >= _ATTEMPTS and time.monotonic() > until:
                break
            self._refresh()
            if self._sealed_of(with_sources(named)) != seen:
                continue
            if is_second and not self._find_damage(named):
                break
            is_second = True
        raise failure

    def _begin_capture(self) -> Callable[[], list[Row]]:
        """Have the stacks of the live processes read beside us; the result waits for them."""
        from concurrent.futures import ThreadPoolExecutor

        pool = ThreadPoolExecutor(1)
        captured = pool.submit(self.capture)
        pool.shutdown(wait=False)
        return captured.result

    def _find_damage(self, named: set[str]) -> bool:
        """Look into every file of the named tables; return whether one was found damaged that was not known to be."""
        tables = with_sources(named)
        whole = [file for file in self._sealed_of(tables) if self.examiner.is_whole(file)]
        for file in whole:
            if self.examiner.is_whole(file, deep=True) and not self._open_engine().can_read(file.path.resolve()):
                self.examiner.condemn(file)
        self.close()
        return any(not self.examiner.is_whole(file) for file in whole)

    def _open_engine(self) -> Engine:
        if self._engine is None:
            from stethos.store.engine import Engine

            self._engine = Engine(self._place.path, self._memory_bytes)
        return self._engine

    @property
    def plot(self) -> Plots:
        """Figures for notebooks and papers: `run.plot.rounds()`, `.clients()`, `.layers()`, `.waterfall()`."""
        from stethos.export.plot import Plots

        return Plots(self)

    # Totals ------------------------------------------------------------------------------------------

    def tables(self) -> dict[str, int]:
        """Readable rows per table."""
        self._refresh()
        rows = dict.fromkeys(TABLES, 0)
        for reader in self._readers.values():
            for name, count in reader.rows_by_table(self.examiner).items():
                rows[name] += count
        rows[PROCESSES.name], rows[RUNS.name] = len(self._readers), 1
        from stethos.store.findings import count_findings

        rows[FINDINGS.name] = count_findings(self._place.path)
        rows[STACKS.name] = count_stacks(self._place.path)
        rows[TORCH_TRACE.qualified_name] = rows[MODULES.name]
        if rows[CLIENT_REPORTS.name]:
            rows[CLIENT_ROUNDS.name] = self.rows("SELECT count(*) FROM client_rounds").values[0][0]
        return rows

    def processes(self) -> list[Row]:
        """The rows of `processes`."""
        self._refresh()
        return self._process_rows()[0]

    def readers(self) -> list[ProcessReader]:
        """The processes as they were at the last look."""
        return list(self._readers.values())

    def summary(self) -> dict[str, Any]:
        """The run's totals: what ran and how it ended, steps, rows and what became of them, overhead, size."""
        tables = self.tables()
        processes, ledger = self._process_rows()
        recorded = sum(tables[table.name] for table in RECORDED.values())
        run = run_row(self._place, processes, recorded)
        ended_ns = run["ended_ns"] or time.time_ns()
        duration_s = (ended_ns - run["started_ns"]) / 1e9 if run["started_ns"] else None
        counters = [reader.counters for reader in self._readers.values() if reader.counters]
        return {
            "run": run["run"],
            "path": run["path"],
            "state": run["state"],
            "command": run["command"],
            "exit_code": run["exit_code"],
            "started_ns": run["started_ns"],
            "duration_s": duration_s,
            "processes": run["processes"],
            "steps": run["steps"],
            "last_loss": self._last_loss() if tables["steps"] else None,
            "rows": tables,
            "overhead_share": overhead_share(counters),
            **ledger.as_row(),
            "size_bytes": run["size_bytes"],
        }

    def _last_loss(self) -> float | None:
        values = self.rows(_LAST_LOSS).values
        return values[0][0] if values else None

    def verify(self, tables: set[str] | None = None) -> list[Sealed]:
        """Compare every checksum of these tables' files (default: all); return the damaged files."""
        return [file for file in self._sealed_of(tables) if not self.examiner.is_whole(file, deep=True)]

    def _sealed_of(self, tables: set[str] | None = None) -> list[Sealed]:
        files = (file for reader in self._readers.values() for file in reader.sealed)
        return [file for file in files if tables is None or file.table in tables]

    # Looking ------------------------------------------------------------------------------------------

    def _refresh(self) -> None:
        places = self._place.processes()
        self._readers = {place.name: self._readers.get(place.name) or ProcessReader(place) for place in places}
        for reader in self._readers.values():
            reader.refresh()
        if not self._are_whole():  # a file may have been retired since its manifest was read
            for reader in self._readers.values():
                reader.refresh()

    def _are_whole(self) -> bool:
        """Examine every sealed file: its size, and its checksum where that is cheap."""
        sealed = self._sealed_of()
        is_small = sum(file.bytes for file in sealed) <= CHECKED_BYTES
        verdicts = [self.examiner.is_whole(file, deep=is_small and file.crc32 is not None) for file in sealed]
        return all(verdicts)

    def _process_rows(self) -> tuple[list[Row], Ledger]:
        """The processes and their books; a file that was retired since the last look is not a damaged one."""
        for _ in range(_ATTEMPTS):
            seen = self._sealed_of()
            found = process_rows(list(self._readers.values()), self._place, self.examiner)
            if all(map(self.examiner.is_whole, seen)):
                break
            for reader in self._readers.values():
                reader.refresh()
            if self._sealed_of() == seen:
                break
        return found

    def _collect_rest(self) -> None:
        """See to it that a drainer is at work, and wait for the last rows of ended recordings while it gets on."""
        local = [reader for reader in self._readers.values() if reader.is_here and not reader.has_ended and reader.ring]
        if not local:
            return
        try:
            started = ensure_drainer(self._place)
        except OSError:  # a read-only directory: what is there can be read all the same
            return
        over = [r for r in local if not r.is_running or (r.ring and r.ring.counters.state is not State.RUNNING)]
        began = moved = time.monotonic()
        waiting = sum(reader.waiting for reader in over)
        while waiting and time.monotonic() < min(moved + _STILL_S, began + _COLLECT_S):
            time.sleep(_POLL_S)
            for reader in over:
                reader.refresh()
            before, waiting = waiting, sum(reader.waiting for reader in over)
            is_starting = started and is_alive(started, None) and not is_drained(self._place)
            if waiting != before or is_starting:
                moved = time.monotonic()

    def _load(self, named: set[str]) -> None:
        """Bring the named tables up to date in the engine."""
        engine = self._open_engine()
        named = with_sources(named)
        for table in RECORDED.values():
            if table.qualified_name in named:
                self._load_recorded(engine, table)
        engine.require(named)
        if FINDINGS.name in named:
            from stethos.store.findings import read_findings

            engine.fill(FINDINGS, read_findings(self._place.path))
        if named & _CAPTURED:
            self._load_stacks(engine, named)
        if named & {PROCESSES.name, RUNS.name}:
            processes, _ = self._process_rows()
            engine.fill(PROCESSES, processes)
            stored = sum(row["rows_stored"] for row in processes)
            engine.fill(RUNS, [run_row(self._place, processes, stored)])

    def _load_stacks(self, engine: Engine, named: set[str]) -> None:
        """Look at the live processes, once for both tables."""
        captured = self._captured()
        if BACKTRACE.qualified_name in named:
            engine.fill(BACKTRACE, [row for row in captured if row["thread"] == MAIN_THREAD])
        if STACKS.name in named:
            engine.fill(STACKS, [*read_stacks(self._place.path), *captured])

    def _load_recorded(self, engine: Engine, table: Table) -> None:
        checked = [(file, self.examiner.is_whole(file)) for file in self._sealed_of({table.name})]
        growing = [reader for reader in self._readers.values() if reader.segment.rows_by_table.get(table.number)]
        version = (checked, [(reader.name, reader.segment_version) for reader in growing])
        if self._loaded.get(table.name) == version:
            return
        parts = [self.examiner.salvaged(file, table) for file, is_whole in checked if not is_whole]
        parts += [reader.segment.arrow(table, reader.name, reader.rank) for reader in growing]
        engine.define(table, [file.path.resolve() for file, is_whole in checked if is_whole], _concatenated(parts))
        self._loaded[table.name] = version


def _ask_rows(engine: Engine, sql: str, named: set[str], **limits: Any) -> Rows:
    return engine.rows(sql, named, **limits)


def _ask_arrow(engine: Engine, sql: str, named: set[str], **limits: Any) -> pa.Table:
    return engine.arrow(sql, named, **limits)


def _concatenated(parts: list[pa.Table]) -> pa.Table | None:
    if not parts:
        return None
    import pyarrow as pa

    return pa.concat_tables(parts)
