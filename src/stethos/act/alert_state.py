"""What was told to whom, kept beside the run, so that a restart neither repeats nor forgets."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from stethos.errors import RecordingError

FILE = "alerts.db"
_PATIENCE_S = 10.0
_TABLES = """
CREATE TABLE IF NOT EXISTS told (
    rule TEXT, key TEXT, severity TEXT, title TEXT, since_s REAL, told_s REAL, PRIMARY KEY (rule, key)
);
CREATE TABLE IF NOT EXISTS waiting (
    id INTEGER PRIMARY KEY, sink TEXT, item TEXT, since_s REAL, tries INTEGER, next_s REAL, error TEXT
);
CREATE TABLE IF NOT EXISTS delivered (id INTEGER PRIMARY KEY, sink TEXT, subject TEXT, t_s REAL, tries INTEGER);
"""


class LastAlert(NamedTuple):
    """What was last said about something that lasts."""

    rule: str
    key: str
    severity: str
    title: str
    since_s: float
    told_s: float


class PendingAlert(NamedTuple):
    """An item that has not reached its sink yet; `next_s` is when it is tried again."""

    id: int
    sink: str
    item: str
    since_s: float
    tries: int
    next_s: float
    error: str | None


class AlertState:
    """The state of one run's alerts."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / FILE
        with self._open() as connection:
            connection.executescript(_TABLES)

    def told(self) -> dict[tuple[str, str], LastAlert]:
        with self._open() as connection:
            rows = connection.execute("SELECT rule, key, severity, title, since_s, told_s FROM told").fetchall()
        return {(row[0], row[1]): LastAlert(*row) for row in rows}

    def say(
        self, told: list[LastAlert], passed: list[tuple[str, str]], waiting: list[tuple[str, str]], now_s: float
    ) -> None:
        """Note all of it or nothing: what is told anew, what has passed (rule, key), and what to send (sink, item)."""
        with self._open() as connection:
            connection.executemany("INSERT OR REPLACE INTO told VALUES (?, ?, ?, ?, ?, ?)", told)
            connection.executemany("DELETE FROM told WHERE rule = ? AND key = ?", passed)
            connection.executemany(
                "INSERT INTO waiting (sink, item, since_s, tries, next_s) VALUES (?, ?, ?, 0, 0)",
                [(sink, item, now_s) for sink, item in waiting],
            )

    def waiting(self) -> list[PendingAlert]:
        with self._open() as connection:
            rows = connection.execute("SELECT id, sink, item, since_s, tries, next_s, error FROM waiting ORDER BY id")
            return [PendingAlert(*row) for row in rows.fetchall()]

    def sent(self, items: list[PendingAlert], subject: str, now_s: float) -> None:
        """They have arrived."""
        with self._open() as connection:
            connection.executemany("DELETE FROM waiting WHERE id = ?", [(item.id,) for item in items])
            connection.execute(
                "INSERT INTO delivered (sink, subject, t_s, tries) VALUES (?, ?, ?, ?)",
                (items[0].sink, subject, now_s, items[0].tries + 1),
            )

    def failed(self, items: list[PendingAlert], error: str, next_s: float) -> None:
        """They have not arrived; try again then."""
        with self._open() as connection:
            connection.executemany(
                "UPDATE waiting SET tries = tries + 1, next_s = ?, error = ? WHERE id = ?",
                [(next_s, error, item.id) for item in items],
            )

    def given_up(self, items: list[PendingAlert]) -> None:
        with self._open() as connection:
            connection.executemany("DELETE FROM waiting WHERE id = ?", [(item.id,) for item in items])

    def delivered(self) -> list[tuple[str, str]]:
        """Sink and subject of every message that arrived, the oldest first."""
        with self._open() as connection:
            return [tuple(row) for row in connection.execute("SELECT sink, subject FROM delivered ORDER BY id")]

    @contextmanager
    def _open(self) -> Iterator[sqlite3.Connection]:
        try:
            connection = sqlite3.connect(self._path, timeout=_PATIENCE_S)
        except sqlite3.Error as error:
            raise self._broken(error) from None
        try:
            with connection:
                yield connection
        except sqlite3.Error as error:
            raise self._broken(error) from None
        finally:
            connection.close()

    def _broken(self, error: sqlite3.Error) -> RecordingError:
        return RecordingError(
            f"the state of alerts is not kept in {self._path}: {error}",
            hint="make the run writable, or delete the file",
        )
