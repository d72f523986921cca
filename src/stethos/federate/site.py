"""One client's turn in a round, as seen where it runs."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Literal

import numpy as np

from stethos.errors import UsageError
from stethos.federate.confusion import Confusion
from stethos.federate.invitation import ClientSpan, Invitation
from stethos.federate.legs import ClientLegs
from stethos.federate.model_digest import digest_of
from stethos.federate.row import put_row
from stethos.federate.structure import State, bytes_of
from stethos.guard import attempt, text_of
from stethos.observe import boot
from stethos.observe.context import TurnTotals
from stethos.observe.session import Session, number_in
from stethos.observe.spans import Span
from stethos.schema import CLIENT_REPORTS, CLIENT_ROUNDS, NULL_F64

Status = Literal["ok", "failed", "dropped", "timeout"]
Phase = Literal["select", "download", "compute", "upload", "aggregate", "evaluate"]
PHASES: tuple[Phase, ...] = ("select", "download", "compute", "upload", "aggregate", "evaluate")
_SITE_PHASES: tuple[Phase, ...] = ("download", "compute", "upload")
NOTABLE = frozenset(column.name for column in CLIENT_ROUNDS.columns) - {"client", "round", "federation", "t_ns", "turn"}
_LONGEST_TRACEBACK = 16_000


@dataclass(frozen=True, slots=True)
class Update:
    """What a client sent, untouched: `state` is the very object that was given."""

    client: str
    state: State
    samples: int | None = None
    loss: float | None = None
    metrics: Mapping[str, float] = field(default_factory=dict)
    base_round: int | None = None
    is_delta: bool = False


class Site:
    """A client's turn: a context manager that times it, marks its rows, and records how it ended.

    `on_update` is told of an update, `on_end` of the turn's end; both come from
    the round where there is one. An exception is recorded with its traceback,
    then passes on.
    """

    def __init__(
        self, invitation: Invitation, *, side: Literal["server", "client"],
        on_update: Callable[[Update], None] | None = None, on_end: Callable[[Site], None] | None = None,
        on_start: Callable[[Site], None] | None = None, wants_traces: bool = False,
        base: Callable[[], Mapping[str, Any] | None] | None = None,
    ) -> None:  # fmt: skip
        self.invitation = invitation
        self.client = invitation.client
        self.facts: dict[str, Any] = {"status": "ok"}
        self.arrived_ns: int | None = None
        self._side = side
        self._on_update = on_update
        self._on_end = on_end
        self._on_start = on_start
        self._base = base
        self._wants_traces = wants_traces
        self.traces: dict[str, Any] = {}
        self._tally = TurnTotals()
        self._confusion = Confusion()
        self._marked: ClientSpan | None = None
        self._span: Span | None = None
        self._start_ns = 0
        self._start_rss = 0
        self._legs: ClientLegs | None = None
        if side == "client":
            self._legs = ClientLegs(invitation.federation, invitation.client, invitation.round)

    # Telling ---------------------------------------------------------------------------------------

    def update(
        self, state: State, *, samples: int | None = None, loss: float | None = None, delta: bool = False,
        base_round: int | None = None, **metrics: float,
    ) -> None:  # fmt: skip
        """What the client sends: full weights, or with `delta` their change. It is read, never changed.

        UpdateMismatchError if it does not fit the global model.
        """
        update = Update(self.client, state, samples, loss, metrics, base_round, delta)
        if "raw_bytes" not in self.facts:
            values = state.values() if isinstance(state, Mapping) else state
            self.facts["raw_bytes"] = attempt(lambda: sum(map(bytes_of, values)))
        self.arrived_ns = time.monotonic_ns()
        self._compare(update)
        self.tell(samples=samples, loss=loss, base_round=base_round, **metrics)
        if self._on_update is not None:
            self._on_update(update)

    def _compare(self, update: Update) -> None:
        """With what the optimizer did, if that was seen."""
        evidence, session = self._tally.evidence, boot.current_session()
        if evidence is not None and session is not None and update.base_round in (None, self.invitation.round):
            base = self._base() if self._base is not None else None
            session.guard.run("evidence", evidence.check.compare, update.state, base, is_delta=update.is_delta)

    def tell(self, **numbers: float | None) -> None:
        """Numbers that came with the update; those that are no column of `client_rounds` go to its `metrics`."""
        for name, value in numbers.items():
            if value is None:
                continue
            number = value if type(value) is float else attempt(number_in, value)
            if name in NOTABLE:
                self.facts[name] = number
            else:
                self.facts.setdefault("metrics", {})[name] = value if number is None else number

    def note(self, **columns: Any) -> None:
        """Set columns of this turn's row in `client_rounds`, where the caller knows better than the clock."""
        unknown = sorted(set(columns) - NOTABLE)
        if unknown:
            raise UsageError(
                f"client_rounds has no column {unknown[0]!r}", hint=f"columns: {', '.join(sorted(NOTABLE))}"
            )
        self.facts.update(columns)

    def confusion(self, labels: Any, predictions: Any) -> None:
        """Add the incoming global model's answers for local samples, by local label. Tensors, arrays or lists."""
        self._confusion.add(labels, predictions)

    def trace(self, *, losses: Sequence[float] | None = None, order: Any = None) -> None:
        """For captures: the loss of every local step, and the numbers of the samples in the order of their use.

        Of the order, which may also be a function that gives it, a digest is kept. They tell where a
        repetition parts from what was recorded. Without a capture this does nothing.
        """
        if losses is not None and self._wants_traces:
            self.traces["losses"] = attempt(lambda: [number_in(loss) for loss in losses])
        if order is not None and self._wants_traces:
            later = functools.partial(_digest_or_none, order)
            self.traces["order"] = later if callable(order) else later()

    def received(self, model: Mapping[str, Any]) -> None:
        """Say which model the client was given: its digest is compared with what others were given in this round."""
        if self._legs is not None:
            self._legs.digest = attempt(digest_of, model)

    def drop(self, reason: str = "") -> None:
        """The client dropped out of this round."""
        self.facts["status"] = "dropped"
        self.facts["error"] = reason or None

    def timeout(self, reason: str = "") -> None:
        """The client did not answer in time."""
        self.facts["status"] = "timeout"
        self.facts["error"] = reason or None

    @contextlib.contextmanager
    def phase(self, name: Phase) -> Iterator[None]:
        """Time a part of the turn: download, compute or upload."""
        if name not in _SITE_PHASES:
            raise UsageError(f"no phase {name!r} in a client's turn", hint=f"phases: {', '.join(_SITE_PHASES)}")
        with timed(self.facts, f"{name}_ms"), Span(boot.current_session, name, {}):
            yield

    # The turn --------------------------------------------------------------------------------------

    def __enter__(self) -> Site:
        session = boot.current_session()
        if session is not None and self._side == "client":
            session.is_federated_client = True  # whose owner decides who may run code in it, see `live`
        self._marked = self.invitation.marked(self._tally)
        self._marked.__enter__()
        self._begin_evidence()
        self._span = Span(boot.current_session, "client", {"client": self.client, "round": self.invitation.round})
        self._span.__enter__()
        self._start_rss = _RESIDENT.lately()
        self._mark(is_open=True)
        if self._legs is not None:
            self._legs.begin()
        if self._on_start is not None:
            self._on_start(self)
        self._start_ns = time.monotonic_ns()
        return self

    def _begin_evidence(self) -> None:
        if "torch" in sys.modules:
            from stethos.federate.turn_evidence import begin_turn

            self._tally.evidence = begin_turn(self.invitation.federation, self.client)

    def _write_evidence(self, session: Session) -> None:
        evidence, self._tally.evidence = self._tally.evidence, None
        if evidence is not None:
            evidence.samples = self.facts.get("samples")
            mine, t_ns = self.invitation, time.monotonic_ns() + session.offset_ns
            session.guard.run("evidence", evidence.write, session, mine.federation, self.client, mine.round, t_ns)

    def _mark(self, *, is_open: bool) -> None:
        recording = boot.current()
        if recording is not None:
            recording.session.guard.run("client_rounds", recording.session.mark_turn, self.client, is_open=is_open)
            if not is_open:
                recording.session.guard.run("modules", recording.turn_ended)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        duration_ns = time.monotonic_ns() - self._start_ns
        session = boot.current_session()
        self._mark(is_open=False)
        if self._legs is not None:
            self._legs.end()
        if error is not None:
            self.failed(error)
        if session is not None:
            session.guard.run("client_rounds", self._add_up, duration_ns)
            self._write_evidence(session)
        else:  # no run to record into: the report still goes back to the server
            attempt(self._add_up, duration_ns)
        if self._span is not None and self._marked is not None:
            self._span.fields["status"] = self.facts["status"]
            self._span.__exit__(kind, error, trace)
            self._marked.__exit__(kind, error, trace)
        if self._on_end is not None:
            self._on_end(self)
        elif session is not None:
            self.write(session)

    @contextlib.contextmanager
    def part(self) -> Iterator[None]:
        """For work on a turn that another process leads: rows are marked, and what its steps tell of the turn is
        recorded. How the turn ends is not for this process to say."""
        start_ns = time.monotonic_ns()
        with self.invitation.marked(self._tally):
            self._begin_evidence()
            yield
        session = boot.current_session()
        if session is not None:
            self._write_evidence(session)
        if session is not None and self._tally.steps:
            self._start_ns = start_ns
            del self.facts["status"]
            session.guard.run("client_rounds", self._tell_steps, time.monotonic_ns() - start_ns)
            self.write(session)

    def failed(self, error: BaseException) -> None:
        """Note an exception with its traceback."""
        text = "".join(traceback.format_exception(error, limit=-40))
        self.facts.update(
            status="failed",
            error=f"{type(error).__name__}: {text_of(error)}"[:2000],
            traceback=text[-_LONGEST_TRACEBACK:],
        )

    def _add_up(self, duration_ns: int) -> None:
        facts = self.facts
        facts.setdefault("duration_ms", duration_ns * 1e-6)
        if "peak_bytes" not in facts:
            facts["peak_bytes"] = _peak_bytes(self._start_rss)
        self._tell_steps(duration_ns)
        if self._on_end is None:
            self.settle()

    def _tell_steps(self, duration_ns: int) -> None:
        tally, facts = self._tally, self.facts
        if tally.steps:
            facts.setdefault("steps", tally.steps)
            facts.setdefault("entry_loss", _mean_loss(tally.first_losses))
            facts.setdefault("exit_loss", _mean_loss(tally.last_losses))
            if tally.samples:
                facts.setdefault("samples_per_s", tally.samples / max(duration_ns * 1e-9, 1e-9))

    def settle(self) -> None:
        """Count what was left for the end of the turn, or where there is a round for whoever asks it next."""
        if self._confusion:
            self.facts.setdefault("confusion", self._confusion.text())

    def write(self, session: Session) -> None:
        """Record what is known of the turn."""
        session.guard.run("client_rounds", self._write, session)

    def _write(self, session: Session) -> None:
        t_ns = (self._start_ns or time.monotonic_ns()) + session.offset_ns
        mine = self.invitation
        values = {**self.facts, "federation": mine.federation, "turn": mine.turn, "side": self._side}
        put_row(session, CLIENT_REPORTS, values, client=self.client, round=mine.round, t_ns=t_ns)

    def report(self) -> dict[str, float | str]:
        """What is known of the turn, to be sent back to the server with the reply."""
        return {
            name: value if isinstance(value, int | float | str) else str(value)
            for name, value in self.facts.items()
            if value is not None and name not in ("metrics", "traceback")
        }


