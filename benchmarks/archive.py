"""Archives: bytes and speed of copying, queries over one large run and over many, Daft and Ray beside DuckDB."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from benchmarks.archive_engines import engines
from benchmarks.archive_large import command, large
from benchmarks.archive_page import first_page, training
from benchmarks.made_run import MadeRun
from benchmarks.report import Grid, say, verdict
from benchmarks.scale import FULL, Scale

_TESTS = Path(__file__).resolve().parents[1] / "tests"
_FLEET = {
    "steps and loss of each run": "SELECT run, max(step) AS steps, avg(loss) AS loss FROM steps GROUP BY run",
    "runs by state": "SELECT state, count(*) AS n FROM runs GROUP BY state",
}


def measure(scale: Scale, scratch: Path) -> list[Grid]:
    """All parts; `python -m benchmarks.archive copying listing ...` measures some of them."""
    return list(_parts(scale, scratch, _PARTS))


def _parts(scale: Scale, scratch: Path, names: Iterable[str]) -> Iterator[Grid]:
    os.environ.update(XDG_CACHE_HOME=str(scratch / "cache"), DAFT_ANALYTICS_ENABLED="0")
    sys.path.insert(0, str(_TESTS))
    from object_store import BUCKET, KEYS, s3_server

    os.environ.update(KEYS)
    with s3_server(scratch / "s3") as url:
        os.environ["AWS_ENDPOINT_URL"] = url
        for name in names:
            yield _PARTS[name](scale, scratch, f"s3://{BUCKET}")


@contextmanager
def _timed() -> Iterator[Callable[[], tuple[float, float]]]:
    """Wall and CPU seconds since the beginning."""
    wall, cpu = time.perf_counter(), time.process_time()
    yield lambda: (time.perf_counter() - wall, time.process_time() - cpu)


def _copying(scale: Scale, scratch: Path, store: str) -> Grid:
    """A run of layer statistics, through the real collector, to a directory and to an S3 server."""
    from stethos.archive.address import parse_address
    from stethos.archive.committer import archive_run

    rows = 400_000 if scale.is_quick else 6_000_000
    say(f"archive: copying {rows:,} rows")
    run = MadeRun(scratch / "runs" / "copied")
    write = run.layer_writer(200)
    for _ in range(rows // 20_000):
        write(20_000)
        run.drain()
    run.finish()
    local = sum(path.stat().st_size for path in run.place.path.glob("*/*.parquet"))
    lines = []
    for name, address in (("a directory", str(scratch / "archive")), ("S3", f"{store}/copied")):
        say(f"archive: copying {local / 1e6:.0f} MB to {name}")
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
        lines.append([f"{name}: commits and list after that, s", f"{whole - wall:.1f}", "", ""])
    speed = _put_plainly(sorted(run.place.path.glob("*/*.parquet")), f"{store}/plain")
    lines.append(["S3: the same files by pyarrow alone, 8 at once, MB/s", f"{speed:.0f}", "", ""])
    title = f"Copying {outcome.rows:,} rows, {local / 1e6:.0f} MB of Parquet in {outcome.files} files"
    return Grid(title, ["", "measured", "target", "reached"], lines, [
        "The S3 server is SeaweedFS in a process of its own on the same two cores."
    ])  # fmt: skip


def _put_plainly(files: list[Path], address: str) -> float:
    """MB per second of the store itself, as a client that does nothing else sees it."""
    from stethos.archive.address import parse_address

    place = parse_address(address)
    store = place.file_system()

    def put(path: Path) -> int:
        content = path.read_bytes()
        with store.open_output_stream(f"{place.path}/{path.parent.name}-{path.name}") as stream:
            stream.write(content)
        return len(content)

    with _timed() as passed, ThreadPoolExecutor(8) as pool:
        total = sum(pool.map(put, files))
        return total / 1e6 / passed()[0]


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


def _listing(scale: Scale, scratch: Path, store: str) -> Grid:
    from stethos.archive.address import parse_address
    from stethos.archive.catalogue import Catalogue

    runs = 200 if scale.is_quick else 5_000
    say(f"archive: listing {runs:,} runs")
    lines = []
    for name, address in (("a directory", str(scratch / "many")), ("S3", f"{store}/many")):
        catalogue = Catalogue(parse_address(address))
        catalogue.replace([_row(number) for number in range(runs - 3)])
        for number in range(runs - 3, runs):
            catalogue.put(_row(number))
        for kind, more in (("as a table", []), ("as JSON", ["--json"])):
            made = sorted(command("ls", address, *more) for _ in range(5))
            wall, cpu, _ = made[2]
            said = [f"{wall:.2f}", f"{made[-1][0]:.2f}", f"{cpu:.2f}", "2.0", verdict(wall, 2.0)]
            lines.append([f"stethos ls, {name}, {kind}", *said])
    headings = ["", "middle of 5", "worst", "CPU", "target", "reached"]
    return Grid(f"A list of {runs:,} runs, the whole command, s", headings, lines)


def _fleet(scale: Scale, scratch: Path, store: str) -> Grid:
    """Many small runs: one is archived, its file is put there under the names of all."""
    import stethos
    from stethos.archive.address import parse_address
    from stethos.archive.catalogue import Catalogue
    from stethos.archive.objects import Objects

    runs = 50 if scale.is_quick else 1_000
    say(f"archive: a fleet of {runs:,} runs")
    run = MadeRun(scratch / "runs" / "small")
    run.step_writer()(1000)
    run.finish()
    content = next(run.place.path.glob("*/*.steps.parquet")).read_bytes()
    lines = []
    expected: dict[str, object] = {}
    for name, address in (("a directory", str(scratch / "fleet")), ("S3", f"{store}/fleet")):
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
    for name, address in (("a directory", str(scratch / "fleet")), ("S3", f"{store}/fleet")):
        took, found_rows = _on_ray(address, sql)
        is_same = "yes" if sorted(map(repr, found_rows)) == expected[asked] else "NO"
        said = [f"{took:.2f}", "", "10", verdict(took, 10.0), is_same]
        lines.append([f"{asked}: {name}, Daft on 2 Ray workers", *said])
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


def _replays(scale: Scale, scratch: Path, _: str) -> Grid:
    """A proof that trains, here and as tasks of a Ray on the two cores: the same result, in which time."""
    from stethos import lab

    rounds, epochs = (4, 1) if scale.is_quick else (20, 16)
    say("archive: a proof on Ray")
    fault = lab.Fault("label-flip", clients="c3", start=2)
    path = lab.federate(
        "digits", rounds=rounds, clients=10, model="cnn", local_epochs=epochs, faults=[fault], capture="all",
        dir=scratch / "proofs", run="proved", progress=False,
    ).path  # fmt: skip
    assert path is not None
    taken, said = [], []
    for more in ([], ["--on", "local"]):
        for kept in (path / "proofs").glob("*"):
            kept.unlink()
        out = scratch / "proof.json"
        taken.append(command("prove", "c3", "--seeds", "3", "--json", "-t", str(path), *more, out=out)[0])
        said.append(_without_times(json.loads(out.read_text())))
    ratio, is_same = taken[0] / taken[1], "yes" if said[0] == said[1] else "NO"
    lines = [
        ["one after the other, s", f"{taken[0]:.1f}", "", "", ""],
        ["on a local Ray with 2 workers, its start included, s", f"{taken[1]:.1f}", "", "", is_same],
        ["times faster", f"{ratio:.2f}", "1.6", "yes" if ratio >= 1.6 else "no", ""],
    ]
    title = f"`stethos prove` over {rounds} rounds of 10 clients with a CNN, {epochs} epochs a round"
    return Grid(title, ["", "measured", "target", "reached", "same result"], lines)


def _without_times(value: object) -> object:
    if isinstance(value, dict):
        return {name: _without_times(one) for name, one in value.items() if name not in ("duration_s", "duration_ms")}
    return [_without_times(one) for one in value] if isinstance(value, list) else value


_PARTS: dict[str, Callable[[Scale, Path, str], Grid]] = {
    "copying": _copying, "training": training, "listing": _listing, "page": first_page, "fleet": _fleet,
    "engines": engines, "large": large, "replays": _replays,
}  # fmt: skip


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="stethos-archive-", ignore_cleanup_errors=True) as scratch:
        for grid in _parts(FULL, Path(scratch), sys.argv[1:] or _PARTS):
            print(grid, flush=True)


if __name__ == "__main__":
    main()
