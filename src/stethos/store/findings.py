"""The findings of a run and their life, in SQLite beside the rows: opened, updated, closed.

Several diagnoses may write at once, and readers read meanwhile (write-ahead
log; on a network file system, where that does not work, a plain journal).
"""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

from stethos.errors import QueryError, RecordingError
from stethos.record.border import open_file
from stethos.record.place import RunPlace, is_network_file_system
from stethos.schema import FINDINGS, Kind
from stethos.store.database import PATIENCE_S, reading

FILE = "findings.db"
_MOST = 100_000
_MOST_BYTES = 128 << 20
_NAMES = [column.name for column in FINDINGS.columns]
_PROOF = ("proof", "proof_detail")
_SQL_TYPES = {Kind.I64: "INTEGER", Kind.F64: "REAL", Kind.TEXT: "TEXT"}
Row = dict[str, Any]


class Change(NamedTuple):
    """What a diagnosis changed: the finding's number, and whether it was `opened`, `updated` or `closed`."""

    finding: int
    what: str
    key: str


def keep_findings(
    directory: Path,
    found: Mapping[str, Row],
    checked: Sequence[str],
    now_ns: int,
    diagnosis: tuple[str, str] = ("", "{}"),
) -> list[Change]:
    """Bring the kept findings up to date with those of a diagnosis; return what changed.

    `found` are rows by a key that stays the same while a problem lasts; in the column
    `cause` stands the key of another one, or None. Open findings that were not found again
    are closed, if their detector is among the `checked` codes. `diagnosis` is the whole of it: a version
    of the rows it looked at, and JSON. RecordingError if the file cannot be written or is damaged.
    """
    changes: list[Change] = []
    with _writing(directory / FILE) as connection:
        latest = {row["key"]: row for row in connection.execute("SELECT * FROM findings ORDER BY finding").fetchall()}
        known = {key: row for key, row in latest.items() if row["state"] == "open"}
        numbers: dict[str, int] = {}
        for key, row in found.items():
            old = latest.get(key)
            if old is not None and old["state"] == row["state"] == "closed":  # it is still over
                numbers[key] = old["finding"]
                continue
            if old is None or old["state"] == "closed":
                numbers[key] = _insert(connection, key, row, now_ns)
                changes.append(Change(numbers[key], "opened", key))
            else:
                numbers[key] = old["finding"]
                if _update(connection, old, row, now_ns) and row["state"] == "open":
                    changes.append(Change(numbers[key], "updated", key))
            if row["state"] == "closed":
                changes.append(Change(numbers[key], "closed", key))
        for key, row in found.items():
            cause = numbers.get(row["cause"])
            connection.execute("UPDATE findings SET cause = ? WHERE finding = ?", (cause, numbers[key]))
        for key, old in known.items():
            if key not in found and old["code"] in checked:
                connection.execute(
                    "UPDATE findings SET state = 'closed', closed_ns = ? WHERE finding = ?", (now_ns, old["finding"])
                )
                changes.append(Change(old["finding"], "closed", key))
        connection.execute("INSERT OR REPLACE INTO diagnoses VALUES (1, ?, ?)", diagnosis)
    return changes


def read_kept_diagnosis(directory: Path) -> tuple[str, str] | None:
    """Version and JSON of the last diagnosis; None if there is none, it cannot be read, or the run is not ours.

    What a stranger's file says is not what our detectors say of the rows, whatever version it names.
    """
    if not os.path.lexists(directory / FILE) or not RunPlace(directory).is_ours():
        return None
    try:
        with reading(directory / FILE, is_ours=True) as connection:
            row = connection.execute("SELECT version, content FROM diagnoses").fetchone()
    except sqlite3.Error:
        return None
    is_text = row is not None and isinstance(row["version"], str) and isinstance(row["content"], str)
    return (row["version"], row["content"]) if is_text else None


def read_findings(directory: Path) -> list[Row]:
    """All rows of `findings`, without proofs if the run is not ours; QueryError if the file is damaged."""
    try:
        known = [dict(row) for row in _rows(directory)]  # an older version may have had fewer columns
        unproven = {} if RunPlace(directory).is_ours() else dict.fromkeys(_PROOF)
        return [{name: row.get(name) for name in _NAMES} | unproven for row in known]
    except sqlite3.Error as error:
        raise QueryError(
            f"{directory / FILE} cannot be read: {error}", hint="delete it; `stethos diagnose` makes it anew"
        ) from None


def keep_proof(directory: Path, finding: int, verdict: str, detail: str) -> None:
    """Write down what a proof said about a finding."""
    with _writing(directory / FILE) as connection:
        connection.execute(
            "UPDATE findings SET proof = ?, proof_detail = ? WHERE finding = ?", (verdict, detail, finding)
        )


def read_proofs(directory: Path) -> dict[str, Row]:
    """Findings that a proof was tried of, by key; the newest of each. Empty if they cannot be read.

    Empty, too, in a run that is not ours: what a stranger says was proved is not.
    """
    if not RunPlace(directory).is_ours():
        return {}
    try:
        return {row["key"]: dict(row) for row in _rows(directory, "WHERE proof IS NOT NULL")}
    except (sqlite3.Error, IndexError):
        return {}


