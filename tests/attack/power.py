"""Power is cut at any moment: what was not synced is there, gone or garbage, each write by itself (as SQLite tests).

Every change that a collector makes to a file is noted, with every sync. For a moment, the disk of that moment is made:
synced writes, any of the others, names as an ordered journal keeps them, and a ring of which any page is gone. A new
drainer starts there after a restart of the machine.
"""

from __future__ import annotations

import json
import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import pyarrow.parquet as pq
from builders import ProcessBuilder, RunBuilder

from attack.outcome import Outcome, copy_sparse, place
from stethos.record.collector import Collector
from stethos.record.place import ProcessPlace, RunPlace
from stethos.store.run import Run

SECTOR = 512
Change = tuple[str, str, Any]  # what, name, content


class Journal:
    """Every change to the files of a process, in order, and what is durable after each."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.changes: list[Change] = []
        self.steps_synced: list[tuple[int, int]] = []  # at which change, how many steps had been synced
        self.stored = 0
        self._unsynced: dict[str, list[Change]] = {}
        self._whole: dict[str, bytes] = {}

    def name_of(self, descriptor: int) -> str:
        path = Path(os.readlink(f"/proc/self/fd/{descriptor}"))
        return path.name if path.parent == self.directory else "/" if path == self.directory else ""

    def patches(self) -> list[Any]:
        real: dict[str, Callable[..., Any]] = {
            name: getattr(os, name) for name in ("pwritev", "ftruncate", "fsync", "fdatasync", "replace", "open")
        }
        unlink = Path.unlink

        def pwritev(descriptor: int, pieces: Any, offset: int) -> int:
            written: int = real["pwritev"](descriptor, pieces, offset)
            self.changes.append(("write", self.name_of(descriptor), (offset, b"".join(map(bytes, pieces))[:written])))
            return written

        def ftruncate(descriptor: int, size: int) -> None:
            real["ftruncate"](descriptor, size)
            self.changes.append(("truncate", self.name_of(descriptor), size))

        def synced(which: str) -> Callable[[int], None]:
            def sync(descriptor: int) -> None:
                real[which](descriptor)
                name = self.name_of(descriptor)
                if name == "/":
                    self.changes.append(("names", "/", None))
                elif name:
                    content = (self.directory / name).read_bytes() if name.startswith(".") else None
                    self.changes.append(("sync", name, content))
                if name.endswith(".seg"):
                    self.steps_synced.append((len(self.changes), self.stored))

            return sync

        def replace(source: Any, target: Any) -> None:
            content = Path(source).read_bytes()
            real["replace"](source, target)
            self.changes.append(("rename", Path(target).name, (Path(source).name, content)))

        def opened(path: Any, flags: int, *rest: Any, **more: Any) -> int:
            descriptor: int = real["open"](path, flags, *rest, **more)
            if flags & os.O_CREAT and self.name_of(descriptor).endswith(".seg"):
                self.changes.append(("create", self.name_of(descriptor), None))
            return descriptor

        def unlinked(path: Path, missing_ok: bool = False) -> None:
            unlink(path, missing_ok=missing_ok)
            if path.parent == self.directory and not path.name.startswith("."):
                self.changes.append(("unlink", path.name, None))

        return [
            mock.patch.object(os, "pwritev", pwritev), mock.patch.object(os, "ftruncate", ftruncate),
            mock.patch.object(os, "fsync", synced("fsync")), mock.patch.object(os, "fdatasync", synced("fdatasync")),
            mock.patch.object(os, "replace", replace), mock.patch.object(os, "open", opened),
            mock.patch.object(Path, "unlink", unlinked),
        ]  # fmt: skip

    def disk_after(self, moment: int, chance: random.Random) -> dict[str, bytes]:
        """The files as a disk may hold them if power is cut after that many changes."""
        files: dict[str, bytearray] = {}
        names: dict[str, bytearray] = {}
        pending_names: list[Change] = []
        for what, name, content in self.changes[:moment]:
            match what:
                case "write" | "truncate":
                    files.setdefault(name, bytearray())
                    self._unsynced.setdefault(name, []).append((what, name, content))
                case "sync":
                    if content is None:
                        self._settle(files.setdefault(name, bytearray()), name)
                    else:
                        self._whole[name] = content
                case "names":
                    for change in pending_names:
                        _rename(names, files, change)
                    pending_names = []
                case "rename":  # what was not synced before it got its name is empty
                    pending_names.append((what, name, self._whole.pop(content[0], b"")))
                case _:
                    pending_names.append((what, name, content))
        for change in pending_names[: chance.randint(0, len(pending_names))]:
            _rename(names, files, change)
        found = {}
        for name, content in names.items():
            found[name] = bytes(content if not name.endswith(".seg") else self._torn(content, name, chance))
        self._unsynced.clear()
        self._whole.clear()
        return found

    def _settle(self, content: bytearray, name: str) -> None:
        for what, _, value in self._unsynced.pop(name, []):
            _apply(content, what, value)

    def _torn(self, durable: bytearray, name: str, chance: random.Random) -> bytearray:
        """What was not synced: each write applied, dropped, or garbage in some of its sectors."""
        content = bytearray(durable)
        for what, _, value in self._unsynced.get(name, []):
            fate = chance.random()
            if fate < 0.4:
                _apply(content, what, value)
            elif fate < 0.8 and what == "write":
                offset, data = value
                data = bytearray(data)
                for at in range(0, len(data), SECTOR):
                    if chance.random() < 0.5:
                        data[at : at + SECTOR] = chance.choice([bytes, chance.randbytes])(len(data[at : at + SECTOR]))
                _apply(content, "write", (offset, bytes(data)))
        return content


def _rename(names: dict[str, bytearray], files: dict[str, bytearray], change: Change) -> None:
    what, name, content = change
    if what == "create":
        names[name] = files.setdefault(name, bytearray())
    elif what == "unlink":
        names.pop(name, None)
    else:
        names[name] = bytearray(content)


def _apply(content: bytearray, what: str, value: Any) -> None:
    if what == "truncate":
        del content[value:]
        content.extend(bytes(value - len(content)))
        return
    offset, data = value
    if len(content) < offset + len(data):
        content.extend(bytes(offset + len(data) - len(content)))
    content[offset : offset + len(data)] = data


def _work(process: ProcessBuilder, journal: Journal, chance: random.Random) -> None:
    """Some seconds of a drainer: rows, syncs, seals, in any order."""
    for turn in range(chance.randint(6, 10)):
        process.steps(chance.randint(1, 30))
        if chance.random() < 0.5:
            process.layers(["a", "b"], step=turn)
        if chance.random() < 0.5:
            process.log(f"message {turn} " + "x" * chance.randint(0, 3000))
        process.drain()
        journal.stored = process._steps
        if chance.random() < 0.6:
            process.collector.sync()
        if chance.random() < 0.3:
            process.collector.seal()


def attack(tries: int, seed: int = 1) -> Outcome:
    """Cut the power after changes chosen so that every one is cut, and start again."""
    outcome = Outcome(
        "power cut, drainer restarted",
        "rows synced before the cut are there, once and unchanged; later ones are there or counted as lost",
    )
    chance = random.Random(seed)
    while outcome.tries < tries:
        with place() as base, RunBuilder(base / "run") as run:
            process = run.process("100-200", is_alive=False)
            journal = Journal(process.place.path)
            patches = journal.patches()
            for patch in patches:
                patch.start()
            try:
                _work(process, journal, chance)
            finally:
                for patch in patches:
                    patch.stop()
            facts = {**process.place.facts(), "boot_id": "before"}  # the machine has started again since
            copy_sparse(process.place.path / "ring", base / "ring")
            moments = range(1, len(journal.changes) + 1)
            for moment in moments:
                for _ in range(3):
                    if outcome.tries < tries:
                        _cut(outcome, journal, moment, chance, base, facts)
    return outcome


def _cut(
    outcome: Outcome, journal: Journal, moment: int, chance: random.Random, base: Path, facts: dict[str, Any]
) -> None:
    outcome.tries += 1
    what = f"seed state {outcome.tries}, change {moment} of {len(journal.changes)}"
    path = base / f"after-{outcome.tries}" / "run"
    target = path / "100-200"
    target.mkdir(parents=True)
    (path / "run.json").write_text(json.dumps({"run": "run"}), encoding="utf-8")
    (target / "process.json").write_text(json.dumps(facts), encoding="utf-8")
    for name, content in journal.disk_after(moment, chance).items():
        (target / name).write_bytes(content)
    copy_sparse(base / "ring", target / "ring")
    with (target / "ring").open("r+b") as ring:
        for page in range(0, 64, 1):
            if page and chance.random() < 0.3:
                ring.seek(page * 4096)
                ring.write(bytes(4096))
    try:
        if "ended" not in ProcessPlace(target).manifest():
            Collector(ProcessPlace(target)).finish({"t_ns": 1})
        opened = Run(RunPlace(path))
        (books,) = opened.processes()
        balance = books["rows_stored"] + books["rows_dropped"] + books["rows_lost"]
        outcome.check(books["rows_produced"] == balance, f"{what}: {books}")
        files = sorted(file.path for file in opened.readers()[0].sealed if file.table == "steps")
        steps = [(step, loss) for one in files for step, loss in _steps_in(one)]
        outcome.check(len({step for step, _ in steps}) == len(steps), f"{what}: doubled")
        outcome.check(all(loss == 1.0 / (step + 1) for step, loss in steps), f"{what}: wrong rows")
        synced = max((count for at, count in journal.steps_synced if at <= moment), default=0)
        outcome.check({step for step, _ in steps} >= set(range(synced)), f"{what}: {synced} synced, {len(steps)} there")
    except Exception as error:
        outcome.failures.append(f"{what}: {error!r}")
    finally:
        shutil.rmtree(path.parent, ignore_errors=True)


def _steps_in(path: Path) -> list[tuple[int, float]]:
    rows = pq.read_table(path, columns=["step", "loss"])
    return list(zip(rows["step"].to_pylist(), rows["loss"].to_pylist(), strict=True))
