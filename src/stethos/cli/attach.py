"""Start observing a Python process that is already running.

    stethos attach 4711
    stethos detach 4711

From then on its steps are recorded into a run, and every live command works on it. Python 3.14 and newer allow this
directly; for older versions install the injector: pip install "stethos[attach]". It waits until the main thread sleeps
or blocks; at any other moment the process might crash. If it is not allowed, the message says which permission is
missing and how to grant it.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from stethos.cli.screen.jsontext import print_json
from stethos.cli.screen.text import clean
from stethos.record.place import check_name, readable_name
from stethos.settings import DEFAULT_OVERHEAD, default_runs_dir, parse_preset


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("pid", type=int, metavar="PID", help="the process")
    parser.add_argument("--dir", type=Path, help="directory for runs (default: ./runs)")
    parser.add_argument("--name", help="name of the run (default: a readable unique one)")
    parser.add_argument("--preset", default="standard", help="light, standard or deep (default: standard)")
    parser.add_argument("--unsafe", action="store_true", help="attach even if the process never pauses (may crash it)")
    parser.add_argument("--force", action="store_true", dest="unsafe", help=argparse.SUPPRESS)  # its old name
    parser.add_argument("--json", action="store_true", help="print one object")


def run(arguments: argparse.Namespace) -> int:
    from stethos.live.attach import attach

    preset = parse_preset(arguments.preset)
    base = arguments.dir if arguments.dir is not None else default_runs_dir()
    run_dir = (base / check_name(arguments.name or readable_name())).absolute()
    overhead = DEFAULT_OVERHEAD[preset]
    process, rung = attach(arguments.pid, run_dir, preset, overhead, is_forced=arguments.unsafe)
    if arguments.json:
        print_json({"pid": process.pid, "run": process.run, "path": str(process.run_dir), "by": rung})
    elif rung == "agent":
        print(f"process {process.pid} is observed already, in {clean(str(process.run_dir))}")
    else:
        print(f"recording process {process.pid} to {clean(str(process.run_dir))} (by {rung})")
    return 0
