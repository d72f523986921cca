"""`stethos.diagnose`: what is wrong with a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stethos.diagnose.detectors import choose_detectors
from stethos.diagnose.engine import Diagnosis, examine, needs_of
from stethos.diagnose.window import RunWindow

if TYPE_CHECKING:
    from stethos.store.run import Run


def diagnose(
    run: Run | str | Path | None = None,
    *,
    thresholds: Mapping[str, Mapping[str, Any]] | None = None,
    silence: Sequence[str] = (),
) -> Diagnosis:
    """Look for everything that can be wrong with a run, live or finished; it is not changed by that.

    `run` is an opened run, or a name, directory or pid as for `open_run`.
    `thresholds` are those of detectors by code or name, `silence` the detectors to leave out.
    """
    from stethos.store.run import Run, open_run

    detectors = choose_detectors(thresholds, silence)
    if isinstance(run, Run):
        return examine(RunWindow(run, needs_of(detectors), is_live=run.is_live), detectors)
    with open_run(run) as opened:
        return examine(RunWindow(opened, needs_of(detectors), is_live=opened.is_live), detectors)
