"""Check a recording: what is recorded, what is not and why, at what cost, and whether rows were lost.

`--verify` compares every checksum. Of a run that was recorded at a site (`stethos enroll`) it also says what has left,
and why rows wait. The exit status is 1 if rows were lost or something is broken.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from stethos.cli.screen.grid import Heading, show_grid
from stethos.cli.screen.jsontext import print_json
from stethos.cli.screen.text import clean, count_text
from stethos.cli.task.target import add_target, open_target
from stethos.errors import UsageError

if TYPE_CHECKING:
    from stethos.store.health import Check
    from stethos.store.run import Run


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_target(parser)
    parser.add_argument("--json", action="store_true", help="print one object")
    parser.add_argument("--verify", action="store_true", help="compare every checksum; reads all files")


def run(arguments: argparse.Namespace) -> int:
    from stethos.store.health import examine

    with open_target(arguments) as one:
        health = examine(one, verify=arguments.verify)
        health = replace(health, checks=(*health.checks, *_site_checks(one)))
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


def _site_checks(run: Run) -> list[Check]:
    """At a site: how much of this run has left, and why the rest has not."""
    from stethos.collect.left import left_by_run
    from stethos.collect.ride import own_policy
    from stethos.collect.site import open_site
    from stethos.store.health import Check, Grade

    directory = run.place.facts().get("site")
    if not isinstance(directory, str) or not run.place.is_ours():
        return []
    try:
        site = open_site(Path(directory))
    except UsageError as error:
        return [Check("site", Grade.PROBLEM, f"{error.message}: nothing leaves", error.hint or "")]
    sums = left_by_run(site.path, site.spool).get(run.name, {})
    left, stay, waiting = (sums.get(name, 0) for name in ("left", "withheld", "waiting"))
    said = f"{site.name}, level {own_policy(site).level}: {left:,} rows left, {stay:,} stay"
    if not waiting:
        return [Check("site", Grade.OK, f"{said}; none wait")]
    way = f"to {site.address}" if site.address else "in the federation's own messages"
    said = f"{said}; {waiting:,} wait to leave {way}"
    failure = site.last_failure() if site.address else ""
    if run.is_live or not failure:
        return [Check("site", Grade.INFO, said)]
    hint = f"the last time: {failure}; when that is mended: stethos collect --send {site.path}"
    return [Check("site", Grade.PROBLEM, said, hint)]
