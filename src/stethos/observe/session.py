"""One process's recording: its directory, ring, names and place in a run.

A session is opened by the first row worth keeping, so that helper processes
that never train leave no trace. After a fork the child drops its parent's
ring and opens one of its own when it has something to say. Standard library
only; nothing here may raise into the training (callers go through `guard`).
"""

from __future__ import annotations

import atexit
import contextlib
import errno
import functools
import itertools
import json
import operator
import os
import platform
import shutil
import struct
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from pathlib import Path
from typing import Any, Literal

from stethos.clock import monotonic_ns, wall_offset_ns
from stethos.errors import RecordingError
from stethos.guard import Guard, attempt
from stethos.native import SessionFields, described
from stethos.observe.context import turn
from stethos.record.border import NOT_MAPPED, is_own, make_directory
from stethos.record.layout import (
    LARGEST_NAME,
    LARGEST_TEXT,
    MOST_NAMES,
    SLOT_PACKERS,
    TABLE_END,
    TABLE_FACTS,
    TABLE_NAME,
    HeaderWord,
    State,
)
from stethos.record.place import (
    PROCESS_FILE,
    RING_FILE,
    ProcessPlace,
    RunPlace,
    boot_id,
    host_key,
    is_network_file_system,
    start_ticks,
    write_facts,
)
from stethos.record.provenance import Relations, plain_facts, run_facts
from stethos.record.ring import Ring, create_ring_file
from stethos.record.spawn import ensure_drainer
from stethos.redact import redact_command
from stethos.schema import GAPS, METRICS, NULL_I32
from stethos.settings import Settings, registry_dir

_METRICS = METRICS.number
_PACK_METRIC = SLOT_PACKERS[_METRICS].pack_into
_RESTART_S = 5.0
_MOST_NO_NUMBERS = 100


Origin = Literal["found", "framework", "arguments", "logger", "user"]
_ORIGINS: tuple[Origin, ...] = ("found", "framework", "arguments", "logger", "user")
_MOST_SETTINGS = 300


