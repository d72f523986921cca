"""Run directories, captures and bundles made to mislead: links, pipes, paths, absurd values, in any combination."""

from __future__ import annotations

import hashlib
import json
import os
import random
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from attack.forked import do_together
from attack.outcome import Outcome, copy_run, place
from attack.reading import LINES, any_line, own_home, prepared, read_in
from stethos.replay.codec import pack
from stethos.replay.tensorfile import shape_of_file

LONG = 50
TOGETHER = 10
INNER = ("process.json", "manifest.json", "ring", "000001.seg", "000002.seg", "000003.seg", "000001.steps.parquet",
         "000001.layers.parquet", ".manifest.json", ".000002.steps.parquet")  # fmt: skip


def odd_values(chance: random.Random, victim: Path) -> Any:
    """Anything JSON can say."""
    return chance.choice([
        None, True, -1, 0, 2**31, 2**63, -(2**70), 10**400, 1.5, 1e308, float("nan"), float("inf"), "", "x",
        "../../" * 9 + "etc/passwd", str(victim), str(victim / "bashrc"), "\0", "\ud800", "a" * 70_000, [], [[]],
        [None], {}, {"a": {"b": []}}, ["c0"] * 3, "0" * 64, {"parts": ["../../../victim/bashrc"]}, {"parts": 7},
        [{"file": str(victim / "bashrc"), "table": "layers", "rows": 1, "bytes": 10**12}],
        [{"file": "../bashrc", "table": "steps", "rows": -1, "bytes": None, "crc32": "x"}],
    ])  # fmt: skip


Action = Callable[[Path, Path, random.Random], None]  # a file of the run, the directory outside, chance


def tamper(run: Path, victim: Path, chance: random.Random) -> str:
    """Change one thing; return what."""
    everything = sorted(path for path in run.rglob("*") if not path.is_dir())
    captured = [path for path in everything if "capture" in path.parts]
    some = [path for path in everything if "capture" not in path.parts] if chance.random() < 0.5 else captured
    if not everything:
        return "nothing"
    target = chance.choice(some or everything) if chance.random() < 0.7 else run / "100-200" / chance.choice(INNER)
    if not target.parent.is_dir():
        return "nothing"
    actions: dict[str, Action] = {
        "link": _link, "hard link": _hard_link, "pipe": _pipe, "directory": _directory, "value": _value,
        "node": _node, "bytes": _bytes, "cut": _cut, "directory link": _directory_link, "database": _database,
        "finding": _finding, "scratch": _scratch, "large": _large, "deep": _deep, "object": _object, "bomb": _bomb,
        "columns": _columns, "rows": _rows, "stacks": _stacks, "absent": _absent, "mode": _mode,
    }  # fmt: skip
    name = chance.choice([*actions, "node", "node", "node", "object"])
    actions[name](target, victim, chance)
    return f"{name} {target.relative_to(run)}"


def _away(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    elif os.path.lexists(path):
        path.unlink()


def _run_of(victim: Path) -> Path:
    return victim.parent / "run"


def _is_plain(path: Path) -> bool:
    return path.is_file() and not path.is_symlink()


def _link(path: Path, victim: Path, chance: random.Random) -> None:
    _away(path)
    path.symlink_to(chance.choice([victim / "bashrc", victim / "new", victim, Path("/dev/zero"), victim / "ring"]))


def _hard_link(path: Path, victim: Path, chance: random.Random) -> None:
    _away(path)
    os.link(victim / chance.choice(["bashrc", "ring"]), path)


def _pipe(path: Path, victim: Path, chance: random.Random) -> None:
    _away(path)
    os.mkfifo(path)


def _directory(path: Path, victim: Path, chance: random.Random) -> None:
    _away(path)
    path.mkdir()


def _absent(path: Path, victim: Path, chance: random.Random) -> None:
    _away(path)


def _mode(path: Path, victim: Path, chance: random.Random) -> None:
    if _is_plain(path):
        path.chmod(chance.choice([0o000, 0o777, 0o4755]))


def _value(path: Path, victim: Path, chance: random.Random) -> None:
    path = path.parent / (path.name if path.suffix == ".json" else "manifest.json")
    content = _json_in(path)
    known = ["rank", "pid", "scratch", "host_key", "sealed", "rows", "segment", "names", "ended", "counters", "retired"]
    for name in chance.sample([*content, *known], k=2):
        content[name] = odd_values(chance, victim)
    if os.path.lexists(path) and not path.is_file():
        return
    path.write_text(json.dumps(content), encoding="utf-8")


def _node(path: Path, victim: Path, chance: random.Random) -> None:
    """Anything at all in a JSON file becomes something else, is left out or is there twice."""
    files = [one for one in sorted(_run_of(victim).rglob("*.json")) if _is_plain(one)]
    if not files:
        return
    path = chance.choice(files)
    content = _json_in(path)
    nodes: list[tuple[Any, Any]] = []

    def walk(one: Any) -> None:
        for key in list(one) if isinstance(one, dict) else range(len(one)):
            nodes.append((one, key))
            if isinstance(one[key], (dict, list)):
                walk(one[key])

    walk(content)
    for holder, key in chance.sample(nodes, min(len(nodes), chance.randint(1, 3))):
        try:
            if chance.random() < 0.2:
                del holder[key]
            elif chance.random() < 0.1 and isinstance(holder, list):
                holder.append(holder[key])
            else:
                holder[key] = odd_values(chance, victim)
        except (KeyError, IndexError):
            continue
    path.write_text(json.dumps(content), encoding="utf-8")


def _json_in(path: Path) -> dict[str, Any]:
    """What a file says, unless an earlier change has made it unreadable, a pipe, or a terabyte."""
    if not path.is_file() or path.stat().st_size > 1 << 20:
        return {}
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}


