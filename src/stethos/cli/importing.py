"""Import TensorBoard event files and W&B offline runs.

    stethos import lightning_logs/          every directory with event files becomes a run
    stethos import wandb/                   every offline run in it

Their scalars, texts, small images and hyperparameters are read; neither package is needed, and nothing is sent.
Damaged parts are left out and counted. Runs that exist are kept.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import asdict
from pathlib import Path

from stethos.cli.screen.jsontext import print_json
from stethos.cli.screen.text import clean, count_text, plural_text
from stethos.cli.task.target import add_directory
from stethos.errors import UsageError
from stethos.record.place import check_name
from stethos.settings import default_runs_dir


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("path", metavar="PATH", type=Path, help="an event file, a .wandb file, or a directory of them")
    parser.add_argument("--name", metavar="NAME", help="name of the run, if only one is imported")
    add_directory(parser)
    parser.add_argument("--json", action="store_true", help="print what was imported as JSON")


def run(arguments: argparse.Namespace) -> int:
    from stethos.store.foreign.find import foreign_runs
    from stethos.store.foreign.run_writer import write_run
    from stethos.store.foreign.value import Damage

    if not arguments.path.exists():
        raise UsageError(f"nothing at {arguments.path}", hint="give an event file, a .wandb file or a directory")
    found = foreign_runs(arguments.path)
    if not found:
        raise UsageError(f"no event file and no offline run in {arguments.path}", hint="see `stethos import --help`")
    if arguments.name is not None and len(found) > 1:
        raise UsageError(f"{len(found)} runs in {arguments.path}", hint="leave --name out, or name one directory")
    base = arguments.dir or default_runs_dir()
    told, status = [], 0
    for one in found:
        name = check_name(arguments.name or one.name)
        path = (base / name).absolute()
        damage = Damage()
        written = None if path.exists() else write_run(path, one.directory, one.read(damage))
        if written is None:
            why = "kept: it exists" if path.exists() else f"nothing to import{f': {damage}' if str(damage) else ''}"
            told.append({"run": name, "imported": False, "reason": why, "damaged": asdict(damage)})
            status = status if path.exists() else 1
            line = f"{clean(name)}: {why}"
        else:
            told.append({**asdict(written), "imported": True, "damaged": asdict(damage)})
            line = (
                f"{clean(name)}: {plural_text(written.values, 'value')} of {plural_text(written.names, 'metric')}, "
                f"{count_text(written.media)} texts and images, {plural_text(written.settings, 'hyperparameter')}"
                f"{f'; left out: {damage}' if str(damage) else ''}"
            )
        if not arguments.json:
            sys.stdout.write(f"{line}\n")
    if arguments.json:
        print_json(told)
    return status
