"""Run a program and observe its training, without changing it.

Everything after the program's name belongs to the program:

    stethos run train.py --epochs 3
    stethos run -m package.train --epochs 3
    stethos run torchrun --nproc-per-node 2 train.py

The program's output, exit status and signals are its own; what Stethos says goes to stderr.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from stethos.cli.task.launch import Launch, say
from stethos.errors import CommandNotFoundError, RecordingError, RunNotFoundError, UsageError
from stethos.record.place import RunPlace, check_name, readable_name
from stethos.record.provenance import commit_by_git, run_facts
from stethos.settings import (
    DEFAULT_OVERHEAD,
    Settings,
    default_runs_dir,
    parse_bytes,
    parse_capture,
    parse_preset,
    parse_share,
    shared_run_name,
    site_dir,
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.usage = "stethos run [OPTIONS] (SCRIPT.py | -m MODULE | COMMAND) [ARGS ...]"
    parser.add_argument("--dir", type=Path, help="directory for runs (default: ./runs)")
    parser.add_argument("--name", help="name of the run (default: a readable unique one)")
    parser.add_argument("--resume", metavar="NAME", help="add to an existing run")
    parser.add_argument("--preset", default="standard", help="light, standard or deep (default: standard)")
    parser.add_argument("--overhead", help="share of the training time for samples (default: 1%%, deep 5%%)")
    parser.add_argument("--max-size", default="4GB", help="size limit of the run; oldest bulk rows go first")
    parser.add_argument("--scratch", type=Path, help="local directory for rings when runs are on a network disk")
    parser.add_argument(
        "--hang-after",
        metavar="S",
        type=float,
        help="seconds without any progress after which a training counts as hung; 0: never "
        "(default: 30, or `at_least_s` of `hang` in stethos.toml)",
    )
    parser.add_argument(
        "--trace-slow",
        type=float,
        metavar="TIMES",
        help="profile three steps once they take TIMES as long as usual",
    )
    parser.add_argument("--alerts", type=Path, metavar="FILE", help="send alerts about findings, as this file says")
    parser.add_argument("--archive", metavar="ADDRESS", help="copy the run to an archive while it runs")
    parser.add_argument("--capture", metavar="WHAT", help="keep a federation's models: rounds, suspects or all")
    parser.add_argument("--capture-bytes", default="1GB", metavar="SIZE", help="size limit of captures (default: 1GB)")
    parser.add_argument(
        "--site", type=Path, metavar="DIR", help="send rows on, as this site's policy says: see `stethos enroll`"
    )
    parser.add_argument(
        "--explain-nan",
        action="store_true",
        help="on a GPU, wait for every loss, so that a NaN is traced to the input, layer or loss that made it",
    )
    parser.add_argument(
        "--sdc",
        metavar="SHARE",
        help="repeat forward and backward of this share of steps, such as 1%%, and compare every bit: finds silent "
        "data corruption",
    )
    parser.add_argument("--quiet", action="store_true", help="say nothing on stderr")
    parser.add_argument("-m", dest="module", nargs=argparse.REMAINDER, help="run a module, as python -m does")
    parser.add_argument("command", nargs=argparse.REMAINDER, help="script or command with its arguments")


def run(arguments: argparse.Namespace) -> int:
    command, is_python = _command_of(arguments)
    preset = parse_preset(arguments.preset)
    shared = shared_run_name()
    base = arguments.dir if arguments.dir is not None else default_runs_dir()
    place = RunPlace((base / check_name(arguments.resume or arguments.name or shared or readable_name())).absolute())
    settings = Settings(
        run_dir=place.path,
        preset=preset,
        overhead=parse_share(arguments.overhead) if arguments.overhead else DEFAULT_OVERHEAD[preset],
        limit_bytes=parse_bytes(arguments.max_size),
        scratch=arguments.scratch.absolute() if arguments.scratch else None,
        capture=parse_capture(arguments.capture),
        capture_bytes=parse_bytes(arguments.capture_bytes),
        site=arguments.site.absolute() if arguments.site else site_dir(),
        explain_nan=arguments.explain_nan,
        sdc=parse_share(arguments.sdc) if arguments.sdc else 0.0,
    )
    if settings.site is not None:
        _say_what_leaves(settings.site, quiet=arguments.quiet)  # a mistake is better known now
    settings = _with_hang_limits(settings, arguments.hang_after)
    if arguments.resume and not place.exists():
        raise RunNotFoundError(f"no run to resume at {place.path}", hint="list runs with `stethos ls`")
    if arguments.name and place.exists() and shared is None:
        raise UsageError(f"run {place.name} exists", hint=f"add to it with --resume {place.name}, or choose a new name")
    if arguments.alerts is not None:
        from stethos.act.alert_rule import read_alerts

        read_alerts(arguments.alerts)  # a mistake in it is better known now
    if arguments.archive is not None:
        from stethos.archive.address import parse_address
        from stethos.archive.committer import check_apart
        from stethos.archive.delta import need_deltalake

        need_deltalake()
        archive = parse_address(arguments.archive)
        check_apart(place, archive)
        arguments.archive = str(archive)
    _say_if_a_command(place.name)
    new_paths = [path for path in (place.path, place.path.parent) if not path.exists()]
    is_recording = _prepare(place, command, settings)
    try:
        launch = Launch(place if is_recording else None, settings, quiet=arguments.quiet)
        launch.companions += _companions(arguments, place)
        launch.archive = arguments.archive
        return launch.execute(command, is_python)
    except CommandNotFoundError:
        _remove(new_paths)
        raise


def _say_what_leaves(directory: Path, *, quiet: bool) -> None:
    from stethos.collect.ride import own_policy
    from stethos.collect.site import open_site

    site = open_site(directory)
    way = f"to {site.address}" if site.address else "in the federation's own messages"
    if not quiet:
        say(f"site {site.name}: what its policy ({own_policy(site).level}) lets through leaves {way}")


def _say_if_a_command(name: str) -> None:
    from stethos.cli.main import COMMANDS, GROUPS

    if name == "all":
        raise UsageError("a run cannot be called 'all'", hint="`stethos all COMMAND` means every rank of a run")
    if name in COMMANDS or name in GROUPS:
        say(f"{name!r} is also a command: reach this run with `stethos -t {name} COMMAND`")


def _companions(arguments: argparse.Namespace, place: RunPlace) -> list[list[str]]:
    """Commands that look at the run while it goes on, in processes of their own."""
    found = []
    if arguments.alerts is not None:
        found.append(["alert", "watch", str(arguments.alerts.absolute()), "--target", str(place.path)])
    if arguments.archive is not None:
        found.append(["archive", "--to", arguments.archive, "--follow", "--target", str(place.path)])
    if arguments.trace_slow is not None:
        trace = ["--trace", str(place.path / "slow-steps.json.gz"), "--force", "--await"]
        slow = ["--when-slow", str(arguments.trace_slow)]
        found.append(["profile", "--trace-steps", "3", *slow, *trace, "--target", str(place.path)])
    return found


def _with_hang_limits(settings: Settings, after_s: float | None) -> Settings:
    """When a training counts as hung: by the command line, else by `stethos.toml`."""
    from stethos.diagnose.configuration import FILE, find_configuration

    if after_s is not None and not 0 <= after_s < 1e9:
        raise UsageError(f"--hang-after {after_s:g}", hint="a number of seconds; 0 switches the watchdog off")
    found: dict[str, Any] = {}
    if any((place / FILE).is_file() for place in (Path.cwd(), *Path.cwd().parents)):
        thresholds = find_configuration().thresholds
        found = {**thresholds.get("SYS016", {}), **thresholds.get("hang", {})}
    return replace(
        settings,
        hang_after_s=float(found.get("at_least_s", settings.hang_after_s) if after_s is None else after_s),
        hang_times=float(found.get("times", settings.hang_times)),
    )


def _prepare(place: RunPlace, command: list[str], settings: Settings) -> bool:
    """Make the run directory; if that fails, say so and let the program run unobserved."""
    try:
        place.create(run_facts(place.name, command, settings, commit_by_git(Path.cwd())))
    except RecordingError as error:
        say(f"not recording: {error.message}")
        return False
    return True


def _remove(paths: list[Path]) -> None:
    """Take back a run that did not come about, and the directory of runs if it was made for it.

    It is moved aside first: a drainer that was started for it finds nothing to put a file into.
    """
    if paths:
        doomed = paths[0].with_name(f".{paths[0].name}.deleted-{os.getpid()}")
        with contextlib.suppress(OSError):
            paths[0].rename(doomed)
        shutil.rmtree(doomed, ignore_errors=True)
    for path in paths[1:]:
        with contextlib.suppress(OSError):
            path.rmdir()


def _command_of(arguments: argparse.Namespace) -> tuple[list[str], bool]:
    """The command to execute, and whether it is a Python program, whose end counts also before its first step."""
    if arguments.module is not None:
        if not arguments.module:
            raise UsageError("-m needs a module", hint="stethos run -m package.train")
        return [sys.executable, "-m", *arguments.module, *arguments.command], True
    words = arguments.command[1:] if arguments.command[:1] == ["--"] else arguments.command
    if not words:
        raise UsageError("nothing to run", hint="stethos run train.py")
    if words[0].endswith(".py"):
        if not Path(words[0]).is_file():
            raise UsageError(f"no script at {words[0]}", hint="check the path; our own options go before the script")
        return [sys.executable, *words], True
    if shutil.which(words[0]) is None:
        beside = shutil.which(words[0], path=str(Path(sys.executable).parent))  # as `torchrun` of this environment
        if beside is None:
            raise CommandNotFoundError(
                f"no command {words[0]!r}", hint="give a script ending in .py, -m MODULE, or a command on the PATH"
            )
        words = [beside, *words[1:]]
    is_python = re.fullmatch(r"python[0-9.]*", Path(words[0]).name) is not None
    return words, is_python and not any("torch.distributed" in word for word in words)
