"""Two archived runs, and every query that is asked of them on each engine."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import pyarrow as pa
from builders import RunBuilder
from federated_rows import build_federation

from stethos.archive.address import Address
from stethos.archive.committer import archive_run
from stethos.record.place import RunPlace

PROJECT = Path(__file__).resolve().parents[1]
_BLOCK = re.compile(r"^```sql[^\n]*\n(.*?)^```$", re.MULTILINE | re.DOTALL)
# The queries of the documentation, and what a fleet is asked.
DOCUMENTED = [block for page in sorted((PROJECT / "docs").glob("*.md")) for block in _BLOCK.findall(page.read_text())]
ASKED = [
    "SELECT run, max(step) AS steps, avg(loss) AS loss FROM steps GROUP BY run ORDER BY run",
    "SELECT run, count(*) AS n, sum(nan) AS nan FROM layers GROUP BY run",
    "SELECT s.run, count(*) AS n FROM steps s JOIN runs r ON s.run = r.run WHERE r.state = 'ended' GROUP BY s.run",
    "SELECT client, count(*) AS turns, avg(compute_ms) AS ms FROM client_rounds GROUP BY client",
    "SELECT run, state, verdict FROM runs ORDER BY run",
    "SELECT run, process, host FROM processes",
    "SELECT run, code, severity FROM findings",
    "SELECT run, step, row_number() OVER (PARTITION BY run ORDER BY step, process) AS place FROM steps",
    "WITH last AS (SELECT run, max(step) AS step FROM steps GROUP BY run) SELECT * FROM last WHERE step > 3",
]


def archive_fleet(runs: Path, archive: Address) -> None:
    """Archive two runs: one of a single machine, with a NaN, and one of a federation."""
    with RunBuilder(runs / "single") as run:
        process = run.process("p0", is_alive=False)
        process.steps(12, losses=[float("nan"), *[1.5] * 11])
        process.layers(["fc1.weight", "fc2.weight"])
        process.layers(["fc1.weight", "fc2.weight"], "weight", step=3, norm=2.0)
        process.modules(["fc1", "fc2"], step=2)
        process.host_sample()
        process.log("hello")
        process.metric("accuracy", 0.5)
        process.finish()
    build_federation(runs / "fed")
    for name in ("single", "fed"):
        archive_run(RunPlace(runs / name), archive)


def plain(table: pa.Table) -> list[str]:
    """The rows in no order, numbers to twelve digits."""

    def cell(value: Any) -> Any:
        if isinstance(value, float):
            return "NaN" if math.isnan(value) else float(f"{value:.12g}")
        return sorted(map(repr, value)) if isinstance(value, list) else value

    return sorted(repr([cell(value) for value in row.values()]) for row in table.to_pylist())
