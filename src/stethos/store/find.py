"""From what a user types (a name, a directory, a pid, nothing) to a run directory."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from stethos.errors import RunNotFoundError
from stethos.record.place import PROCESS_FILE, ProcessPlace, RunPlace, is_at_work, read_json
from stethos.settings import default_runs_dir, registry_dir

_NEAR_NAMES = 3


def find_run(target: str | None = None, directory: Path | None = None) -> RunPlace:
    """The run a target means; without a target the newest live run, else the newest run.

    A target is a run's name under `directory` (default: the runs directory),
    the path of a run or of one of its processes, or a pid. A name wins over a
    path and a path over a pid. Live runs elsewhere are found through the
    per-user registry, unless `directory` says where to look.
    """
    runs_dir = directory or default_runs_dir()
    if target is None:
        return _newest(runs_dir, with_registry=directory is None)
    found = _at(runs_dir / target) or _at(Path(target))
    if found is None and target.isdigit():
        found = _with_pid(int(target), runs_dir)
    if found is None:
        raise _not_found(target, runs_dir)
    return found


def list_runs(runs_dir: Path) -> list[RunPlace]:
    """Every run in a directory, newest first."""
    try:
        entries = [entry for entry in os.scandir(runs_dir) if entry.is_dir() and not entry.name.startswith(".")]
    except OSError:
        return []
    places = [RunPlace(Path(entry.path)) for entry in entries]
    return _newest_first([place for place in places if place.exists()])


def is_live(run: RunPlace) -> bool:
    """Whether a launcher or an observed process of the run is alive on this machine."""
    return any(map(is_at_work, (*run.launchers(), *(process.facts() for process in run.processes()))))


def _newest_first(runs: list[RunPlace]) -> list[RunPlace]:
    def age(run: RunPlace) -> tuple[int, str]:
        return int(run.facts().get("started_ns") or 0), run.name

    return sorted(runs, key=age, reverse=True)


def _newest(runs_dir: Path, *, with_registry: bool) -> RunPlace:
    runs = list_runs(runs_dir)
    elsewhere: list[RunPlace] = []
    if with_registry:
        known = {run.path.resolve() for run in runs}
        elsewhere = [run for run in _registered_runs() if run.path.resolve() not in known]
    for run in _newest_first([*runs, *elsewhere]):
        if is_live(run):
            return run
    if not runs:
        raise RunNotFoundError(
            f"no runs in {runs_dir}", hint="record one with `stethos run train.py`, or name its directory with -t PATH"
        )
    return runs[0]


def _at(path: Path) -> RunPlace | None:
    """The run at a path, or the one that the process directory at the path belongs to."""
    for candidate in (path, path.parent):
        run = RunPlace(candidate)
        if run.exists() and (candidate == path or (path / PROCESS_FILE).is_file()):
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
        entries = sorted(entry.path for entry in os.scandir(registry_dir()) if entry.name.isdigit())
    except OSError:
        return
    for entry in entries:
        run = _registered(Path(entry))
        if run is not None and run.path not in seen:
            seen.add(run.path)
            yield run


def _registered(entry: Path) -> RunPlace | None:
    """The run a registry file points to, if the file is ours and still tells the truth."""
    try:
        if entry.stat().st_uid != os.getuid() or entry.parent.stat().st_uid != os.getuid():
            return None
        process = ProcessPlace(Path(entry.read_text(encoding="utf-8").strip()))
    except (OSError, ValueError):
        return None
    is_same = read_json(process.path / PROCESS_FILE).get("pid") == int(entry.name)
    run = RunPlace(process.path.parent)
    return run if is_same and run.exists() else None


def _not_found(target: str, runs_dir: Path) -> RunNotFoundError:
    import difflib

    names = [run.name for run in list_runs(runs_dir)]
    near = difflib.get_close_matches(target, names, n=_NEAR_NAMES, cutoff=0.5)
    what = f"no run with pid {target}" if target.isdigit() else f"no run {target!r} in {runs_dir}"
    if near:
        return RunNotFoundError(what, hint=f"did you mean {', '.join(near)}? `stethos ls` lists all runs")
    return RunNotFoundError(what, hint="list runs with `stethos ls`")
