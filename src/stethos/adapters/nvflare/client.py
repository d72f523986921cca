"""A client's side of an NVFlare job: its events become its turns, with their times, failures and traffic."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from typing import Any

from nvflare.apis.event_type import EventType
from nvflare.apis.executor import Executor
from nvflare.apis.fl_constant import FilterKey, FLContextKey
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable
from nvflare.apis.utils.task_utils import get_filters
from nvflare.app_common.app_constant import AppConstants
from nvflare.private.privacy_manager import Scope
from nvflare.widgets.widget import Widget

from stethos.adapters.nvflare.exchange import HEADER, REPORT, bytes_in, failure_of, guarded, weights_in
from stethos.adapters.nvflare.script import SCRIPTS, ScriptTurn
from stethos.collect.ride import ACKS, reply_of, take_acks
from stethos.federate.invitation import Invitation, current_invitation
from stethos.federate.site import Site, timed
from stethos.federate.thread_patch import THREAD_PATCH
from stethos.observe import boot
from stethos.observe.context import TURN
from stethos.observe.spans import Span
from stethos.settings import ChildEnvironment

_IN_PROCESS = "in_process"


class ClientTurn:
    """A client's work on one task, from its arrival to the result's departure; all on the runner's thread."""

    def __init__(self, invitation: Invitation, task: Shareable, pulled_ns: tuple[int, int]) -> None:
        self._began_ns = pulled_ns[0] or time.monotonic_ns()
        self._invitation = invitation
        self._execution = ExitStack()
        self._upload = ExitStack()
        self._is_working = True
        self._is_over = self._is_elsewhere = False
        self._times: dict[str, float] = {}
        self.site = Site(invitation, side="client", on_end=lambda _: None)
        download_ms = (pulled_ns[1] - pulled_ns[0]) * 1e-6 if all(pulled_ns) else None
        self.site.note(download_ms=download_ms, received_bytes=bytes_in(task))
        weights = weights_in(task)
        if weights is not None:
            guarded(self.site.received, weights.state)
        self.site.__enter__()
        inner = current_invitation() or invitation  # spans of the training script belong to the turn's
        SCRIPTS.turns[invitation.client] = ScriptTurn(inner, TURN.get()[2], self.site)
        task.set_header(HEADER, inner.to_fields())

    def begin_execution(self, *, is_elsewhere: bool) -> None:
        self._is_elsewhere = is_elsewhere
        self._execution.enter_context(timed(self._times, "execution_ms"))

    def end_execution(self, result: Any) -> None:
        self._execution.close()
        if isinstance(result, Shareable):
            failure = failure_of(result)
            if failure:
                self._note_failure(failure)
            else:
                self.site.note(sent_bytes=bytes_in(result))

    def _note_failure(self, code: str) -> None:
        """The task failed; how, its training script may have told, now or in an earlier round."""
        facts, earlier = self.site.facts, SCRIPTS.failure_of(self._invitation.client)
        facts["status"] = "failed"
        if not facts.get("error"):
            told = f"the training script had ended before: {earlier[0]}" if earlier else f"NVFlare return code {code}"
            facts["error"] = told
            facts["traceback"] = earlier[1] if earlier else None

    def begin_upload(self) -> dict[str, float | str]:
        """The work is done; return what is to be told to the server."""
        self._end_site()
        self.site.note(duration_ms=self._so_far_ms())
        self._upload.enter_context(self._invitation.marked())
        self._upload.enter_context(Span(boot.current_session, "upload", {}))
        self._upload.enter_context(timed(self.site.facts, "upload_ms"))
        report = self.site.report()
        if boot.current_session() is not None:
            report.pop("duration_ms", None)  # the row of this process will tell, with the upload
        trace = self.site.facts.get("traceback")
        return {**report, "traceback": trace} if isinstance(trace, str) else report

    def end(self) -> None:
        """The turn is over, one way or the other; write its row."""
        if self._is_over:
            return
        self._is_over = True
        self._end_site()
        self._upload.close()
        self.site.note(duration_ms=self._so_far_ms())
        session = boot.current_session()
        if session is not None:
            self.site.write(session)

    def _so_far_ms(self) -> float:
        return (time.monotonic_ns() - self._began_ns) * 1e-6

    def _end_site(self) -> None:
        if self._is_working:
            self._is_working = False
            SCRIPTS.turns.pop(self._invitation.client, None)
            self._execution.close()
            is_told_elsewhere = self._is_elsewhere and boot.current_session() is not None
            if not is_told_elsewhere:
                self.site.facts.setdefault("compute_ms", self._times.get("execution_ms"))
            self.site.__exit__(None, None, None)
            if is_told_elsewhere:
                self.site.note(peak_bytes=None)


