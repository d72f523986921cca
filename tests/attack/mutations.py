"""Bits flip, files are cut, pieces are swapped and repeated: every byte of a small run, and at random."""

from __future__ import annotations

import itertools
import os
import random
import shutil
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pyarrow.parquet as pq
from builders import RunBuilder

from attack.forked import do_together
from attack.kept_engine import keep_engines
from attack.outcome import Outcome, copy_run, copy_sparse, in_child, place
from attack.reading import LINES, SLOWEST_S, any_line, own_home, prepared, read_in
from attack.strangers import state_of
from stethos.errors import StethosError
from stethos.record.place import RunPlace
from stethos.schema import METRICS
from stethos.store.health import examine
from stethos.store.run import Run

BATCH = 100
ASKED_EACH = 8  # bytes
TOGETHER = 40
RING_BYTES = 1 << 14
Mutation = tuple[str, str, int, int]  # file, what, where, with what


def every_byte(run: Path) -> Iterator[Mutation]:
    """One flipped bit and one cut at every byte of its files; of the ring flips where it is used, and some others."""
    for path in sorted(run.rglob("*")):
        if path.is_file():
            content = path.read_bytes()[: RING_BYTES if path.name == "ring" else None]
            for at, byte in enumerate(content):
                if path.name != "ring" or byte or at % 32 == 0:
                    yield str(path.relative_to(run)), "flip", at, at % 8
                if path.name != "ring":
                    yield str(path.relative_to(run)), "cut", at, 0


def at_random(run: Path, chance: random.Random) -> Iterator[Mutation]:
    files = [(str(path.relative_to(run)), path.stat().st_size) for path in sorted(run.rglob("*")) if path.is_file()]
    while True:
        name, size = chance.choice(files)
        size = min(size, 1 << 15)
        what = chance.choice(["flip", "cut", "zero", "noise", "swap", "repeat"])
        yield name, what, chance.randrange(size), chance.randrange(256)


def apply(path: Path, what: str, at: int, extra: int) -> None:
    if what == "cut":
        os.truncate(path, at)
        return
    with path.open("r+b") as file:
        file.seek(at)
        piece = file.read(1 + extra)
        file.seek(at)
        match what:
            case "flip":
                file.write(bytes([piece[0] ^ (1 << extra % 8)]))
            case "zero":
                file.write(bytes(len(piece)))
            case "noise":
                file.write(random.Random(at).randbytes(len(piece)))
            case "swap":
                file.write(piece[::-1])
            case "repeat":
                file.write(piece + piece)


def attack(tries: int, seed: int = 1) -> Outcome:
    """Damage anything in a run with a capture, and read it with one of the commands."""
    outcome = Outcome(
        "damaged files, read by a command",
        "only our own errors; nothing is changed or left running; <= 10 s of CPU, <= 1 GB",
    )
    with place() as base, own_home(base):
        clean = prepared(base, is_long=tries >= BATCH)
        mutations = list(itertools.islice(at_random(clean, random.Random(seed)), tries))
        for at in range(0, tries, TOGETHER):
            do_together(outcome, mutations[at : at + TOGETHER], lambda mutation: _try(clean, base, mutation))
    outcome.notes["commands"] = len(LINES)
    return outcome


def _try(clean: Path, base: Path, mutation: Mutation) -> str | None:
    keep_engines()
    name, what, at, extra = mutation
    run, out, here = (base / "try" / one for one in ("run", "out", "here"))
    shutil.rmtree(out, ignore_errors=True)
    if not run.exists():
        copy_run(clean, run)
        here.mkdir()
    _restore(clean / name, run / name)
    apply(run / name, what, at, extra)
    line = any_line(random.Random(str(mutation)))
    watched = (base / "try", base / "home")
    before = [state_of(one) for one in watched]
    out.mkdir()
    wrong = read_in(here, line, run, out)
    shutil.rmtree(out)
    if [state_of(one) for one in watched] != before:
        wrong = f"{wrong or f'`{line}`:'} something was changed"
        shutil.rmtree(base / "try")
    else:
        _restore(clean / name, run / name)
    return wrong


