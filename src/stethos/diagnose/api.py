"""`stethos.diagnose`: what is wrong with a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stethos.diagnose.configuration import find_configuration, merged
from stethos.diagnose.detector import Detector
from stethos.diagnose.detectors import choose_detectors
from stethos.diagnose.diagnosis import Diagnosis
from stethos.diagnose.engine import examine, needs_of
from stethos.diagnose.version import usual_version, version_with
from stethos.diagnose.window import RunWindow

if TYPE_CHECKING:
    from stethos.store.run import Run


def diagnose(
    run: Run | str | Path | None = None,
    *,
    thresholds: Mapping[str, Mapping[str, Any]] | None = None,
    silence: Sequence[str] = (),
    keep: bool = False,
) -> Diagnosis:
    """Look for everything that can be wrong with a run, live or finished; it is not changed by that unless `keep`.

    `run` is an opened run, or a name, directory or pid as for `open_run`.
    `thresholds` are those of detectors by code or name, `silence` the detectors to
    leave out; both add to what the nearest `stethos.toml` says. `keep` writes the
    findings into the run's table `findings`, and closes those that are over. Findings come with their proofs and
    with what corrections did about them.
    """
    from stethos.store.run import Run, open_run

    detectors = configured_detectors(thresholds, silence)
    if isinstance(run, Run):
        return _diagnosed(run, detectors, keep=keep)
    with open_run(run) as opened:
        return _diagnosed(opened, detectors, keep=keep)


def configured_detectors(
    thresholds: Mapping[str, Mapping[str, Any]] | None = None, silence: Sequence[str] = ()
) -> list[Detector]:
    """Detectors as `stethos.toml` and the caller want them."""
    configuration = find_configuration()
    return choose_detectors(merged(configuration.thresholds, thresholds or {}), (*configuration.silence, *silence))


def look(run: Run, detectors: Sequence[Detector]) -> Diagnosis:
    """Examine a run as it is now."""
    version = version_of(run, detectors)
    return replace(examine(RunWindow(run, needs_of(detectors), is_live=run.is_live), detectors), version=version)


def version_of(run: Run, detectors: Sequence[Detector]) -> str:
    """A text that differs whenever a diagnosis of a run that is over, by these detectors, could."""
    if detectors == choose_detectors() and (usual := usual_version(run, is_set=False)) is not None:
        return usual
    return version_with(run, repr(detectors), tuple(dict.fromkeys(type(one).__module__ for one in detectors)))


def _diagnosed(run: Run, detectors: Sequence[Detector], *, keep: bool) -> Diagnosis:
    from stethos.diagnose.followup import completed
    from stethos.diagnose.life import keep as write

    diagnosis = look(run, detectors)
    if keep:
        write(diagnosis, run.path)
    return completed(diagnosis, run)
