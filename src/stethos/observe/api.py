"""The public functions of the observing side: `watch`, `log` and `span`."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any, Literal

from stethos.errors import RecordingError, UsageError
from stethos.guard import attempt
from stethos.observe import boot
from stethos.observe.ending import record_failure
from stethos.observe.loggers import note_arguments_in_sight
from stethos.observe.session import Session
from stethos.observe.spans import Span
from stethos.record.place import check_name, readable_name
from stethos.record.provenance import commit_in_files
from stethos.settings import (
    DEFAULT_OVERHEAD,
    Preset,
    Settings,
    default_runs_dir,
    explains_nan,
    from_environment,
    hang_after_s,
    parse_preset,
    rank_and_world,
    sdc_share,
    site_dir,
)

if TYPE_CHECKING:
    import torch

    from stethos.store.run import Run


class Watch:
    """What `watch` returns: closing it stops the recording and undoes every change made to torch.

    `recording` is None if it could not be begun.
    """

    def __init__(
        self, recording: boot.Recording | None, *, owns_recording: bool, stop: Callable[[], None] | None = None
    ) -> None:
        self._recording = recording
        self._stop = stop
        self._owns_recording = owns_recording

    @property
    def path(self) -> Path | None:
        """The run's directory; None if nothing is recorded."""
        return self._recording.session.settings.run_dir if self._recording is not None else None

    def __repr__(self) -> str:
        if self._recording is None:
            return "<stethos: not recording>"
        return f"<stethos: {'recording' if self._recording is boot.current() else 'recorded'} to {self.path}>"

    def run(self) -> Run:
        """The run as seen by readers; it may be queried while it grows."""
        from stethos.store.run import open_run

        if self.path is None:
            raise RecordingError("nothing was recorded", hint="see what was said on stderr when the watch began")
        return open_run(self.path)

    def close(self) -> None:
        if self._stop is not None:
            self._stop()
            self._stop = None
        if self._owns_recording and self._recording is not None:
            self._recording.session.guard.run("close", boot.end)

    def __enter__(self) -> Watch:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.note_error(error)
        self.close()

    def note_error(self, error: BaseException | None) -> None:
        """The block that was watched is left by an exception: a recording that ends with it has failed."""
        if error is None or isinstance(error, SystemExit | GeneratorExit) or not self._owns_recording:
            return
        if self._recording is not None:
            session = self._recording.session
            session.guard.run("traceback", record_failure, session, error, error.__traceback__)


def watch(
    model: torch.nn.Module | None = None,
    *,
    name: str | None = None,
    dir: str | Path | None = None,
    preset: Preset = "standard",
    overhead: float | None = None,
    config: Mapping[str, Any] | None = None,
    correct: Literal["off", "dry-run", "on"] = "off",
    sdc: float | None = None,
) -> Watch:
    """Record this process's training from here on; return a handle that undoes everything.

    Under `stethos run` the process joins that run and the other arguments but
    `model` and `config` are ignored. `model` gives layers their names from the
    start; without it they are found at the first step. Raises only for
    arguments that make no sense; if the directory cannot be written, or
    anything else fails, it says so on stderr and the training goes on.
    `correct` is "off", "dry-run" or "on": what is done about steps whose gradients
    are not finite or far too large; see `docs/correcting.md`. `sdc` is the share of
    steps whose forward and backward pass is repeated and compared; see `docs/gpu.md`.
    """
    if sdc is not None and not 0 <= sdc <= 1:
        raise UsageError(f"sdc={sdc!r}", hint="a share of the steps from 0 to 1, such as 0.01")
    if correct not in ("off", "dry-run", "on"):
        raise UsageError(f"correct={correct!r}", hint="one of 'off', 'dry-run', 'on'")
    recording = boot.current()
    owns = recording is None
    is_new = False  # a run that this call begins, and not one that the process belongs to already
    if recording is None:
        settings = from_environment()
        is_new = settings.run_dir is None
        if is_new:
            chosen = _new_run(name, dir, parse_preset(preset), overhead, sdc_share() if sdc is None else sdc)
            settings = replace(chosen, strict=settings.strict, agent=settings.agent, evaluation=settings.evaluation)
        recording = attempt(boot.begin, settings)
        if recording is None:
            sys.stderr.write("stethos: not recording: the observer could not be started\n")
            return Watch(None, owns_recording=False)
        recording.session.git_commit = recording.session.guard.run("git", lambda: commit_in_files(Path.cwd()))
    guard = recording.session.guard
    if config:
        guard.run("config", recording.session.note_config, "user", config)
    guard.run("config", _note_arguments, recording.session)
    if model is not None and recording.torch_hooks is not None:
        guard.run("names", recording.torch_hooks.names.know, model)
    guard.run("open", recording.session.open)
    if is_new and recording.session.ring is not None:
        guard.run("words", _tell_where, recording.session.settings.run_dir)
    stop = guard.run("actions", _correct_steps, correct, recording.session) if correct != "off" else None
    return Watch(recording, owns_recording=owns, stop=stop)


