"""What a stranger may put into a run that is whole and rightly named: other tables, objects that unfold."""

from __future__ import annotations

import hashlib
import json
import os
import random
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from attack.outcome import KEPT_RUN
from attack.tampered_files import is_plain, json_in, run_of
from stethos.replay.codec import pack
from stethos.replay.tensorfile import shape_of_file


def add_object(path: Path, victim: Path, chance: random.Random) -> None:
    """A captured object that is whole and rightly named, and not what belongs there."""
    capture = run_of(victim) / "capture" / "000"
    rounds = [one for one in sorted(capture.glob("rounds/*.json")) if is_plain(one)]
    if not rounds or not (capture / "objects").is_dir() or (capture / "objects").is_symlink():
        return
    draw = np.random.default_rng(chance.randrange(2**32))
    names = chance.choice([["a"], ["0.weight", "0.bias"], ["\x1b[2J", "../x"], [], ["x" * 9_999]])
    dtype = chance.choice(["float32", "float64", "int64", "bool", "uint8", "float16"])
    sides = chance.choice([(), (0,), (3,), (10, 64), (1,) * 40, (2, 0, 5), (100_000,)])
    state = {name: (draw.normal(size=sides) * 1e3).astype(dtype) for name in names}
    file = shape_of_file(state).file_of(list(state.values()))
    digest = hashlib.sha256(file.data).hexdigest()
    (capture / "objects" / f"{digest}.safetensors").write_bytes(file.tobytes())
    where = chance.choice(rounds)
    content = json_in(where)
    pieces = [one for one in (content, *_listed(content.get("clients"))) if isinstance(one, dict)]
    holder = chance.choice(pieces)
    holder[chance.choice(["before", "after", "server"] if holder is content else ["state", "random"])] = {
        "parts": [digest] * chance.choice([1, 1, 3])
    }
    where.write_text(json.dumps(content), encoding="utf-8")


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def add_bomb(path: Path, victim: Path, chance: random.Random) -> None:
    """Objects that unfold to much more than they are, each built on the one before."""
    capture = run_of(victim) / "capture" / "000"
    rounds = [one for one in sorted(capture.glob("rounds/*.json")) if is_plain(one)]
    if not rounds or not (capture / "objects").is_dir() or (capture / "objects").is_symlink():
        return
    made = next(parent / "bombs" for parent in victim.parents if (parent / "bombs").is_dir())
    for one in made.glob("*.packed"):
        (capture / "objects" / one.name).unlink(missing_ok=True)  # an earlier change may have made it a pipe
        shutil.copy(one, capture / "objects" / one.name)
    digest = chance.choice((made / "order").read_text(encoding="ascii").split())
    where = chance.choice(rounds)
    content = {**json_in(where), "before": {"parts": [digest] * chance.choice([1, 9])}}
    where.write_text(json.dumps(content), encoding="utf-8")


def make_bombs(directory: Path, count: int = 12, size: int = 32 << 20) -> None:
    kept = Path(os.environ[KEPT_RUN]) / f"bombs-{size}" if KEPT_RUN in os.environ else None
    if kept is not None and (kept / "order").exists():
        shutil.copytree(kept, directory)
        return
    directory.mkdir()
    bases: list[tuple[str, Any]] = []
    order = []
    for number in range(count):
        state = {"0.weight": np.full(size // 4, number, np.float32)}
        file = shape_of_file(state).file_of(list(state.values()))
        order.append(hashlib.sha256(file.data).hexdigest())
        packed = pack(file, bases)
        assert packed is not None
        (directory / f"{order[-1]}.packed").write_bytes(packed)
        bases = [(order[-1], file)]
    (directory / "order").write_text("\n".join(order), encoding="ascii")
    if kept is not None:  # another piece may do so at the same time
        part = kept.with_name(f"{kept.name}.{os.getpid()}")
        shutil.copytree(directory, part)
        with suppress(OSError):
            part.rename(kept)
        shutil.rmtree(part, ignore_errors=True)


def _sealed(victim: Path, chance: random.Random) -> tuple[Path, dict[str, Any], dict[str, Any]] | None:
    """A sealed file of the run, its manifest and its entry there."""
    for manifest in chance.sample(found := sorted(run_of(victim).glob("*/manifest.json")), len(found)):
        content = json_in(manifest) if is_plain(manifest) else {}
        entries = [one for one in _listed(content.get("sealed")) if isinstance(one, dict)]
        if entries and isinstance(name := (entry := chance.choice(entries)).get("file"), str) and "/" not in name:
            return manifest, content, entry
    return None


def _rewrite(victim: Path, chance: random.Random, change: Callable[[pa.Table], pa.Table]) -> None:
    """Another table in a sealed file, with a manifest that vouches for it."""
    chosen = _sealed(victim, chance)
    if chosen is None or not is_plain(file := chosen[0].parent / chosen[2]["file"]):
        return
    manifest, content, entry = chosen
    try:
        table = change(pq.read_table(file))
    except (pa.ArrowException, OSError, ValueError, KeyError):
        return
    pq.write_table(table, file, compression="zstd")
    entry |= {"rows": table.num_rows, "bytes": file.stat().st_size}
    entry.pop("crc32", None)
    manifest.write_text(json.dumps(content), encoding="utf-8")


OTHER_VALUES: tuple[tuple[Any, pa.DataType], ...] = (
    ("x\x1b[2J", pa.string()), ([1], pa.list_(pa.int64())), (None, pa.null()), (float("nan"), pa.float64()),
    (2**62, pa.int64()), (-(2**31), pa.int32()), (1e308, pa.float64()), ({"a": 1}, pa.struct([("a", pa.int8())])),
    (b"\xff", pa.binary()), ("{" * 50, pa.string()), ("[1, null, {}]", pa.string()),
)  # fmt: skip


def change_columns(path: Path, victim: Path, chance: random.Random) -> None:
    """Columns of other types, absent ones, values beyond every range."""

    def change(table: pa.Table) -> pa.Table:
        for name in chance.sample(table.column_names, min(3, len(table.column_names))):
            size, place = table.num_rows, table.column_names.index(name)
            value, kind = chance.choice(OTHER_VALUES)
            if chance.random() < 0.15:
                table = table.remove_column(place)
            elif chance.random() < 0.4 and size:  # a value of the right type
                kind = table.schema.field(name).type
                numbers = [2**31 - 1, -1, 0] if pa.types.is_integer(kind) else [1e308, -0.0, float("inf")]
                value = chance.choice(["", "[]", "c0", "\0"] if pa.types.is_string(kind) else numbers)
                table = table.set_column(place, name, pa.array([value] * size).cast(kind, safe=False))
            else:
                table = table.set_column(place, name, pa.array([value] * size, kind))
        return table

    _rewrite(victim, chance, change)


def repeat_rows(path: Path, victim: Path, chance: random.Random) -> None:
    """Millions of equal rows, which take no space in the file; or all rows twice."""

    def change(table: pa.Table) -> pa.Table:
        if chance.random() < 0.5 or not table.num_rows:
            return pa.concat_tables([table, table])
        times = chance.choice([1_000, 100_000])
        return table.take(pa.array(np.zeros(times, np.int64)))

    _rewrite(victim, chance, change)
