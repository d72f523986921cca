"""The server's side of an NVFlare job: its events become rounds, and its clients' results updates."""

from __future__ import annotations

import contextvars
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any

from nvflare.apis.event_type import EventType
from nvflare.apis.fl_constant import FLContextKey
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable
from nvflare.app_common.abstract.model import ModelLearnableKey
from nvflare.app_common.app_constant import AppConstants
from nvflare.app_common.app_event_type import AppEventType
from nvflare.widgets.widget import Widget

from stethos.adapters.nvflare.exchange import (
    HEADER,
    failure_of,
    guarded,
    peer_name,
    round_of,
    take_report,
    weights_in,
)
from stethos.adapters.remote_site import RemoteSites
from stethos.collect.ride import ACKS
from stethos.errors import UpdateMismatchError
from stethos.federate.federation import Federation, federation
from stethos.federate.site import Site
from stethos.federate.structure import State
from stethos.observe.context import TURN
from stethos.observe.spans import OPEN
from stethos.schema import NULL_I32
from stethos.settings import parse_preset


class OpenRound:
    """A round in progress. Its events come from several threads, so it has its own context variables.

    Not thread-safe: the widget's lock is held around every call.
    """

    def __init__(self, fed: Federation, number: int, base: State | None, clients: Iterable[str] = ()) -> None:
        """`clients` are those that NVFlare knows: they fetch their tasks themselves."""
        self.number = number
        self._has_asked = False
        self.waiting: set[str] = set()  # clients that have the task and have not answered
        self._context = contextvars.copy_context()
        self._manager = fed.round(number, base=base)
        self.rnd = self._context.run(self._manager.__enter__)
        self.rnd.expect(clients)
        self._invitation = self._context.run(self.rnd.invite, "")
        self._phase: AbstractContextManager[None] | None = None
        self._has_result = False

    def mark_thread(self) -> None:
        """Logs and spans of this thread, the controller's, belong to the round until another one is marked."""
        TURN.set(self._context[TURN])
        OPEN.set(self._context[OPEN])

    def invite(self, client: str) -> dict[str, str]:
        self.waiting.add(client)
        self._has_asked = True
        self.rnd.asked(client)
        return replace(self._invitation, client=client).to_fields()

    def begin_aggregation(self) -> None:
        self.end_aggregation()
        self._phase = self.rnd.phase("aggregate")
        self._context.run(self._phase.__enter__)

    def end_aggregation(self) -> None:
        if self._phase is not None:
            self._context.run(self._phase.__exit__, None, None, None)
            self._phase = None

    def result(self, state: State | None) -> None:
        if state is not None:
            self._has_result = True
            self.rnd.result(state)

    def take(self, client: str, result: Shareable, report: dict[str, Any], arrived_ns: int) -> None:
        """A client's answer, as the controller is about to get it."""
        self.waiting.discard(client)
        number = round_of(result)
        is_late = number is not None and number < self.number
        site = self._receive(client, report, arrived_ns)
        if is_late and number is not None:
            site.note(base_round=number - 1)
        failure = failure_of(result)
        if failure:
            site.note(status="failed", error=site.facts.get("error") or f"NVFlare return code {failure}")
            return
        weights = weights_in(result)
        if weights is None:
            return
        try:
            site.tell(**weights.metrics)
            site.update(weights.state, samples=weights.samples, delta=weights.is_delta)
        except UpdateMismatchError as error:  # what to make of it is the aggregator's business
            site.note(error=str(error))
        site.arrived_ns = arrived_ns

    def _receive(self, client: str, report: dict[str, Any] | None, arrived_ns: int | None) -> Site:
        site: Site = self._context.run(lambda: self.rnd.receive(client, report=report, arrived_ns=arrived_ns))
        return site

    def end(self, next_base: State | None = None, *, is_last: bool = False) -> None:
        """The round is over: whoever has not answered by now is late, and with the job's end given up."""
        for client in sorted(self.waiting):
            site = self._receive(client, None, None)
            site.arrived_ns = None
            if is_last:
                site.drop("the job ended before it answered")
            else:
                site.timeout("the next round began before it answered")
        if is_last and not self._has_asked:  # the job was given up: nobody ever came
            for client in self.rnd.never_came():
                self._receive(client, None, None).drop("it never fetched a task: its app has not started")
        self.end_aggregation()
        if not self._has_result:
            self.rnd.result(next_base)
        self._context.run(self._manager.__exit__, None, None, None)


