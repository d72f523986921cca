"""Where things are in an archive.

ARCHIVE/_catalogue/                 a Delta table: what `stethos ls ARCHIVE` shows, a row per run
ARCHIVE/RUN/_state/                 a Delta table: snapshots of the run; the last one counts
ARCHIVE/RUN/steps/                  a Delta table for each recorded table
ARCHIVE/RUN/steps/PROCESS-000001-CRC32.parquet    a sealed file, byte for byte
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from stethos.archive.address import Address
from stethos.archive.delta import DeltaFile, DeltaLog
from stethos.archive.objects import Objects
from stethos.archive.snapshot import Snapshot
from stethos.errors import ArchiveError, RunNotFoundError
from stethos.store.find import ARCHIVED_MARK

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq

CATALOGUE = "_catalogue"
STATE = ARCHIVED_MARK
_KEPT_STATES = 8
_MOST_ROWS, _LARGEST_ROWS = 1_000_000, 512 << 20  # of small Parquet files


def parquet_bytes(rows: pa.Table) -> memoryview:
    """A small table as a Parquet file."""
    import pyarrow.parquet as pq

    content = io.BytesIO()
    pq.write_table(rows, content, compression="zstd")
    return content.getbuffer()


def read_parquet(objects: Objects, paths: Sequence[str]) -> list[dict[str, Any]]:
    """The rows of small Parquet files; ArchiveError if one is damaged, FileNotFoundError if one is missing."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows: list[dict[str, Any]] = []
    for path in paths:
        content = objects.read(path)
        try:
            with pq.ParquetFile(io.BytesIO(content)) as file:
                _check_size(file.metadata)
                rows += file.read().to_pylist()
        except (pa.ArrowException, OSError, ValueError, MemoryError) as error:
            raise ArchiveError(f"{objects.address}/{path} is damaged: {error}") from None
    return rows


def _check_size(facts: pq.FileMetaData) -> None:
    """ValueError if a file would unfold to more than anything of ours does."""
    groups = [facts.row_group(number) for number in range(facts.num_row_groups)]
    columns = [group.column(place) for group in groups for place in range(group.num_columns)]
    unfolded = sum(max(0, column.total_uncompressed_size) for column in columns)
    if facts.num_rows > _MOST_ROWS or unfolded > _LARGEST_ROWS:
        raise ValueError(f"{facts.num_rows:,} rows of {unfolded:,} bytes")


class ArchivedRun:
    """One run in an archive: its snapshots."""

    def __init__(self, address: Address) -> None:
        self.address = address
        self.objects = Objects(address)
        self.log: DeltaLog | None = None

    def snapshot(self, *, is_needed: bool = True) -> Snapshot | None:
        """The newest snapshot that is there; RunNotFoundError if there is none and one `is_needed`."""
        if self.objects.size_of("") is not None:  # a file
            raise RunNotFoundError(f"{self.address} is not an archive")
        self.log = DeltaLog(self.address / STATE)
        paths = [file.path for file in self.log.files()]
        if not self.log.exists:  # the log is an index: without it, the files tell
            paths = [one.path.partition("/")[2] for one in self.objects.listed(STATE, deep=False)]
        for path in sorted((path for path in paths if path.endswith(".parquet")), reverse=True):
            try:
                rows = read_parquet(self.objects, [f"{STATE}/{path}"])
            except FileNotFoundError:  # somebody has deleted a damaged one
                continue
            except ArchiveError as error:
                error.hint = error.hint or "delete this file: the snapshot before it then counts"
                raise
            if rows and isinstance(rows[0].get("content"), str):
                return Snapshot.from_json(rows[0]["content"], str(self.address))
        if is_needed:
            raise RunNotFoundError(f"no archived run at {self.address}", hint=self._hint())
        return None

    def _hint(self) -> str:
        """Where runs are, if none is here."""
        if self.objects.listed(CATALOGUE, deep=False):
            return f"it is an archive: name a run in it, see `stethos ls {self.address}`"
        if "/" not in self.address.path:
            return f"name a run in it: {self.address}/PATH/RUN"
        return f"list runs with `stethos ls {self.address.parent}`"

    def commit(self, snapshot: Snapshot) -> None:
        """Make a snapshot the newest; older ones go, but for the last few, which somebody may be reading."""
        import pyarrow as pa

        rows = pa.table({"sequence": [snapshot.sequence], "content": [snapshot.to_json()]})
        name = f"{snapshot.sequence:012d}-{snapshot.archived_ns:x}.parquet"
        content = parquet_bytes(rows)
        self.objects.put(f"{STATE}/{name}", content)
        span = {"sequence": snapshot.sequence}
        log = self.log or DeltaLog(self.address / STATE)
        old = sorted(log.files(), key=lambda file: file.path)[: -(_KEPT_STATES - 1)]
        log.commit([DeltaFile(name, len(content), 1, span, span)], old, schema=rows.schema)
        self.log = log
        for file in old:
            self.objects.delete(f"{STATE}/{file.path}")
