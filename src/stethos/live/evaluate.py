"""Running somebody's code in the live process: at the next step boundary, or at once in a thread of our own."""

from __future__ import annotations

import ast
import itertools
import linecache
import sys
import textwrap
import threading
import time
import traceback
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

from stethos.errors import LiveError, UsageError
from stethos.guard import outcome_of, text_of
from stethos.live.boundary import StepTask
from stethos.live.interrupt import FILE as INTERRUPT_FILE
from stethos.live.interrupt import Interruptible, TimeLimitError
from stethos.live.namespace import Namespace, frames_from, parsed
from stethos.live.output import CATCHER, CaughtOutput
from stethos.live.request import Request
from stethos.live.sync import collectives_in

WAIT_S = 5.0
LIMIT_S = 10.0
_GRACE_S = 2.0
_AGAIN_S = 0.2
_PURSUE_S = 0.02
_LONGEST_VALUE = 100_000
_COUNT = itertools.count(1)
_OWN_FILES = (__file__, outcome_of.__code__.co_filename)


@dataclass(eq=False)
class Evaluation:
    """One piece of code, and what became of it once `is_over`."""

    code: str
    made: dict[str, Any]
    known: dict[str, Any]
    filename: str = field(default_factory=lambda: f"<eval {next(_COUNT)}>")
    caught: CaughtOutput = field(default_factory=CaughtOutput)
    value: str | None = None
    error: dict[str, str] | None = None
    notes: list[str] = field(default_factory=list)
    duration_ms: float | None = None
    step: int | None = None
    thread: int = 0
    is_over: threading.Event = field(default_factory=threading.Event)
    task: StepTask | None = None
    stopper: Interruptible = field(default_factory=lambda: Interruptible(*_OWN_FILES))

    def run(self, frames: list[FrameType], *, is_still: bool) -> None:
        """Run the code on this thread; never raises, but for Ctrl-C."""
        self.thread = threading.get_ident()
        began = time.monotonic()
        lines = self.code.splitlines(keepends=True)
        linecache.cache[self.filename] = (len(self.code), None, lines, self.filename)
        CATCHER.begin(self.caught)
        try:
            self.stopper.enter()
            try:
                outcome = outcome_of(self._execute, frames, is_still)
            finally:
                self.stopper.leave()
            if isinstance(outcome, BaseException):
                self.error = self._described(outcome)
            else:
                self.value = outcome
        finally:
            CATCHER.end()
            linecache.cache.pop(self.filename, None)
            self.duration_ms = (time.monotonic() - began) * 1e3
            self.is_over.set()

    def _execute(self, frames: list[FrameType], is_still: bool) -> str | None:
        module = parsed(self.code, self.filename)
        last = module.body.pop() if module.body and isinstance(module.body[-1], ast.Expr) else None
        whole = ast.Module([*module.body, *([last] if last is not None else [])], [])
        names = Namespace(whole, frames, self.made, self.known, is_still=is_still)
        del frames
        try:
            exec(compile(module, self.filename, "exec"), names, names)
            if not isinstance(last, ast.Expr):
                return None
            value = eval(compile(ast.Expression(last.value), self.filename, "eval"), names, names)
            return None if value is None else _cut(text_of(value, repr))
        finally:
            self.notes = names.notes
            names.finish()

    def _described(self, error: BaseException) -> dict[str, str]:
        if isinstance(error, TimeLimitError):
            kind, message = "TimeLimit", "it ran longer than allowed and was interrupted"
        elif isinstance(error, SystemExit):
            kind, message = (
                "SystemExit",
                f"it called exit({error.code!r}), which has no effect here: the training continues",
            )
        else:
            kind, message = type(error).__name__, text_of(error)
        trace = error.__traceback__
        while trace is not None and trace.tb_frame.f_code.co_filename != self.filename:
            trace = trace.tb_next
        text = "".join(outcome_text(error, trace))
        return {"type": kind, "message": _cut(message), "traceback": _cut(text)}

    def refuse(self, error: LiveError) -> None:
        """It is over before it began."""
        self.error = {"type": "Refused", "message": str(error), "traceback": f"{error}\n"}
        self.is_over.set()

    def reply(self) -> dict[str, Any]:
        return {
            "value": self.value,
            "output": self.caught.text(),
            "dropped_chars": self.caught.dropped,
            "error": self.error,
            "notes": self.notes,
            "duration_ms": self.duration_ms,
        }


def outcome_text(error: BaseException, trace: Any) -> list[str]:
    """A traceback that begins in the code and does not end in ours; of an error whose own words fail, its type."""
    lines = outcome_of(_formatted, error, trace)
    return lines if isinstance(lines, list) else [type(error).__name__]


def _formatted(error: BaseException, trace: Any) -> list[str]:
    if isinstance(error, TimeLimitError):
        frames = [one for one in traceback.extract_tb(trace, limit=-50) if one.filename != INTERRUPT_FILE]
        return ["Traceback (most recent call last):\n", *traceback.format_list(frames)]
    return traceback.format_exception(type(error), error, trace, limit=-50)


