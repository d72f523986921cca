"""Kill archivers at random points, many times, and count rows that are lost or doubled.

python -m benchmarks.archive_kills [--kills 500] [--s3 100]

A run grows by one sealed file for each kill. A process of its own archives it, or compacts the archive, and is killed
at a random moment; another one then opens the run and counts. Every twenty kills an archiver is left alone, and the
archive must hold the run's rows, each once, as Stethos reads it and as its Delta log lists it.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "tests")]

import deltalake  # noqa: E402, F401  # loaded once, used by children only: its threads do not survive a fork
import duckdb  # noqa: E402, F401
import pyarrow.parquet  # noqa: E402, F401
from builders import ProcessBuilder, RunBuilder  # noqa: E402
from object_store import BUCKET, KEYS, s3_server  # noqa: E402

from stethos.archive.address import Address, parse_address  # noqa: E402
from stethos.archive.committer import archive_run  # noqa: E402
from stethos.archive.delta import DeltaLog  # noqa: E402
from stethos.archive.maintain import compact_run  # noqa: E402
from stethos.archive.place import ArchivedRun  # noqa: E402
from stethos.errors import StethosError  # noqa: E402
from stethos.record.place import RunPlace  # noqa: E402

_STEPS = 40
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
    """In a child: no row twice in what is visible; with `expected`, all of them, in the Delta log too."""
    import stethos

    there = ArchivedRun(archive / "demo").snapshot(is_needed=False)
    if there is None and expected is None:
        return
    with stethos.open_run(str(archive / "demo")) as run:
        rows, distinct = run.rows("SELECT count(*), count(DISTINCT step) FROM steps").values[0]
    listed = sum(file.rows for file in DeltaLog(archive / "demo" / "steps").files())
    if rows != distinct or (expected is not None and (rows, listed) != (expected, expected)):
        sys.stderr.write(f"rows {rows}, distinct {distinct}, in the log {listed}, expected {expected}\n")
        os._exit(9)


def trial(place: RunPlace, archive: Address, *, compacts: bool) -> None:
    if compacts:
        compact_run(archive / "demo")
    else:
        archive_run(place, archive)


def kill_many(directory: Path, archive: Address, kills: int, seed: int) -> dict[str, int]:
    """The kills that hit, the trials that ended before theirs, and the checks that failed."""
    chance = random.Random(seed)
    counts = {"killed": 0, "ended before": 0, "refused": 0, "checks": 0, "failed checks": 0}
    typical_s = 0.3
    with RunBuilder(directory / "demo") as run:
        process: ProcessBuilder = run.process("p0")
        sealed = 0
        number = 0
        while counts["killed"] < kills:
            number += 1
            process.steps(_STEPS)
            process.seal()
            sealed += _STEPS
            compacts = number > 5 and chance.random() < 0.2

            def work(compacts: bool = compacts) -> None:
                trial(run.place, archive, compacts=compacts)

            status = in_child(work, chance.uniform(0.0, 1.2 * typical_s))
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
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="stethos-kills-", ignore_cleanup_errors=True) as scratch:
        os.environ.update(XDG_CACHE_HOME=f"{scratch}/cache", XDG_RUNTIME_DIR=f"{scratch}/run", **KEYS)
        Path(scratch, "run").mkdir(mode=0o700)
        failed = 0
        local = parse_address(f"{scratch}/archive")
        counts = kill_many(Path(scratch, "runs"), local, arguments.kills - arguments.s3, arguments.seed)
        print("directory:", counts, flush=True)
        failed += counts["failed checks"]
        if arguments.s3:
            with s3_server() as url:
                os.environ["AWS_ENDPOINT_URL"] = url
                remote = parse_address(f"s3://{BUCKET}/kills")
                counts = kill_many(Path(scratch, "runs-s3"), remote, arguments.s3, arguments.seed + 1)
            print("s3:", counts, flush=True)
            failed += counts["failed checks"]
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
