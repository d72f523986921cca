"""Where things are in a run directory.

    RUN/run.json                  what was run
    RUN/launcher-PID.json         a `stethos run` that is part of it, with its exit status
    RUN/drainer-HOST.lock         held by the one drainer of this run on that host
    RUN/PROCESS/process.json      one observed process
    RUN/PROCESS/ring              its ring, until it is drained
    RUN/PROCESS/manifest.json     which files hold its rows
    RUN/PROCESS/manifest.copy.json     the same, should that be damaged
    RUN/PROCESS/000001.seg        the segment being written
    RUN/PROCESS/000001.steps.parquet   rows of finished segments

Standard library only: the trainer imports this.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import time
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeGuard

from stethos.errors import RecordingError, UsageError
from stethos.record.border import (
    checked_facts,
    checked_json,
    checked_manifest,
    directories_in,
    is_own,
    is_scratch,
    make_directory,
    origin_of,
    read_document,
    read_file,
    read_json,
    version_of,
)
from stethos.record.whole_file import whole_file

RUN_FILE = "run.json"
PROCESS_FILE = "process.json"
MANIFEST_FILE = "manifest.json"
MANIFEST_COPY = "manifest.copy.json"
RING_FILE = "ring"
LONGEST_PATH = 4096  # that a file of the registry holds
INBOX_DIR = "inbox"  # in a run directory: batches that came with the messages of a federation

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_ADJECTIVES = """
    amber bold brisk calm clear deft eager fair fleet gold keen kind lucid merry neat noble
    plain quick quiet rapid sharp sly solid spry steady still sunny swift tidy vivid warm wise
"""
_NOUNS = """
    aorta atlas bell canyon cedar comet coral delta ember falcon fern fjord harbor heron iris lark
    lynx maple mesa orbit otter pulse quartz raven reef river sable spruce stoat tide valve wren
"""


def readable_name() -> str:
    """A name people can say, unique enough: `1115-1034-quick-otter`."""
    seed = zlib.crc32(f"{time.time_ns()}-{os.getpid()}-{os.uname().nodename}".encode())
    adjectives, nouns = _ADJECTIVES.split(), _NOUNS.split()
    words = f"{adjectives[seed % len(adjectives)]}-{nouns[seed // 97 % len(nouns)]}"
    return f"{time.strftime('%m%d-%H%M')}-{words}"


def is_name(value: object) -> TypeGuard[str]:
    """Whether a run can be called so."""
    return isinstance(value, str) and _NAME.fullmatch(value) is not None


def check_name(name: str) -> str:
    """The name, if a run can be called so; else UsageError."""
    if not is_name(name):
        raise UsageError(
            f"not a usable run name: {name!r}",
            hint="use letters, digits, '.', '_' and '-', starting with a letter or digit",
        )
    return name


def write_json(path: Path, content: Any) -> None:
    """Replace a small file atomically; readers see the old or the new content, never a part."""
    with whole_file(path) as file:
        file.write(json.dumps(content, ensure_ascii=False).encode("utf-8", "replace"))  # half a character is a "?"


def write_facts(path: Path, content: Mapping[str, Any], *, is_synced: bool = True) -> None:
    """Replace a file of a run that says what its rows are, atomically and with a checksum."""
    with whole_file(path, is_synced=is_synced) as file:
        file.write(checked_json(content))


def host_key() -> str:
    """This machine and process namespace; a pid means something only within it."""
    try:
        namespace = os.stat("/proc/self/ns/pid").st_ino
    except OSError:
        namespace = 0
    return re.sub(r"[^A-Za-z0-9.-]", "_", os.uname().nodename)[:60] + f"-{namespace}"


def boot_id() -> str | None:
    """Changes when the machine starts again; None where the system does not tell."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return None


def start_ticks(pid: int) -> int | None:
    """When a process started, in kernel ticks; None if there is no such process or no /proc.

    With the pid this names a process for good: pids are used again.
    """
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return None
    fields = stat.rpartition(b")")[2].split()
    return None if fields[0] in (b"Z", b"X") else int(fields[19])


def is_alive(pid: int, ticks: int | None) -> bool:
    """Whether that very process still runs on this machine."""
    if os.path.isdir("/proc/self"):
        now = start_ticks(pid)
        return now is not None and (ticks is None or now == ticks)
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def is_at_work(facts: Mapping[str, Any]) -> bool:
    """Whether the process whose facts a launcher, or it itself, wrote down goes on, on this machine."""
    return (
        facts.get("host_key") == host_key()
        and "ended_ns" not in facts
        and is_alive(int(facts.get("pid", 0)), facts.get("start_ticks"))
    )


