"""From what a user types (a name, a directory, a pid, nothing) to a run directory."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from stethos.errors import RunNotFoundError
from stethos.nearest import did_you_mean
from stethos.record.border import directories_in, version_of
from stethos.record.place import PROCESS_FILE, RunPlace, is_at_work, registered_place
from stethos.settings import default_runs_dir, registry_dir

ARCHIVED_MARK = "_state"  # a directory that an archived run has
ARCHIVE_SOURCE = "archive.json"  # a file of its copy on this machine: where it comes from


def find_run(target: str | None = None, directory: Path | None = None, *, anywhere: bool = False) -> RunPlace:
    """The run a target means; without a target the newest live run of `directory`, else the newest there.

    A target is a run's name under `directory` (default: `./runs`), the path of a run or of one of its processes, the
    address of an archived run, or a pid. A name wins over a path and a path over a pid. A run elsewhere is taken
    without a target only if `anywhere` is set and it is live.
    """
    runs_dir = directory or default_runs_dir()
    if target is None:
        return _newest(runs_dir, anywhere=anywhere)
    if "://" in target or (Path(target) / ARCHIVED_MARK).is_dir():
        from stethos.archive.address import parse_address
        from stethos.archive.cache import open_archived

        return open_archived(parse_address(target))
    found = _at(runs_dir / target) or _at(Path(target))
    if found is None and target.isdecimal() and len(target) < 20:
        found = _with_pid(int(target), runs_dir)
    if found is None:
        raise _not_found(target, runs_dir)
    return found


def list_runs(runs_dir: Path) -> list[RunPlace]:
    """Every run in a directory, newest first."""
    places = [RunPlace(path) for path in directories_in(runs_dir, with_links=True) if not path.name.startswith(".")]
    return _newest_first([place for place in places if place.exists()])


def is_live(run: RunPlace) -> bool:
    """Whether a launcher or an observed process of the run is alive on this machine."""
    return any(map(is_at_work, (*run.launchers(), *(process.facts() for process in run.processes()))))


def _newest_first(runs: list[RunPlace]) -> list[RunPlace]:
    def age(run: RunPlace) -> tuple[int, str]:
        return int(run.facts().get("started_ns") or 0), run.name

    return sorted(runs, key=age, reverse=True)


def live_elsewhere(runs_dir: Path) -> list[RunPlace]:
    """This user's live runs in other directories, newest first."""
    here = runs_dir.resolve()
    return _newest_first([run for run in _registered_runs() if run.path.resolve().parent != here and is_live(run)])


def elsewhere_hint(runs_dir: Path) -> str:
    """How to name what is live in another directory; empty if nothing is."""
    runs = live_elsewhere(runs_dir)
    more = f" (and {len(runs) - 1} more: `stethos ls`)" if len(runs) > 1 else ""
    return f"live in another directory: -t {runs[0].path}{more}" if runs else ""


def _newest(runs_dir: Path, *, anywhere: bool) -> RunPlace:
    runs = list_runs(runs_dir)
    live = next(filter(is_live, runs), None) or next(iter(live_elsewhere(runs_dir) if anywhere else ()), None)
    if live is None and not runs:
        hint = elsewhere_hint(runs_dir) or "record one with `stethos run train.py`, or name its directory with -t PATH"
        raise RunNotFoundError(f"no runs in {runs_dir}", hint=hint)
    return live or runs[0]


def _at(path: Path) -> RunPlace | None:
    """The run at a path, or the one that the process directory at the path belongs to."""
    for candidate in (path, path.parent):
        run = RunPlace(candidate)
        if run.exists() and (candidate == path or version_of(path / PROCESS_FILE)):
            return RunPlace(candidate.resolve()) if candidate.name in ("", "..") else run
    return None


def _with_pid(pid: int, runs_dir: Path) -> RunPlace | None:
    registered = _registered(registry_dir() / str(pid))
    if registered is not None:
        return registered
    for run in list_runs(runs_dir):
        if any(process.facts().get("pid") == pid for process in run.processes()):
            return run
    return None


def _registered_runs() -> Iterator[RunPlace]:
    """The runs of all registered processes; each run once."""
    seen: set[Path] = set()
    try:
        entries = sorted(entry.path for entry in os.scandir(registry_dir()) if entry.name.isdecimal())
    except OSError:
        return
    for entry in entries:
        run = _registered(Path(entry))
        if run is not None and run.path not in seen:
            seen.add(run.path)
            yield run


def _registered(entry: Path) -> RunPlace | None:
    """The run a registry file points to, if the file is ours and still tells the truth."""
    process = registered_place(entry)
    if process is None:
        return None
    is_same = process.facts().get("pid") == int(entry.name)
    run = RunPlace(process.path.parent)
    return run if is_same and run.exists() else None


def _not_found(target: str, runs_dir: Path) -> RunNotFoundError:
    names = [run.name for run in list_runs(runs_dir)]
    what = f"no run with pid {target}" if target.isdecimal() else f"no run {target!r} in {runs_dir}"
    hint = did_you_mean(target, names, otherwise="list runs with `stethos ls`", also="`stethos ls` lists all runs")
    return RunNotFoundError(what, hint=hint)
