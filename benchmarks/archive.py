"""Archives: bytes and speed of copying, queries over one large run and over many, Daft and Ray beside DuckDB."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.made_run import MadeRun
from benchmarks.report import Grid, say, verdict
from benchmarks.scale import Scale

_TESTS = Path(__file__).resolve().parents[1] / "tests"
_ROWS_PER_FILE = 1_020_000  # of updates: 20 rounds of 1,000 clients with 51 rows each
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
}
_FLEET = {
    "steps and loss of each run": "SELECT run, max(step) AS steps, avg(loss) AS loss FROM steps GROUP BY run",
    "runs by state": "SELECT state, count(*) AS n FROM runs GROUP BY state",
}


def measure(scale: Scale, scratch: Path) -> list[Grid]:
    os.environ.update(XDG_CACHE_HOME=str(scratch / "cache"), DAFT_ANALYTICS_ENABLED="0")
    sys.path.insert(0, str(_TESTS))
    from object_store import BUCKET, KEYS, s3_server

    os.environ.update(KEYS)
    with s3_server() as url:
        os.environ["AWS_ENDPOINT_URL"] = url
        store = f"s3://{BUCKET}"
        return [
            _copying(scratch, store, 400_000 if scale.is_quick else 2_000_000),
            _listing(scratch, store, 200 if scale.is_quick else 5_000),
            _fleet(scratch, store, 50 if scale.is_quick else 1_000),
            _large(scratch, [1] if scale.is_quick else [10, 30, 100]),
            _replays(scratch, 6 if scale.is_quick else 20),
        ]


@contextmanager
def _timed() -> Iterator[Callable[[], tuple[float, float]]]:
    """Wall and CPU seconds since the beginning."""
    wall, cpu = time.perf_counter(), time.process_time()
    yield lambda: (time.perf_counter() - wall, time.process_time() - cpu)


def _copying(scratch: Path, store: str, rows: int) -> Grid:
    """A run of layer statistics, through the real collector, to a directory and to an S3 server."""
    from stethos.archive.address import parse_address
    from stethos.archive.committer import archive_run

    say(f"archive: copying {rows:,} rows")
    run = MadeRun(scratch / "runs" / "copied")
    write = run.layer_writer(200)
    for _ in range(rows // 20_000):
        write(20_000)
        run.drain()
    run.finish()
    local = sum(path.stat().st_size for path in run.place.path.glob("*/*.parquet"))
    lines = []
    for name, address in (("a directory", str(scratch / "archive")), ("an S3 server (moto)", f"{store}/copied")):
        there: list[tuple[float, float]] = []
        with _timed() as passed:
            outcome = archive_run(
                run.place, parse_address(address), lambda *_, there=there, passed=passed: there.append(passed())
            )
            whole, _ = passed()
        (wall, cpu), size = there[-1], outcome.new_bytes / 1e6
        ratio = _bytes_in(address) / local
        lines.append([f"{name}: bytes there, x local Parquet", f"{ratio:.3f}", "1.1", verdict(ratio, 1.1)])
        lines.append([f"{name}: MB/s until the last byte is there", f"{size / wall:.0f}", "100",
                      "yes" if size / wall >= 100 else "no"])  # fmt: skip
        lines.append([f"{name}: our CPU until then, ms per MB", f"{1e3 * cpu / size:.1f}", "", ""])
        lines.append([f"{name}: commits, diagnosis and list after that, s", f"{whole - wall:.1f}", "", ""])
    title = f"Copying {outcome.rows:,} rows, {local / 1e6:.0f} MB of Parquet in {outcome.files} files"
    return Grid(title, ["", "measured", "target", "reached"], lines, [
        "The S3 server is moto, in Python, in a process of its own on the same cores; it limits the speed."
    ])  # fmt: skip


def _bytes_in(address: str) -> int:
    from stethos.archive.address import parse_address
    from stethos.archive.objects import Objects

    return sum(one.bytes for one in Objects(parse_address(address)).listed("copied"))


def _row(number: int, files: object = None) -> dict[str, object]:
    return {
        "run": f"run-{number:05d}", "sequence": 2, "archived_ns": 1_700_000_000_000_000_000 + number, "state": "ended",
        "verdict": "nothing found", "colour": "green", "problems": 0, "started_ns": 1_700_000_000_000_000_000 + number,
        "duration_s": 60.0, "processes": 1, "steps": 1000, "last_loss": 0.1, "rows_stored": 1000, "size_bytes": 50_000,
        "hyperparameters": json.dumps({"lr": 0.1, "batch_size": 32, "seed": number}),
        "last_values": json.dumps({"accuracy": 0.9}), "findings": "[]", "members": "[]", "command": "train.py",
        "files": json.dumps(files or [[f"steps/p0-000001-{number:08x}.parquet", "steps", 1000, 50_000, None]]),
    }  # fmt: skip


def _listing(scratch: Path, store: str, runs: int) -> Grid:
    from stethos.archive.address import parse_address
    from stethos.archive.catalogue import Catalogue

    say(f"archive: listing {runs:,} runs")
    lines = []
    for name, address in (("a directory", str(scratch / "many")), ("an S3 server", f"{store}/many")):
        catalogue = Catalogue(parse_address(address))
        catalogue.replace([_row(number) for number in range(runs - 3)])
        for number in range(runs - 3, runs):
            catalogue.put(_row(number))
        made = [_command("ls", address, "--json") for _ in range(3)]
        wall, cpu, _ = min(made)
        lines.append([f"stethos ls: {name}", f"{wall:.2f}", f"{cpu:.2f}", "2.0", verdict(wall, 2.0)])
    return Grid(f"A list of {runs:,} runs, the whole command, s", ["", "best of 3", "CPU", "target", "reached"], lines)


_MEASURED = """
import json, resource, subprocess, sys, time
began = time.perf_counter()
child = subprocess.run([sys.executable, "-m", "stethos.cli.main", *sys.argv[1:]], stdout=subprocess.DEVNULL)
wall, used = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
print(json.dumps([child.returncode, wall, used.ru_utime + used.ru_stime, used.ru_maxrss / 1e6]))
"""


def _command(*words: str) -> tuple[float, float, float]:
    """Wall and CPU seconds of a command, and its largest memory in GB; from a small process, which a fork copies."""
    made = subprocess.run([sys.executable, "-c", _MEASURED, *words], check=True, capture_output=True, text=True).stdout
    status, wall, cpu, memory_gb = json.loads(made.splitlines()[-1])
    assert status in (0, 1), words  # 1: a proof stayed undecided
    return wall, cpu, memory_gb


def _fleet(scratch: Path, store: str, runs: int) -> Grid:
    """Many small runs: one is archived, its file is put there under the names of all."""
    import stethos
    from stethos.archive.address import parse_address
    from stethos.archive.catalogue import Catalogue
    from stethos.archive.objects import Objects

    say(f"archive: a fleet of {runs:,} runs")
    run = MadeRun(scratch / "runs" / "small")
    run.step_writer()(1000)
    run.finish()
    content = next(run.place.path.glob("*/*.steps.parquet")).read_bytes()
    lines = []
    expected: dict[str, object] = {}
    for name, address in (("a directory", str(scratch / "fleet")), ("an S3 server", f"{store}/fleet")):
        objects = Objects(parse_address(address))
        rows = []
        for number in range(runs):
            path = f"steps/p0-000001-{number:08x}.parquet"
            objects.put(f"run-{number:05d}/{path}", content)
            rows.append(_row(number, [[path, "steps", 1000, len(content), None]]))
        Catalogue(parse_address(address)).replace(rows)
        for asked, sql in _FLEET.items():
            for engine, which in (("duckdb", "first"), ("duckdb", "again"), ("daft", "native")):
                with _timed() as passed:
                    found = stethos.archive(address).sql(sql, engine=engine, timeout_s=300)
                    wall, cpu = passed()
                rows_found = sorted(map(repr, found.to_pylist()))
                is_same = expected.setdefault(asked, rows_found) == rows_found
                lines.append([f"{asked}: {name}, {engine} {which}", f"{wall:.2f}", f"{cpu:.2f}", "10",
                              verdict(wall, 10.0), "yes" if is_same else "NO"])  # fmt: skip
    asked, sql = next(iter(_FLEET.items()))
    for address in (str(scratch / "fleet"),):
        took, found_rows = _on_ray(address, sql)
        is_same = "yes" if sorted(map(repr, found_rows)) == expected[asked] else "NO"
        lines.append(
            [f"{asked}: a directory, Daft on 2 Ray workers", f"{took:.2f}", "", "10", verdict(took, 10.0), is_same]
        )
    headings = ["", "s", "our CPU s", "target s", "reached", "same rows"]
    return Grid(f"Queries over {runs:,} runs of 1,000 steps", headings, lines, [
        "First: with an empty cache, so all files are fetched. On Ray: the query alone, on a Ray that is up."
    ])  # fmt: skip


_RAY = """
import json, sys, time
import ray, stethos
from stethos.settings import cluster_variables
with cluster_variables():
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, configure_logging=False)
archive = stethos.archive(sys.argv[1])
archive.sql("SELECT count(*) AS n FROM runs", engine="ray")
began = time.perf_counter()
found = archive.sql(sys.argv[2], engine="ray")
print(json.dumps([time.perf_counter() - began, found.to_pylist()]))
"""


def _on_ray(address: str, sql: str) -> tuple[float, list[dict[str, object]]]:
    words = [sys.executable, "-W", "ignore", "-c", _RAY, address, sql]
    out = subprocess.run(words, check=True, capture_output=True, text=True).stdout
    took, rows = json.loads(out.strip().splitlines()[-1])
    return took, rows


def _large(scratch: Path, files: list[int]) -> Grid:
    """One run with many rows of updates; its files are made by DuckDB, as large as the collector's."""
    lines: list[list[str]] = []
    for count in files:
        rows = count * _ROWS_PER_FILE
        say(f"archive: {rows:,} rows of updates")
        path = _updates(scratch, count)
        for name, sql in _QUERIES.items():
            wall, cpu, memory_gb = _command("query", "-t", str(path), "--timeout", "300", "--json", sql)
            lines.append([f"{rows:,}: {name}", f"{wall:.1f}", f"{cpu:.1f}", "15", verdict(wall, 15.0),
                          f"{memory_gb:.2f}"])  # fmt: skip
    headings = ["rows: query", "s", "CPU s", "target s", "reached", "memory, GB"]
    return Grid("One archived run with many rows of `updates`, the whole command", headings, lines, [
        "1,000 clients, 50 layers and the whole model, 20 rounds in each file of 1.02 M rows. From a directory."
    ])  # fmt: skip