class Session(SessionFields):
    """Records rows of this process into a run; `ring` is None until it is opened, and after a failure."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.guard = Guard(self.note_gap, strict=settings.strict)
        self.offset_ns = wall_offset_ns()
        self.ring: Ring | None = None
        self.place: ProcessPlace | None = None
        self._told: dict[Origin, dict[str, Any]] = {}  # hyperparameters, by who told them
        self.git_commit: str | None = None
        self.steps = 0
        self.why_closed = ""
        self.is_federated_client = False
        self.has_told_epochs = False  # a framework says when epochs begin and end: passes over loaders are not counted
        self.sees_turns = False  # evidence from inside of clients' turns, see `federate`
        self.relations = Relations()
        self.federations: dict[str, int] = {}  # of this process, with the last round of each
        self.agent: object | None = None  # what answers live questions, see `live`
        self.on_pass: Callable[[Any], object] = lambda iterator: None  # a pass over a training loader begins
        self.put_media: Callable[[str, Any, Any], bool] = lambda name, value, step: False  # what is logged as no number
        self.on_open: list[Callable[[Session], object]] = []
        self.on_close: list[Callable[[], object]] = []
        self.on_fork: list[Callable[[], object]] = []
        self._put_metric: Callable[..., bool] | None = None  # the ring's writer of `metrics`
        self.names: dict[str, int] = {}
        self._name_count = 0
        self._no_numbers: set[str] = set()
        self._lock = threading.RLock()
        self._pid = os.getpid()
        self._next_check = 0.0
        self._is_opening = False
        self._is_closed = False
        self._is_fork = self._sees_exit = False
        os.register_at_fork(after_in_child=self._after_fork)

    # Opening ------------------------------------------------------------------------------------

    def open(self) -> Ring | None:
        """The ring, made now if this process has none; None if it cannot be had."""
        if self.ring is not None or self._is_closed:
            return self.ring
        with self._lock:
            if self.ring is None and not self._is_closed and not self._is_opening:
                self._is_opening = True  # a signal handler may log while we are at it
                try:
                    self._open()
                except (OSError, RecordingError) as error:
                    self._is_closed = True
                    self.why_closed = f"cannot record into {self.settings.run_dir}: {error}"
                    with contextlib.suppress(OSError, ValueError, AttributeError):  # stderr closed, or none
                        sys.stderr.write(f"stethos: not recording: {error}\n")
                finally:
                    self._is_opening = False
        return self.ring

    def _open(self) -> None:
        assert self.settings.run_dir is not None
        run = RunPlace(self.settings.run_dir)
        ticks = start_ticks(self._pid)
        run.create(run_facts(run.name, sys.orig_argv, self.settings, self.git_commit))
        directory = _new_directory(run.path, f"{self._pid}-{ticks or time.time_ns() // 10**7}")
        try:
            scratch = self._scratch_for(directory)
            try:
                ring = self._make_ring(directory, ticks, scratch)
            except OSError as error:
                if scratch is not None or error.errno not in NOT_MAPPED:
                    raise
                ring = self._make_ring(directory, ticks, _new_scratch(_own_registry(), directory))
        except BaseException:
            shutil.rmtree(directory, ignore_errors=True)
            raise
        for name, number in self.names.items():
            _define_name(ring, name, number)
        self.place = ProcessPlace(directory)
        self.ring = ring
        self._put_metric = ring.writer(_PACK_METRIC)
        ring.on_backlog = functools.partial(self.guard.run, "drainer", self.look_after_drainer)
        atexit.register(self.end)
        self.guard.run("multiprocessing", self._end_with_multiprocessing)
        if self._is_fork:
            self.guard.run("exit", self._end_with_exit)
        self._register(directory)
        self.guard.run("drainer", ensure_drainer, run)
        for action in self.on_open:
            self.guard.run("agent", action, self)

    def _make_ring(self, directory: Path, ticks: int | None, scratch: Path | None) -> Ring:
        """The ring and `process.json`, in this order: a process is there when it can be drained."""
        path = (scratch or directory) / RING_FILE
        facts = {
            "process": directory.name,
            "pid": self._pid,
            "start_ticks": ticks,
            "boot_id": boot_id(),
            "host_key": host_key(),
            "host": platform.node(),
            **self.relations.facts(os.getppid()),
            "command": redact_command(sys.orig_argv),
            "cwd": attempt(os.getcwd),  # None if it was deleted
            "python": platform.python_version(),
            "torch": getattr(sys.modules.get("torch"), "__version__", None),
            "versions": {},
            "config": self.guard.run("config", plain_facts, self.config) or {},
            "preset": self.settings.preset,
            "overhead_budget": self.settings.overhead,
            "callbacks": described(),
            "started_ns": time.time_ns(),
            **({"scratch": str(scratch)} if scratch else {}),
        }
        try:
            create_ring_file(path)
            ring = Ring(path)
            ring.set_word(HeaderWord.STARTED_NS, monotonic_ns() + self.offset_ns)
            write_facts(directory / PROCESS_FILE, facts)
        except BaseException:
            path.unlink(missing_ok=True)
            if scratch:
                scratch.rmdir()
            raise
        return ring

    def _scratch_for(self, directory: Path) -> Path | None:
        """A local directory for the ring where the run lives on a network file system."""
        base = self.settings.scratch
        if base is None and is_network_file_system(directory):
            base = _own_registry()
        return None if base is None else _new_scratch(base, directory)

    def _register(self, directory: Path) -> None:
        """Let commands find this process by its pid from any directory."""
        registry = registry_dir()
        with contextlib.suppress(OSError):
            make_directory(registry)
            if is_own(registry):
                (registry / str(self._pid)).write_text(str(directory.resolve()), encoding="utf-8")

    # Rows -----------------------------------------------------------------------------------------

    def now_ns(self) -> int:
        return monotonic_ns() + self.offset_ns

    def name_id(self, text: str) -> int:
        """The number that stands for a repeated string in rows; its definition goes through the ring once."""
        known = self.names.get(text)
        if known is not None:
            return known
        ring = self.open()
        if ring is None:
            return NULL_I32
        with self._lock:
            if len(self.names) >= MOST_NAMES:
                text = "(more names)"
            if text in self.names:
                return self.names[text]
            self._name_count += 1
            number = self._name_count
            if not _define_name(ring, text, number):
                if self._name_count == number:  # else a signal handler has named something meanwhile
                    self._name_count -= 1
                return NULL_I32
            self.names[text] = number
        return number

    def put_metric(self, name: str, value: Any, step: Any = None) -> None:
        """A number under a name, or a text, an image or a table.

        What is none of these is counted as dropped, and noted once per name.
        """
        put, known = self._put_metric, self.names.get(name)
        if put is not None and known is not None and step is None and type(value) is float:  # mostly
            client, round_, _ = turn()
            put(_METRICS, 0, client, round_, NULL_I32, self.steps, monotonic_ns() + self.offset_ns, known, value)
            return
        ring = self.open()
        if ring is None:
            return
        number: Any = attempt(number_in, value)
        at: Any = self.steps if step is None else attempt(operator.index, step)
        if number is None and self.put_media(name, value, step):
            return
        if number is None or at is None or at.bit_length() > 63:
            self._note_no_number(name, value if number is None else step)
        client, round_, _ = turn()
        with contextlib.suppress(struct.error):  # without a number the row is void, and the ring counts it
            ring.put(_PACK_METRIC, _METRICS, 0, client, round_, NULL_I32, at, self.now_ns(), self.name_id(name), number)

    def _note_no_number(self, name: str, value: object) -> None:
        if name not in self._no_numbers and len(self._no_numbers) < _MOST_NO_NUMBERS:
            self._no_numbers.add(name)
            self.note_gap("metrics", f"{name}: {type(value).__name__} cannot be recorded as a number")

    def put_frame(
        self, table: int, names: bytes, numbers: bytes | memoryview, texts: Sequence[str] = (), *, rows: int = 1,
        optimizer: int = NULL_I32, step: int | None = None, t_ns: int | None = None,
        whose: tuple[int, int] | None = None,
    ) -> bool:  # fmt: skip
        """A frame with this thread's client and round, or those of `whose`; long texts are cut."""
        ring = self.open()
        if ring is None:
            return False
        client, round_ = whose if whose is not None else turn()[:2]
        return ring.put_frame(
            table, rows, names, [text[:LARGEST_TEXT].encode("utf-8", "replace") for text in texts],
            more=numbers, client=client, round=round_, optimizer=optimizer, step=self.steps if step is None else step,
            t_ns=self.now_ns() if t_ns is None else t_ns,
        )  # fmt: skip

    def note_gap(self, what: str, reason: str) -> None:
        """Say in the run what is missing from it and why."""
        self.put_frame(GAPS.number, self.name_id(what).to_bytes(4, "little", signed=True), b"", (reason,))

    def note_facts(self, facts: Mapping[str, Any]) -> None:
        """Add to what `processes` says about this process."""
        if self.ring is not None:
            text = json.dumps(plain_facts(facts), ensure_ascii=False)
            if len(text) <= LARGEST_TEXT:
                self.put_frame(TABLE_FACTS, b"", b"", (text,), rows=0)
            else:
                self.note_gap(next(iter(facts), "facts"), f"{len(text):,} characters are more than {LARGEST_TEXT:,}")

    @property
    def config(self) -> dict[str, Any]:
        """The hyperparameters: what was said on purpose counts more than what was found."""
        return {name: value for origin in _ORIGINS for name, value in self._told.get(origin, {}).items()}

    def note_config(self, origin: Origin, values: Mapping[Any, Any]) -> None:
        """Hyperparameters, or some of them."""
        known = self._told.setdefault(origin, {})
        found = {str(name): value for name, value in values.items() if _is_setting(value)}
        fresh = {name: value for name, value in found.items() if name not in known or known[name] is not value}
        if fresh and len(known) + len(fresh) <= _MOST_SETTINGS:
            known.update(fresh)
            self.note_facts({"config": self.config})

    def note_failure(self, error: str, trace: str, children: Sequence[dict[str, int]] = ()) -> None:
        """The process is about to die of an uncaught exception; with torch, also before its first row.

        `children` are those whose failure it reports, with their exit statuses, the first one first.
        """
        if self.ring is None and (self.relations.facts(0)["rank"] is not None or "torch" in sys.modules):
            self.open()
        if self.ring is not None:
            failure = {"error": error[:2000], "traceback": trace[-LARGEST_TEXT // 4 :]}
            notes = json.dumps(failure | ({"children": children} if children else {}), ensure_ascii=False)
            self.put_frame(TABLE_END, b"", b"", (notes,), rows=0)
            self.ring.close(State.FAILED)

    def mark_turn(self, client: str, *, is_open: bool) -> None:
        """A federated client's turn begins or ends: so that it can be seen from outside whom a process waits for."""
        ring = self.open()
        if ring is not None:
            number = self.name_id(client)
            if is_open or ring.word(HeaderWord.CLIENT) == number:
                ring.set_word(HeaderWord.CLIENT, number if is_open else 0)

    def look_after_drainer(self) -> None:
        """Start the drainer again if the ring fills up because it died; called on sampled steps."""
        now = time.monotonic()
        if self.ring is not None and now >= self._next_check:
            self._next_check = now + _RESTART_S
            if self.ring.has_backlog() and self.settings.run_dir is not None:
                ensure_drainer(RunPlace(self.settings.run_dir))

    # Ending ---------------------------------------------------------------------------------------

    def end(self) -> None:
        """The process ends; what its other exit handlers still log is kept."""
        if os.getpid() != self._pid:
            return
        actions, self.on_close = self.on_close, []  # also where no ring could be had: they undo what was put into torch
        for action in actions:
            self.guard.run("close", action)
        if self.ring is not None:
            if self.ring.word(HeaderWord.STATE) == State.RUNNING:
                self.ring.close(State.ENDED)
            with contextlib.suppress(OSError):
                (registry_dir() / str(self._pid)).unlink()

    def close(self) -> None:
        """Stop recording for good; the drainer collects what is in the ring. Safe to call twice."""
        if os.getpid() != self._pid:
            return
        self.end()
        atexit.unregister(self.end)
        self._is_closed = True
        ring, self.ring, self._put_metric = self.ring, None, None
        if ring is not None:
            ring.set_word(HeaderWord.RELEASED, 1)

    def _end_with_multiprocessing(self) -> None:
        """Where this is a child of `multiprocessing`: those do not come to `atexit`. Imports nothing: see `boot`."""
        process, util = (sys.modules.get(f"multiprocessing.{name}") for name in ("process", "util"))
        if process is not None and util is not None and process.parent_process() is not None:
            util.Finalize(None, self._end_of_child, exitpriority=-100)

    def _end_of_child(self) -> None:
        """A child of `multiprocessing` ends; an exception on its way out does not come to `sys.excepthook`.

        `torch.multiprocessing.spawn` catches it, hands it to the parent, and leaves with `sys.exit(1)`.
        """
        error = sys.exc_info()[1]
        if isinstance(error, SystemExit):
            error = (error.__context__ or error) if error.code else None
        if error is not None:
            text = "".join(traceback.format_exception(error, limit=-50))
            self.note_failure(f"{type(error).__name__}: {error}", text)
        self.end()

    def _end_with_exit(self) -> None:
        """A forked child may end by `os._exit`, which comes to no handler, and nobody but its parent has its status."""
        if self._sees_exit:
            return
        self._sees_exit, leave = True, os._exit

        @functools.wraps(leave)
        def exit_at_once(status: int) -> None:
            try:
                self.guard.run("exit", self._note_exit, status)
            finally:  # Ctrl-C may come here, too: a child that goes on would be a second copy of the program
                leave(status)

        os._exit = exit_at_once  # type: ignore[assignment]

    def _note_exit(self, status: int) -> None:
        """One word in memory, as this may be a signal handler's doing."""
        if self.ring is not None and self.ring.word(HeaderWord.STATE) == State.RUNNING:
            self.ring.close(State.FAILED if status else State.ENDED)

    def _after_fork(self) -> None:
        """In a forked child: forget the parent's ring. Nothing of the parent's is touched.

        Names keep their numbers, which others have kept; the child's ring begins with them.
        """
        self._pid = os.getpid()
        self._is_fork = True
        self._lock = threading.RLock()
        self._is_opening = False
        self.steps = 0
        self.place = None
        if self.ring is not None:
            atexit.unregister(self.end)
            ring, self.ring, self._put_metric = self.ring, None, None
            self.guard.run("fork", ring.release)
        for action in self.on_fork:
            self.guard.run("fork", action)


def number_in(value: Any) -> float:
    """A number, also a tensor's: torch warns of `float()` where gradients are needed."""
    return float(value.item() if hasattr(value, "item") else value)


def _is_setting(value: object) -> bool:
    """Whether a value says something as text: a number, a text, a list or mapping of them, a path, a torch type."""
    if isinstance(value, Mapping):
        return all(map(_is_setting, value.values()))
    if isinstance(value, list | tuple | set | frozenset):
        return len(value) <= 100 and all(map(_is_setting, value))
    return (
        value is None
        or isinstance(value, bool | int | float | str | Path | Enum)
        or (type(value).__module__ == "torch" and type(value).__name__ in ("device", "dtype"))
    )


def _define_name(ring: Ring, text: str, number: int) -> bool:
    return ring.put_frame(TABLE_NAME, 0, b"", (text[:LARGEST_NAME].encode("utf-8", "replace"),), step=number)


def _own_registry() -> Path:
    """Local disk of this user; OSError where somebody else was faster to make it."""
    base = registry_dir()
    make_directory(base)
    if not is_own(base):
        raise PermissionError(errno.EPERM, "not a directory of this user", str(base))
    return base


def _new_scratch(base: Path, directory: Path) -> Path:
    """A directory for the ring and the open segment of the process that records into `directory`."""
    scratch = base.resolve() / f"{directory.parent.name}-{directory.name}"
    make_directory(scratch)
    return scratch


def _new_directory(parent: Path, name: str) -> Path:
    """A directory of this name, numbered if the same process has recorded into the run before."""
    for number in itertools.count(1):
        directory = parent / (name if number == 1 else f"{name}-{number}")
        with contextlib.suppress(FileExistsError):
            directory.mkdir(mode=0o700)
            directory.chmod(0o700)  # whatever the umask
            return directory
    raise AssertionError("unreachable")
