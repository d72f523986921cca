"""Kill archivers at random points, many times, and count rows that are lost or doubled.

python -m benchmarks.archive_kills [--kills 500] [--s3 100] [--seconds 400 --keep counts.json]

With --seconds it stops after a time; what was counted is kept, and the same command goes on, with a new run.
A run grows by one sealed file for each kill, fifty times; then comes the next. A process of its own archives it, or
compacts the archive, and is killed at a random moment; another one then opens the run and counts. Every twenty kills an
archiver is left alone, and the archive must hold the run's rows, each once, as Stethos reads it and as its Delta log
lists it.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "tests")]

# Loaded once, used by children only: threads do not survive a fork.
import deltalake.transaction  # noqa: E402, F401
import duckdb  # noqa: E402, F401
import pyarrow.parquet as pq  # noqa: E402
from builders import ProcessBuilder, RunBuilder  # noqa: E402
from object_store import BUCKET, KEYS, s3_server  # noqa: E402

from stethos.archive import catalogue  # noqa: E402
from stethos.archive.address import Address, parse_address  # noqa: E402
from stethos.archive.committer import archive_run  # noqa: E402
from stethos.archive.delta import DeltaLog  # noqa: E402
from stethos.archive.maintain import compact_run  # noqa: E402
from stethos.archive.place import ArchivedRun  # noqa: E402
from stethos.errors import StethosError  # noqa: E402
from stethos.record.place import RunPlace  # noqa: E402
from stethos.store import engine as _engine  # noqa: E402, F401

# The diagnosis for the list writes nothing and takes most of the time: without it, kills hit uploads and commits.
catalogue._DIAGNOSED_ROWS = -1
_STEPS = 40
_KILLS_PER_RUN = 50
_ALONE_EACH = 20


def in_child(work: Callable[[], None], kill_after_s: float | None = None) -> int:
    """Fork, do the work there and wait; kill it after a time, if one is given. The exit status, negative if killed."""
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            work()
            status = 0
        except StethosError:
            status = 3
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)
    if kill_after_s is not None:
        time.sleep(kill_after_s)
        os.kill(pid, signal.SIGKILL)
    _, status = os.waitpid(pid, 0)
    return os.waitstatus_to_exitcode(status)


def check(archive: Address, *, expected: int | None) -> None:
    """In a child: no row twice in what the snapshot shows; with `expected`, all of them, as Stethos and Delta say."""
    there = ArchivedRun(archive / "demo").snapshot(is_needed=False)
    if there is None and expected is None:
        return
    assert there is not None
    store, place = archive.file_system(), f"{archive.path}/demo"
    parts = [pq.read_table(f"{place}/{file.path}", columns=["step"], filesystem=store)["step"].to_pylist()
             for file in there.files if file.table == "steps"]  # fmt: skip
    steps = [step for part in parts for step in part]
    found = [len(steps), len(set(steps))]
    if expected is not None:
        import stethos

        with stethos.open_run(str(archive / "demo")) as run:
            found += run.rows("SELECT count(*), count(DISTINCT step) FROM steps").values[0]
        found.append(sum(file.rows for file in DeltaLog(archive / "demo" / "steps").files()))
    if len(set(found)) > 1 or (expected is not None and found[0] != expected):
        sys.stderr.write(f"rows, distinct, asked, in the log: {found}, expected {expected}\n")
        os._exit(9)


def trial(place: RunPlace, archive: Address, *, compacts: bool) -> None:
    if compacts:
        compact_run(archive / "demo")
    else:
        archive_run(place, archive)


COUNTED = ("killed", "ended before", "refused", "checks", "failed checks")
Counts = dict[str, int]


def kill_many(directory: Path, archive: Address, kills: int, seed: int, until: float) -> Counts:
    """The kills that hit, the trials that ended before theirs, and the checks that failed."""
    chance = random.Random(seed)
    counts = dict.fromkeys(COUNTED, 0)
    typical_s = 0.3
    with RunBuilder(directory / "demo") as run:
        process: ProcessBuilder = run.process("p0")
        sealed = 0
        number = 0
        while counts["killed"] < kills and time.monotonic() < until:
            number += 1
            process.steps(_STEPS)
            process.seal()
            sealed += _STEPS
            compacts = number > 5 and chance.random() < 0.2

            def work(compacts: bool = compacts) -> None:
                trial(run.place, archive, compacts=compacts)

            status = in_child(work, chance.uniform(0.0, typical_s))
            name = {-signal.SIGKILL: "killed", 0: "ended before", 3: "refused"}.get(status)
            if name is None:
                raise SystemExit(f"an archiver failed with status {status}")
            counts[name] += 1
            is_alone = number % _ALONE_EACH == 1
            if is_alone:
                began = time.monotonic()
                if in_child(lambda: trial(run.place, archive, compacts=False)):
                    raise SystemExit("an archiver that was left alone failed")
                typical_s = time.monotonic() - began
            counts["checks"] += 1
            wanted = sealed if is_alone else None
            counts["failed checks"] += in_child(lambda wanted=wanted: check(archive, expected=wanted)) != 0
    return counts


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.archive_kills", description=__doc__.partition("\n")[0])
    parser.add_argument("--kills", type=int, default=500, help="in all (default: 500)")
    parser.add_argument("--s3", type=int, default=100, help="so many of them over an S3 server (default: 100)")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="stop after a time")
    parser.add_argument("--keep", type=Path, help="add to the counts in this file")
    arguments = parser.parse_args()
    until = time.monotonic() + arguments.seconds
    total: dict[str, Counts] = {name: dict.fromkeys(COUNTED, 0) for name in ("directory", "s3")}
    if arguments.keep and arguments.keep.exists():
        total = json.loads(arguments.keep.read_text())
    seed = sum(counts["checks"] for counts in total.values()) + 1  # other points than before
    with tempfile.TemporaryDirectory(prefix="stethos-kills-", ignore_cleanup_errors=True) as scratch:
        os.environ.update(XDG_CACHE_HOME=f"{scratch}/cache", XDG_RUNTIME_DIR=f"{scratch}/run", **KEYS)
        Path(scratch, "run").mkdir(mode=0o700)
        wanted = {"directory": arguments.kills - arguments.s3, "s3": arguments.s3}
        for name, kills in wanted.items():
            with s3_server(Path(scratch, "s3")) if name == "s3" and kills else nullcontext() as url:
                while (left := kills - total[name]["killed"]) > 0 and time.monotonic() < until:
                    if url:
                        os.environ["AWS_ENDPOINT_URL"] = url
                    archive = parse_address(f"s3://{BUCKET}/{seed}" if url else f"{scratch}/archive/{seed}")
                    counts = kill_many(Path(scratch, name, str(seed)), archive, min(left, _KILLS_PER_RUN), seed, until)
                    seed += counts["checks"]
                    total[name] = {what: total[name][what] + counts[what] for what in COUNTED}
                    if arguments.keep:
                        arguments.keep.write_text(json.dumps(total))
    print(json.dumps(total, indent=1), flush=True)
    sys.exit(1 if any(counts["failed checks"] for counts in total.values()) else 0)


if __name__ == "__main__":
    main()
