"""Show what leaves a site, and what has left.

    stethos policy --site SITE                    what the site's policy.toml lets through, what has left, what waits
    stethos policy --level L2                     what a level means
    stethos policy --site SITE --grant-hours 8    everything (L4) for some hours, while somebody helps you
    stethos policy --site SITE --grant-hours 0    end that now; the rest of policy.toml holds again

Only the site can change its policy: edit SITE/policy.toml. L0 sends nothing, L1 (the default) how long things took and
how they ended, L2 also losses and gradient norms, rounded, L3 what L1 sends and some numbers with noise, L4 everything.
L1 and L2 give no formal guarantee of privacy; L3 does, for the numbers with noise. See docs/privacy.md for the whole
table.
"""

from __future__ import annotations

import argparse
import re
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stethos.cli.screen.jsontext import print_json
from stethos.cli.screen.text import clean
from stethos.errors import UsageError

if TYPE_CHECKING:
    from stethos.collect.policy import Policy
    from stethos.collect.site import SiteHome

_MOST_RUNS_SHOWN = 20
_BECAME = {"withheld": "stay", "waiting": "wait", "dropped": "dropped", "lost": "lost"}
_GRANT = re.compile(r"^grant_until[ \t]*=.*\n?", re.MULTILINE)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--site", type=Path, metavar="DIR", help="the site's directory (default: STETHOS_SITE)")
    parser.add_argument("--level", metavar="LEVEL", help="L0, L1, L2, L3 or L4: what it lets through")
    parser.add_argument(
        "--grant-hours",
        type=float,
        metavar="H",
        help="let everything (L4) through for this many hours, at most 24; 0 ends it",
    )
    parser.add_argument("--json", action="store_true", help="print one object")


def run(arguments: argparse.Namespace) -> int:
    from stethos.collect.left import left_by_run
    from stethos.collect.policy import LONGEST_GRANT_S, parse_policy
    from stethos.collect.site import open_site
    from stethos.settings import site_dir

    if arguments.level is not None:
        until = f"until = {_stamp(time.time() + 3600)}\n" if arguments.level == "L4" else ""
        _show(parse_policy(f"level = {arguments.level!r}\n{until}"), {}, is_json=arguments.json)
        return 0
    directory = arguments.site or site_dir()
    if directory is None:
        raise UsageError("which site?", hint="say --site DIR, or --level L1 for what a level means")
    site = open_site(directory)
    if arguments.grant_hours is not None:
        _grant(site, arguments.grant_hours)
    text = _text_of(site)
    policy, later = parse_policy(text), parse_policy(text, time.time() + LONGEST_GRANT_S)
    after = later.level if later.level != policy.level else ""
    books = _books(site.spool)
    _show(
        policy, books, is_json=arguments.json, name=site.name, spent=_spent(site.path, policy), after=after,
        failure=site.last_failure() if books else "", left=left_by_run(site.path, site.spool),
    )  # fmt: skip
    return 0


def _grant(site: SiteHome, hours: float) -> None:
    """Put a grant into the site's file, or take it out; the rest of the file stays, and holds again afterwards."""
    from stethos.collect.policy import parse_policy
    from stethos.record.whole_file import whole_file

    if not 0 <= hours <= 24:
        raise UsageError(f"--grant-hours {hours:g}", hint="at most 24 hours; 0 ends a grant")
    text = _GRANT.sub("", _text_of(site))
    parse_policy(text)  # what holds afterwards has to be understood
    granted = f"grant_until = {_stamp(time.time() + hours * 3600 - 1)}\n" if hours else ""
    with whole_file(site.policy_path) as file:
        file.write((granted + text).encode())
    site.note(what="policy", outcome=f"L4 granted for {hours:g} h" if hours else "the grant of L4 was ended")


def _text_of(site: SiteHome) -> str:
    from stethos.record.border import read_file

    try:
        return read_file(site.policy_path, 1 << 20).decode()
    except (OSError, ValueError) as error:
        raise UsageError(f"{site.policy_path} cannot be read: {error}", hint="nothing leaves until it can") from None


def _stamp(at_s: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(at_s))


def _books(spool: Path) -> dict[str, Any]:
    """What waits, by process."""
    from stethos.collect.spool import books_of, read_spool, spools_in

    found = {}
    for path in spools_in(spool):
        one = read_spool(path)
        found[f"{path.parent.name}/{path.name}"] = {
            **books_of(one), "waiting_rows": one.waiting_rows, "waiting_bytes": one.size_bytes,
        }  # fmt: skip
    return found


def _spent(directory: Path, policy: Policy) -> dict[str, float]:
    """What the numbers with noise have cost so far, by run."""
    from stethos.collect.noise import LEDGER_FILE, NEEDS_NOISE, NoiseLedger, spent

    ledger = NoiseLedger(directory / LEDGER_FILE)
    runs = ledger.runs()
    try:
        return {run: spent(ledger.releases(run), policy.noise.delta) for run in runs}
    except ImportError:
        raise UsageError("the ledger of noise needs dp-accounting", hint=NEEDS_NOISE) from None


def _show(
    policy: Policy, books: dict[str, Any], *, is_json: bool, name: str = "", spent: dict[str, float] | None = None,
    after: str = "", failure: str = "", left: dict[str, dict[str, int]] | None = None,
) -> None:  # fmt: skip
    from stethos.collect.policy import MEANS

    if is_json:
        tables = {
            table: {column: rule.way for column, rule in rules.items() if rule.way != "drop"}
            for table, rules in policy.tables.items()
            if policy.allows(table)
        }
        print_json({"site": name, "level": policy.level, "level_after_grant": after or None,
                    "min_count": policy.min_count, "leaves": tables, "withholds": policy.withholds(),
                    "left": left or {}, "waiting": books, "last_failure": failure or None,
                    "epsilon_spent": spent or {}})  # fmt: skip
        return
    lines = [f"{name}: level {policy.level}" if name else f"level {policy.level}"]
    lines[0] += f", by a grant that ends by itself; then {after} again" if after else ""
    for table, rules in policy.tables.items():
        if not policy.allows(table):
            continue
        lines.append(f"  {table}")
        for way, words in MEANS.items():
            columns = [column for column, rule in rules.items() if rule.way == way]
            if columns and way != "drop":
                lines.append(f"    {words}: {', '.join(columns)}")
    if not any(map(policy.allows, policy.tables)):
        lines.append("  nothing leaves")
    for run_name, epsilon in (spent or {}).items():
        lines.append(f"noise: {run_name}: epsilon {epsilon:.3f} of {policy.noise.epsilon:g} spent")
    lines += _left_lines(left or {})
    for process, one in books.items():
        if not one["waiting_bytes"]:  # its drainer is about to let it go
            continue
        lines.append(f"waiting: {process}: {one['waiting_rows']:,} rows, {one['waiting_bytes']:,} bytes")
    if failure:
        lines.append(f"a batch was not taken, the last time: {clean(failure)}")
    sys.stdout.write("\n".join(lines) + "\n")


def _left_lines(left: dict[str, dict[str, int]]) -> list[str]:
    """The account of the newest runs: how many rows left, and what became of the others."""
    newest = list(left.items())[-_MOST_RUNS_SHOWN:]
    lines = [f"left: {len(left) - len(newest):,} earlier runs: --json"] if len(newest) < len(left) else []
    for run_name, sums in newest:
        others = [f"{sums[what]:,} {words}" for what, words in _BECAME.items() if sums[what]]
        said = f"left: {clean(run_name)}: {sums['left']:,} of {sums['produced']:,} rows"
        lines.append(said + (f"; {', '.join(others)}" if others else ""))
    return lines
