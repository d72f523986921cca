"""Copy runs to an archive, a directory or an object store, where every command can read them.

    stethos archive --to s3://bucket/path             the newest run
    stethos archive --to s3://bucket/path --all       every run in ./runs
    stethos archive -t fed-1 --to DIR --follow        until the run has ended, and all of it is there

Repeat it at any time: only what is new is copied, and an interrupted copy resumes where it stopped. Only sealed files
are archived; the newest rows of a run that is still going follow later. Captured models stay where they are.
`stethos ls ADDRESS` lists an archive; `stethos -t ADDRESS/RUN COMMAND` reads a run in it.

    stethos archive --to s3://bucket/path --compact        merge small files; list what is missing
    stethos archive --to s3://bucket/path --retain 90d     delete archived runs that ended longer ago

With --all or a target, runs are archived first, but those that --retain would delete.

Credentials come from AWS's own variables and files (AWS_ACCESS_KEY_ID, AWS_PROFILE ...), the endpoint from
AWS_ENDPOINT_URL. Needs `pip install 'stethos[archive]'`.
"""

from __future__ import annotations

import argparse
import sys
import time
from dataclasses import asdict
from typing import TYPE_CHECKING

from stethos.cli.screen.jsontext import print_json
from stethos.cli.screen.progress import show_progress
from stethos.cli.screen.text import bytes_text, clean, count_text
from stethos.cli.task.target import add_target
from stethos.cli.task.value import seconds
from stethos.errors import ArchiveError, RunNotFoundError, StethosError, UsageError

if TYPE_CHECKING:
    from stethos.archive.address import Address
    from stethos.archive.catalogue import Row
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
        help="merge small files of finished runs, and list runs that are missing from the archive's list",
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
    if arguments.all and arguments.follow:
        raise UsageError("--all and --follow cannot go together", hint="follow one run; start a command for each")
    is_maintained = arguments.compact or age_s is not None
    status = 0
    if not is_maintained or arguments.all or arguments.target is not None:
        status = _archive_all(arguments, archive, age_s)
    return (_maintain(arguments, archive, age_s) or status) if is_maintained else status


def _archive_all(arguments: argparse.Namespace, archive: Address, age_s: float | None) -> int:
    """Archive the runs that are meant, but those that would be deleted for their age."""
    status = 0
    for place in _places(arguments):
        try:
            if age_s is not None and _is_old(place, age_s):
                continue
            _archive(arguments, place, archive)
        except StethosError as error:
            if not arguments.all:
                raise
            sys.stderr.write(f"{clean(place.name)}: {clean(str(error), keep_lines=True)}\n")
            status = error.exit_code
    return status


def _is_old(place: RunPlace, age_s: float) -> bool:
    """Whether a run has ended longer ago."""
    from stethos.store.run import Run

    with Run(place) as run:
        row = run.summary() | {"archived_ns": time.time_ns()}
    return time.time_ns() - _last_ns(row) > age_s * 1e9


def _places(arguments: argparse.Namespace) -> list[RunPlace]:
    from stethos.settings import default_runs_dir
    from stethos.store.find import find_run, list_runs

    if not arguments.all:
        if arguments.target is not None and "://" in arguments.target:
            raise UsageError("a run in an archive is not archived again", hint="name a run of this machine with -t")
        return [find_run(arguments.target, arguments.dir, anywhere=arguments.anywhere)]
    directory = arguments.dir or default_runs_dir()
    found = list_runs(directory)
    if not found:
        raise RunNotFoundError(f"no runs in {directory}", hint="name their directory with --dir")
    return found


def _archive(arguments: argparse.Namespace, place: RunPlace, archive: Address) -> None:
    from stethos.archive.committer import archive_run
    from stethos.archive.follow import follow
    from stethos.store.find import is_live

    def show(outcome: Outcome, is_going: bool) -> None:
        _show(arguments, outcome, is_going=is_going)

    def complain(error: ArchiveError) -> None:
        sys.stderr.write(f"{clean(str(error), keep_lines=True)}\nnext attempt in {arguments.every:g} s\n")

    tell = None if arguments.json else _tell
    if arguments.follow:
        follow(place, archive, arguments.every, tell=tell, done=show, failed=complain)
    else:
        is_going = is_live(place)
        show(archive_run(place, archive, tell), is_going)


def _show(arguments: argparse.Namespace, outcome: Outcome, *, is_going: bool) -> None:
    if arguments.json:
        print_json(asdict(outcome))
        return
    new = f"{outcome.new_files} new files ({bytes_text(outcome.new_bytes)})" if outcome.new_files else "nothing new"
    more = "" if outcome.is_complete or not is_going else "; it is still going, its newest rows follow later"
    print(f"archived {clean(outcome.run)} to {clean(outcome.address)}: {new}, {count_text(outcome.rows)} rows{more}")


def _maintain(arguments: argparse.Namespace, archive: Address, age_s: float | None) -> int:
    from stethos.archive.api import archive as open_archive
    from stethos.archive.maintain import compact_run, list_missing, remove_run

    status, deleted = 0, 0

    def complain(error: StethosError) -> None:
        nonlocal status
        status = error.exit_code
        sys.stderr.write(f"{clean(str(error), keep_lines=True)}\n")

    if arguments.compact:
        for name in list_missing(archive, complain):
            print(f"listed {clean(name)}, which was archived but not on the list")
    for row in open_archive(str(archive)).runs():
        try:
            if age_s is not None and time.time_ns() - _last_ns(row) > age_s * 1e9:
                remove_run(archive / row["run"])
                deleted += 1
                print(f"deleted {clean(row['run'])} ({bytes_text(row['size_bytes'] or 0)})")
            elif arguments.compact and row["state"] != "running":
                before, after = compact_run(archive / row["run"])
                print(f"{clean(row['run'])}: {before} files became {after}")
        except StethosError as error:
            complain(error)
    if age_s is not None and not deleted and not status:
        print(f"no run ended longer than {arguments.retain} ago")
    return status


def _last_ns(row: Row) -> int:
    """When a run has ended; of one whose end is not known, when it was archived last."""
    is_known = row["state"] != "running" and row["started_ns"] and row["duration_s"] is not None
    return int(row["started_ns"] + 1e9 * row["duration_s"]) if is_known else row["archived_ns"] or time.time_ns()


def _tell(done: int, total: int) -> None:
    if total:
        show_progress(f"{bytes_text(done)} of {bytes_text(total)}" if done < total else "")


def _age_s(text: str | None) -> float | None:
    if text is None:
        return None
    units = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}
    try:
        age = float(text[:-1]) * units[text[-1:]]
    except (ValueError, KeyError):
        age = -1
    if not 0 <= age < 1e12:
        raise UsageError(f"--retain {text} is no time", hint="write a number and s, m, h, d or w: 90d")
    return age
