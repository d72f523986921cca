"""Copy runs to an archive, a directory or an object store, where every command can read them.

    stethos archive --to s3://bucket/path             the newest run
    stethos archive --to s3://bucket/path --all       every run in ./runs
    stethos archive -t fed-1 --to DIR --follow        until the run has ended

Repeat it at any time: only what is new is copied, and an interrupted copy resumes where it stopped. Only sealed files
are archived; the newest rows of a run that is still going follow later. Captured models stay where they are.
`stethos ls ADDRESS` lists an archive; `stethos -t ADDRESS/RUN COMMAND` reads a run in it.

    stethos archive --to s3://bucket/path --compact        make few large files of many small ones; list what is missing
    stethos archive --to s3://bucket/path --retain 90d     delete archived runs that ended longer ago

Credentials come from AWS's own variables and files (AWS_ACCESS_KEY_ID, AWS_PROFILE ...), the endpoint from
AWS_ENDPOINT_URL. Needs `pip install 'stethos[archive]'`.
"""

from __future__ import annotations

import argparse
import sys
import time
from dataclasses import asdict
from typing import TYPE_CHECKING

from stethos.cli.screen.text import bytes_text, clean, count_text
from stethos.cli.task.target import add_target
from stethos.cli.task.value import seconds
from stethos.errors import ArchiveError, StethosError, UsageError

if TYPE_CHECKING:
    from stethos.archive.address import Address
    from stethos.archive.committer import Outcome
    from stethos.record.place import RunPlace

_EACH_S = 15.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--to", metavar="ADDRESS", required=True, help="s3://BUCKET/PATH or a directory")
    add_target(parser)
    parser.add_argument("--all", action="store_true", help="every run in the directory")
    parser.add_argument("--follow", action="store_true", help="keep copying until the run has ended")
    parser.add_argument(
        "--every",
        type=seconds,
        default=_EACH_S,
        metavar="S",
        help="with --follow: seconds between copies (default: 15)",
    )
    parser.add_argument(
        "--compact",
        action="store_true",
        help="merge small files of runs that are over, and list runs that are missing on the list",
    )
    parser.add_argument(
        "--retain", metavar="TIME", help="delete archived runs that ended longer ago than this, such as 90d or 12h"
    )
    parser.add_argument("--json", action="store_true", help="print one object per run")


def run(arguments: argparse.Namespace) -> int:
    from stethos.archive.address import parse_address
    from stethos.archive.delta import need_deltalake

    need_deltalake()
    archive = parse_address(arguments.to)
    age_s = _age_s(arguments.retain)
    if arguments.compact or age_s is not None:
        return _maintain(arguments, archive, age_s)
    status = 0
    for place in _places(arguments):
        try:
            _archive(arguments, place, archive)
        except ArchiveError as error:
            if not arguments.all:
                raise
            sys.stderr.write(f"{clean(place.name)}: {clean(str(error), keep_lines=True)}\n")
            status = error.exit_code
    return status


def _places(arguments: argparse.Namespace) -> list[RunPlace]:
    from stethos.settings import default_runs_dir
    from stethos.store.find import find_run, list_runs

    if not arguments.all:
        if arguments.target is not None and "://" in arguments.target:
            raise UsageError("a run in an archive is not archived again", hint="name a run of this machine with -t")
        return [find_run(arguments.target, arguments.dir, anywhere=arguments.anywhere)]
    return list_runs(arguments.dir or default_runs_dir())


def _archive(arguments: argparse.Namespace, place: RunPlace, archive: Address) -> None:
    from stethos.archive.committer import archive_run
    from stethos.store.find import is_live

    while True:
        is_going = is_live(place)
        try:
            outcome = archive_run(place, archive, None if arguments.json else _tell)
        except ArchiveError as error:
            if not (arguments.follow and is_going):
                raise
            sys.stderr.write(f"{clean(str(error), keep_lines=True)}\nnext attempt in {arguments.every:g} s\n")
        else:
            _show(arguments, outcome, is_going=is_going)
            if not arguments.follow or not is_going:
                return
        time.sleep(arguments.every)


def _show(arguments: argparse.Namespace, outcome: Outcome, *, is_going: bool) -> None:
    if arguments.json:
        from stethos.cli.screen.jsontext import print_json

        print_json(asdict(outcome))
        return
    new = f"{outcome.new_files} new files ({bytes_text(outcome.new_bytes)})" if outcome.new_files else "nothing new"
    more = "" if outcome.is_complete or not is_going else "; it is still going, its newest rows follow later"
    print(f"archived {clean(outcome.run)} to {clean(outcome.address)}: {new}, {count_text(outcome.rows)} rows{more}")


def _maintain(arguments: argparse.Namespace, archive: Address, age_s: float | None) -> int:
    from stethos.archive.catalogue import Catalogue
    from stethos.archive.maintain import compact_run, list_missing, remove_run

    status = 0
    if arguments.compact:
        for name in list_missing(archive):
            print(f"listed {clean(name)}, which was archived but not on the list")
    for row in Catalogue(archive).rows():
        ended_ns = (row["started_ns"] or 0) + int(1e9 * (row["duration_s"] or 0))
        is_old = age_s is not None and row["state"] != "running" and time.time_ns() - ended_ns > age_s * 1e9
        try:
            if is_old:
                remove_run(archive / row["run"])
                print(f"deleted {clean(row['run'])} ({bytes_text(row['size_bytes'] or 0)})")
            elif arguments.compact and row["state"] != "running":
                before, after = compact_run(archive / row["run"])
                print(f"{clean(row['run'])}: {before} files became {after}")
        except StethosError as error:
            sys.stderr.write(f"{clean(str(error), keep_lines=True)}\n")
            status = error.exit_code
    return status


def _tell(done: int, total: int) -> None:
    if sys.stderr.isatty() and total:
        sys.stderr.write(f"\r\x1b[K  {bytes_text(done)} of {bytes_text(total)}" if done < total else "\r\x1b[K")
        sys.stderr.flush()


def _age_s(text: str | None) -> float | None:
    if text is None:
        return None
    units = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}
    try:
        age = float(text[:-1]) * units[text[-1:]]
    except (ValueError, KeyError):
        age = -1
    if not 0 <= age < 1e12:
        raise UsageError(f"--retain {text}", hint="write a number and s, m, h, d or w: 90d")
    return age
