"""Run programs that others have published, unchanged, bare and under `stethos run`; count those that are accused.

python -m benchmarks.strangers [--only WORD ...] [--keep FILE] [--place DIRECTORY] [--write docs/benchmarks]

Their source archives are fetched from the package registry into DIRECTORY, with what they need beside them. Programs
of public repositories are run where DIRECTORY has a clone of them, as `owner+name`.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tarfile
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.child import ROOT, environment
from benchmarks.report import Grid, machine, say, section_text, write_section
from benchmarks.strangers.table import STRANGERS, Stranger
from stethos.diagnose.api import diagnose
from stethos.store.run import open_run

BESIDE = Path(sys.executable).parent
_TIMEOUT_S = 300
_TARGET = 0.02
_HEADINGS = ["package", "programs", "steps", "accused", "same output", "another", "differs by itself"]


@dataclass(frozen=True, slots=True)
class Outcome:
    """One program: its exit status, its recorded steps, and what was said of it: `detector:kind` with the title."""

    name: str
    status: int
    steps: int
    is_accused: bool
    said: list[str]
    took_s: float
    output: str  # same, different, unsteady (it differs between bare runs, too), or unread


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.strangers", description=__doc__.partition("\n")[0])
    parser.add_argument("--only", nargs="+", help="programs whose name holds one of these words")
    parser.add_argument(
        "--keep", type=Path, metavar="FILE", help="each outcome as a line of JSON; those in it are kept"
    )
    parser.add_argument("--unpaired", action="store_true", help="no bare runs: the output is not compared")
    parser.add_argument("--place", type=Path, metavar="DIRECTORY", help="where archives and runs go, and stay")
    parser.add_argument("--write", type=Path, metavar="PLACE", help="put the table onto this page, or a page of these")
    arguments = parser.parse_args()
    chosen = [one for one in STRANGERS if not arguments.only or any(word in one.name for word in arguments.only)]
    print(machine(), flush=True)
    outcomes = _kept(arguments.keep)
    with tempfile.TemporaryDirectory(prefix="stethos-strangers-", ignore_cleanup_errors=True) as scratch:
        place = arguments.place or Path(scratch)
        for stranger in chosen:
            if stranger.is_clone and not _source(stranger, place).exists():
                say(f"{stranger.name}: left out, as {place} has no clone of {stranger.archive}")
            elif stranger.name not in {one.name for one in outcomes}:
                outcomes.append(play(stranger, place, arguments.unpaired))
                one = outcomes[-1]
                say(f"{one.name}: status {one.status}, {one.steps} steps, {'; '.join(one.said) or 'nothing'}")
                if arguments.keep:
                    arguments.keep.write_text("".join(json.dumps(asdict(each)) + "\n" for each in outcomes))
    grid = grid_of(outcomes)
    print("", grid, sep="\n", flush=True)
    if arguments.write:
        write_section(arguments.write, "strangers", section_text([grid], "python -m benchmarks.strangers"))


def play(stranger: Stranger, place: Path, is_unpaired: bool = False) -> Outcome:
    """Run a program where its archive was unpacked, with what it needs and nothing of ours in its path.

    A run that is in the directory already is only read.
    """
    source, library = _fetched(stranger, place)
    if stranger.is_clone:
        source = (source / stranger.script).parent
    name = "-".join(re.findall(r"\w+", stranger.name))
    program = [sys.executable, *stranger.arguments]
    directory = place / "runs"
    is_kept = (directory / name).exists()
    bare = None if is_unpaired or is_kept else _run(program, source, library)
    began = time.monotonic()
    output = "unread"
    observed = [BESIDE / "stethos", "run", "--quiet", "--dir", directory, "--name", name, *program]
    watched = None if is_kept else _run(observed, source, library)
    took_s = time.monotonic() - began
    if bare is not None:
        output = "same" if watched == bare else "different" if _run(program, source, library) == bare else "unsteady"
    with open_run(directory / name) as run:
        steps = int(run.rows("SELECT count(*) FROM steps").values[0][0])
        status = watched[0] if watched is not None else int(run.summary()["exit_code"])
        found = diagnose(run)
    said = [f"{one.name}:{one.kind} ({one.title})" for one in found.findings if one.is_problem]
    return Outcome(stranger.name, status, steps, bool(found.exit_code), said, took_s, output)


def _run(command: list[Any], source: Path, library: Path) -> tuple[int, str]:
    """Its status, and what it printed but for seconds."""
    paths = [str(library), str(source), *filter(None, [os.environ.get("PYTHONPATH")])]
    seen = {**environment(), "PYTHONPATH": os.pathsep.join(paths), "MPLBACKEND": "Agg", "PYTHONHASHSEED": "0"}
    try:
        done = subprocess.run(command, capture_output=True, timeout=_TIMEOUT_S, check=False, cwd=source, env=seen)
    except subprocess.TimeoutExpired:
        return 124, ""
    return done.returncode, re.sub(r"\d+\.\d+\s?s\b( \(\d:\d\d:\d\d\))?", "", done.stdout.decode(errors="replace"))


def _fetched(stranger: Stranger, place: Path) -> tuple[Path, Path]:
    """The unpacked archive and the directory of what it needs; fetched once."""
    source = _source(stranger, place)
    library = source.with_name(f"{source.name}-library")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "-q"]
    common = ["--no-deps", "--constraint", ROOT / "constraints.txt"]
    if not source.exists():
        fetch = [*pip, "download", *common, "--no-binary", ":all:", "-d", place, stranger.archive]
        if subprocess.run([*fetch, "--no-build-isolation"], check=False).returncode:
            subprocess.run(fetch, check=True)
        with tarfile.open(next(place.glob(f"{source.name}*.tar.gz"))) as archive:
            archive.extractall(place, filter="data")
    library.mkdir(exist_ok=True)
    if stranger.needs and not any(library.iterdir()):
        subprocess.run([*pip, "install", *common, "--target", library, *stranger.needs], check=True)
    return source, library


def _source(stranger: Stranger, place: Path) -> Path:
    return place / stranger.archive.replace("==", "-").replace("/", "+")


def grid_of(outcomes: list[Outcome]) -> Grid:
    ran = [one for one in outcomes if one.status == 0 and one.steps]
    accused = [one for one in ran if one.is_accused]
    packages = sorted({one.name.partition(" ")[0] for one in ran})
    rows = [
        [
            package,
            str(len(mine)),
            f"{sum(one.steps for one in mine):,}",
            str(sum(one.is_accused for one in mine)),
            *(str(sum(one.output == word for one in mine)) for word in ("same", "different", "unsteady")),
        ]
        for package in packages
        for mine in [[one for one in ran if one.name.startswith(package)]]
    ]
    share = len(accused) / max(len(ran), 1)
    notes = [f"{len(accused)} of {len(ran)} accused: {share:.1%} (target at most {_TARGET:.0%})."]
    notes += [f"Accused: {one.name}: {'; '.join(one.said)}." for one in accused]
    left = [one.name for one in outcomes if one not in ran]
    if left:
        notes.append(f"Not counted, as they fail by themselves here or make no step: {', '.join(left)}.")
    return Grid("Healthy programs by strangers", _HEADINGS, rows, notes)


def _kept(path: Path | None) -> list[Outcome]:
    if path is None or not path.exists():
        return []
    return [Outcome(**json.loads(line)) for line in path.read_text(encoding="utf-8").splitlines()]


if __name__ == "__main__":
    main()
