"""Save a live training: weights, optimizer state and step, in one safetensors file.

    stethos checkpoint rescue.safetensors

It is written at the next step, before the optimizer acts, under a temporary name first, so the file is
complete or does not exist. Nothing in it is pickled; `stethos inspect` shows what it holds.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from stethos.cli.screen.jsontext import print_json
from stethos.cli.screen.text import bytes_text, clean, count_text
from stethos.cli.task.target import add_live_target, live_target
from stethos.live.ask import ask

_PATIENCE_S = 600.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", type=Path, metavar="FILE", help="where to save")
    add_live_target(parser)
    parser.add_argument("--force", action="store_true", help="overwrite the file if it exists")
    parser.add_argument("--json", action="store_true", help="print one object")


def run(arguments: argparse.Namespace) -> int:
    process = live_target(arguments).one()
    path = arguments.file.absolute()
    reply = ask(process, "checkpoint", timeout_s=_PATIENCE_S, path=str(path), force=arguments.force)
    if arguments.json:
        print_json({"pid": process.pid, "rank": process.rank, **reply})
    else:
        print(
            f"saved {clean(str(arguments.file))}: step {count_text(reply['step'])}, {clean(reply['model'] or 'model')} "
            f"and optimizer, {count_text(reply['tensors'])} tensors, {bytes_text(reply['bytes'])}"
        )
    return 0
