"""Show where a run's time, memory and bytes go, and what would make it faster.

    stethos profile
    stethos profile --by client       or layer, module, rank
    stethos profile -t fed-1 --json
    stethos profile --capture 3 -t PID     torch's profiler for three steps of a live process

The first line is the verdict: what holds the training up, and how much shorter rounds or steps would be without it.
Where clients work side by side, a round's download, compute and upload are those of the typical client, and wait is
what the last one takes beyond that. What was not recorded is said, never shown as 0.
"""

from __future__ import annotations

import argparse

from stethos.cli.capture import add_capture_arguments, capture
from stethos.cli.target import add_target, open_target

BY = ("client", "layer", "module", "rank")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_target(parser)
    parser.add_argument("--by", choices=BY, help="a table with a line per client, layer, module or rank instead")
    parser.add_argument("--json", action="store_true", help="print one object")
    parser.add_argument("--sql", action="store_true", help="print the SQL behind it instead")
    add_capture_arguments(parser)


def run(arguments: argparse.Namespace) -> int:
    if arguments.capture is not None:
        return capture(arguments)
    if arguments.sql:
        from stethos.cli.federated import show_sql
        from stethos.cli.profile_table import statements

        return show_sql(statements(arguments.by))
    with open_target(arguments) as one:
        if arguments.by is not None:
            from stethos.cli.profile_table import show_by

            return show_by(one, arguments.by, as_json=arguments.json)
        from stethos.profile.report import profile_of

        found = profile_of(one)
    if arguments.json:
        from stethos.cli.jsontext import print_json

        print_json(found.as_dict())
        return 0
    from stethos.cli.profile_screen import screen_lines
    from stethos.cli.verdict import screen_width, show_lines

    target = str(one.path) if arguments.dir else arguments.target or one.name
    show_lines(list(screen_lines(found, target, screen_width())))
    return 0
