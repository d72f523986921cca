"""One archived run with very many rows of `updates`: every documented query, as it grows and with its files merged.

    python -m benchmarks.archive_large --keep DIR [--rounds 50] [--compact] [--ask]

With --keep a run is grown, merged and asked in parts, each a short command; the answers add up in DIR/asked.json.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from statistics import linear_regression
from typing import NamedTuple

from benchmarks.large_run import ROWS_PER_ROUND, archived_run, grow_large_run, rounds_in
from benchmarks.report import Grid, say, verdict
from benchmarks.scale import Scale

_TARGET_S, _TARGET_GB = 15.0, 2.0
_WHOLE_ROWS = 510_000_000
# The queries about updates that the documentation shows, or their like.
_QUERIES = {
    "clients by their cosine": (
        "SELECT client, avg(cos_centre) AS c FROM updates WHERE layer IS NULL GROUP BY client ORDER BY c LIMIT 10"
    ),
    "layers by round": (
        "SELECT round, layer, avg(norm) AS n FROM updates GROUP BY round, layer ORDER BY n DESC LIMIT 10"
    ),
    "NaN anywhere": (
        "SELECT round, client, layer, nan FROM updates WHERE nan > 0 AND client IS NOT NULL ORDER BY round LIMIT 1"
    ),
    "one round": "SELECT client, norm, cos_centre FROM updates WHERE round = 7 AND layer IS NULL ORDER BY client",
    "one client": "SELECT round, avg(norm) AS n FROM updates WHERE client = 'c77' GROUP BY round ORDER BY round",
    "failed turns": "SELECT client, round, error, traceback FROM client_rounds WHERE status <> 'ok'",
    "all turns, in order": (
        "SELECT round, client, download_ms, compute_ms, upload_ms, wait_ms FROM client_rounds ORDER BY round, client"
    ),
}


class Asked(NamedTuple):
    """What one query cost: the whole command."""

    query: str
    rounds: int
    is_merged: bool
    wall_s: float
    cpu_s: float
    memory_gb: float


_MEASURED = """
import json, resource, subprocess, sys, time
began = time.perf_counter()
with open(sys.argv[1], "wb") as out:
    child = subprocess.run([sys.executable, "-m", "stethos.cli.main", *sys.argv[2:]], stdout=out)
wall, used = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
print(json.dumps([child.returncode, wall, used.ru_utime + used.ru_stime, used.ru_maxrss / 1e6]))
"""


def command(*words: str, out: Path | None = None) -> tuple[float, float, float]:
    """Wall and CPU seconds of a command, and its largest memory in GB; from a small process, which a fork copies."""
    program = [sys.executable, "-c", _MEASURED, str(out or os.devnull), *words]
    made = subprocess.run(program, check=True, capture_output=True, text=True).stdout
    status, wall, cpu, memory_gb = json.loads(made.splitlines()[-1])
    assert status in (0, 1), words  # 1: a proof stayed undecided
    return wall, cpu, memory_gb


def queries() -> dict[str, str]:
    """By name: those about updates and turns, and all that the documentation shows."""
    from fleet_runs import DOCUMENTED

    named = {" ".join(sql.split())[:44] + " ...": sql for sql in DOCUMENTED}
    assert len(named) == len(DOCUMENTED)
    return {**_QUERIES, **named}


def ask(run: Path, scratch: Path, *, is_merged: bool) -> Iterator[Asked]:
    """Ask everything of a run in an archive."""
    for name, sql in queries().items():
        words = ("query", "-t", str(run), "--timeout", "300", "--json", sql)
        yield Asked(name, rounds_in(scratch), is_merged, *command(*words, out=scratch / "answer.json"))


def large(scale: Scale, scratch: Path, _: str) -> Grid:
    """A run with a quarter, a half and the whole of its rows, then with its files merged."""
    from stethos.archive.address import parse_address
    from stethos.archive.maintain import compact_run

    found = []
    for rounds in (1, 2) if scale.is_quick else (50, 100, 200):
        say(f"archive: {rounds * ROWS_PER_ROUND:,} rows of updates")
        grow_large_run(scratch, range(rounds_in(scratch), rounds))
        found += ask(archived_run(scratch), scratch, is_merged=False)
    compact_run(parse_address(archived_run(scratch)))
    found += ask(archived_run(scratch), scratch, is_merged=True)
    return table_of(found)


def table_of(found: list[Asked]) -> Grid:
    """A line for each query: what it took at each size, the slope, and what that makes of 510 million rows."""
    sizes = sorted({one.rounds for one in found if not one.is_merged})
    lines = []
    for name in dict.fromkeys(one.query for one in found):
        own = sorted((one for one in found if one.query == name and not one.is_merged), key=lambda one: one.rounds)
        merged = [one for one in found if one.query == name and one.is_merged]
        sizes_e8 = [one.rounds * ROWS_PER_ROUND / 1e8 for one in own]
        each = linear_regression(sizes_e8, [one.wall_s for one in own]).slope if len(own) > 1 else 0.0
        most = max(one.wall_s for one in [*own, *merged])
        whole = own[-1].wall_s + each * (_WHOLE_ROWS - own[-1].rounds * ROWS_PER_ROUND) / 1e8
        memory = max(one.memory_gb for one in [*own, *merged])
        lines.append(
            [name, " / ".join(f"{one.wall_s:.1f}" for one in own), f"{own[-1].cpu_s:.1f}",
             f"{merged[-1].wall_s:.1f}" if merged else "", f"{memory:.2f}", f"{each:.1f}", f"{whole:.0f}",
             "yes" if verdict(most, _TARGET_S) == "yes" and memory <= _TARGET_GB else "no"]
        )  # fmt: skip
    rows = " / ".join(f"{size * ROWS_PER_ROUND / 1e6:.0f}" for size in sizes)
    headings = ["query", f"s at {rows} M rows", "CPU s at most rows", "s, files merged", "most memory, GB",
                "s per 100 M rows more", "s at 510 M, by the slope", "within 15 s and 2 GB"]  # fmt: skip
    return Grid("One archived run with many rows of `updates`, the whole command", headings, lines, [
        "10,000 clients, 50 layers and the whole model; 90,000 rows a file. From a directory."
    ])  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keep", type=Path, required=True)
    parser.add_argument("--rounds", type=int, default=0)
    parser.add_argument("--compact", action="store_true")
    parser.add_argument("--ask", action="store_true")
    wanted = parser.parse_args()
    scratch: Path = wanted.keep.absolute()
    os.environ["XDG_CACHE_HOME"] = str(scratch / "cache")
    sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
    from stethos.archive.address import parse_address
    from stethos.archive.maintain import compact_run

    scratch.mkdir(parents=True, exist_ok=True)
    grow_large_run(scratch, range(rounds_in(scratch), wanted.rounds))
    if wanted.compact:
        print(compact_run(parse_address(archived_run(scratch))), flush=True)
    answers = scratch / "asked.json"
    found = [Asked(*one) for one in json.loads(answers.read_text())] if answers.exists() else []
    if wanted.ask:
        is_merged = any("to" in path.name for path in archived_run(scratch).glob("updates/*.parquet"))
        for one in ask(archived_run(scratch), scratch, is_merged=is_merged):
            print(one, flush=True)
            found.append(one)
        answers.write_text(json.dumps(found))
    print(table_of(found) if found else "nothing asked yet", flush=True)


if __name__ == "__main__":
    main()
