"""One Delta table: which of its files count, and one committer that adds to it.

Commits assert the version they were made for, so of two committers one is refused and nothing is doubled. The log is
an index: the Parquet files can be read without it.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stethos.archive.address import Address
from stethos.archive.objects import LATER, trouble
from stethos.errors import ArchiveError, UsageError
from stethos.guard import tried
from stethos.record.border import make_directory

if TYPE_CHECKING:
    import pyarrow as pa

_OWNER = "stethos"
_LARGEST_LOG = 1 << 30
_PATH = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,250}")  # of our files in a table; a stranger's log may say any
_CONFIGURATION = {"delta.checkpointInterval": "50"}


class ForeignTableError(ArchiveError):
    """A Delta table is not one of ours: nothing is written or deleted there."""


@dataclass(frozen=True, slots=True)
class DeltaFile:
    """A file of a table: its path below the table, size, rows, and the range of some columns."""

    path: str
    bytes: int
    rows: int
    lowest: dict[str, Any] = field(default_factory=dict)
    highest: dict[str, Any] = field(default_factory=dict)

    def statistics(self) -> str:
        nulls = dict.fromkeys(self.lowest, 0)
        return json.dumps(
            {"numRecords": self.rows, "minValues": self.lowest, "maxValues": self.highest, "nullCount": nulls}
        )


def need_deltalake() -> Any:
    """The package `deltalake`; UsageError if it is not installed."""
    module, error = tried(import_module, "deltalake")
    _, more = tried(import_module, "deltalake.transaction")
    if error is not None or more is not None:
        raise UsageError("archives need deltalake, which is not installed", hint="pip install 'stethos[archive]'")
    return module


def _check_log(address: Address) -> None:
    """ArchiveError if a local log holds what would make its reader wait or take all memory: it may be a stranger's."""
    total = 0
    try:
        with os.scandir(Path(address.path) / "_delta_log") as entries:
            for entry in entries:
                if not entry.is_file(follow_symlinks=False) and not entry.is_dir(follow_symlinks=False):
                    raise ArchiveError(f"{address} is not an archive: {entry.name!r} is not a regular file")
                total += entry.stat(follow_symlinks=False).st_size
    except FileNotFoundError:
        return
    except OSError as error:
        raise trouble(address, "read the Delta log of", error) from None
    if total > _LARGEST_LOG:
        raise ArchiveError(f"{address} is not an archive: its log has {total:,} bytes")


class DeltaLog:
    """A Delta table as it was at the last look."""

    def __init__(self, address: Address) -> None:
        self.address = address
        self._library = need_deltalake()
        self._table: Any = None
        self.refresh()

    @property
    def exists(self) -> bool:
        return self._table is not None

    @property
    def version(self) -> int:
        return -1 if self._table is None else int(self._table.version())

    def refresh(self) -> None:
        """Look again."""
        uri, options = self.address.delta_location()
        if self.address.is_local:
            _check_log(self.address)
        table, error = tried(self._library.DeltaTable, uri, storage_options=options)
        if error is None:
            self._table = table
            self._check_owner()
        elif type(error).__name__ == "TableNotFoundError":
            self._table = None
        else:
            raise self._damaged(error)

    def files(self) -> list[DeltaFile]:
        """The files that count, by path."""
        if self._table is None:
            return []
        rows, error = tried(lambda: self._table.get_add_actions(flatten=False))
        if rows is None:
            raise self._damaged(error or ValueError("no list of files"))
        import pyarrow as pa

        # `pa.table` would import pandas to see whether this is one of its frames: 0.3 s.
        is_stream = hasattr(rows, "__arrow_c_stream__")
        found = (pa.RecordBatchReader.from_stream(rows).read_all() if is_stream else pa.table(rows)).to_pylist()
        if not all(_PATH.fullmatch(str(row["path"])) for row in found):
            raise ArchiveError(f"{self.address} is not an archive: its log names files elsewhere")
        return sorted(
            (
                DeltaFile(
                    str(row["path"]), int(row["size_bytes"] or 0), int(row.get("num_records") or 0),
                    row.get("min") or {}, row.get("max") or {},
                )
                for row in found
            ),
            key=lambda file: file.path,
        )  # fmt: skip

    def commit(
        self, added: Sequence[DeltaFile], removed: Sequence[DeltaFile] = (), *, schema: pa.Schema,
        is_shared: bool = False,
    ) -> None:  # fmt: skip
        """Add files, and take others out, in one step; make the table if there is none.

        ArchiveError if somebody else has committed since the last look, unless the table `is_shared`: then it is
        tried again on top of that.
        """
        now_ms = time.time_ns() // 1_000_000
        transaction = self._library.transaction
        adds = [transaction.AddAction(f.path, f.bytes, {}, now_ms, True, f.statistics()) for f in added]
        if self._table is None:
            error = self._create(adds, schema)
            if error is None or not is_shared:
                return self._settle(error)
            self.refresh()  # another one was faster
            if self._table is None:
                return self._settle(error)
        self._add_columns(schema)
        actions = adds + [transaction.RemoveAction(f.path, True, now_ms, f.bytes, {}) for f in removed]
        _, error = tried(
            self._table.create_write_transaction, actions, "append", self._table.schema(), [],
            commit_properties=transaction.CommitProperties(max_commit_retries=None if is_shared else 0),
        )  # fmt: skip
        return self._settle(error)

    def _create(self, adds: list[Any], schema: pa.Schema) -> Exception | None:
        """Make the table with its first files in it; the error if that fails."""
        uri, options = self.address.delta_location()
        if self.address.is_local:
            _, error = tried(make_directory, Path(uri))
            if error is not None:
                return error
        return tried(
            self._library.transaction.create_table_with_add_actions, uri, self._library.Schema.from_arrow(schema),
            adds, "error", [], name=_OWNER, storage_options=options, configuration=_CONFIGURATION,
        )[1]  # fmt: skip

    def _settle(self, error: Exception | None) -> None:
        """After a commit: look at the table as it is now, or say what went wrong."""
        if error is not None:
            is_taken = type(error).__name__ == "CommitFailedError" or "already exists" in str(error)
            if is_taken:
                raise ArchiveError(
                    f"another archiver is writing to {self.address}",
                    hint="let it finish, or stop it; nothing was changed",
                )
            raise trouble(self.address, "write to", error)
        if self._table is None or tried(self._table.update_incremental)[1] is not None:
            self.refresh()

    def _check_owner(self) -> None:
        name = self._table.metadata().name
        if name != _OWNER:
            raise ForeignTableError(
                f"{self.address} is a Delta table that Stethos did not make",
                hint="choose another place to archive to",
            )

    def _add_columns(self, schema: pa.Schema) -> None:
        """Give the table the columns of a newer version."""
        known = {column.name for column in self._table.schema().fields}
        wanted = [column for column in self._library.Schema.from_arrow(schema).fields if column.name not in known]
        if wanted:
            _, error = tried(self._table.alter.add_columns, wanted)
            if error is not None:
                raise trouble(self.address, "write to", error)
            self.refresh()

    def _damaged(self, error: Exception) -> ArchiveError:
        found = trouble(self.address, "read the Delta log of", error)
        if found.hint == LATER:
            found.hint = (
                "if the log is damaged, delete its _delta_log and run `stethos archive --to ARCHIVE --compact`, "
                "which makes it anew from the Parquet files"
            )
        return found
