"""Every command that reads a run, and a run that has something for each of them."""

from __future__ import annotations

import io
import json
import os
import random
import shutil
import sqlite3
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, redirect_stderr, redirect_stdout, suppress
from pathlib import Path
from typing import Any

from builders import RunBuilder
from processes import drainers_of, wait_until

from attack.forked import import_all, import_what
from attack.outcome import KEPT_RUN, copy_run
from stethos.cli.main import main
from stethos.errors import StethosError
from stethos.record.place import RunPlace
from stethos.store.labels import change_labels, read_labels
from stethos.store.run import Run
from stethos.store.silences import change_silence, read_silences
from stethos.web.encode import encode
from stethos.web.reading import JOBS, PANEL_MEMORY_BYTES
from stethos.web.run_table import _first_row

SLOWEST_S = 10.0
QUERIES = (
    "SELECT * FROM processes", "SELECT count(*), max(step) FROM steps", "SELECT * FROM layers", "SELECT * FROM logs",
    "SELECT * FROM metrics", "SELECT * FROM findings", "SELECT * FROM stacks", "SELECT * FROM updates",
    "SELECT * FROM rounds JOIN client_rounds USING (round)", "SELECT * FROM evidence", "SELECT * FROM spans",
)  # fmt: skip
LINES = (
    *(f"query|-t|RUN|{sql}" for sql in QUERIES), "query|--csv|-t|RUN|SELECT * FROM runs",
    "query|--json|-t|RUN|SELECT * FROM client_reports", "diagnose|RUN", "diagnose|-t|RUN|--json",
    "profile|RUN", "profile|-t|RUN|--by|client", "rounds|RUN", "clients|RUN|--all", "compare-clients|-t|RUN|c0|c1",
    "doctor|RUN", "doctor|-t|RUN|--verify|--json", "top|RUN|--once", "report|-t|RUN|-o|OUT/r.html",
    "report|-t|RUN|-o|OUT/r.md|--format|md", "ls|--dir|PARENT", "tables|-t|RUN", "actions|RUN", "collectives|RUN",
    "compare|RUN|RUN", "replay|-t|RUN", "replay|-t|RUN|--round|2", "prove|-t|RUN|--fast|--timeout|5",
    "prove|-t|RUN|c1|--fast|--json", "prove|-t|RUN|1|--fast", "bisect|-t|RUN", "blame|-t|RUN|--input|0",
    "export|-t|RUN|--to|csv|-o|OUT/csv", "export|-t|RUN|--to|parquet|-o|OUT/parquet",
    "export|-t|RUN|--to|perfetto|-o|OUT/x.pb", "export|-t|RUN|--to|speedscope|-o|OUT/x.json",
    "export|-t|RUN|--to|prometheus|-o|OUT/x.prom", "export|-t|RUN|--to|tensorboard|-o|OUT/board",
    "sync|RUN", "backtrace|RUN", "inspect|OBJECT", "pages|RUN",
)  # fmt: skip


PAGES_PANELS = ("summary", "step-loss", "books", "logs", "round-clients", "client-table", "media", "hang-stacks")

# What takes as long as many others comes more rarely.
_WEIGHTS_OF = {
    "report": 0.06, "compare": 0.06, "prove": 0.06, "diagnose": 0.06, "profile": 0.1, "export": 0.15, "clients": 0.3,
    "rounds": 0.3, "pages": 0.3, "top": 0.3, "doctor": 0.3, "compare-clients": 0.3,
}  # fmt: skip
_WEIGHTS = [_WEIGHTS_OF.get(line.partition("|")[0], 1.0) for line in LINES]


def any_line(chance: random.Random) -> str:
    """One of the commands."""
    return chance.choices(LINES, _WEIGHTS)[0]


def read_with(line: str, run: Path, out: Path) -> str | None:
    """Do what a command does; what is wrong about that, if anything. Only our own errors are in order."""
    objects = sorted((run / "capture" / "000" / "objects").glob("*")) if (run / "capture").is_dir() else []
    known = {"RUN": str(run), "OUT": str(out), "PARENT": str(run.parent), "OBJECT": str((*objects, run)[0])}
    words = [word.replace("OUT", known["OUT"]) if "/" in word else known.get(word, word) for word in line.split("|")]
    told, began = io.StringIO(), time.process_time()
    try:
        with redirect_stdout(io.TextIOWrapper(io.BytesIO(), "utf-8")), redirect_stderr(told):
            if words[0] == "pages":
                read_as_pages_do(run)
            else:
                main(words)
    except BaseException as error:
        trace, places = error.__traceback__, []
        while trace is not None:
            places.append(f"{Path(trace.tb_frame.f_code.co_filename).name}:{trace.tb_lineno}")
            trace = trace.tb_next
        return f"`{line}`: {error!r} at {' '.join(places[-3:])}"
    if "Traceback" in told.getvalue():
        return f"`{line}`: {told.getvalue()[-300:]!r}"
    spent_s = time.process_time() - began
    return f"`{line}`: {spent_s:.0f} s" if spent_s > SLOWEST_S else None


