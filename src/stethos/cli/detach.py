"""Stop observing a process and leave it as it was; what was recorded stays.

    stethos detach 4711

Torch gets its own functions back between two steps, and the agent ends.
"""

from __future__ import annotations

import argparse
import sys

from stethos.cli.screen.jsontext import print_json
from stethos.cli.screen.text import clean, count_text
from stethos.errors import LiveError, RunNotFoundError
from stethos.live.ask import ask
from stethos.live.registry import live_process
from stethos.record.place import start_ticks


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("pid", type=int, metavar="PID", help="the process")
    parser.add_argument("--json", action="store_true", help="print one object")


def run(arguments: argparse.Namespace) -> int:
    process = live_process(arguments.pid)
    if process is None:
        if start_ticks(arguments.pid) is None:
            raise RunNotFoundError(f"no process with pid {arguments.pid}", hint="list what is alive with `stethos ls`")
        raise LiveError(f"process {arguments.pid} is not observed", hint="`stethos ls` lists what is")
    reply = ask(process, "detach")
    if arguments.json:
        print_json({"pid": process.pid, "run": process.run, **reply})
        return 0
    kept = f"{count_text(reply['steps'])} steps are in {clean(str(process.run_dir))}"
    print(f"process {process.pid} is on its own again; {kept}")
    for text in reply["left"]:
        sys.stderr.write(f"stethos: {clean(text)}\n")
    return 0
