"""What an attack tried, and what went wrong."""

from __future__ import annotations

import os
import resource
import shutil
import tempfile
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

KEPT_RUN = "ATTACK_RUN"  # where pieces of an attack share the run that they begin with
_ZEROS = bytes(1 << 16)
_ENOUGH_BYTES = 4 << 30


@dataclass
class Outcome:
    """One attack: its tries, and those that failed with how."""

    name: str
    promise: str
    tries: int = 0
    failures: list[str] = field(default_factory=list)
    notes: dict[str, float] = field(default_factory=dict)

    def check(self, is_good: bool, what: str) -> None:
        if not is_good:
            self.failures.append(what)

    def most(self, name: str, value: float) -> None:
        self.notes[name] = max(value, self.notes.get(name, value))

    def add(self, part: Outcome) -> None:
        """What a further piece of the same attack found."""
        self.tries += part.tries
        self.failures += part.failures
        for name, value in part.notes.items():
            self.most(name, value)

    def row(self) -> str:
        notes = "; ".join(f"{name} {value:,.3g}" for name, value in self.notes.items())
        return f"| {self.name} | {self.tries:,} | {len(self.failures)} | {self.promise} | {notes} |"


def copy_run(source: Path, target: Path) -> Path:
    """A copy with holes where there are only zeros: a ring has 9 MB, nearly all of them unused."""
    for root, directories, files in os.walk(source):
        inner = target / os.path.relpath(root, source)
        inner.mkdir(parents=True, exist_ok=True)
        for name in directories:
            (inner / name).mkdir(exist_ok=True)
        for name in files:
            content = (Path(root) / name).read_bytes() if name != "ring" else b""
            if name == "ring":
                copy_sparse(Path(root) / name, inner / name)
            else:
                (inner / name).write_bytes(content)
    return target


def copy_sparse(source: Path, target: Path) -> None:
    size = source.stat().st_size
    with source.open("rb") as old, target.open("wb") as new:
        for at in range(0, size, 1 << 16):
            piece = old.read(1 << 16)
            if piece != _ZEROS[: len(piece)]:
                new.seek(at)
                new.write(piece)
        new.truncate(size)


def in_child(outcome: Outcome, what: str, work: Callable[[], list[str]], limit_s: float = 120.0) -> None:
    """Do a batch in a child of its own: a crash, a hang or a gigabyte is a failure, too."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            resource.setrlimit(resource.RLIMIT_CPU, (int(limit_s), int(limit_s)))
            told = "\n".join(one.replace("\n", " ")[:300] for one in work())
            os.write(writer, told.encode("utf-8", "replace")[:60_000])
            os._exit(0)
        except BaseException:
            os.write(writer, traceback.format_exc()[-500:].replace("\n", " ").encode("utf-8", "replace"))
        finally:
            os._exit(9)
    os.close(writer)
    with open(reader, encoding="utf-8", errors="replace") as pipe:
        told = pipe.read()
    _, status, usage = os.wait4(child, 0)
    outcome.failures += [f"{what}: {line}" for line in told.splitlines()]
    outcome.check(os.waitstatus_to_exitcode(status) == 0, f"{what}: ended with {os.waitstatus_to_exitcode(status)}")
    outcome.most("largest MB", usage.ru_maxrss / 1024)
    outcome.check(usage.ru_maxrss < 1 << 20, f"{what}: {usage.ru_maxrss >> 10} MB")


@contextmanager
def place() -> Iterator[Path]:
    """A directory of its own, in memory where there is enough."""
    in_memory = os.access("/dev/shm", os.W_OK) and shutil.disk_usage("/dev/shm").free > _ENOUGH_BYTES
    base = "/dev/shm" if in_memory else None
    path = Path(tempfile.mkdtemp(prefix="stethos-attack-", dir=base))
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)
