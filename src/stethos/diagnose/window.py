"""What detectors look at: the tables of a run up to now, as plain columns."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar, cast

from stethos.schema import TABLES
from stethos.store.frame import Array, Frame, is_null, select

if TYPE_CHECKING:
    from stethos.store.run import Run

Made = TypeVar("Made")


class Window:
    """The rows of a run that detectors read; hand-made in tests, from SQL over a run otherwise.

    `frame(table)` is empty for a table without rows. `is_live`: the run still
    goes on, so that "not yet" is no fault.
    """

    def __init__(self, frames: Mapping[str, Frame] | None = None, *, is_live: bool = False) -> None:
        self._frames = dict(frames or {})
        self._derived: dict[Callable[[Window], Any], Any] = {}
        self._recorded: dict[tuple[str, str], bool] = {}
        self.is_live = is_live

    def frame(self, table: str) -> Frame:
        return self._frames.get(table, Frame({}))

    def has(self, table: str, columns: frozenset[str] = frozenset()) -> bool:
        """Whether the table has rows, and each of the columns a value that is not NULL."""
        return not self.missing(table, columns)

    def missing(self, table: str, columns: frozenset[str]) -> str:
        """Why a table cannot be used, in words; "" if it can."""
        frame = self.frame(table)
        if not len(frame):
            return f"no rows in `{table}`"
        for column in sorted(columns):
            if not self._is_recorded(table, column, frame):
                return f"`{table}.{column}` was not recorded"
        return ""

    def _is_recorded(self, table: str, column: str, frame: Frame) -> bool:
        """Whether a column has a value; looked at once, as many detectors ask about millions of rows."""
        key = table, column
        if key not in self._recorded:
            self._recorded[key] = column in frame and _has_values(frame[column])
        return self._recorded[key]

    def derive(self, make: Callable[[Window], Made]) -> Made:
        """What a function makes of this window; made once, whoever asks."""
        if make not in self._derived:
            self._derived[make] = make(self)
        return cast("Made", self._derived[make])

    @cached_property
    def is_federated(self) -> bool:
        return len(self.frame("client_rounds")) > 0 or len(self.frame("rounds")) > 0


class RunWindow(Window):
    """A window over a run: each table is read when a detector first asks for it."""

    def __init__(self, run: Run, needs: Mapping[str, frozenset[str]], *, is_live: bool = False) -> None:
        super().__init__(is_live=is_live)
        self._run = run
        self._needs = needs

    def frame(self, table: str) -> Frame:
        if table not in self._frames:
            self._frames[table] = self._read(table)
        return self._frames[table]

    def missing(self, table: str, columns: frozenset[str]) -> str:
        reason = super().missing(table, columns)
        return (reason and self._withheld(table, columns)) or reason

    def _withheld(self, table: str, columns: frozenset[str]) -> str:
        """That a site's policy keeps it back, if one does; a view is made of the tables that it reads."""
        sources = {table, *(TABLES[table].reads if table in TABLES else ())}
        wanted = {
            client: sorted(
                {name for source in sources for name in kept.get(source, ()) if name == "*" or name in columns}
            )
            for client, kept in self._run.withholds().items()
        }
        clients = sorted(client for client, names in wanted.items() if names)
        if not clients:
            return ""
        names = sorted({name for client in clients for name in wanted[client]} - {"*"})
        what = ", ".join(f"`{table}.{name}`" for name in names) or f"`{table}`"
        return (
            f"the site of client {clients[0]} withholds {what}"
            if len(clients) == 1
            else (f"{len(clients)} sites withhold {what}")
        )

    def _read(self, table: str) -> Frame:
        columns = ", ".join(f'"{name}"' for name in sorted(self._needs.get(table, frozenset())))
        if not columns:
            return Frame({})
        return select(self._run, f"SELECT {columns} FROM {table}")


def _has_values(values: Array) -> bool:
    if values.dtype.kind == "f":
        return not is_null(values).all()
    return any(value is not None for value in values)  # most often the first one is
