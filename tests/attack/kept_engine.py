"""One DuckDB for many tries: to start one takes as long as all the rest of a query.

It is shut into the directory in which all of those tries are made, and emptied between them.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb

from stethos.store import engine

_MOST_USES = 20
_LIST = (
    "SELECT schema_name, view_name, 'VIEW' FROM duckdb_views() WHERE NOT internal "
    "UNION ALL SELECT schema_name, table_name, 'TABLE' FROM duckdb_tables()"
)


class KeptEngine(engine.Engine):
    """As its base, but for how it begins and ends."""

    _kept: tuple[Path, int | None, duckdb.DuckDBPyConnection, int] | None = None

    def __init__(
        self, directory: Path, memory_bytes: int | None = None, when_stuck: Callable[[], object] | None = None
    ) -> None:
        kept, KeptEngine._kept = KeptEngine._kept, None
        self._place, self._asked, self._uses = directory.resolve(), memory_bytes, 1
        if kept is None or kept[:2] != (self._place, memory_bytes):
            super().__init__(directory, memory_bytes, when_stuck)
            return
        self._connection, self._uses = kept[2], kept[3] + 1
        self._when_stuck, self._memory_bytes = when_stuck, memory_bytes or engine.limit.memory_bytes()
        self._defined = set()
        self._made_of: dict[str, Any] = {}

    def close(self) -> None:
        try:
            if KeptEngine._kept is not None or self._uses >= _MOST_USES:
                raise duckdb.Error("enough")
            for schema, name, kind in self._connection.execute(_LIST).fetchall():
                self._connection.execute(f'DROP {kind} {schema}."{name}"')
            KeptEngine._kept = self._place, self._asked, self._connection, self._uses
        except duckdb.Error:
            self._connection.close()


def keep_engines() -> None:
    """From now on, in this process."""
    engine.Engine = KeptEngine  # type: ignore[misc]
