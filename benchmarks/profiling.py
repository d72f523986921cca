"""What `stethos profile` and `stethos compare` take on a long federated run: time, memory, and both by size."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.made_run import MadeRun
from benchmarks.report import Grid, say, verdict
from benchmarks.scale import Scale
from stethos.federate.row import put_row
from stethos.schema import CLIENT_REPORTS, NULL_F64, NULL_I32, ROUNDS, UPDATES, Kind

_CLIENTS = 100
_LAYERS = 49  # and a row for the whole update: 50 rows per client and round
_T0_NS = 1_700_000_000_000_000_000
_ROUND_NS = 2_000_000_000
_TARGET_S = 3.0
_TARGET_MB = 1000.0
# The command in a process that says how large it was; the peak that its parent is told may be the parent's own.
_PROGRAM = """
import re, sys
from stethos.cli.main import main
status = main(sys.argv[1:])
sys.stderr.write(re.search(r"VmHWM:\\s*(\\d+)", open("/proc/self/status").read())[1])
sys.exit(status)
"""
_NUMBERS = [column.name for column in UPDATES.of_kind(Kind.I32, Kind.I64, Kind.F64)]


class _Pen:
    """Writes rows as a session does, into a made run."""

    def __init__(self, made: MadeRun) -> None:
        self.name_id = made.name_id
        self._ring = made.ring

    def put_frame(
        self, table: int, names: bytes, numbers: bytes, texts: Sequence[str] = (), *, rows: int = 1,
        t_ns: int = _T0_NS, whose: tuple[int, int] = (NULL_I32, NULL_I32), **_: Any,
    ) -> bool:  # fmt: skip
        body = [text.encode() for text in texts]
        return self._ring.put_frame(table, rows, names + numbers, body, client=whose[0], round=whose[1], t_ns=t_ns)


def make_run(path: Path, rounds: int) -> int:
    """A federation of 100 clients, one of them with a slow link; return the rows of `updates`."""
    made = MadeRun(path)
    pen = _Pen(made)
    chance = np.random.default_rng(0)
    layers = [made.name_id(f"encoder.layers.{number}.weight") for number in range(_LAYERS)]
    count = _LAYERS + 1
    names = np.array(
        [[made.name_id("made")] * count, [NULL_I32, *layers], [made.name_id("weight")] * count], "<i4"
    ).tobytes()  # fmt: skip
    vectors = [_vector(chance) for _ in range(40)]
    texts = [""] * len(UPDATES.of_kind(Kind.TEXT))
    for number in range(1, rounds + 1):
        t_ns = _T0_NS + number * _ROUND_NS
        phases = chance.lognormal(0, 0.1, (_CLIENTS, 3)) * (200, 900, 250)
        phases[7, 2] *= 6
        for client in range(_CLIENTS):
            down, compute, up = phases[client].tolist()
            facts = {
                "federation": "made", "turn": 0, "side": "server", "status": "ok", "samples": 500, "loss": 2 / number,
                "duration_ms": down + compute + up, "download_ms": down, "compute_ms": compute, "upload_ms": up,
                "sent_bytes": 4_000_000, "received_bytes": 4_000_000, "raw_bytes": 4_000_000,
            }  # fmt: skip
            name = f"c{client}"
            put_row(pen, CLIENT_REPORTS, facts, client=name, round=number, t_ns=t_ns)  # type: ignore[arg-type]
            vector = vectors[(number + client) % len(vectors)]
            pen.put_frame(
                UPDATES.number, names, vector, texts, rows=count, t_ns=t_ns, whose=(made.name_id(name), number)
            )  # fmt: skip
            if client % 20 == 0:
                made.drain()
        total = phases.sum(axis=1)
        facts = {
            "federation": "made", "duration_ms": float(total.max()) + 50, "selected": _CLIENTS, "reported": _CLIENTS,
            "failed": 0, "aggregate_ms": 50.0, "wait_ms": float(np.ptp(total)), "loss": 2 / number,
        }  # fmt: skip
        put_row(pen, ROUNDS, facts, client=None, round=number, t_ns=t_ns)  # type: ignore[arg-type]
        made.drain()
    made.finish()
    return rounds * _CLIENTS * count


def _vector(chance: np.random.Generator) -> bytes:
    """The numbers of one update."""
    numbers = chance.normal(size=(len(_NUMBERS), _LAYERS + 1))
    for place, name in enumerate(_NUMBERS):
        if name in ("nan", "inf"):
            numbers[place] = 0
        elif name == "size":
            numbers[place] = 20_000
        elif name in ("back_rounds", "cos_back"):
            numbers[place] = NULL_F64
    return numbers.tobytes()


def measure(scale: Scale, scratch: Path) -> list[Grid]:
    """Made runs of growing length, and the two commands on each."""
    rows = []
    lengths = (25, 100) if scale.is_quick else (250, 500, 1000)
    for rounds in lengths:
        say(f"making a run of {rounds} rounds x {_CLIENTS} clients")
        path = scratch / f"made-{rounds}"
        count = make_run(path, rounds)
        is_full = rounds == 1000
        for words in (["profile", "-t", str(path)], ["compare", str(path), str(path)]):
            say(f"stethos {words[0]}")
            tries = [_timed(words) for _ in range(2 if scale.is_quick else 5)]
            seconds, megabytes = min(second for second, _ in tries), max(mega for _, mega in tries)
            rows.append(
                [
                    f"stethos {words[0]}, {rounds:,} rounds", f"{count / 1e6:.2f}", f"{seconds:.2f}",
                    f"{seconds / count * 1e6:.2f}", f"{megabytes:.0f}",
                    f"{_TARGET_S:g} s, {_TARGET_MB:.0f} MB" if is_full else "",
                    _reached(seconds, megabytes) if is_full else "",
                ]
            )  # fmt: skip
    headings = ["command", "M layer rows", "s", "us per row", "MB", "target", "reached"]
    notes = [
        f"Whole commands in processes of their own, the best of several; {_CLIENTS} clients, {_LAYERS + 1} rows of "
        "`updates` per client and round, made through the real ring and collector. `compare` reads the run twice. "
        "MB is the largest resident memory."
    ]
    return [Grid("Profiling a long run", headings, rows, notes)]


def _reached(seconds: float, megabytes: float) -> str:
    words = {verdict(seconds, _TARGET_S), verdict(megabytes, _TARGET_MB)}
    return "yes" if words == {"yes"} else "no"


def _timed(words: list[str]) -> tuple[float, float]:
    """Seconds and MB of one command."""
    began = time.monotonic()
    done = subprocess.run([sys.executable, "-c", _PROGRAM, *words], capture_output=True, text=True, check=True)
    return time.monotonic() - began, int(done.stderr.split()[-1]) / 1e3