def _replays(scratch: Path, rounds: int) -> Grid:
    """A proof that trains, here and as tasks of a Ray with two workers: the same verdict, in which time."""
    from stethos import lab

    say("archive: a proof on Ray")
    fault = lab.Fault("label-flip", clients="c3", start=2)
    path = lab.federate(
        "digits", rounds=rounds, clients=10, faults=[fault], capture="all", dir=scratch / "proofs", run="proved",
        progress=False,
    ).path  # fmt: skip
    lines = []
    for name, more in (("one after the other", []), ("on a local Ray, its start included", ["--on", "local"])):
        for kept in (path / "proofs").glob("*") if path else ():
            kept.unlink()
        wall, cpu, _ = _command("prove", "c3", "--seeds", "4", "-t", str(path), *more)
        lines.append([name, f"{wall:.1f}", f"{cpu:.1f}"])
    return Grid(f"`stethos prove` over {rounds} rounds of 10 clients, s", ["", "wall", "CPU of the command"], lines, [
        "The CPU of Ray's workers is not in the last column."
    ])  # fmt: skip


def _updates(scratch: Path, count: int) -> Path:
    import duckdb

    from stethos.archive.address import parse_address
    from stethos.archive.committer import archive_run
    from stethos.record.arrow import full_schema
    from stethos.record.place import RunPlace, write_json
    from stethos.schema import UPDATES

    directory = scratch / "large" / f"large-{count}"
    (directory / "process").mkdir(parents=True)
    write_json(directory / "run.json", {"run": directory.name, "host": "here", "started_ns": time.time_ns()})
    write_json(directory / "process" / "process.json", {"pid": 1, "host": "here", "started_ns": time.time_ns()})
    made = {
        "process": "'process'", "client": "'c' || (i // 51 % 1000)", "round": "({file} * 20 + i // 51000)::INTEGER",
        "t_ns": "1700000000000000000 + i", "layer": "CASE WHEN i % 51 = 0 THEN NULL ELSE 'layer.' || (i % 51) END",
        "norm": "random()", "cos_centre": "random()", "norm_ratio": "random()", "nan": "0", "inf": "0",
    }  # fmt: skip
    kinds = {column.name: column.kind.sql_type for column in UPDATES.all_columns}
    columns = ", ".join(
        f"({made.get(field.name, 'NULL')})::{kinds[field.name]} AS {field.name}" for field in full_schema(UPDATES)
    )
    connection = duckdb.connect()
    sealed = []
    for file in range(count):
        path = directory / "process" / f"{file + 1:06d}.updates.parquet"
        body = f"SELECT {columns} FROM range({_ROWS_PER_FILE}) AS t(i)".replace("{file}", str(file))
        connection.execute(f"COPY ({body}) TO '{path}' (FORMAT parquet, COMPRESSION zstd, ROW_GROUP_SIZE 122880)")
        content = path.read_bytes()
        sealed.append({"file": path.name, "table": "updates", "rows": _ROWS_PER_FILE, "bytes": len(content),
                       "crc32": zlib.crc32(content)})  # fmt: skip
    connection.close()
    write_json(
        directory / "process" / "manifest.json",
        {"segment": count + 1, "rows": count * _ROWS_PER_FILE, "sealed": sealed, "ended": {"t_ns": time.time_ns()},
         "counters": {}},
    )  # fmt: skip
    archive_run(RunPlace(directory), parse_address(scratch / "large-archive"))
    return scratch / "large-archive" / directory.name
