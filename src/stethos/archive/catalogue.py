"""The list of an archive's runs: one small Delta table, which every archiver adds to and which is read in one go.

A row says everything that a list shows. The newest row of a run counts; one whose state is `deleted` ends it. It is an
index: `maintain.list_missing` makes it anew from the runs themselves.
"""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from stethos.archive.address import Address
from stethos.archive.delta import DeltaFile, DeltaLog
from stethos.archive.objects import Objects
from stethos.archive.place import CATALOGUE, parquet_bytes, read_parquet
from stethos.archive.snapshot import Snapshot
from stethos.errors import ArchiveError, StethosError
from stethos.record.place import RunPlace, is_name

if TYPE_CHECKING:
    import pyarrow as pa

    from stethos.diagnose.diagnosis import Diagnosis
    from stethos.store.run import Run

DELETED = "deleted"
_MOST_FILES = 24  # of one row; then the table is made of few files
_LARGEST_FILE = 64 << 20  # of the table, unfolded: a fraction of what is read
_LISTED_FILES = 400  # of a run, in its row; of a larger one the snapshot is read
_LISTED_PROCESSES = 256
_DIAGNOSED_ROWS = 5_000_000  # of a larger run the diagnosis takes gigabytes: it is listed as not diagnosed
_LAST_VALUES = 64
_ATTEMPTS = 5
_MOST = 2**62
_LAST_METRICS = (
    "SELECT name, arg_max(value, t_ns) FROM metrics WHERE value IS NOT NULL GROUP BY name ORDER BY name LIMIT 64"
)
_LAST_ROUND = "SELECT round, loss, accuracy FROM rounds ORDER BY t_ns DESC LIMIT 1"
Row = dict[str, Any]


_KINDS: dict[str, type] = {
    "run": str, "sequence": int, "archived_ns": int, "state": str, "verdict": str, "colour": str, "problems": int,
    "command": str, "host": str, "git_commit": str, "started_ns": int, "duration_s": float, "processes": int,
    "steps": int, "last_loss": float, "rows_stored": int, "rows_dropped": int, "rows_lost": int,
    "overhead_share": float, "size_bytes": int, "hyperparameters": str, "last_values": str, "findings": str,
    "members": str, "files": str,
}  # fmt: skip


def _schema() -> pa.Schema:
    import pyarrow as pa

    types = {str: pa.string(), int: pa.int64(), float: pa.float64()}
    return pa.schema([(name, types[kind]) for name, kind in _KINDS.items()])


def catalogue_row(place: RunPlace, snapshot: Snapshot) -> Row:
    """What a list says of a run, from its directory."""
    from stethos.diagnose.diagnosis import Conclusion
    from stethos.diagnose.life import rows_of
    from stethos.store.run import Run

    with Run(place) as run:
        summary = run.summary()
        diagnosis = _diagnosed(run) if snapshot.rows <= _DIAGNOSED_ROWS else None
        processes = run.processes()
        values = {str(name): _number(value) for name, value in run.rows(_LAST_METRICS).values[:_LAST_VALUES]}
        for number, loss, accuracy in run.rows(_LAST_ROUND).values:
            values |= {"round": number, "round_loss": _number(loss), "round_accuracy": _number(accuracy)}
    conclusion = Conclusion() if diagnosis is None else diagnosis.conclusion
    config = next((row["config"] for row in processes if row["config"] not in (None, "{}")), None)
    found = [] if diagnosis is None else rows_of(diagnosis)
    facts = snapshot.documents.get("run.json", {})
    return {
        **{name: summary.get(name) for name in _schema().names},
        "run": snapshot.run, "sequence": snapshot.sequence, "archived_ns": snapshot.archived_ns,
        "verdict": conclusion.text, "colour": conclusion.colour, "problems": conclusion.problems,
        "host": facts.get("host"), "git_commit": facts.get("git_commit"), "size_bytes": snapshot.bytes,
        "last_loss": _number(summary.get("last_loss")), "hyperparameters": config, "last_values": json.dumps(values),
        "findings": json.dumps(found), "members": json.dumps([_member(row) for row in processes[:_LISTED_PROCESSES]]),
        "files": listed_files(snapshot),
    }  # fmt: skip


def listed_files(snapshot: Snapshot) -> str | None:
    """The files of a run for its row; None if there are too many."""
    files = [(file.path, file.table, file.rows, file.bytes, file.rounds) for file in snapshot.files]
    return json.dumps(files) if len(files) <= _LISTED_FILES else None


def _diagnosed(run: Run) -> Diagnosis | None:
    """What is wrong with a run; None where that cannot be said, which is no reason not to archive it."""
    from stethos.view.finding import findings_of

    try:
        return findings_of(run)
    except StethosError:
        return None


def _member(process: Row) -> Row:
    """A process, without its long texts."""
    return {name: value for name, value in process.items() if not isinstance(value, str) or len(value) <= 200}


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else None