def count_findings(directory: Path) -> int:
    """How many findings are kept; 0 if they cannot be read."""
    try:
        return len(_rows(directory))
    except sqlite3.Error:
        return 0


@contextmanager
def _writing(path: Path) -> Iterator[sqlite3.Connection]:
    """One transaction, alone among writers; it is taken back if anything fails."""
    connection = None
    run = RunPlace(path.parent)
    if run.exists() and not run.is_ours():
        raise RecordingError(f"findings are not kept in {path.parent}: it was not recorded by this user on this disk")
    try:
        if not path.exists():
            _create(path)
        connection = _opened(path)
        connection.execute("BEGIN IMMEDIATE")
        _define(connection)
        yield connection
        connection.execute("COMMIT")
    except (sqlite3.Error, OSError) as error:
        raise RecordingError(
            f"findings are not kept in {path}: {error}",
            hint="make the run writable; if the file is damaged, delete it, and the next diagnosis makes it anew",
        ) from None
    finally:
        if connection is not None:
            connection.close()


def _create(path: Path) -> None:
    """Make the file with its table in it, under its name all at once: a reader finds none, or one it can read."""
    temporary = path.with_name(f".{path.name}-{os.getpid()}-{time.monotonic_ns()}")
    try:
        os.close(open_file(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL))
        with closing(_opened(temporary)) as connection:
            _define(connection)
        with suppress(OSError):  # somebody else's is as good; where there are no links it is made in its place
            os.link(temporary, path)
    finally:
        for rest in path.parent.glob(f"{temporary.name}*"):
            rest.unlink(missing_ok=True)


def _opened(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(path, timeout=PATIENCE_S, isolation_level=None)
    connection.row_factory = sqlite3.Row
    if not is_network_file_system(path.parent):
        connection.execute("PRAGMA journal_mode = WAL")
    return connection


def _rows(directory: Path, where: str = "") -> list[sqlite3.Row]:
    """Rows of the table; none where nobody has kept any. sqlite3.Error if the file is damaged."""
    if not os.path.lexists(directory / FILE):
        return []
    with reading(directory / FILE, is_ours=RunPlace(directory).is_ours()) as connection:
        if not connection.execute("SELECT count(*) FROM sqlite_master WHERE name = 'findings'").fetchone()[0]:
            return []  # made by somebody who did not come to keep anything
        found = connection.execute(f"SELECT * FROM findings {where} ORDER BY finding LIMIT {_MOST}")
        return [*_bounded(found)]


def _bounded(rows: Iterable[sqlite3.Row]) -> Iterator[sqlite3.Row]:
    """The rows, as long as they are not too much: rows of a small file may have their long texts in common."""
    left = _MOST_BYTES
    for row in rows:
        left -= sum(len(value) for value in row if isinstance(value, str | bytes))
        if left < 0:
            raise sqlite3.DatabaseError(f"its rows have more than {_MOST_BYTES >> 20} MB")
        yield row


def _define(connection: sqlite3.Connection) -> None:
    columns = [f"{_quoted(column.name)} {_SQL_TYPES[column.kind]}" for column in FINDINGS.columns[1:]]
    connection.execute(
        f"CREATE TABLE IF NOT EXISTS findings (finding INTEGER PRIMARY KEY, {', '.join(columns)}, key TEXT NOT NULL)"
    )
    connection.execute("CREATE TABLE IF NOT EXISTS diagnoses (id INTEGER PRIMARY KEY, version TEXT, content TEXT)")
    known = {row["name"] for row in connection.execute("PRAGMA table_info(findings)")}
    for column in FINDINGS.columns:
        if column.name not in known:  # an older version made the file
            connection.execute(f"ALTER TABLE findings ADD COLUMN {_quoted(column.name)} {_SQL_TYPES[column.kind]}")
    connection.execute("CREATE UNIQUE INDEX IF NOT EXISTS open_findings ON findings (key) WHERE state = 'open'")


def _insert(connection: sqlite3.Connection, key: str, row: Row, now_ns: int) -> int:
    closed_ns = now_ns if row["state"] == "closed" else None
    values = {**row, "cause": None, "opened_ns": now_ns, "updated_ns": now_ns, "closed_ns": closed_ns, "key": key}
    names = ", ".join(map(_quoted, values))
    marks = ", ".join("?" for _ in values)
    return int(
        connection.execute(f"INSERT INTO findings ({names}) VALUES ({marks})", [*values.values()]).lastrowid or 0
    )


def _update(connection: sqlite3.Connection, old: sqlite3.Row, row: Row, now_ns: int) -> bool:
    """Write what a diagnosis sees now; return whether that tells something new to a reader."""
    values = {name: value for name, value in row.items() if name != "cause"}
    is_news = any(old[name] != values[name] for name in ("title", "severity", "last", "state"))
    values["updated_ns"] = now_ns
    values["closed_ns"] = now_ns if row["state"] == "closed" else None
    settings = ", ".join(f"{_quoted(name)} = ?" for name in values)
    connection.execute(f"UPDATE findings SET {settings} WHERE finding = ?", [*values.values(), old["finding"]])
    return is_news


def _quoted(name: str) -> str:
    return f'"{name}"'
