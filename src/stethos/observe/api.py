"""The public functions of the observing side: `watch`, `log` and `span`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from stethos.observe import boot
from stethos.observe.spans import Span
from stethos.record.place import check_name, readable_name
from stethos.record.provenance import commit_in_files
from stethos.settings import DEFAULT_OVERHEAD, Preset, Settings, default_runs_dir, from_environment, parse_preset

if TYPE_CHECKING:
    import torch

    from stethos.store.run import Run


class Watch:
    """What `watch` returns: closing it stops the recording and undoes every change made to torch."""

    def __init__(self, recording: boot.Recording, *, owns_recording: bool) -> None:
        self._recording = recording
        self._owns_recording = owns_recording

    @property
    def path(self) -> Path | None:
        """The run's directory."""
        return self._recording.session.settings.run_dir

    def run(self) -> Run:
        """The run as seen by readers; it may be queried while it grows."""
        from stethos.store.run import open_run

        assert self.path is not None
        return open_run(self.path)

    def close(self) -> None:
        if self._owns_recording:
            boot.end()

    def __enter__(self) -> Watch:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


def watch(
    model: torch.nn.Module | None = None,
    *,
    name: str | None = None,
    dir: str | Path | None = None,
    preset: Preset = "standard",
    overhead: float | None = None,
    config: Mapping[str, Any] | None = None,
) -> Watch:
    """Record this process's training from here on; return a handle that undoes everything.

    Under `stethos run` the process joins that run and the other arguments but
    `model` and `config` are ignored. `model` gives layers their names from the
    start; without it they are found at the first step. Never raises for a
    directory that cannot be written: it says so on stderr and the training goes on.
    """
    recording = boot.current()
    owns = recording is None
    if recording is None:
        settings = from_environment()
        if settings.run_dir is None:
            settings = replace(_new_run(name, dir, parse_preset(preset), overhead), strict=settings.strict)
        recording = boot.begin(settings)
        recording.session.git_commit = commit_in_files(Path.cwd())
    session = recording.session
    if config:
        session.config.update(config)
        session.note_facts({"config": dict(session.config)})
    if model is not None and recording.torch_watch is not None:
        session.guard.run("names", recording.torch_watch.names.know, model)
    session.guard.run("open", session.open)
    return Watch(recording, owns_recording=owns)


def _new_run(name: str | None, directory: str | Path | None, preset: Preset, overhead: float | None) -> Settings:
    base = Path(directory) if directory is not None else default_runs_dir()
    return Settings(
        run_dir=(base / check_name(name or readable_name())).absolute(),
        preset=preset,
        overhead=DEFAULT_OVERHEAD[preset] if overhead is None else overhead,
    )


def log(step: int | None = None, **values: float) -> None:
    """Record numbers by name, with this thread's step, round and client; without a recording, do nothing."""
    session = boot.current_session()
    if session is not None:
        for name, value in values.items():
            session.guard.run("metrics", session.put_metric, name, value, step)


def span(name: str, /, **fields: Any) -> Span:
    """Time a piece of work, as a context manager or a decorator; without a recording, only run it."""
    return Span(boot.current_session, name, fields)