class ClientWatch(Widget):  # type: ignore[misc]
    """Records a client's turns from its events, all of which come on the runner's thread. Nothing here raises."""

    def __init__(
        self, run_dir: str = "", preset: str = "standard", overhead: float = 0.01, tasks: list[str] | None = None
    ) -> None:
        super().__init__()
        self.run_dir = run_dir
        self.preset = preset
        self.overhead = overhead
        self.tasks = tasks or [AppConstants.TASK_TRAIN]
        self._turn: ClientTurn | None = None
        self._pull_ns = (0, 0)
        self._owns_recording = False
        self._undo = ExitStack()
        self._handlers: Mapping[str, Callable[[FLContext], None]] = {
            EventType.ABOUT_TO_START_RUN: self._begin,
            EventType.BEFORE_PULL_TASK: self._pull_begins,
            EventType.AFTER_PULL_TASK: self._pull_ends,
            EventType.BEFORE_TASK_DATA_FILTER: self._task_came,
            EventType.BEFORE_TASK_EXECUTION: self._execution_begins,
            EventType.AFTER_TASK_EXECUTION: self._execution_ends,
            EventType.BEFORE_SEND_TASK_RESULT: self._upload_begins,
            EventType.AFTER_SEND_TASK_RESULT: self._upload_ends,
            EventType.SWAP_OUT: self._end,  # the simulator is about to kill the process, for another client to run
            EventType.END_RUN: self._end,
        }

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        handler = self._handlers.get(event_type)
        if handler is not None:
            guarded(handler, fl_ctx)

    # The job ---------------------------------------------------------------------------------------

    def _begin(self, fl_ctx: FLContext) -> None:
        """Before the training script or its process is started."""
        is_first = boot.current() is None
        Invitation("", "", 0, run_dir=self.run_dir, preset=self.preset, overhead=self.overhead).record()
        recording = boot.current()
        if recording is not None and is_first:
            self._owns_recording = True
            environment = ChildEnvironment(recording.session.settings)
            environment.install()
            self._undo.callback(environment.remove)
        SCRIPTS.install()
        self._undo.callback(SCRIPTS.remove)
        THREAD_PATCH.install()
        self._undo.callback(THREAD_PATCH.remove)

    def _end(self, fl_ctx: FLContext) -> None:
        if self._turn is not None:
            self._turn.end()
            self._turn = None
        self._undo.close()
        if self._owns_recording:
            self._owns_recording = False
            boot.end()

    # Turns -----------------------------------------------------------------------------------------

    def _pull_begins(self, fl_ctx: FLContext) -> None:
        self._pull_ns = (time.monotonic_ns(), 0)

    def _pull_ends(self, fl_ctx: FLContext) -> None:
        self._pull_ns = (self._pull_ns[0], time.monotonic_ns())

    def _task_came(self, fl_ctx: FLContext) -> None:
        task = fl_ctx.get_prop(FLContextKey.TASK_DATA)
        if self._turn is not None:  # no word of its end came
            self._turn.end()
            self._turn = None
        fields = task.get_header(HEADER) if isinstance(task, Shareable) else None
        if fields:
            take_acks(fields.get(ACKS))
        if fields and fl_ctx.get_prop(FLContextKey.TASK_NAME) in self.tasks:
            self._turn = ClientTurn(Invitation.from_fields(fields), task, self._pull_ns)

    def _execution_begins(self, fl_ctx: FLContext) -> None:
        if self._turn is not None:
            runner, task_name = fl_ctx.get_prop(FLContextKey.RUNNER), fl_ctx.get_prop(FLContextKey.TASK_NAME)
            executor = runner.find_executor(task_name) if runner is not None else None
            mode = getattr(executor, "execution_mode", _IN_PROCESS)
            self._turn.begin_execution(is_elsewhere=mode != _IN_PROCESS)
            self._watch_executor(executor)

    def _watch_executor(self, executor: Any) -> None:
        """NVFlare logs what an executor raises, and answers with a return code: listen in, once per executor."""
        if not isinstance(executor, Executor) or "execute" in vars(executor):
            return
        execute = executor.execute

        def watched_execute(*args: Any, **kwargs: Any) -> Any:
            try:
                return execute(*args, **kwargs)
            except BaseException as error:
                if self._turn is not None:
                    guarded(self._turn.site.failed, error)
                raise

        executor.execute = watched_execute
        self._undo.callback(vars(executor).pop, "execute", None)

    def _execution_ends(self, fl_ctx: FLContext) -> None:
        if self._turn is not None:
            self._turn.end_execution(fl_ctx.get_prop(FLContextKey.TASK_RESULT))
            self._turn.site.note(filters=", ".join(_filters_of(fl_ctx)) or None)

    def _upload_begins(self, fl_ctx: FLContext) -> None:
        if self._turn is not None:
            fl_ctx.set_prop(REPORT, reply_of(self._turn.begin_upload()), private=False, sticky=False)

    def _upload_ends(self, fl_ctx: FLContext) -> None:
        fl_ctx.remove_prop(REPORT)
        if self._turn is not None:
            self._turn.end()
            self._turn = None


def _filters_of(fl_ctx: FLContext) -> list[str]:
    """The filters that this site and the job put between a result and its way to the server."""
    runner, task = fl_ctx.get_prop(FLContextKey.RUNNER), fl_ctx.get_prop(FLContextKey.TASK_NAME)
    given = getattr(runner, "task_result_filters", None) or {}
    found = get_filters(Scope.TASK_RESULT_FILTERS_NAME, fl_ctx, given, task, FilterKey.OUT)
    return [type(one).__name__ for one in found or ()]
