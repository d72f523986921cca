"""What has left a site, run by run: written down when everything that could leave of a process has left.

The last books of each process stand in `SITE/left.jsonl`, so that they can still be compared with the collector's when
its spool is gone. The file is bounded: the older half of it goes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from stethos.collect.spool import Spool, books_of, read_spool, spools_in
from stethos.record.border import append_file, checked_books, read_file, version_of
from stethos.record.whole_file import whole_file

LEFT_FILE = "left.jsonl"
MOST_BYTES = 2 << 20


def note_left(site: Path, path: Path, spool: Spool) -> None:
    """The spool at `path` is about to go: everything of that process was acknowledged."""
    file = site / LEFT_FILE
    size = (version_of(file) or (0, 0))[1]
    if size >= MOST_BYTES:
        lines = read_file(file, 2 * MOST_BYTES).splitlines(keepends=True)
        with whole_file(file) as kept:
            kept.write(b"".join(lines[len(lines) // 2 :]))
    line = json.dumps({"run": path.parent.name, "process": path.name, "books": _books_with_drops(spool)})
    append_file(file, line.encode("ascii", "replace") + b"\n")


def left_by_run(site: Path, spool: Path) -> dict[str, dict[str, int]]:
    """The books of a site's processes added up for each run, the oldest first: what is over, and what still waits.

    produced = left + waiting + withheld + dropped + lost.
    """
    found: dict[str, dict[str, int]] = {}
    file = site / LEFT_FILE
    for line in read_file(file, 2 * MOST_BYTES).splitlines() if version_of(file) else []:
        try:
            told = json.loads(line)
            _add(found, str(told["run"]), told["books"], 0)
        except (ValueError, KeyError, TypeError):  # cut off by a kill
            continue
    for path in spools_in(spool):
        one = read_spool(path)
        _add(found, path.parent.name, _books_with_drops(one), one.waiting_rows)
    return found


def _books_with_drops(spool: Spool) -> dict[str, Any]:
    """The books, with the rows that were dropped or refused since they were last told."""
    books = books_of(spool)
    return {**books, "drops": {**books["drops"], **spool.drops}}


def _add(found: dict[str, dict[str, int]], run: str, told: Any, waiting: int) -> None:
    books: Mapping[str, Any] = checked_books(told)
    stay = {"withheld": sum(books["withheld"].values()), "dropped": sum(books["drops"].values()), "lost": books["lost"]}
    left = books["produced"] - waiting - sum(stay.values())
    sums = found.setdefault(run, dict.fromkeys(("produced", "left", "waiting", *stay), 0))
    for name, rows in {"produced": books["produced"], "left": max(left, 0), "waiting": waiting, **stay}.items():
        sums[name] += rows
