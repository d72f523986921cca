"""Reads a SQLite file of a run, which a stranger may have made: only tables, for a short time, up to a size."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from stethos.record.border import version_of

PATIENCE_S = 10.0
_LONGEST_S = 5.0
_LARGEST_FILE = 256 << 20
_LARGEST_VALUE = 16 << 20
_LOOK_EACH = 20_000  # instructions of SQLite's


@contextmanager
def reading(path: Path, *, is_ours: bool) -> Iterator[sqlite3.Connection]:
    """A reader of a database, for a few seconds; sqlite3.Error if it is not one of plain tables.

    In a run of ours the writer's log is read, too; a stranger's file, and one where nothing can be written, is read as
    it lies there, and nothing is made beside it.
    """
    version = version_of(path)
    if not version or version[1] > _LARGEST_FILE:
        raise sqlite3.DatabaseError(f"not a regular file of at most {_LARGEST_FILE >> 20} MB")
    place = path.absolute().as_uri()
    connection = None
    if is_ours:
        connection = sqlite3.connect(f"{place}?mode=ro", uri=True, timeout=PATIENCE_S)
        try:
            connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
        except sqlite3.OperationalError:
            connection.close()
            connection = None
    if connection is None:
        connection = sqlite3.connect(f"{place}?mode=ro&immutable=1", uri=True)
    try:
        _restrict(connection)
        yield connection
    finally:
        connection.close()


def _restrict(connection: sqlite3.Connection) -> None:
    deadline = time.monotonic() + _LONGEST_S
    connection.row_factory = sqlite3.Row
    connection.set_progress_handler(lambda: time.monotonic() > deadline, _LOOK_EACH)
    connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _LARGEST_VALUE)
    connection.execute("PRAGMA trusted_schema = OFF")
    connection.execute("PRAGMA cell_size_check = ON")
    odd = connection.execute("SELECT name FROM sqlite_master WHERE type NOT IN ('table', 'index') LIMIT 1").fetchone()
    if odd is not None:
        raise sqlite3.DatabaseError("it holds a view or a trigger")
    for (table,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table' LIMIT 100").fetchall():
        columns = connection.execute("SELECT hidden FROM pragma_table_xinfo(?)", (table,)).fetchall()
        if any(hidden for (hidden,) in columns):
            raise sqlite3.DatabaseError("it computes its columns")
