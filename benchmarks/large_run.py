"""An archived run of a very large federation: rows are made at once, files by the collector's own writer.

A round of `CLIENTS` clients has 51 rows of `updates` for each (50 layers and the whole) and one of `client_reports`. A
file has as many rows as a segment of 16 MB gives. Files are archived every few rounds and then deleted here, as a run
with a size limit does, so that one copy is on disk.
"""

from __future__ import annotations

import time
import zlib
from pathlib import Path

import numpy as np
import pyarrow as pa

from stethos.archive.address import Address, parse_address
from stethos.archive.committer import archive_run
from stethos.record.arrow import full_schema, in_schema
from stethos.record.place import PROCESS_FILE, RUN_FILE, ProcessPlace, RunPlace, write_facts
from stethos.record.segment import write_parquet
from stethos.schema import CLIENT_REPORTS, UPDATES, Table

CLIENTS = 10_000
LAYERS = 51  # the whole update counts as one
ROWS_PER_ROUND = CLIENTS * LAYERS
_ROWS_OF_ROUND = ROWS_PER_ROUND + CLIENTS  # with those of client_reports
_ROWS_PER_FILE = 90_000
_ROUNDS_AT_ONCE = 20
_T0_NS = 1_700_000_000_000_000_000
_ROUND_WITH_NAN = 97
_ROUND_NS = 60_000_000_000


def grow_large_run(scratch: Path, rounds: range) -> Address:
    """Add rounds to the run below `scratch`, making it if there is none, and archive them; where it is archived."""
    directory = scratch / "large" / "federation"
    if not rounds:
        return parse_address(archived_run(scratch))
    if not directory.exists():
        (directory / "server").mkdir(parents=True)
        facts = {"host": "here", "started_ns": _T0_NS}
        write_facts(directory / RUN_FILE, {"run": directory.name, **facts})
        write_facts(directory / "server" / PROCESS_FILE, {"pid": 1, **facts})
    archive, writer = parse_address(scratch / "large-archive"), _Writer(directory / "server")
    updates, reports = _updates(), _reports()
    for first in range(rounds.start, rounds.stop, _ROUNDS_AT_ONCE):
        for number in range(first, min(first + _ROUNDS_AT_ONCE, rounds.stop)):
            writer.add(UPDATES, _of_round(updates, number))
            writer.add(CLIENT_REPORTS, _of_round(reports, number))
        writer.list_files()
        archive_run(RunPlace(directory), archive)
        writer.retire()
    return archive / directory.name


def archived_run(scratch: Path) -> Path:
    """Where the run below `scratch` is archived."""
    return scratch / "large-archive" / "federation"


def rounds_in(scratch: Path) -> int:
    """How many rounds the run below `scratch` has."""
    return int(ProcessPlace(scratch / "large" / "federation" / "server").manifest().get("rows", 0)) // _ROWS_OF_ROUND


class _Writer:
    """The files of one process, and its manifest."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        before = ProcessPlace(directory).manifest()
        self._segment, self._rows = int(before.get("segment", 1)) - 1, int(before.get("rows", 0))
        self._sealed: list[dict[str, object]] = []
        self._rest: dict[str, pa.Table] = {}

    def add(self, table: Table, rows: pa.Table) -> None:
        rest = self._rest.get(table.name)
        rows = rows if rest is None else pa.concat_tables([rest, rows])
        while rows.num_rows >= _ROWS_PER_FILE:
            self._seal(table, rows.slice(0, _ROWS_PER_FILE))
            rows = rows.slice(_ROWS_PER_FILE)
        self._rest[table.name] = rows

    def _seal(self, table: Table, rows: pa.Table) -> None:
        self._segment += 1
        path = self._directory / f"{self._segment:06d}.{table.name}.parquet"
        write_parquet(rows, path, table)
        content = path.read_bytes()
        self._sealed.append(
            {"file": path.name, "table": table.name, "rows": rows.num_rows, "bytes": len(content),
             "crc32": zlib.crc32(content)}
        )  # fmt: skip
        self._rows += rows.num_rows

    def list_files(self) -> None:
        for table in (UPDATES, CLIENT_REPORTS):
            if self._rest[table.name].num_rows:
                self._seal(table, self._rest.pop(table.name))
        listed = {"segment": self._segment + 1, "rows": self._rows, "sealed": self._sealed, "counters": {},
                  "ended": {"t_ns": time.time_ns()}}  # fmt: skip
        ProcessPlace(self._directory).write_manifest(listed)

    def retire(self) -> None:
        for entry in self._sealed:
            (self._directory / str(entry["file"])).unlink()
        self._sealed = []


def _names(codes: np.ndarray, names: list[str]) -> pa.Array:
    return pa.DictionaryArray.from_arrays(pa.array(codes.astype(np.int32)), pa.array(names, pa.string()))


_CLIENTS = [f"c{number}" for number in range(CLIENTS)]
_LAYER_NAMES = ["", *(f"encoder.{number // 5}.linear{number % 5}.weight" for number in range(LAYERS - 1))]


_MADE = ("norm", "cos_centre", "norm_ratio", "download_ms", "compute_ms", "upload_ms", "wait_ms")


def _of_round(rows: pa.Table, number: int) -> pa.Table:
    """The rows as those of another round, with other numbers."""
    chance, count = np.random.default_rng(number), rows.num_rows
    own = {"round": np.full(count, number, np.int32), "t_ns": _T0_NS + number * _ROUND_NS + np.arange(count)}
    if "nan" in rows.column_names and number == _ROUND_WITH_NAN:
        own["nan"] = (chance.random(count) < 1e-5).astype(np.int64)
    if "turn" in rows.column_names:
        own["turn"] = np.arange(count) + number * count
    for name in _MADE:
        if name in rows.column_names:
            own[name] = chance.random(count)
    for name, values in own.items():
        place = rows.schema.get_field_index(name)
        rows = rows.set_column(place, rows.schema.field(place), pa.array(values, rows.schema.field(place).type))
    return rows


def _updates() -> pa.Table:
    """What the rows of all rounds have in common, client after client."""
    layer = np.tile(np.arange(LAYERS), CLIENTS)
    zeros = np.zeros(ROWS_PER_ROUND, np.int64)
    columns = {
        "process": _names(zeros, ["server"]),
        "client": _names(np.repeat(np.arange(CLIENTS), LAYERS), _CLIENTS),
        "federation": _names(zeros, ["fed"]),
        "layer": pa.DictionaryArray.from_arrays(
            pa.array(layer.astype(np.int32), mask=layer == 0), pa.array(_LAYER_NAMES)
        ),
        "kind": _names(zeros, ["weight"]),
        "nan": pa.array(zeros),
        "inf": pa.array(zeros),
        "size": pa.array(zeros + 4096),
    }
    return in_schema(pa.table(columns), full_schema(UPDATES))


def _reports() -> pa.Table:
    """What the server knows of each client's turn; one in ten thousand has failed."""
    zeros = np.zeros(CLIENTS, np.int64)
    columns = {
        "process": _names(zeros, ["server"]),
        "client": _names(np.arange(CLIENTS), _CLIENTS),
        "federation": _names(zeros, ["fed"]),
        "side": _names(zeros, ["server"]),
        "status": _names((np.arange(CLIENTS) == CLIENTS // 2).astype(int), ["ok", "failed"]),
    }
    return in_schema(pa.table(columns), full_schema(CLIENT_REPORTS))
