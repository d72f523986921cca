"""One round of a federation: its clients, phases, updates and evaluation, and the rows they become."""

from __future__ import annotations

import contextlib
import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from types import TracebackType
from typing import TYPE_CHECKING, Any

from stethos.errors import UpdateMismatchError, UsageError
from stethos.federate.captured import RoundCapture
from stethos.federate.invitation import Invitation
from stethos.federate.legs import Work
from stethos.federate.round_prints import RoundPrints
from stethos.federate.row import put_row
from stethos.federate.screening import Screened, accused_in
from stethos.federate.site import NOTABLE, PHASES, Phase, Site, Update, timed
from stethos.federate.structure import State, copied, element_count
from stethos.guard import attempt
from stethos.observe import boot
from stethos.observe.context import TURN
from stethos.observe.session import number_in
from stethos.observe.spans import Span, traceparent
from stethos.schema import NULL_I32, ROUNDS

if TYPE_CHECKING:
    from stethos.act.action import Treatment
    from stethos.diagnose.federated.verdict import ClientVerdict
    from stethos.federate.federation import Federation

_MOST_KEPT = 1 << 22  # elements of a global model that are copied as the round begins
_NOTABLE = frozenset(column.name for column in ROUNDS.columns) - {"federation"}


class Round:
    """A round; made by `Federation.round` or `Federation.rounds`.

    `number` is what the loop calls it; rows have the number `recorded`.
    """

    def __init__(self, federation: Federation, number: int, of: int | None, base: State | None, recorded: int) -> None:
        self.number = number
        self.recorded = recorded
        self.updates: list[Update] = []
        self._federation = federation
        self._of = of
        self._given_base = base
        self._result: State | None = None
        self._base_values: dict[str, Any] | None = None
        self._sites: list[Site] = []
        self._turns: Counter[str] = Counter()
        self._turns_before = federation.turns.get(recorded, 0)  # where the round is repeated
        self._working = 0
        self._is_side_by_side = False
        self._selected: int | None = None
        self._facts: dict[str, Any] = {}
        self._evaluation: dict[str, float] = {}
        self._lock = threading.RLock()
        self._stack = ExitStack()
        self._span: Span | None = None
        self._traceparent = ""
        self._observe_ns = 0
        self._start_ns = 0
        self._is_ended = False
        self._capture = RoundCapture(federation, recorded)
        self._prints = RoundPrints(federation, recorded)

    # The round -------------------------------------------------------------------------------------

    def __enter__(self) -> Round:
        token = TURN.set((NULL_I32, self.recorded, None))
        self._stack.callback(_reset, token)
        fields = {"federation": self._federation.name, "round": self.recorded}
        self._span = Span(boot.current_session, "round", fields, is_root=True)
        self._stack.enter_context(self._span)
        self._traceparent = traceparent()
        self._start_ns = time.monotonic_ns()
        self._federation.legs.begin_round(self.recorded)
        self._guarded(lambda: self._prints.begin(self.base))
        self._guarded(self._keep_base)
        self._capture.begin(lambda: self.base)
        self._show()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end(error)

    def pause(self) -> None:
        """The loop over rounds was left in this one; how, the federation will hear at its end."""
        if not self._is_ended:
            self._facts.setdefault("duration_ms", (time.monotonic_ns() - self._start_ns) * 1e-6)

    def end(self, error: BaseException | None = None) -> None:
        """The round is over; write its rows and, with a capture, what it was made of. Later calls do nothing."""
        if self._is_ended:
            return
        self._is_ended = True
        self._federation.legs.end_round()
        duration_ms = (time.monotonic_ns() - self._start_ns) * 1e-6
        self._facts.setdefault("duration_ms", duration_ms)
        if self._federation.correcting is not None and error is None:
            self._federation.correcting.settle(self, self._federation, self._result, self._facts.get("loss"))
        self._guarded(self._write, duration_ms)
        if error is None:
            known: dict[str, float] = {name: self._facts[name] for name in ("loss", "accuracy") if name in self._facts}
            self._capture.end(self._sites, self._new_state, {**known, **self._evaluation}, self._prints.odd)
        self._show(is_final=self.number == self._of)
        with contextlib.suppress(ValueError):
            self._stack.__exit__(type(error) if error else None, error, error.__traceback__ if error else None)

    # Clients ---------------------------------------------------------------------------------------

    def select(self, clients: Sequence[object] | int) -> None:
        """Say who, or how many, were asked to take part."""
        self._selected = clients if isinstance(clients, int) else len(clients)
        if not isinstance(clients, int):
            self._capture.select(clients)

    def client(self, client: object, *, label: str | None = None) -> Site:
        """A client's turn, for `with`: timed, its rows marked; a failure is recorded, then raised."""
        site = self._new_site(str(client))
        if label is not None:
            site.note(label=label)
        with self._lock:
            self._working += 1
            self._is_side_by_side |= self._working > 1
        self._federation.legs.ask(site.client, "turn")
        return site

    def invite(self, client: object) -> Invitation:
        """What another process needs to work on this client's turn; can be pickled or sent as strings."""
        if client != "":
            self.asked(str(client))
        return self._invitation(client)

    def asked(self, client: str, work: Work = "train") -> None:
        """A message has left for a client: from now on its answer is waited for."""
        self._federation.legs.ask(client, "sent", work)

    def expect(self, clients: Iterable[str]) -> None:
        """Who is to fetch the message of this round, where nobody is asked by name."""
        self._federation.legs.expect(clients)

    def never_came(self) -> list[str]:
        """Those expected of whom no message was ever fetched, in any round."""
        return sorted(self._federation.legs.never_came)

    def answered(self, client: str, work: Work = "train") -> None:
        """A client's answer has come, of whatever kind."""
        self._federation.legs.answered(client, work)

    def _invitation(self, client: object) -> Invitation:
        session = self._federation.session
        settings = session.settings if session is not None else None
        return Invitation(
            federation=self._federation.name,
            client=str(client),
            round=self.recorded,
            run_dir=str(settings.run_dir) if settings is not None and settings.run_dir is not None else "",
            preset=settings.preset if settings is not None else "standard",
            overhead=settings.overhead if settings is not None else 0.01,
            turn=self._turns_before + self._turns[str(client)],
            traceparent=traceparent() or self._traceparent,  # threads that the loop starts know of no open span
        )

    def receive(
        self, client: object, state: State | None = None, *, samples: int | None = None, loss: float | None = None,
        delta: bool = False, base_round: int | None = None, report: dict[str, Any] | None = None,
        arrived_ns: int | None = None, **metrics: float,
    ) -> Site:  # fmt: skip
        """An update, or with no state only news, of a client that works elsewhere; no turn of this process.

        `report` is what its process sent along (`Site.report`), `arrived_ns` when
        the reply came (`time.monotonic_ns`). The row can be added to through the site returned.
        """
        site = self._new_site(str(client))
        self.answered(site.client)
        if report:
            site.facts.update({name: value for name, value in report.items() if name in NOTABLE})
        if state is not None:
            site.update(state, samples=samples, loss=loss, delta=delta, base_round=base_round, **metrics)
        else:
            site.tell(samples=samples, loss=loss, base_round=base_round, **metrics)
        site.arrived_ns = arrived_ns or site.arrived_ns or time.monotonic_ns()
        self._is_side_by_side = True
        self._sites.append(site)
        self._show()
        return site

    def _new_site(self, client: str) -> Site:
        with self._lock:
            invitation = self._invitation(client)
            self._turns[client] += 1
            federation, used = self._federation, invitation.turn + 1
            federation.turns[self.recorded] = max(federation.turns.get(self.recorded, 0), used)
        return Site(
            invitation, side="server", on_update=self._receive, on_end=self._turn_ended,
            on_start=self._capture.begin_turn if self._capture.is_on else None,
            wants_traces=self._capture.wants_traces, base=lambda: self._base_values,
        )  # fmt: skip

    def _turn_ended(self, site: Site) -> None:
        with self._lock:
            self._working -= 1
            self._sites.append(site)
        self.answered(site.client)
        self._show()

    def _receive(self, update: Update) -> None:
        """An update came in: fingerprint it now, so that it may go when the caller is done with it. One that does not
        fit the global model is not averaged."""
        start_ns = time.monotonic_ns()
        try:
            with self._lock:  # fingerprints have the order of the updates
                self._guarded(self._prints.fingerprint, update)
                self.updates.append(update)
            self._capture.update(update)
        finally:
            self._observe_ns += time.monotonic_ns() - start_ns

    def odd_layers(self, client: object) -> list[tuple[str, int, int]]:
        """Layers of a client's last update that hold NaN or infinite elements, with the number of each."""
        with self._lock:
            return self._prints.odd_layers(str(client))

    # Server ----------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def phase(self, name: Phase) -> Iterator[None]:
        """Time a part of the round: select, download, compute, upload, aggregate or evaluate."""
        if name not in PHASES:
            raise UsageError(f"no phase {name!r}", hint=f"phases: {', '.join(PHASES)}")
        own = (
            contextlib.nullcontext() if name in ("download", "compute", "upload") else self._federation.legs.stage(name)
        )
        with timed(self._facts, f"{name}_ms"), Span(boot.current_session, name, {}), own:
            yield

    def screen(self, probability: float | None = None) -> list[ClientVerdict]:
        """Verdicts on the updates in hand, before they are aggregated: who should not be trusted, and why.

        From fingerprints of this round and the last ones; takes milliseconds and
        needs no data on the server. Empty without a recording. As sure as the
        detector `faulty-client` must be, unless `probability` says otherwise:
        then nobody is named with less.
        """
        found: list[ClientVerdict] = []
        self._guarded(lambda: found.extend(accused_in(self.screened(), probability)))
        self._prints.odd += [one.client for one in found]
        return found

    def screened(self) -> Screened | None:
        """What is known of the updates in hand, for verdicts and corrections; None if that is nothing."""
        with self._lock:
            return self._prints.screen(self.updates, self._reports())

    @property
    def base(self) -> State | None:
        """The global model that the round began with, as long as the caller has not changed it."""
        return self._given_base if self._given_base is not None else self._federation.global_state()

    def corrected(self) -> list[Update]:
        """The updates to average: all of them, unless `federation(correct="on")` has reason to change or drop some.

        Ask before the global model changes; what was done stands in `actions`.
        """
        correcting = self._federation.correcting
        return correcting.corrected(self) if correcting is not None else list(self.updates)

    def aggregate(self) -> dict[str, Any]:
        """The mean of `corrected()`, weighted by samples: the new global weights, to be loaded by the caller.

        With `correct="on"` a robust average takes its place while more clients are
        accused than may be left out, and the global model itself where no update can be used.
        """
        from stethos.federate.correcting import averaged

        return averaged(self._federation, self)

    def note_correction(
        self, treatments: Mapping[str, Treatment] | None = None, *, is_robust: bool = False,
        is_rolled_back: bool = False,
    ) -> None:  # fmt: skip
        """What was done about this round's updates or its result, for captures: a repetition does it again."""
        facts: dict[str, Any] = {}
        if treatments:
            facts["treatments"] = {client: [one.weight, one.scale] for client, one in treatments.items()}
        if is_robust:
            facts["is_robust"] = True
        if is_rolled_back:
            facts["is_rolled_back"] = True
        if facts:
            self._capture.note(facts)

    def result(self, state: State | None) -> None:
        """The new global model, where the federation was not given one to look at."""
        self._result = state

    def server_state(self, state: State) -> None:
        """What the server remembers besides the global model, such as an optimizer's moments, before it aggregates.

        For captures only: with it an aggregation can be repeated.
        """
        self._capture.server_state(state)

    def evaluate(self, **numbers: float | None) -> None:
        """Numbers of the new global model: `loss`, `accuracy`, and any other; None is a number that was not found."""
        session = self._federation.session
        for name, value in numbers.items():
            number = attempt(number_in, value) if value is not None else None
            if number is None:
                if value is not None and session is not None:
                    session.note_gap("rounds", f"the evaluation's {name} is not a number: {type(value).__name__}")
                continue
            if name in ("loss", "accuracy"):
                self._facts[name] = number
            else:
                self._evaluation[name] = number
            if session is not None:
                session.guard.run("metrics", session.put_metric, name, number)

    def note(self, **columns: Any) -> None:
        """Set columns of this round's row, where the caller knows better than the clock."""
        unknown = sorted(set(columns) - _NOTABLE)
        if unknown:
            raise UsageError(f"rounds has no column {unknown[0]!r}", hint=f"columns: {', '.join(sorted(_NOTABLE))}")
        self._facts.update(columns)

    # Rows ------------------------------------------------------------------------------------------

    def _keep_base(self) -> None:
        """The weights that clients are asked to begin with; the caller may train in the global model itself."""
        state = self.base
        named = self._federation.named(state) if state is not None else {}
        if sum(map(element_count, named.values())) <= _MOST_KEPT:
            self._base_values = copied(named) or None

    def _new_state(self) -> State | None:
        return self._result if self._result is not None else self._federation.global_state()

    def _write(self, duration_ms: float) -> None:
        session = self._federation.session
        began_ns = time.monotonic_ns()
        self._wait_times()
        reports = self._reports()
        if session is not None:
            for site in self._sites:
                site.write(session)
        known = self._prints.record(
            self._new_state(), self.updates, reports, duration_ms, wants_odd=self._capture.is_on
        )
        self._facts = {**known, **self._facts}
        if session is None:
            return
        count = Counter(site.facts["status"] for site in self._sites)
        self._observe_ns += time.monotonic_ns() - began_ns
        values = {
            "federation": self._federation.name,
            "selected": self._selected if self._selected is not None else len(self._turns) or None,
            "reported": len({update.client for update in self.updates}),
            "failed": count["failed"] + count["dropped"] + count["timeout"],
            "observe_ms": self._observe_ns * 1e-6,
            "evaluation": self._evaluation or None,
            **self._facts,
        }
        put_row(session, ROUNDS, values, client=None, round=self.recorded, t_ns=self._start_ns + session.offset_ns)

    def _reports(self) -> dict[str, dict[str, Any]]:
        """What clients report of their training, by client."""
        told = {update.client: {"samples": attempt(number_in, update.samples)} for update in self.updates}
        for site in self._sites:
            site.settle()
            told.setdefault(site.client, {}).update(site.facts)
        return told

    def _wait_times(self) -> None:
        """Where clients work side by side, the early ones wait for the last."""
        arrived = [site.arrived_ns for site in self._sites if site.arrived_ns is not None]
        if self._is_side_by_side and arrived:
            last = max(arrived)
            self._facts.setdefault("wait_ms", (last - min(arrived)) * 1e-6)
            for site in self._sites:
                if site.arrived_ns is not None:
                    site.facts.setdefault("wait_ms", (last - site.arrived_ns) * 1e-6)

    # ------------------------------------------------------------------------------------------------

    def _guarded(self, function: Any, *args: Any) -> None:
        """Our own failures are counted and noted; a mismatch is the caller's to hear of."""
        session = self._federation.session
        if session is None:
            if self._federation.correcting is not None:  # they need the fingerprints, recorded or not
                attempt(function, *args)
            return
        mismatch: list[UpdateMismatchError] = []

        def call() -> None:
            try:
                function(*args)
            except UpdateMismatchError as error:
                mismatch.append(error)

        session.guard.run("updates", call)
        if mismatch:
            raise mismatch[0] from None

    def _show(self, *, is_final: bool = False) -> None:
        if not self._federation.progress.is_on:
            return
        failed = sum(site.facts["status"] != "ok" for site in self._sites)
        notes = [f"{len(self._sites)} clients" + (f", {failed} failed" if failed else "")]
        notes += [f"{name} {self._facts[name]:.4g}" for name in ("loss", "accuracy") if name in self._facts]
        done = self.number if self._is_ended else self.number - 1
        self._federation.progress.show(done, self._of, "  ".join(notes), is_final=is_final)


def _reset(token: Any) -> None:
    with contextlib.suppress(ValueError):
        TURN.reset(token)