@contextlib.contextmanager
def timed(facts: dict[str, Any], name: str) -> Iterator[None]:
    """Add the time inside to a column."""
    start_ns = time.monotonic_ns()
    try:
        yield
    finally:
        facts[name] = (facts.get(name) or 0.0) + (time.monotonic_ns() - start_ns) * 1e-6


_LATELY_NS = 100_000_000
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


class _Resident:
    """Memory of this process; 0 where it cannot be told."""

    def __init__(self) -> None:
        self._bytes = 0
        self._read_ns = 0

    def now(self) -> int:
        self._read_ns = time.monotonic_ns()
        self._bytes = 0
        with contextlib.suppress(OSError, ValueError, IndexError), open("/proc/self/statm", "rb") as file:
            self._bytes = int(file.read().split()[1]) * _PAGE_BYTES
        return self._bytes

    def lately(self) -> int:
        """The same, some milliseconds old where turns follow each other fast: reading it takes as long as a step."""
        return self._bytes if time.monotonic_ns() - self._read_ns < _LATELY_NS else self.now()


_RESIDENT = _Resident()


def _peak_bytes(start_bytes: int) -> int | None:
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        return int(torch.cuda.max_memory_allocated())
    return max(start_bytes, _RESIDENT.now()) or None


def _mean_loss(losses: Any) -> float | None:
    known = [loss for loss in losses if loss is not NULL_F64]
    return sum(known) / len(known) if known else None


def _digest_or_none(order: Any) -> str | None:
    return attempt(lambda: digest_of_order(order() if callable(order) else order))


def digest_of_order(order: Any) -> str:
    """A digest of sample numbers in their order: one sequence, or one per batch."""
    parts = [order] if hasattr(order, "dtype") else list(order)
    if parts and not hasattr(parts[0], "__len__"):
        parts = [parts]
    digest = hashlib.sha256()
    for part in parts:
        digest.update(np.asarray(part, np.int64).tobytes())
    return digest.hexdigest()
