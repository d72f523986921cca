"""Show where time, memory and bytes go.

    stethos profile
    stethos profile --by client       or layer, module, rank
    stethos profile -t fed-1 --json
    stethos profile --trace-steps 3 -t PID     torch's profiler for three steps of a live process
    stethos profile --from-trace FILE          the time of a GPU by class of kernel, and why it is idle

The first line is the verdict: what holds the training up, and how much shorter rounds or steps would be without it.
Where clients work side by side, a round's download, compute and upload are those of the typical client, and wait is
what the last one takes beyond that. What was not recorded is named, never shown as 0.
"""

from __future__ import annotations

import argparse

from stethos.cli.screen.jsontext import print_json
from stethos.cli.task.saved_trace import show_trace
from stethos.cli.task.target import add_target, open_target
from stethos.cli.task.trace_steps import add_trace_arguments, trace_steps

BY = ("client", "layer", "module", "rank")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_target(parser)
    parser.add_argument("--by", choices=BY, help="show a table with a line per client, layer, module or rank instead")
    parser.add_argument("--json", action="store_true", help="print one object")
    parser.add_argument("--sql", action="store_true", help="print the SQL behind it instead")
    add_trace_arguments(parser)


def run(arguments: argparse.Namespace) -> int:
    if arguments.trace_steps is not None:
        return trace_steps(arguments)
    if arguments.from_trace is not None:
        return show_trace(arguments)
    if arguments.sql:
        from stethos.cli.screen.federated import show_sql
        from stethos.cli.screen.profile_table import statements

        return show_sql(statements(arguments.by))
    with open_target(arguments) as one:
        if arguments.by is not None:
            from stethos.cli.screen.profile_table import show_by

            return show_by(one, arguments.by, as_json=arguments.json)
        from stethos.profile.report import profile_of

        found = profile_of(one)
    if arguments.json:
        print_json(found.as_dict())
        return 0
    from stethos.cli.screen.profile_screen import screen_lines
    from stethos.cli.screen.verdict import screen_width, show_lines

    target = str(one.path) if arguments.dir else arguments.target or one.name
    show_lines(list(screen_lines(found, target, screen_width())))
    return 0