def _bytes(path: Path, victim: Path, chance: random.Random) -> None:
    if _is_plain(path) and path.stat().st_size:
        with path.open("r+b") as file:
            file.seek(chance.randrange(min(path.stat().st_size, 1 << 16)))
            file.write(chance.randbytes(chance.randint(1, 64)))


def _cut(path: Path, victim: Path, chance: random.Random) -> None:
    if _is_plain(path):
        os.truncate(path, chance.randrange(path.stat().st_size + 1))


def _large(path: Path, victim: Path, chance: random.Random) -> None:
    if not path.is_symlink() and (path.is_file() or not path.exists()):
        path.touch()
        os.truncate(path, 1 << 40)


def _deep(path: Path, victim: Path, chance: random.Random) -> None:
    if path.suffix == ".json" and not path.is_symlink() and not path.is_dir():
        path.write_text(chance.choice(["[", '{"a":']) * 100_000, encoding="utf-8")


def _directory_link(path: Path, victim: Path, chance: random.Random) -> None:
    run = _run_of(victim)
    inner = [one for one in sorted(run.rglob("*")) if one.is_dir() and not one.is_symlink()]
    if inner:
        chosen = chance.choice(inner)
        target = victim / f"moved-{chance.randrange(10**9)}"
        shutil.move(chosen, target)
        chosen.symlink_to(target)


def _database(path: Path, victim: Path, chance: random.Random) -> None:
    file = _run_of(victim) / "findings.db"
    _away(file)
    loop = "WITH RECURSIVE c(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM c) SELECT n AS finding FROM c"
    connection = sqlite3.connect(file)
    connection.executescript(
        chance.choice([
            f"CREATE VIEW findings AS {loop}", "CREATE TABLE findings (finding, x AS (zeroblob(500000000)))",
            "CREATE TABLE findings (finding INTEGER PRIMARY KEY); INSERT INTO findings VALUES (1)", "SELECT 1",
            "CREATE TABLE findings (finding TEXT, key BLOB, proof); INSERT INTO findings VALUES ('x', x'ff', 'proved')",
        ])
    )  # fmt: skip
    connection.close()


def _finding(path: Path, victim: Path, chance: random.Random) -> None:
    """Kept findings in which any column holds anything."""
    file = _run_of(victim) / "findings.db"
    if not _is_plain(file) or file.stat().st_size > 1 << 20:
        return
    connection = sqlite3.connect(file)
    try:
        columns = [row[1] for row in connection.execute("PRAGMA table_info(findings)")]
        for column in chance.sample(columns, min(3, len(columns))):
            value = chance.choice([None, "", "[", "{}", "[1, 2]", '{"a": "b"}', 2**62, -1.5, b"\xff\0", "x" * 99_999])
            if column not in ("finding", "key"):
                connection.execute(f'UPDATE findings SET "{column}" = ?', (value,))
        connection.commit()
    except sqlite3.Error:
        pass
    finally:
        connection.close()


def _stacks(path: Path, victim: Path, chance: random.Random) -> None:
    file = _run_of(victim) / "stacks.jsonl"
    _away(file)
    rows = [{name: odd_values(chance, victim) for name in ("process", "depth", "line", "thread", "t_ns")}, 7, []]
    file.write_text("\n".join(json.dumps(row) for row in rows) + "\n{", encoding="utf-8")


def _scratch(path: Path, victim: Path, chance: random.Random) -> None:
    facts = _run_of(victim) / "100-200" / "process.json"
    if _is_plain(facts):
        (victim / "x-100-200").mkdir(exist_ok=True)
        (victim / "x-100-200" / "thesis.tex").write_text("dear to me", encoding="utf-8")
        where = chance.choice([victim, victim / "x-100-200", victim / "bashrc"])
        facts.write_text(json.dumps({**_json_in(facts), "scratch": str(where)}), encoding="utf-8")