class ServerWatch(Widget):  # type: ignore[misc]
    """Records a job's rounds from its server's events.

    Events come on the controller's thread and on those that serve clients. Nothing here raises.
    """

    def __init__(
        self, federation: str, run_dir: str, preset: str = "standard", overhead: float = 0.01,
        tasks: list[str] | None = None,
    ) -> None:  # fmt: skip
        super().__init__()
        self.federation = federation
        self.run_dir = run_dir
        self.preset = preset
        self.overhead = overhead
        self.tasks = tasks or [AppConstants.TASK_TRAIN]
        self._fed: Federation | None = None
        self._open: OpenRound | None = None
        self._arrived: dict[str, tuple[dict[str, Any], int]] = {}
        self._sites = RemoteSites()
        self._lock = threading.RLock()
        self._handlers: Mapping[str, Callable[[FLContext], None]] = {
            EventType.START_RUN: self._begin,
            AppEventType.ROUND_STARTED: self._round_started,
            EventType.AFTER_TASK_DATA_FILTER: self._task_goes_out,
            EventType.BEFORE_TASK_RESULT_FILTER: self._result_comes_in,
            EventType.BEFORE_PROCESS_SUBMISSION: self._result_is_processed,
            AppEventType.BEFORE_AGGREGATION: self._aggregation_begins,
            AppEventType.AFTER_AGGREGATION: self._aggregation_ends,
            AppEventType.BEFORE_SHAREABLE_TO_LEARNABLE: self._aggregation_begins,
            AppEventType.AFTER_SHAREABLE_TO_LEARNABLE: self._global_model_is_new,
            EventType.END_RUN: self._end,
        }

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        handler = self._handlers.get(event_type)
        if handler is not None:
            with self._lock:
                guarded(handler, fl_ctx)

    # The job ---------------------------------------------------------------------------------------

    def _begin(self, fl_ctx: FLContext) -> None:
        path = Path(self.run_dir)
        self._fed = federation(
            self.federation, dir=path.parent, run=path.name, preset=parse_preset(self.preset), overhead=self.overhead,
            config={"nvflare_job": fl_ctx.get_job_id()}, progress=False,
        )  # fmt: skip

    def _end(self, fl_ctx: FLContext) -> None:
        TURN.set((NULL_I32, NULL_I32, None))
        OPEN.set(None)
        if self._open is not None:
            self._open.end(is_last=True)
            self._open = None
        if self._fed is not None:
            self._fed.close()
            self._fed = None

    # Rounds ----------------------------------------------------------------------------------------

    def _round_started(self, fl_ctx: FLContext) -> None:
        number, base = fl_ctx.get_prop(AppConstants.CURRENT_ROUND), _global_model(fl_ctx)
        if number is not None and base is not None:  # else the first task tells
            self._open_round(int(number), base, fl_ctx).mark_thread()

    def _open_round(self, number: int, base: State | None, fl_ctx: FLContext) -> OpenRound:
        assert self._fed is not None
        if self._open is not None:
            self._open.end(base)
        self._open = OpenRound(self._fed, number, base, _known_clients(fl_ctx))
        return self._open

    def _aggregation_begins(self, fl_ctx: FLContext) -> None:
        if self._open is not None:
            self._open.begin_aggregation()

    def _aggregation_ends(self, fl_ctx: FLContext) -> None:
        if self._open is not None:
            self._open.end_aggregation()

    def _global_model_is_new(self, fl_ctx: FLContext) -> None:
        if self._open is not None:
            self._open.end_aggregation()
            self._open.result(_global_model(fl_ctx))

    # Clients ---------------------------------------------------------------------------------------

    def _task_goes_out(self, fl_ctx: FLContext) -> None:
        task, client = fl_ctx.get_prop(FLContextKey.TASK_DATA), peer_name(fl_ctx)
        if self._fed is None or not self._is_ours(fl_ctx) or not isinstance(task, Shareable) or client is None:
            return
        number = round_of(task)
        if number is not None and (self._open is None or self._open.number < number):
            weights = weights_in(task)
            self._open_round(number, weights.state if weights is not None else None, fl_ctx)
        if self._open is not None:
            acks = self._sites.acks(client)
            fields = self._open.invite(client) | ({ACKS: acks} if acks else {})
            task.set_header(HEADER, fields)  # the task is this client's own copy

    def _result_comes_in(self, fl_ctx: FLContext) -> None:
        result, client = fl_ctx.get_prop(FLContextKey.TASK_RESULT), peer_name(fl_ctx)
        if isinstance(result, Shareable) and client is not None:
            report = take_report(result, fl_ctx)
            self._sites.take(client, report)
            self._arrived[client] = report, time.monotonic_ns()

    def _result_is_processed(self, fl_ctx: FLContext) -> None:
        result, client = fl_ctx.get_prop(FLContextKey.TASK_RESULT), peer_name(fl_ctx)
        if self._open is None or not self._is_ours(fl_ctx) or not isinstance(result, Shareable) or client is None:
            return
        report, arrived_ns = self._arrived.pop(client, ({}, time.monotonic_ns()))
        self._open.take(client, result, report, arrived_ns)

    def _is_ours(self, fl_ctx: FLContext) -> bool:
        return fl_ctx.get_prop(FLContextKey.TASK_NAME) in self.tasks


def _known_clients(fl_ctx: FLContext) -> list[str]:
    """The clients that are part of the job, as its server knows them."""
    engine = fl_ctx.get_engine()
    found = engine.get_clients() if hasattr(engine, "get_clients") else None
    return [str(one.name) for one in found or ()]


def _global_model(fl_ctx: FLContext) -> State | None:
    """The weights of the global model that a controller keeps in its context."""
    model = fl_ctx.get_prop(AppConstants.GLOBAL_MODEL)
    weights = model.get(ModelLearnableKey.WEIGHTS) if isinstance(model, Mapping) else None
    return weights if isinstance(weights, Mapping) and weights else None
