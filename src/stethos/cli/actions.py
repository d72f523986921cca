"""Show what corrections did to a training, or in a dry run would have done, and why; take one back.

    stethos actions
    stethos actions -t fed-1 --json
    stethos actions --undo 3          the training heeds it before its next round

Actions come from `federation(correct=...)`, `lab.federate(correct=...)` and `observe_strategy(correct=...)`.
"""

from __future__ import annotations

import argparse
import sys

from stethos.cli.target import add_target, open_target
from stethos.cli.text import clean, cut
from stethos.errors import UsageError

_SQL = (
    "SELECT action, what, client, mode, state, kind, first, last, unit, times, reason, effect, evidence, norm_before, "
    "norm_after, federation, process, t_ns FROM actions ORDER BY t_ns, action"
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_target(parser)
    parser.add_argument("--undo", metavar="ID", type=int, help="take an action back")
    parser.add_argument("--json", action="store_true", help="print one object per line")


def run(arguments: argparse.Namespace) -> int:
    from stethos.cli.jsontext import print_json_rows

    with open_target(arguments) as one:
        found = one.rows(_SQL)
        rows = [dict(zip(found.columns, values, strict=True)) for values in found.values]
        if arguments.undo is not None:
            return _undo(one, rows, arguments.undo)
        if arguments.json:
            print_json_rows(rows)
            return 0
        if not rows:
            words = 'nothing was corrected; a training must ask for it: correct="on", or "dry-run"'
            sys.stdout.write(f"run {clean(one.name)}: {words}\n")
            return 0
        for row in rows:
            _show(row)
        return 0


def _undo(one: object, rows: list[dict[str, object]], number: int) -> int:
    from stethos.act.recording import request_undo
    from stethos.store.run import Run

    assert isinstance(one, Run)
    known = [row for row in rows if row["action"] == number]
    if not known:
        listed = ", ".join(str(row["action"]) for row in rows) or "none"
        raise UsageError(f"run {one.name} has no action {number}", hint=f"its actions: {listed}")
    row = known[-1]
    if row["state"] in ("undone", "refused"):
        raise UsageError(f"action {number} is {row['state']}", hint="there is nothing to take back")
    if not one.is_live:
        raise UsageError(
            f"run {one.name} has ended: its model cannot be changed any more",
            hint="`stethos prove` shows what the run would have been without the client",
        )
    request_undo(one.path, number)
    sys.stdout.write(f"action {number} ({row['what']}) will be taken back before the next round, and not begun again\n")
    return 0


def _show(row: dict[str, object]) -> None:
    who = f" {clean(str(row['client']))}" if row["client"] is not None else ""
    unit, first, last = row["unit"], row["first"], row["last"]
    when = f"{unit} {first}" if first == last else f"{unit}s {first} to {last}"
    head = f"{row['action']!s:>3}  {row['what']}{who}"
    sys.stdout.write(f"{head:32} {when:16} {row['state']}\n")
    sys.stdout.write(f"     why     {cut(clean(str(row['reason'])), 110)}\n")
    if row["effect"]:
        sys.stdout.write(f"     effect  {cut(clean(str(row['effect'])), 110)}\n")