def _tell_where(run: Path | None) -> None:
    """On a terminal the run's name and where to look, once for all ranks."""
    if run is None or sys.stderr is None or not sys.stderr.isatty() or rank_and_world()[0] not in (None, 0):
        return
    shown = os.path.relpath(run)
    target = run.name if run.parent == default_runs_dir().absolute() else shown
    sys.stderr.write(f"stethos: recording to {shown}; look: stethos diagnose -t {shlex.quote(target)}\n")
    sys.stderr.flush()


def _note_arguments(session: Session) -> None:
    note_arguments_in_sight(session, _caller())


def _caller() -> FrameType:
    """Where the program calls us."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith("stethos."):
        frame = frame.f_back
    return frame


def _correct_steps(mode: str, session: Session) -> Callable[[], None]:
    from stethos.act.action import parse_mode
    from stethos.act.recording import teller
    from stethos.act.step import StepCorrector

    corrector = StepCorrector(parse_mode(mode), tell=teller(None))
    return corrector.install(lambda function: session.guard.wrap("actions", function))


def _new_run(
    name: str | None, directory: str | Path | None, preset: Preset, overhead: float | None, sdc: float
) -> Settings:
    base = Path(directory) if directory is not None else default_runs_dir()
    return Settings(
        run_dir=(base / check_name(name or readable_name())).absolute(),
        preset=preset,
        overhead=DEFAULT_OVERHEAD[preset] if overhead is None else overhead,
        hang_after_s=hang_after_s(),
        site=site_dir(),
        explain_nan=explains_nan(),
        sdc=sdc,
    )


def log(values: Mapping[str, Any] | int | None = None, /, *, step: int | None = None, **named: Any) -> None:
    """Record numbers by name, with this thread's step, round and client; without a recording, do nothing.

    `log(loss=0.3)`, or `log({"eval/loss": 0.3})` for names that are not identifiers. A number in the first place is the
    step. Texts, images (of PIL or matplotlib, or an array with 1, 3 or 4 channels), tables (a DataFrame or a list of
    mappings) and other arrays, as histograms, are recorded too: at most 2,000 of a process, and small.
    """
    session = boot.current_session()
    if session is None:
        return
    if isinstance(values, int):
        values, step = None, values if step is None else step
    for name, value in (*(attempt(_pairs_of, values) or ()), *named.items()):
        session.guard.run("metrics", session.put_metric, name, value, step)


def _pairs_of(values: Any) -> list[tuple[str, Any]]:
    return [(str(name), value) for name, value in values.items()] if isinstance(values, Mapping) else []


def span(name: str, /, **fields: Any) -> Span:
    """Time a piece of work, as a context manager or a decorator; without a recording, only run it."""
    return Span(boot.current_session, name, fields)