def _object(path: Path, victim: Path, chance: random.Random) -> None:
    """A captured object that is whole and rightly named, and not what belongs there."""
    capture = _run_of(victim) / "capture" / "000"
    rounds = [one for one in sorted(capture.glob("rounds/*.json")) if _is_plain(one)]
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
    content = _json_in(where)
    pieces = [one for one in (content, *_listed(content.get("clients"))) if isinstance(one, dict)]
    holder = chance.choice(pieces)
    holder[chance.choice(["before", "after", "server"] if holder is content else ["state", "random"])] = {
        "parts": [digest] * chance.choice([1, 1, 3])
    }
    where.write_text(json.dumps(content), encoding="utf-8")


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _bomb(path: Path, victim: Path, chance: random.Random) -> None:
    """Objects that unfold to much more than they are, each built on the one before."""
    capture = _run_of(victim) / "capture" / "000"
    rounds = [one for one in sorted(capture.glob("rounds/*.json")) if _is_plain(one)]
    if not rounds or not (capture / "objects").is_dir() or (capture / "objects").is_symlink():
        return
    made = victim.parents[2] / "bombs"
    for one in made.glob("*.packed"):
        shutil.copy(one, capture / "objects" / one.name)
    digest = chance.choice((made / "order").read_text(encoding="ascii").split())
    where = chance.choice(rounds)
    content = {**_json_in(where), "before": {"parts": [digest] * chance.choice([1, 9])}}
    where.write_text(json.dumps(content), encoding="utf-8")


def make_bombs(directory: Path, count: int = 12, size: int = 32 << 20) -> None:
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


def _sealed(victim: Path, chance: random.Random) -> tuple[Path, dict[str, Any], dict[str, Any]] | None:
    """A sealed file of the run, its manifest and its entry there."""
    for manifest in chance.sample(found := sorted(_run_of(victim).glob("*/manifest.json")), len(found)):
        content = _json_in(manifest) if _is_plain(manifest) else {}
        entries = [one for one in _listed(content.get("sealed")) if isinstance(one, dict)]
        if entries and isinstance(name := (entry := chance.choice(entries)).get("file"), str) and "/" not in name:
            return manifest, content, entry
    return None


def _rewrite(victim: Path, chance: random.Random, change: Callable[[pa.Table], pa.Table]) -> None:
    """Another table in a sealed file, with a manifest that vouches for it."""
    chosen = _sealed(victim, chance)
    if chosen is None or not _is_plain(file := chosen[0].parent / chosen[2]["file"]):
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


def _columns(path: Path, victim: Path, chance: random.Random) -> None:
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


def _rows(path: Path, victim: Path, chance: random.Random) -> None:
    """Millions of equal rows, which take no space in the file; or all rows twice."""

    def change(table: pa.Table) -> pa.Table:
        if chance.random() < 0.5 or not table.num_rows:
            return pa.concat_tables([table, table])
        times = chance.choice([1_000, 100_000])
        return table.take(pa.array(np.zeros(times, np.int64)))

    _rewrite(victim, chance, change)


def state_of(directory: Path) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for root, directories, files in os.walk(directory):
        for name in (*directories, *files):
            facts = os.lstat(os.path.join(root, name))
            found[os.path.join(root, name)] = facts.st_ino, facts.st_size, facts.st_mtime_ns, facts.st_mode
    return found


def attack(tries: int, seed: int = 1) -> Outcome:
    outcome = Outcome(
        "a stranger's run with its capture, read by a command",
        "nothing outside and nothing in it is written, made or deleted; nothing is left running; only our own errors; "
        "<= 10 s of CPU, <= 1 GB",
    )
    chance = random.Random(seed)
    with place() as base, own_home(base):
        clean = prepared(base, is_long=tries >= LONG)
        make_bombs(base / "bombs", size=32 << 20 if tries >= LONG else 1 << 20)
        numbers = [chance.randrange(2**60) for _ in range(tries)]
        for at in range(0, tries, TOGETHER):
            do_together(outcome, numbers[at : at + TOGETHER], lambda number: _try(clean, base, number))
            shutil.rmtree(base / "tries", ignore_errors=True)
    outcome.notes["commands"] = len(LINES)
    return outcome


def _try(clean: Path, base: Path, number: int) -> str | None:
    """One directory and one command, which `number` says; what is wrong."""
    chance = random.Random(number)
    place_of_it = base / "tries" / str(number)
    shutil.rmtree(place_of_it, ignore_errors=True)
    run, victim, out, here = (place_of_it / name for name in ("run", "victim", "out", "here"))
    copy_run(clean, run)
    victim.mkdir()
    here.mkdir()
    for name in ("bashrc", "ring", "000001.seg"):
        (victim / name).write_text("dear to me", encoding="utf-8")
    what = ", ".join(tamper(run, victim, chance) for _ in range(chance.randint(1, 4)))
    line = any_line(chance)
    watched = (place_of_it, base / "home")
    before = [state_of(one) for one in watched]
    out.mkdir()
    wrong = read_in(here, line, run, out)
    shutil.rmtree(out)
    if [state_of(one) for one in watched] != before:
        wrong = f"{wrong or f'`{line}`:'} something was changed"
    shutil.rmtree(place_of_it)
    return wrong and f"{what}: {wrong}"
