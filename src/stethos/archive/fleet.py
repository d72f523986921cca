"""The tables of all runs of an archive, each with a column `run` in front, as DuckDB sees them."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stethos.archive.address import Address
from stethos.archive.cache import directory_of
from stethos.archive.cached_files import FETCHES, Away, fetch, keeping
from stethos.archive.catalogue import Row, nested
from stethos.archive.objects import Objects
from stethos.archive.place import ArchivedRun
from stethos.errors import QueryError
from stethos.record.border import make_directory, version_of
from stethos.schema import FINDINGS, PROCESSES, RECORDED, RUNS, TABLES, Column, Kind, Source, Table
from stethos.store.narrowing import Ranges, needs_of
from stethos.store.statement import with_sources
from stethos.store.view import FLEET_VIEWS

if TYPE_CHECKING:
    import pyarrow as pa

    from stethos.store.engine import Engine

RUN = Column("run", Kind.NAME, "the run that the row is of")
_OWN_RUNS = (
    Column("verdict", Kind.TEXT, "what the diagnosis concluded"),
    Column("problems", Kind.I64, "problems still open"),
    Column("last_loss", Kind.F64, "the last loss"),
    Column("duration_s", Kind.F64, "how long it took"),
    Column("hyperparameters", Kind.TEXT, "as JSON"),
    Column("last_values", Kind.TEXT, "of metrics and the last round, as JSON"),
)


@dataclass(frozen=True, slots=True)
class FleetFile:
    """A Parquet file of one run: its object below the archive, its size, and the range of its rounds."""

    run: str
    path: str
    bytes: int
    rounds: tuple[int, int] | None = None

    @property
    def object(self) -> str:
        return f"{self.run}/{self.path}"

    def ranges(self) -> Ranges:
        """What the file holds, for choosing."""
        run = {"run": (self.run, self.run)}
        return run if self.rounds is None else {**run, "round": self.rounds}


def fleet_table(name: str) -> Table:
    """A table as a query over an archive sees it; QueryError if archives have none of that name."""
    table = TABLES[name]
    if table.source is Source.LIVE or table.name == "stacks":
        raise QueryError(f"archives have no table {name}", hint=f"ask one run: stethos -t ADDRESS/RUN query ... {name}")
    columns = [column for column in table.all_columns if column.name != RUN.name]
    more = _OWN_RUNS if table is RUNS else ()
    return replace(table, source=Source.CATALOGUE, columns=(RUN, *columns, *more))


def files_by_table(archive: Address, rows: Sequence[Row], tables: Collection[str]) -> dict[str, list[FleetFile]]:
    """The files of these tables in all runs, from the list; of a run with very many, from its snapshot."""
    found: dict[str, list[FleetFile]] = {name: [] for name in tables}
    if not tables:
        return found
    listed = {str(row["run"]): _listed(nested(row["files"]), str(row["run"])) for row in rows}
    unlisted = [run for run, files in listed.items() if files is None]  # too many for the list, or it is damaged there
    with ThreadPoolExecutor(FETCHES) as pool:
        listed |= zip(unlisted, pool.map(lambda run: _in_snapshot(archive / run), unlisted), strict=True)
    for files in listed.values():
        for table, file in files or ():
            if table in found:
                found[table].append(file)
    return found


def _in_snapshot(address: Address) -> list[tuple[str, FleetFile]]:
    snapshot = ArchivedRun(address).snapshot(is_needed=False)
    files = snapshot.files if snapshot else []
    return [(file.table, FleetFile(address.name, file.path, file.bytes, file.rounds)) for file in files]


def _listed(listed: Any, run: str) -> list[tuple[str, FleetFile]] | None:
    """The files of a run with their tables, as its row has them; None if it does not, or they cannot be meant."""
    if not isinstance(listed, list):
        return None
    found = []
    try:
        for path, table, _, size, rounds in listed:
            name = str(path).partition("/")[2]
            span = None if rounds is None else (int(rounds[0]), int(rounds[1]))
            if not _is_plain(name):
                return None
            found.append((str(table), FleetFile(run, f"{table}/{name}", int(size), span)))
    except (ValueError, TypeError, IndexError, OverflowError):
        return None
    return found


def _is_plain(name: str) -> bool:
    return bool(name) and "/" not in name and name not in (".", "..")


def fetched(archive: Address, files: Sequence[FleetFile]) -> list[Path]:
    """The files on this machine; those that are not are fetched."""
    root = directory_of(archive)
    here = [root / file.run / file.path for file in files]
    away = [Away(file.object, path, file.bytes) for file, path in zip(files, here, strict=True) if not version_of(path)]
    if away:
        with keeping():
            for directory in {one.path.parent for one in away}:
                make_directory(directory)
        fetch(Objects(archive), away, set(here))
    return here


class Fleet:
    """DuckDB over all runs of an archive."""

    def __init__(self, archive: Address, rows: Sequence[Row], *, is_empty: bool = False) -> None:
        """With `is_empty` the tables have no rows: to see whether a query makes sense, and what it returns."""
        from stethos.store.engine import Engine

        self.archive = archive
        self._rows = [] if is_empty else rows
        with keeping():
            make_directory(directory_of(archive))
        self.engine: Engine = Engine(directory_of(archive))

    def __enter__(self) -> Fleet:
        return self

    def __exit__(self, *_: object) -> None:
        self.engine.close()

    def needed(self, query: str, named: Collection[str], tables: Collection[str]) -> dict[str, list[FleetFile]]:
        """The files of these tables in all runs that this query, which names some, can need."""
        found = files_by_table(self.archive, self._rows, tables)
        for name, files in found.items():
            is_needed = needs_of(self.engine.connection, query, set(named), name)
            found[name] = [file for file in files if is_needed(file.ranges())]
        return found

    def define(self, named: Collection[str], query: str = "") -> None:
        """Make these tables, and those that views among them are made of, with what this query needs of them."""
        wanted = with_sources(set(named))
        recorded = {table.qualified_name: table for table in RECORDED.values() if table.qualified_name in wanted}
        files = self.needed(query, wanted, recorded)
        depth = len(directory_of(self.archive).resolve().parts)
        run = f", string_split(filename, '/')[{depth + 1}] AS run"  # the name of a directory
        for name in recorded:
            paths = [path.resolve() for path in fetched(self.archive, files[name])]
            self.engine.define(fleet_table(name), paths, None, more=run)
        for name in wanted - set(recorded):
            table = fleet_table(name)
            if name in FLEET_VIEWS:
                self.engine.define_view(table, FLEET_VIEWS[name])
            else:
                self.engine.define(table, (), self._arrow_of(table))

    def _arrow_of(self, table: Table) -> pa.Table:
        """A table that is made from the list: runs, processes, findings."""
        from stethos.record.arrow import full_schema

        parts: list[Mapping[str, Any]] = []
        for row in self._rows:
            if table.name == RUNS.name:
                parts.append({**row, "path": str(self.archive / str(row["run"]))})
                continue
            column = {PROCESSES.name: "members", FINDINGS.name: "findings"}[table.name]
            listed = nested(row[column])
            listed = listed if isinstance(listed, list) else ()
            parts += [{**one, "run": row["run"]} for one in listed if isinstance(one, dict)]
        import pyarrow as pa

        return pa.Table.from_pylist([_typed(one, table) for one in parts], schema=full_schema(table))

    def columns_of(self, sql: str) -> list[tuple[str, Any]]:
        """Names and Arrow types of what a checked query returns."""
        result = self.engine.connection.sql(sql)
        schema = result.limit(0).to_arrow_table().schema
        return [(field.name, field.type) for field in schema]


def _typed(row: Mapping[str, Any], table: Table) -> dict[str, Any]:
    """A row with what its columns can hold; texts for what is nested."""
    found: dict[str, Any] = {}
    for column in table.all_columns:
        value = row.get(column.name)
        if column.kind in (Kind.NAME, Kind.TEXT):
            found[column.name] = value if value is None or isinstance(value, str) else json.dumps(value)
        elif column.kind is Kind.F64:
            found[column.name] = float(value) if isinstance(value, int | float) else None
        elif column.kind is Kind.BOOL:
            found[column.name] = value if isinstance(value, bool) else None
        else:
            found[column.name] = int(value) if isinstance(value, int) and abs(value) < 2**63 else None
    return found
