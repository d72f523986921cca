"""In a fresh process: the same group-by through a run's SQL, or by DuckDB alone over the run's Parquet files."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from benchmarks.child import job_of_child, leave_result

_SQL = "SELECT layer, kind, count(*), avg(norm), max(max) FROM {} GROUP BY layer, kind ORDER BY layer, kind"


def main() -> None:
    path, job = job_of_child()
    ask = _through_duckdb(Path(job["run"])) if job["is_plain"] else _through_run(Path(job["run"]))
    times_ms, rows = [], 0
    for _ in range(1 + job["rounds"]):
        start = time.perf_counter_ns()
        rows = ask()
        times_ms.append((time.perf_counter_ns() - start) / 1e6)
        time.sleep(job["pause_s"])
    leave_result(path, {"cold_ms": times_ms[0], "warm_ms": times_ms[1:], "groups": rows})


def _through_run(run: Path) -> Callable[[], int]:
    import stethos
    from stethos.store import engine  # noqa: F401  imports are not part of the first query

    opened = stethos.open_run(run)
    return lambda: int(opened.sql(_SQL.format("layers")).num_rows)


def _through_duckdb(run: Path) -> Callable[[], int]:
    import duckdb

    files = sorted(str(file) for file in run.glob("*/*.layers.parquet"))
    connection = duckdb.connect()
    return lambda: len(connection.sql(_SQL.format(f"read_parquet({files})")).fetchall())


if __name__ == "__main__":
    main()