def _checked(row: Row) -> Row:
    """A row of the list as it must be; what cannot be meant is unknown: one bad run must not hide the others."""
    return {name: value if _is_meant(name, value := row.get(name)) else None for name in _KINDS}


def _is_meant(name: str, value: Any) -> bool:
    if _KINDS[name] is str:
        return isinstance(value, str)
    return isinstance(value, int | float) and (0 if name == "started_ns" else -_MOST) <= value <= _MOST  # NaN is not


def nested(text: str | None) -> Any:
    """What a row has as JSON; None if there is nothing, or it is damaged."""
    try:
        return json.loads(text or "null")
    except (ValueError, RecursionError):
        return None


class Catalogue:
    """The list of the runs in one archive."""

    def __init__(self, archive: Address) -> None:
        self.archive = archive
        self._objects = Objects(archive / CATALOGUE)
        self._log = DeltaLog(archive / CATALOGUE)

    @property
    def exists(self) -> bool:
        return self._log.exists

    def rows(self) -> list[Row]:
        """The runs, the latest first."""
        rows = [row for row in self._newest().values() if row["state"] != DELETED]
        return sorted(rows, key=lambda row: (row["started_ns"] or 0, row["run"]), reverse=True)

    def sequence_of(self, run: str) -> int | None:
        """Which snapshot of a run is listed; None if it is not."""
        row = self._newest(run).get(run)
        return None if row is None or row["state"] == DELETED else int(row["sequence"])

    def put(self, row: Row) -> None:
        """Add a row, which from now on counts; where many small files have gathered, make one of them."""
        before = self._newest(str(row["run"])).get(str(row["run"]))
        if before is not None:  # by another machine, whose clock may be ahead
            row = {**row, "archived_ns": max(row["archived_ns"] or 0, (before["archived_ns"] or 0) + 1)}
        self._write([row])
        if sum(file.rows == 1 for file in self._log.files()) > _MOST_FILES:
            self.merge()

    def forget(self, run: str) -> None:
        """List a run no more."""
        row = dict.fromkeys(_schema().names) | {"run": run, "state": DELETED, "archived_ns": time.time_ns()}
        self.put(row | {"sequence": (self.sequence_of(run) or 0) + 1})

    def merge(self) -> None:
        """Make few files of all; if another archiver adds to them meanwhile, that is left to the next one."""
        rows, old = self.rows(), self._log.files()
        try:
            self._write(rows, old)
        except ArchiveError:
            self._log.refresh()
            return
        for file in old:
            self._objects.delete(file.path)

    def replace(self, rows: Sequence[Row]) -> None:
        """Make the table hold just these rows."""
        self._write(rows, self._log.files())

    def _write(self, rows: Sequence[Row], old: Sequence[DeltaFile] = ()) -> None:
        import pyarrow as pa

        new = []
        for part in _parted(sorted(rows, key=lambda row: str(row["run"]))):
            content = parquet_bytes(pa.Table.from_pylist(part, schema=_schema()))
            path = f"{time.time_ns():x}-{os.getpid()}-{os.urandom(3).hex()}.parquet"
            self._objects.put(path, content)
            span = ({"run": str(row["run"])} for row in (part[0], part[-1])) if part else ({"run": ""}, {"run": ""})
            new.append(DeltaFile(path, len(content), len(part), *span))
        self._log.commit(new, old, schema=_schema(), is_shared=not old)

    def _newest(self, run: str | None = None) -> dict[str, Row]:
        """The newest row of each run, or of one; read again where an archiver has merged files meanwhile."""
        for _ in range(_ATTEMPTS):
            files = [file.path for file in self._log.files() if run is None or _may_hold(file, run)]
            try:
                rows = read_parquet(self._objects, files)
            except FileNotFoundError:
                self._log.refresh()
                continue
            except ArchiveError as error:
                error.hint = error.hint or self._remedy()
                raise
            named = [_checked(row) for row in rows if is_name(row.get("run"))]
            return {str(row["run"]): row for row in sorted(named, key=lambda row: row["archived_ns"] or 0)}
        raise ArchiveError(f"files of the list of {self.archive} are missing", hint=self._remedy())

    def _remedy(self) -> str:
        return f"delete its {CATALOGUE} and run `stethos archive --to {self.archive} --compact`"


def _parted(rows: list[Row]) -> Iterator[list[Row]]:
    """The rows of each file: one that grew with the number of runs could be read no more one day."""
    first = size = 0
    for place, row in enumerate(rows):
        size += sum(len(value) if isinstance(value, str) else 8 for value in row.values())
        if size > _LARGEST_FILE:
            yield rows[first : place + 1]
            first, size = place + 1, 0
    if first < len(rows) or not rows:
        yield rows[first:]


def _may_hold(file: DeltaFile, run: str) -> bool:
    low, high = file.lowest.get("run"), file.highest.get("run")
    return not (isinstance(low, str) and isinstance(high, str)) or low <= run <= high