def is_network_file_system(path: Path) -> bool:
    """Whether the directory is on a file system where a shared mapping cannot be trusted."""
    try:
        mounts = Path("/proc/mounts").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return False
    target = str(path.resolve())
    best, kind = "", ""
    for line in mounts:
        fields = line.split(" ")
        if len(fields) > 2 and len(fields[1]) >= len(best):
            point = fields[1].rstrip("/") + "/"
            if (target + "/").startswith(point):
                best, kind = fields[1], fields[2]
    return kind.startswith(
        ("nfs", "cifs", "smb", "lustre", "ceph", "gpfs", "beegfs", "glusterfs", "9p", "fuse.sshfs", "afs")
    )


@dataclass(frozen=True, slots=True)
class RunPlace:
    """A run directory's files."""

    path: Path

    @property
    def name(self) -> str:
        return self.path.name

    def exists(self) -> bool:
        return bool(version_of(self.path / RUN_FILE))

    def create(self, facts: dict[str, Any]) -> None:
        """Make the directory and its `run.json`; keep an existing one."""
        is_new = not self.path.exists()
        try:
            make_directory(self.path)
            if not self.exists():
                write_facts(self.path / RUN_FILE, {**facts, "origin": origin_of(self.path, is_new=True)})
        except OSError as error:
            if is_new:
                with contextlib.suppress(OSError):
                    self.path.rmdir()
            raise RecordingError(
                f"cannot record into {self.path}: {error.strerror}", hint="choose another place with --dir DIR"
            ) from None

    def is_ours(self) -> bool:
        """Whether this user recorded it here, and so may change it; a copy, or a colleague's run, is only read."""
        origin = self.facts().get("origin")
        return origin is not None and origin == origin_of(self.path)

    def facts(self) -> dict[str, Any]:
        return checked_facts(read_json(self.path / RUN_FILE))

    def processes(self) -> list[ProcessPlace]:
        """Every process directory, oldest first; none of ours has a name that cannot be printed."""
        found = (path for path in directories_in(self.path) if path.name.isprintable())
        return [ProcessPlace(path) for path in found if version_of(path / PROCESS_FILE)]

    def launchers(self) -> list[dict[str, Any]]:
        try:
            return [checked_facts(read_json(path)) for path in sorted(self.path.glob("launcher-*.json"))]
        except OSError:
            return []

    @property
    def has_inbox(self) -> bool:
        """Whether batches of clients elsewhere may wait for a drainer."""
        return (self.path / INBOX_DIR).is_dir()

    def drainer_lock(self, host: str) -> Path:
        return self.path / f"drainer-{host}.lock"


@dataclass(frozen=True, slots=True)
class ProcessPlace:
    """One process's directory inside a run."""

    path: Path

    @property
    def name(self) -> str:
        return self.path.name

    def facts(self, *, is_needed: bool = False) -> dict[str, Any]:
        return checked_facts(read_json(self.path / PROCESS_FILE, parts=2, is_needed=is_needed))

    def manifest(self, *, is_needed: bool = False) -> dict[str, Any]:
        """What its drainer says of its files; by the copy where that is damaged, empty where neither is one of ours."""
        for name in (MANIFEST_FILE, MANIFEST_COPY):
            content, is_whole = read_document(self.path / name, parts=2, is_needed=is_needed)
            if is_whole and (found := checked_manifest(content)):
                return found
        return {}

    def write_manifest(self, content: Mapping[str, Any]) -> None:
        """Replace the manifest, then its copy, so that one of them is whole at any time.

        OSError if the manifest cannot be written; a copy that cannot is not worth a row.
        """
        write_facts(self.path / MANIFEST_FILE, content)
        with contextlib.suppress(OSError):
            write_facts(self.path / MANIFEST_COPY, content)

    def scratch(self, facts: Mapping[str, Any] | None = None) -> Path:
        """Where the ring and the open segment are: here, or on local disk beside a network file system."""
        elsewhere = Path((self.facts() if facts is None else facts).get("scratch") or self.path)
        return elsewhere if is_scratch(elsewhere, self.name) else self.path

    def ring(self) -> Path:
        return self.scratch() / RING_FILE

    def segment(self, number: int) -> Path:
        return self.scratch() / f"{number:06d}.seg"


def registered_place(entry: Path) -> ProcessPlace | None:
    """The process's directory that a file of the registry points to, if both are this user's: others may write there.

    What it says may be long past.
    """
    try:
        if is_own(entry.parent) and is_own(entry):
            return ProcessPlace(Path(read_file(entry, LONGEST_PATH).decode().strip()))
    except (OSError, ValueError):
        pass
    return None