def evaluate_code(request: Request) -> dict[str, Any]:
    """`eval`: `code`, `now` (do not wait for a step), `wait_s` for one, `limit_s` for the code itself.

    With `at_step` it runs at that step or not at all; `together` says that all ranks do so.
    """
    check_allowed(request)
    code = textwrap.dedent(request.text("code")).strip("\n")
    check_alone(request, code)
    if not code.strip():
        raise UsageError("no code to evaluate", hint='stethos eval "print(model)"')
    limit_s = request.seconds("limit_s", LIMIT_S)
    evaluation = Evaluation(code, request.kept.setdefault("names", {}), known_names(request))
    wrong = outcome_of(compile, code, evaluation.filename, "exec", dont_inherit=True)  # makes no tree, see `parsed`
    if isinstance(wrong, BaseException):
        evaluation.error = {
            "type": type(wrong).__name__, "message": text_of(wrong), "traceback": "".join(outcome_text(wrong, None)),
        }  # fmt: skip
        return {**evaluation.reply(), "where": "nowhere", "waited_ms": 0.0, "step": request.session.steps}
    began = time.monotonic()
    where, why = _begin(request, evaluation)
    waited_ms = (time.monotonic() - began) * 1e3
    _see_to_its_end(evaluation, limit_s)
    step = request.session.steps if evaluation.step is None else evaluation.step
    return {**evaluation.reply(), "where": where, "why": why, "waited_ms": waited_ms, "step": step}


def check_allowed(request: Request) -> None:
    """LiveError where code from outside may not run."""
    session = request.session
    if session.settings.evaluation is False:
        raise LiveError(
            "code from outside is not allowed in this process",
            hint="it was started with STETHOS_EVAL=0 or PYTHON_DISABLE_REMOTE_DEBUG; reading works",
        )
    if session.is_federated_client and session.settings.evaluation is not True:
        raise LiveError(
            "this process is a federated client: code from outside runs only if its owner allows it",
            hint="start the client with STETHOS_EVAL=1",
        )


def check_alone(request: Request, code: str) -> None:
    """LiveError where one rank of many would begin a collective alone: all others would never come to it."""
    if request.content.get("together"):
        return
    world = world_size_of(request)
    called = collectives_in(code) if world > 1 else []
    if called:
        raise LiveError(
            f"{called[0]} on one rank of {world} would wait for the others forever",
            hint="run it on all ranks at the same step: `stethos all eval ...`; `stethos sync` compares the ranks",
        )


def world_size_of(request: Request) -> int:
    """How many ranks take part in this process's job."""
    distributed = getattr(sys.modules.get("torch"), "distributed", None)
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return 1
    return int(distributed.get_world_size())


def known_names(request: Request) -> dict[str, Any]:
    """Names of last resort: the optimizer and the model that we have seen, where the program calls them otherwise."""
    names: dict[str, Any] = {"torch": sys.modules["torch"]} if "torch" in sys.modules else {}
    for watched in reversed(request.watched()):
        names["optimizer"] = watched.optimizer()
        root = watched.named.root() if watched.named.root is not None else None
        if root is not None:
            names["model"] = root
    return names


def _begin(request: Request, evaluation: Evaluation) -> tuple[str, str]:
    """Have the code begun; where, and why there."""
    watch = request.recording.torch_hooks
    wait_s = request.seconds("wait_s", WAIT_S)
    if request.content.get("now"):
        why = "asked to run at once"
    elif watch is None or not watch.steps.is_active:
        why = "no optimizer step can be seen in this process"
    else:
        at_step = request.at_step

        def act(optimizer: Any) -> None:
            evaluation.step = request.session.steps
            if 0 < at_step < evaluation.step:
                evaluation.refuse(request.too_late())
            else:
                evaluation.run(frames_from(sys._getframe(1)), is_still=True)

        task = StepTask(act, at_step=at_step, steps=lambda: request.session.steps)
        if request.boundary.leave(watch.steps, task, wait_s, request.has_hung_up):
            evaluation.task = task
            return "step", ""
        if request.has_hung_up():
            raise LiveError("given up before a step came")
        why = f"no optimizer step came within {wait_s:g} s"
        if request.content.get("together"):
            raise LiveError(f"not run: step {at_step} did not come within {wait_s:g} s", hint="`stethos all backtrace`")
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    runner = threading.Thread(
        target=evaluation.run, args=(frames_from(frame),), kwargs={"is_still": False}, name="stethos-eval", daemon=True
    )
    del frame
    runner.start()
    return "thread", why


def _see_to_its_end(evaluation: Evaluation, limit_s: float) -> None:
    """Wait for the code; after `limit_s` interrupt it, and if it does not even listen say where it is."""
    if evaluation.is_over.wait(limit_s):
        return
    if evaluation.task is not None and evaluation.task.done.is_set():
        evaluation.error = {"type": "Interrupted", "message": "the training was interrupted before it", "traceback": ""}
        return
    deadline = time.monotonic() + _GRACE_S
    while time.monotonic() < deadline:
        evaluation.stopper.interrupt()
        if evaluation.is_over.wait(_AGAIN_S):
            return
    threading.Thread(target=_pursue, args=(evaluation,), name="stethos-eval", daemon=True).start()
    frame = sys._current_frames().get(evaluation.thread)
    place = "".join(traceback.format_stack(frame, limit=1)).strip() if frame is not None else "unknown"
    evaluation.error = {
        "type": "Blocked",
        "message": f"it ran longer than {limit_s:g} s and cannot be interrupted: it waits in C, or catches everything",
        "traceback": f"it is here, and will be interrupted when it comes back to Python:\n  {place}\n",
    }


def _pursue(evaluation: Evaluation) -> None:
    """Interrupt code that catches everything until it ends, so that the training can go on."""
    while not evaluation.is_over.wait(_PURSUE_S):
        evaluation.stopper.interrupt()


def _cut(text: str) -> str:
    if len(text) <= _LONGEST_VALUE:
        return text
    return f"{text[:_LONGEST_VALUE]} ... ({len(text) - _LONGEST_VALUE:,} more characters)"
