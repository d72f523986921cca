"""Check a recording: what is recorded, what is not and why, at what cost, and whether rows were lost.

`--verify` compares every checksum. The exit status is 1 if rows were lost or something is broken.
"""

from __future__ import annotations

import argparse

from stethos.cli.screen.grid import Heading, show_grid
from stethos.cli.screen.jsontext import print_json
from stethos.cli.screen.text import clean, count_text
from stethos.cli.task.target import add_target, open_target


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_target(parser)
    parser.add_argument("--json", action="store_true", help="print one object")
    parser.add_argument("--verify", action="store_true", help="compare every checksum; reads all files")


def run(arguments: argparse.Namespace) -> int:
    from stethos.store.health import examine

    with open_target(arguments) as one:
        health = examine(one, verify=arguments.verify)
    if arguments.json:
        print_json(health.as_dict())
        return int(health.has_problem)
    print(f"run {clean(health.run)} ({health.state}) at {clean(health.path)}\n")
    tables = [[one.table, count_text(one.rows) if one.rows else "-", one.why_empty] for one in health.tables]
    show_grid([Heading("table"), Heading("rows", True), Heading("why nothing")], tables)
    if health.gaps:
        print("\nknown to be missing")
        show_grid(
            [Heading("what"), Heading("times", True), Heading("reason")],
            [[gap.what, count_text(gap.count), gap.reason] for gap in health.gaps],
        )
    print()
    checks = [[check.what, check.grade.value, check.found] for check in health.checks]
    show_grid([Heading("check"), Heading("", False), Heading("found")], checks)
    for check in health.checks:
        if check.hint:
            print(f"hint: {check.what}: {clean(check.hint)}")
    return int(health.has_problem)
