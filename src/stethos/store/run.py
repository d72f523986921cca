"""A run, opened for reading: `stethos.open_run(path).sql("SELECT ...")`."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from stethos.record.border import version_of
from stethos.record.layout import State
from stethos.record.place import RunPlace, is_alive
from stethos.record.segment import concatenated
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
from stethos.store.asker import Asker
from stethos.store.catalogue import Row, overhead_share, process_rows, run_row
from stethos.store.find import ARCHIVE_SOURCE, find_run
from stethos.store.html import show_arrow_in_notebooks, summary_html
from stethos.store.ledger import Ledger
from stethos.store.limit import DEFAULT_TIMEOUT_S
from stethos.store.process import ProcessReader
from stethos.store.sealed import CHECKED_BYTES, SealChecker, Sealed
from stethos.store.stack_file import count_stacks, read_stacks
from stethos.store.statement import lists_tables, tables_named, with_sources

if TYPE_CHECKING:
    import pyarrow as pa

    from stethos.export.plot import Plots
    from stethos.store.engine import Engine
    from stethos.store.rows import Rows

Result = TypeVar("Result")
MAIN_THREAD = "MainThread"
_COLLECT_S = 15.0  # the longest wait for the last rows of an ended recording
_STILL_S = 3.0  # a drainer that moves none of them for so long is stuck
_POLL_S = 0.02
_ATTEMPTS = 20
_RESTLESS_S = 30.0  # for which a query is repeated at least, while files come and go faster than it can read them
_LIVE = {BACKTRACE.qualified_name, STACKS.name}
_LAST_LOSS = "SELECT loss FROM steps WHERE loss IS NOT NULL ORDER BY t_ns DESC LIMIT 1"


def open_run(path: str | Path | None = None) -> Run:
    """Open a run by name, directory, address or pid; without one the newest live run, else the newest."""
    show_arrow_in_notebooks()
    return Run(find_run(None if path is None else str(path)))


class Run:
    """Reads one run, whether it is growing, finished or killed.

    Every call looks at the directory again, so a growing run is seen as it is
    now. What was read stays in memory as long as it is valid, so keep the
    object for a series of queries. Not for use by several threads at once. Queries
    may use `memory_bytes`, or a quarter of the machine's memory; one that goes on after its time calls `when_stuck`,
    which may end the process.
    """

    def __init__(
        self, place: RunPlace, *, memory_bytes: int | None = None, when_stuck: Callable[[], object] | None = None
    ) -> None:
        self._place = place
        self._memory_bytes = memory_bytes
        self._when_stuck = when_stuck
        self._readers: dict[str, ProcessReader] = {}
        self.examiner = _checker_of(place.path)
        self._engine: Engine | None = None
        self._asker: Asker | None = None
        self._loaded: dict[str, object] = {}
        self.live_stacks: Callable[[], list[Row]] = list  # the stacks of its live processes now, as rows of `stacks`
        self._stacks_now: Callable[[], list[Row]] = list  # what the last query began to read
        self._refresh()
        self._collect_rest()

    def __enter__(self) -> Run:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Run {self.name} at {self.path}>"

    def _repr_html_(self) -> str:
        return summary_html(self.summary())

    def close(self) -> None:
        """Give the memory back; the object can be used again."""
        self._close_engine()
        if self._asker is not None:
            self._asker.close()
            self._asker = None

    def _close_engine(self) -> None:
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
    def state(self) -> str:
        """running, ended, failed or killed."""
        return str(run_row(self._place, self.processes(), 0)["state"])

    @property
    def is_live(self) -> bool:
        """Whether a process of the run, or the command that started it, is still running."""
        return self.state == "running"

    # SQL -------------------------------------------------------------------------------------------

    def sql(self, query: str, *, limit_rows: int | None = None, timeout_s: float | None = None) -> pa.Table:
        """The result of one reading statement as an Arrow table (`.to_pandas()`, `polars.from_arrow`).

        QueryError if the statement is wrong, would write, needs more than a quarter of the machine's memory, or takes
        longer than `timeout_s` (30 s if not given); rows after `limit_rows` are left out. It runs in a process of its
        own, so whatever it does, this one goes on.
        """
        if self._asker is None:
            self._asker = Asker(self._place.path.resolve())
        return self._asker.arrow(query, limit_rows, DEFAULT_TIMEOUT_S if timeout_s is None else timeout_s)

    def arrow(self, query: str, *, limit_rows: int | None = None, timeout_s: float | None = None) -> pa.Table:
        """As `sql`, in this process: for statements of our own."""
        return self._attempt(
            lambda engine, *args, **limits: engine.arrow(*args, **limits), query, limit_rows, timeout_s
        )

    def rows(self, query: str, *, limit_rows: int | None = None, timeout_s: float | None = None) -> Rows:
        """As `sql`, but as Python values and without importing pyarrow where nothing is in memory."""
        ask: Callable[..., Rows] = lambda engine, *args, **limits: engine.rows(*args, **limits)  # noqa: E731
        return self._attempt(ask, query, limit_rows, timeout_s)

    def rows_by_rank(
        self, query: str, rank: int | None = None, *, limit_rows: int | None = None, timeout_s: float | None = None
    ) -> Rows:
        """As `rows`, with rank and host: of all ranks, or of one. See `store.ranks`."""
        from stethos.store.ranks import members_of, rows_of_ranks

        self._refresh()
        members = members_of(self._readers.values(), rank)

        def ask(engine: Engine, sql: str, named: set[str], **limits: Any) -> Rows:
            self._load(named | {PROCESSES.name})
            return rows_of_ranks(engine, sql, named, members, is_single=rank is not None, **limits)

        return self._attempt(ask, query, limit_rows, timeout_s)

    def batches(self, table: Table) -> pa.RecordBatchReader:
        """All rows of a table as a stream of Arrow batches; damaged files have been sorted out before.

        QueryError if files go faster than they can be opened, as those of a run at its size limit do.
        """
        from stethos.store.complaint import explain_error
        from stethos.store.engine import FileTroubleError

        for _ in range(_ATTEMPTS):
            self._refresh()
            self._stacks_now = self.live_stacks
            self.verify({table.qualified_name})
            try:
                self._load({table.qualified_name})
                return self._open_engine().batches(f"SELECT * FROM {table.qualified_name}")
            except FileTroubleError as error:
                failure = explain_error(error, {table.qualified_name})
            self._close_engine()
        raise failure

    def _attempt(
        self, ask: Callable[..., Result], query: str, limit_rows: int | None, timeout_s: float | None
    ) -> Result:
        """Run a query; if a file is damaged or has gone meanwhile, look again and repeat.

        Files of a run at its size limit are retired while it is read: as long as the list of files changes, a
        query that failed has done so because of that.
        """
        named = tables_named(query)
        self._stacks_now = self._begin_stacks() if named & _LIVE else self.live_stacks  # while DuckDB is imported
        from stethos.store.complaint import explain_error
        from stethos.store.engine import FileTroubleError

        is_second = False
        until = time.monotonic() + _RESTLESS_S
        for attempt in itertools.count(1):
            self._refresh()
            seen = self._sealed_of(with_sources(named))
            try:
                self._load(named, query)
                if lists_tables(query):
                    self._open_engine().require(TABLES)
                statement = self._open_engine().check(query)
                return ask(self._open_engine(), statement, named, limit_rows=limit_rows, timeout_s=timeout_s)
            except FileTroubleError as error:  # a file may have been retired meanwhile, or be damaged
                failure = explain_error(error, named)
            self._close_engine()  # an internal error leaves it unusable
            if attempt >= _ATTEMPTS and time.monotonic() > until:
                break
            self._refresh()
            if self._sealed_of(with_sources(named)) != seen:
                continue
            if is_second and not self._find_damage(named):
                break
            is_second = True
        raise failure

    def _begin_stacks(self) -> Callable[[], list[Row]]:
        """Have the stacks of the live processes read beside us; the result waits for them."""
        from concurrent.futures import ThreadPoolExecutor

        pool = ThreadPoolExecutor(1)
        found = pool.submit(self.live_stacks)
        pool.shutdown(wait=False)
        return found.result

    def _find_damage(self, named: set[str]) -> bool:
        """Look into every file of the named tables; return whether one was found damaged that was not known to be."""
        tables = with_sources(named)
        here = [file for file in self._sealed_of(tables) if version_of(file.path)]
        whole = [file for file in here if self.examiner.is_whole(file)]
        for file in whole:
            if self.examiner.is_whole(file, deep=True) and not self._open_engine().can_read(file.path.resolve()):
                self.examiner.condemn(file)
        self._close_engine()
        return any(not self.examiner.is_whole(file) for file in whole)

    def _open_engine(self) -> Engine:
        if self._engine is None:
            from stethos.store.engine import Engine

            self._engine = Engine(self._place.path, self._memory_bytes, self._when_stuck)
        return self._engine

    @property
    def plot(self) -> Plots:
        """Figures for notebooks and papers: `run.plot.steps()`, `.metrics()`, `.rounds()`, `.clients()` ..."""
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

    def withholds(self) -> dict[str, dict[str, list[str]]]:
        """The columns that sites elsewhere keep back, by client and table, at the last look; ["*"] for all."""
        found = {reader.facts.get("host") or reader.name: reader.withholds for reader in self._readers.values()}
        return {str(client): columns for client, columns in found.items() if columns}

    def summary(self) -> dict[str, Any]:
        """The run's totals: what ran and how it ended, steps, rows and what became of them, overhead, size."""
        tables = self.tables()
        processes, ledger = self._process_rows()
        recorded = sum(tables[table.name] for table in RECORDED.values())
        run = run_row(self._place, processes, recorded)
        ended_ns = run["ended_ns"] or time.time_ns()
        duration_s = (ended_ns - run["started_ns"]) / 1e9 if run["started_ns"] else None
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
            "last_loss": next((row[0] for row in self.rows(_LAST_LOSS).values), None) if tables["steps"] else None,
            "rows": tables,
            "overhead_share": overhead_share(list(self._readers.values())),
            **ledger.as_row(),
            "size_bytes": run["size_bytes"],
        }

    def verify(self, tables: set[str] | None = None) -> list[Sealed]:
        """Compare every checksum of these tables' files (default: all); return the damaged files."""
        self.examiner.bring(self._sealed_of(tables))
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
        """Have a drainer collect the last rows of ended recordings of ours; read from their rings what it does not."""
        unread = [reader for reader in self._readers.values() if not reader.has_ended and reader.ring]
        over = [r for r in unread if not r.is_running or (r.ring and r.ring.counters.state is not State.RUNNING)]
        if (any(reader.is_here for reader in unread) or self._place.has_inbox) and self._place.is_ours():
            with suppress(OSError):  # a read-only directory: what is there can be read all the same
                self._await_drainer([reader for reader in over if reader.is_here])
        for reader in over:
            reader.reads_ring = True
            reader.refresh()

    def _await_drainer(self, over: list[ProcessReader]) -> None:
        started = ensure_drainer(self._place)
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

    def _load(self, named: set[str], query: str | None = None) -> None:
        """Bring the named tables up to date in the engine; of files elsewhere those that this query needs."""
        engine = self._open_engine()
        named = with_sources(named)
        for table in RECORDED.values():
            if table.qualified_name in named:
                self._load_recorded(engine, table, self._files_for(engine, table, named, query))
        engine.require(named)
        if FINDINGS.name in named:
            from stethos.store.findings import read_findings

            engine.fill(FINDINGS, read_findings(self._place.path))
        if named & _LIVE:
            self._load_stacks(engine, named)
        if named & {PROCESSES.name, RUNS.name}:
            processes, _ = self._process_rows()
            engine.fill(PROCESSES, processes)
            stored = sum(row["rows_stored"] for row in processes)
            engine.fill(RUNS, [run_row(self._place, processes, stored)])

    def _load_stacks(self, engine: Engine, named: set[str]) -> None:
        """Look at the live processes, once for both tables."""
        found = self._stacks_now()
        if BACKTRACE.qualified_name in named:
            engine.fill(BACKTRACE, [row for row in found if row["thread"] == MAIN_THREAD])
        if STACKS.name in named:
            engine.fill(STACKS, [*read_stacks(self._place.path), *found])

    def _files_for(self, engine: Engine, table: Table, named: set[str], query: str | None) -> list[Sealed]:
        files = self._sealed_of({table.name})
        if query is None or not self.examiner.ranges:
            return files
        from stethos.store.narrowing import needs_of

        is_needed = needs_of(engine.connection, query, named, table.qualified_name)
        return [file for file in files if is_needed(self.examiner.ranges.get(file.path, {}))]

    def _load_recorded(self, engine: Engine, table: Table, files: list[Sealed]) -> None:
        self.examiner.bring(files)
        checked = [(file, self.examiner.is_whole(file)) for file in files]
        growing = list(self._readers.values())
        version = (checked, [(reader.name, reader.growing_version) for reader in growing])
        if self._loaded.get(table.name) == version:
            return
        parts = [self.examiner.salvaged(file, table) for file, is_whole in checked if not is_whole]
        parts += [rows for reader in growing if (rows := reader.growing(table)) is not None]
        engine.define(table, [file.path.resolve() for file, is_whole in checked if is_whole], concatenated(parts))
        self._loaded[table.name] = version


def _checker_of(directory: Path) -> SealChecker:
    """Looks after the files of a run; those of an archived one it fetches."""
    if not version_of(directory / ARCHIVE_SOURCE):
        return SealChecker()
    from stethos.archive.cache import checker_of

    return checker_of(directory)
