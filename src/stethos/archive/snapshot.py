"""What is archived of one run: its small files as they were, and the list of its Parquet files.

A snapshot is the unit that becomes visible: it is committed after everything it names. One that is read may come
from a stranger, and is checked before anything is made of it.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
import sqlite3
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from stethos.errors import ArchiveError
from stethos.record.border import LARGEST_LINES, checked_facts, checked_manifest, read_file, read_json
from stethos.record.place import MANIFEST_FILE, PROCESS_FILE, RUN_FILE, RunPlace
from stethos.schema import TABLES
from stethos.store.database import reading
from stethos.store.findings import FILE as FINDINGS_FILE
from stethos.store.stack_file import FILE as STACKS_FILE

FORMAT = 1
_PROCESS = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,120}")
_LAUNCHER = re.compile(r"launcher-[0-9]{1,10}\.json")
_LOCAL_NAME = re.compile(r"[0-9]{6,9}\.([a-z_]{1,40})\.parquet")
_OBJECT = re.compile(r"([a-z_]{1,40})/[A-Za-z0-9._-]{1,200}\.parquet")
_MERGED = re.compile(r".*-([0-9]+)to([0-9]+)-[0-9a-f]+\.parquet")
_LARGEST_BLOB = 32 << 20


@dataclass(frozen=True, slots=True)
class ArchivedFile:
    """A Parquet file: its object below the run, and which file of which process it is. `rounds` is its range."""

    path: str
    process: str
    name: str
    table: str
    rows: int
    bytes: int
    crc32: int | None = None
    rounds: tuple[int, int] | None = None

    @classmethod
    def of(cls, process: str, entry: dict[str, Any], rounds: tuple[int, int] | None = None) -> ArchivedFile:
        """A file as a manifest lists it."""
        name, table = str(entry["file"]), str(entry["table"])
        content = f"{entry.get('crc32') or 0:08x}"  # another content is another object
        path = f"{table}/{process}-{name.partition('.')[0]}-{content}.parquet"
        return cls(path, process, name, table, entry["rows"], entry["bytes"], entry.get("crc32"), rounds)

    def as_entry(self) -> dict[str, Any]:
        """As a manifest lists it."""
        entry = {"file": self.name, "table": self.table, "rows": self.rows, "bytes": self.bytes}
        return entry if self.crc32 is None else {**entry, "crc32": self.crc32}


@dataclass(slots=True)
class Snapshot:
    """One run as it is archived. `identity` tells runs of the same name apart."""

    run: str
    identity: str
    sequence: int = 0
    archived_ns: int = 0
    is_complete: bool = False
    documents: dict[str, dict[str, Any]] = field(default_factory=dict)
    blobs: dict[str, bytes] = field(default_factory=dict)
    files: list[ArchivedFile] = field(default_factory=list)

    @property
    def bytes(self) -> int:
        return sum(file.bytes for file in self.files)

    @property
    def rows(self) -> int:
        return sum(file.rows for file in self.files)

    def to_json(self) -> str:
        blobs = {name: base64.b64encode(blob).decode() for name, blob in self.blobs.items()}
        return json.dumps(
            {"format": FORMAT, "run": self.run, "identity": self.identity, "sequence": self.sequence,
             "archived_ns": self.archived_ns, "is_complete": self.is_complete, "documents": self.documents,
             "blobs": blobs, "files": [asdict(file) for file in self.files]}
        )  # fmt: skip

    @classmethod
    def from_json(cls, text: str, where: str) -> Snapshot:
        """ArchiveError if it is not one, or names what it must not."""
        try:
            content = json.loads(text)
            if content["format"] > FORMAT:
                raise ArchiveError(f"{where} was archived by a newer version", hint="update Stethos")
            files = [_checked_file(entry) for entry in content["files"]]
            documents = {name: facts for name, facts in content["documents"].items() if _is_document(name, facts)}
            blobs = {
                name: base64.b64decode(blob, validate=True)
                for name, blob in content["blobs"].items()
                if name in (FINDINGS_FILE, STACKS_FILE) and len(blob) < 2 * _LARGEST_BLOB
            }
            sequence, archived_ns = int(content["sequence"]), int(content["archived_ns"])
            if not (0 <= sequence < 2**62 and 0 <= archived_ns < 2**62):
                raise ValueError("not a number of a snapshot")
            return cls(
                str(content["run"]), str(content["identity"]), sequence, archived_ns, bool(content["is_complete"]),
                documents, blobs, files,
            )  # fmt: skip
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError, binascii.Error):
            raise ArchiveError(
                f"{where} is not an archived run, or is damaged", hint="archive it again from the run's directory"
            ) from None


def take_snapshot(place: RunPlace, before: Snapshot | None) -> Snapshot:
    """The run as it is now; files that were archived `before` stay in it, though they may have been retired here."""
    facts = place.facts()
    kept = {file.path: file for file in before.files} if before else {}
    merged = _merged_spans(kept.values())
    found = Snapshot(str(facts.get("run") or place.path.resolve().name), identity_of(place), is_complete=True)
    found.documents[RUN_FILE] = {name: value for name, value in facts.items() if name != "origin"}
    for path in sorted(place.path.glob("launcher-*.json")):
        found.documents[path.name] = checked_facts(read_json(path))
    for process in place.processes():
        if not _PROCESS.fullmatch(process.name):
            continue
        manifest = process.manifest()
        found.is_complete &= "ended" in manifest
        found.documents[f"{process.name}/{PROCESS_FILE}"] = {
            name: value for name, value in process.facts().items() if name != "scratch"
        }
        found.documents[f"{process.name}/{MANIFEST_FILE}"] = manifest
        for entry in manifest.get("sealed", ()):
            file = ArchivedFile.of(process.name, entry)
            number = int(file.name.partition(".")[0])
            if not any(low <= number <= high for low, high in merged.get((file.process, file.table), ())):
                kept.setdefault(file.path, file)
    found.files = sorted(kept.values(), key=lambda file: file.path)
    found.blobs = _blobs_of(place)
    return found


def identity_of(place: RunPlace) -> str:
    """Which run it is: what was run, where and when it began."""
    facts = place.facts()
    return f"{facts.get('run')} {facts.get('host')} {facts.get('started_ns')}"


def written_manifest(snapshot: Snapshot, process: str) -> dict[str, Any]:
    """The manifest of a process for a directory in which the archived files lie."""
    manifest = dict(checked_manifest(snapshot.documents.get(f"{process}/{MANIFEST_FILE}", {})))
    own = [file for file in snapshot.files if file.process == process]
    sealed: dict[str, int] = {}
    for entry in manifest.get("sealed", ()):
        sealed[entry["table"]] = sealed.get(entry["table"], 0) + entry["rows"]
    retired = dict(manifest.get("retired", {}))
    for table in {file.table for file in own}:  # what the run's directory has lost since is still here
        more = sum(file.rows for file in own if file.table == table) - sealed.get(table, 0)
        if more > 0 and table in retired:
            retired[table] = max(0, retired[table] - more)
    return {**manifest, "sealed": [file.as_entry() for file in own], "retired": retired}


def _merged_spans(files: Iterable[ArchivedFile]) -> dict[tuple[str, str], list[tuple[int, int]]]:
    """By process and table: the numbers, from first to last, of the files that compaction has made one of."""
    found: dict[tuple[str, str], list[tuple[int, int]]] = {}
    for file in files:
        span = _MERGED.fullmatch(file.path)
        if span:
            found.setdefault((file.process, file.table), []).append((int(span[1]), int(span[2])))
    return found


def _blobs_of(place: RunPlace) -> dict[str, bytes]:
    found: dict[str, bytes] = {}
    database = place.path / FINDINGS_FILE
    with suppress(sqlite3.Error, OSError), reading(database, is_ours=place.is_ours()) as connection:
        found[FINDINGS_FILE] = connection.serialize()
    with suppress(OSError):
        found[STACKS_FILE] = read_file(place.path / STACKS_FILE, LARGEST_LINES)
    return {name: blob for name, blob in found.items() if len(blob) <= _LARGEST_BLOB}


def _checked_file(entry: dict[str, Any]) -> ArchivedFile:
    rounds = entry.get("rounds")
    file = ArchivedFile(**{**entry, "rounds": None if rounds is None else (int(rounds[0]), int(rounds[1]))})
    named, placed = _LOCAL_NAME.fullmatch(file.name), _OBJECT.fullmatch(file.path)
    is_sound = named and placed and named[1] == placed[1] == file.table in TABLES and _PROCESS.fullmatch(file.process)
    if not is_sound or not (0 <= file.rows < 2**62 and 0 <= file.bytes < 2**62):
        raise ValueError("not a file of a run")
    return file


def _is_document(name: str, facts: Any) -> bool:
    process, _, file = name.rpartition("/")
    is_named = name == RUN_FILE or _LAUNCHER.fullmatch(name) if not process else file in (PROCESS_FILE, MANIFEST_FILE)
    return bool(is_named and isinstance(facts, dict) and (not process or _PROCESS.fullmatch(process)))


def local_path(directory: Path, file: ArchivedFile) -> Path:
    """Where an archived file lies in a directory like the run's own."""
    return directory / file.process / file.name
