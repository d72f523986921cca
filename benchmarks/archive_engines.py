"""Every documented query over an archive on DuckDB, on Daft, and on Daft on a Ray with two workers: rows and times."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

from benchmarks.report import Grid, say
from benchmarks.scale import Scale

_PROGRAM = """
import json, sys, time
sys.path.insert(0, sys.argv[3])
from fleet_runs import plain
import stethos
from stethos.errors import QueryError
archive, engine = stethos.archive(sys.argv[1]), sys.argv[2]
archive.sql("SELECT count(*) AS n FROM runs", engine=engine)  # the engine is up
found = []
for sql in json.loads(sys.argv[4]):
    began = time.perf_counter()
    try:
        rows = plain(archive.sql(sql, engine=engine))
    except QueryError:
        rows = None
    found.append((time.perf_counter() - began, rows))
print("\\n" + json.dumps(found))
"""


def engines(scale: Scale, scratch: Path, store: str) -> Grid:
    """A few small runs on S3: what the engines themselves cost."""
    from fleet_runs import ASKED, DOCUMENTED, archive_fleet

    from stethos.archive.address import parse_address

    say("archive: every documented query on each engine")
    address = f"{store}/engines"
    archive_fleet(scratch / "engines", parse_address(address))
    queries = [*ASKED, *DOCUMENTED]
    tests = str(Path(__file__).resolve().parents[1] / "tests")
    answers = {}
    for engine in ("duckdb", "daft", "ray"):
        say(f"archive: {len(queries)} queries on {engine}")
        words = [sys.executable, "-W", "ignore", "-c", _PROGRAM, address, engine, tests, json.dumps(queries)]
        began = time.perf_counter()
        out = subprocess.run(words, check=True, capture_output=True, text=True).stdout
        answers[engine] = json.loads(out.strip().splitlines()[-1]), time.perf_counter() - began
    lines, expected = [], [rows for _, rows in answers["duckdb"][0]]
    for engine, (found, whole_s) in answers.items():
        ran = [place for place, (_, rows) in enumerate(found) if rows is not None]
        same = sum(found[place][1] == expected[place] for place in ran)
        times = sorted(found[place][0] for place in ran)
        lines.append(
            [{"daft": "Daft", "duckdb": "DuckDB", "ray": "Daft on Ray, 2 workers"}[engine], str(len(queries)),
             str(len(queries) - len(ran)), f"{same} of {len(ran)}", f"{times[len(times) // 2]:.2f}",
             f"{times[-1]:.2f}", f"{whole_s:.1f}"]
        )  # fmt: skip
    headings = ["", "queries", "refused before the start", "same rows as DuckDB", "middle, s", "worst, s", "process, s"]
    return Grid("Every documented query over an archive of two runs on S3", headings, lines)