def _restore(clean: Path, damaged: Path) -> None:
    if clean.name == "ring":
        copy_sparse(clean, damaged)
    else:
        damaged.write_bytes(clean.read_bytes())


def attack_every_byte(tries: int, seed: int = 1) -> Outcome:
    """One flipped bit and one cut at every byte of a small run; `seed` says which piece of them."""
    outcome = Outcome(
        "every byte of a small run, flipped and cut", "only our own errors; no row that was not written; books balance"
    )
    with place() as base, own_home(base):
        clean = tiny_run(base / "clean" / "run")
        mutations = itertools.islice(every_byte(clean), (seed - 1) * tries, seed * tries)
        while batch := list(itertools.islice(mutations, BATCH)):
            work = base / f"b{outcome.tries}"
            in_child(outcome, f"batch at {outcome.tries}", lambda w=work, b=batch: _bytes_batch(clean, w, b), 900)  # type: ignore[misc]
            shutil.rmtree(work, ignore_errors=True)
            outcome.tries += len(batch)
    return outcome


def tiny_run(path: Path) -> Path:
    """One sealed file, an open segment, and rows in the ring; of the table with the fewest columns."""
    with RunBuilder(path) as run:
        process = run.process("100-200", is_alive=False)
        for number in range(18):
            process.metric(f"m{number % 3}", float(number))
            if number == 9:
                process.seal()
            elif number == 14:
                process.drain()
    for lock in path.glob("*.lock"):
        lock.unlink()
    return path


def _bytes_batch(clean: Path, base: Path, mutations: list[Mutation]) -> list[str]:
    failures = []
    run = base / "run"
    copy_run(clean, run)
    keep_engines()
    for name, what, at, extra in mutations:
        apply(run / name, what, at, extra)
        began = time.process_time()
        try:
            found = _wrong(run, is_ring="ring" in name, is_asked=at % ASKED_EACH == 0)
            failures += [f"{name} {what} {at} {extra}: {wrong}" for wrong in found]
        except Exception as error:
            failures.append(f"{name} {what} {at} {extra}: {error!r}")
        if time.process_time() - began > SLOWEST_S:
            failures.append(f"{name} {what} {at} {extra}: {time.process_time() - began:.0f} s")
        _restore(clean / name, run / name)
    return failures


def _wrong(path: Path, *, is_ring: bool, is_asked: bool) -> list[str]:
    """Books that do not balance, rows that nobody wrote. A ring has no checksums: what flips in it is not known to.

    The rows are read by what DuckDB is handed; DuckDB itself, `summary` and `doctor` are asked if `is_asked`.
    """
    run = Run(RunPlace(path))
    try:
        wrong = [
            f"{row['rows_produced']} != {row['rows_stored']} + {row['rows_dropped']} + {row['rows_lost']}"
            for row in run.processes()
            if row["rows_produced"] != row["rows_stored"] + row["rows_dropped"] + row["rows_lost"] and not is_ring
        ]
        rows = _rows_handed_over(run)
        if is_asked:
            run.summary()
            examine(run)
            with suppress(StethosError):
                asked = run.rows("SELECT name, value FROM metrics").values
                wrong += [f"{len(asked)} rows, and {len(rows)}"] if sorted(asked) != sorted(rows) else []
        odd = [row for row in rows if row[0] != f"m{int(row[1]) % 3}" or row[1] not in range(18)]
        odd += [row for row in rows if rows.count(row) > 1]
        return wrong + ([f"rows that nobody wrote: {odd[:3]}"] if odd and not is_ring else [])
    finally:
        run.close()


def _rows_handed_over(run: Run) -> list[tuple[str, float]]:
    rows = []
    for reader in run.readers():
        tables = [
            pq.read_table(file.path) if run.examiner.is_whole(file) else run.examiner.salvaged(file, METRICS)
            for file in reader.sealed
            if file.table == METRICS.name
        ]
        for table in (*tables, reader.growing(METRICS)):
            if table is not None:
                rows += zip(table["name"].to_pylist(), table["value"].to_pylist(), strict=True)
    return rows