def read_as_pages_do(path: Path) -> None:
    """What `stethos serve` reads of a run: its row in the table of runs, what people noted, findings and panels."""
    with suppress(StethosError, OSError):
        encode({**_first_row(RunPlace(path), {}), **read_labels(path).as_dict()})
    read_silences(path)
    given: dict[str, dict[str, Any]] = {
        "findings": {}, "metrics": {}, "ranges": {},
        **{which: {"which": which, "parameters": {}} for which in PAGES_PANELS},
    }  # fmt: skip
    with suppress(StethosError, OSError), closing(Run(RunPlace(path), memory_bytes=PANEL_MEMORY_BYTES)) as run:
        for job, values in given.items():
            with suppress(StethosError, OSError):
                JOBS[job if job in JOBS else "panel"](run, **values)


def read_in(directory: Path, line: str, run: Path, out: Path) -> str | None:
    """`read_with`, where what is written to the current or a temporary directory is seen."""
    os.chdir(directory)
    tempfile.tempdir = os.environ["TMPDIR"] = str(directory)
    return read_with(line, run, out)


def prepared(base: Path, *, is_long: bool = False) -> Path:
    """A `full_run`, made in another process; where many tries follow, with all imported that they need.

    Pieces of an attack make it once and share it.
    """
    clean = base / "clean" / "run"
    kept = Path(os.environ[KEPT_RUN]) if KEPT_RUN in os.environ and is_long else None
    if kept is not None and (kept / "modules").exists():
        copy_run(kept / "run", clean)
        import_all((kept / "modules").read_text(encoding="utf-8").split())
        return clean

    def work() -> None:
        full_run(base / "clean")
        if is_long:
            for number, line in enumerate(LINES):
                out = base / "warm" / str(number)
                out.mkdir(parents=True)
                wrong = read_with(line, clean, out)
                assert wrong is None, wrong

    modules = import_what(work)
    shutil.rmtree(base / "warm", ignore_errors=True)
    for path in (*clean.glob("*.lock"), *clean.glob("findings.db-*")):
        path.unlink()
    if kept is not None:
        copy_run(clean, kept / "run")
        (kept / "modules").write_text("\n".join(modules), encoding="utf-8")
    return clean


@contextmanager
def own_home(base: Path) -> Iterator[None]:
    """Keys and settings of a user of its own."""
    names = ("HOME", "XDG_CONFIG_HOME", "XDG_RUNTIME_DIR", "XDG_STATE_HOME", "XDG_CACHE_HOME")
    before = {name: os.environ.get(name) for name in names}
    (base / "home").mkdir(mode=0o700)
    os.environ |= dict.fromkeys(names, str(base / "home"))
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def full_run(base: Path) -> Path:
    """A federated run with a capture, a faulty client, findings, a proof, stacks and a second, killed process."""
    from stethos import lab

    fault = lab.Fault("sign-flip", clients=("c1",), start=2, strength=6.0)
    result = lab.federate(
        "digits", rounds=3, clients=3, faults=[fault], capture="all", dir=base, run="run", progress=False
    )
    assert result.path is not None
    wait_until(lambda: not drainers_of(base), "the end of packing")
    for line in ("diagnose|RUN", "prove|-t|RUN|c1|--fast"):
        assert read_with(line, result.path, base) is None
    with closing(sqlite3.connect(result.path / "findings.db", isolation_level=None)) as connection:
        connection.execute("UPDATE findings SET proof = 'proved', proof_detail = '{\"words\": \"x\"}'")
        connection.execute("PRAGMA journal_mode = DELETE")
    change_labels(RunPlace(result.path), {"version": 0, "tags": ["a"], "note": "b", "title": "c"})
    change_silence(RunPlace(result.path), {"key": "FED001 c1", "state": "silenced"})
    stack = {"process": "100-200", "thread": "main", "depth": 0, "function": "f", "file": "train.py", "line": 7}
    (result.path / "stacks.jsonl").write_text(json.dumps(stack) + "\n", encoding="utf-8")
    with RunBuilder(base / "second") as other:
        process = other.process("100-200", is_alive=False)
        process.steps(10)
        process.layers(["a", "b"], step=1)
        process.log("a message")
        process.seal()
        process.steps(5)
        process.metric("loss", 0.5)
        process.drain()
        process.steps(3)
    (base / "second" / "100-200").rename(result.path / "100-200")
    other.launcher(7, 1)
    for path in (base / "second").glob("launcher-*"):
        path.rename(result.path / "launcher-1.json")
    for path in (*result.path.glob("*.lock"), *result.path.glob("findings.db-*")):
        path.unlink()
    return result.path
