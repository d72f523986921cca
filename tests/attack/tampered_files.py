"""What a stranger may do to the files of a run: links, pipes, devices, names, absurd values, databases that compute."""

from __future__ import annotations

import json
import os
import random
import shutil
import sqlite3
import stat
from pathlib import Path
from typing import Any

from stethos.record.border import checked_json


def odd_values(chance: random.Random, victim: Path) -> Any:
    """Anything JSON can say."""
    return chance.choice([
        None, True, -1, 0, 2**31, 2**63, -(2**70), 10**400, 1.5, 1e308, float("nan"), float("inf"), "", "x",
        "../../" * 9 + "etc/passwd", str(victim), str(victim / "bashrc"), "\0", "\ud800", "a" * 70_000, [], [[]],
        [None], {}, {"a": {"b": []}}, ["c0"] * 3, "0" * 64, {"parts": ["../../../victim/bashrc"]}, {"parts": 7},
        [{"file": str(victim / "bashrc"), "table": "layers", "rows": 1, "bytes": 10**12}],
        [{"file": "../bashrc", "table": "steps", "rows": -1, "bytes": None, "crc32": "x"}],
    ])  # fmt: skip


def _away(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    elif os.path.lexists(path):
        path.unlink()


def run_of(victim: Path) -> Path:
    return victim.parent / "run"


def is_plain(path: Path) -> bool:
    return path.is_file() and not path.is_symlink()


def link(path: Path, victim: Path, chance: random.Random) -> None:
    _away(path)
    path.symlink_to(chance.choice([victim / "bashrc", victim / "new", victim, Path("/dev/zero"), victim / "ring"]))


def hard_link(path: Path, victim: Path, chance: random.Random) -> None:
    _away(path)
    os.link(victim / chance.choice(["bashrc", "ring"]), path)


def make_pipe(path: Path, victim: Path, chance: random.Random) -> None:
    _away(path)
    os.mkfifo(path)


def make_directory(path: Path, victim: Path, chance: random.Random) -> None:
    _away(path)
    path.mkdir()


def take_away(path: Path, victim: Path, chance: random.Random) -> None:
    _away(path)


def change_mode(path: Path, victim: Path, chance: random.Random) -> None:
    if is_plain(path):
        path.chmod(chance.choice([0o000, 0o777, 0o4755]))


def make_device(path: Path, victim: Path, chance: random.Random) -> None:
    _away(path)
    try:
        os.mknod(path, 0o666 | stat.S_IFCHR, os.makedev(1, chance.choice([5, 8])))  # zero, random
    except PermissionError:
        path.symlink_to("/dev/zero")


def add_odd_name(path: Path, victim: Path, chance: random.Random) -> None:
    """The file, or the directory it is in, once more under a name that nobody would choose."""
    odd = ["a\nb", "\udcff\udc80", "\x1b[2J", "-rf", "100-200 ", "..x", "'; DROP", "*", "[a]", "x" * 200, "100-201"]
    name = chance.choice(odd) + (path.suffix if chance.random() < 0.5 else "")
    if chance.random() < 0.5 and is_plain(path) and path.stat().st_size < 1 << 20:
        shutil.copyfile(path, path.parent / name)
    elif not os.path.lexists(target := run_of(victim) / name):
        target.mkdir()
        for facts in ("process.json", "manifest.json"):
            (target / facts).write_text(json.dumps(json_in(run_of(victim) / "100-200" / facts)), encoding="utf-8")


def change_length(path: Path, victim: Path, chance: random.Random) -> None:
    """A number in a file of Arrow, Parquet or our own that may be a length or an offset becomes another one."""
    files = [one for one in sorted(run_of(victim).rglob("*")) if one.suffix in (".parquet", ".seg", ".packed")]
    files += run_of(victim).glob("*/ring")
    files = [one for one in files if is_plain(one) and 16 < one.stat().st_size < 1 << 25]
    if not files:
        return
    with (file := chance.choice(files)).open("r+b") as opened:
        size = min(file.stat().st_size, 1 << 15)
        for _ in range(chance.randint(1, 3)):
            width = chance.choice([4, 8])
            at = size - 8 if chance.random() < 0.3 else chance.randrange(0, size - 8, 4)
            opened.seek(at)
            number = chance.choice([0, 1, 2**31 - 1, 2**31, 2**32 - 1, 2**62, 2**63 - 1, 2**63, size, size + 1])
            opened.write(number.to_bytes(8, "little")[:width])


def change_value(path: Path, victim: Path, chance: random.Random) -> None:
    path = path.parent / (path.name if path.suffix == ".json" else "manifest.json")
    content = json_in(path)
    known = ["rank", "pid", "scratch", "host_key", "sealed", "rows", "segment", "names", "ended", "counters", "retired"]
    for name in chance.sample([*content, *known], k=2):
        content[name] = odd_values(chance, victim)
    copy = path.with_name("manifest.copy.json")
    for file in (path, copy) if path.name == "manifest.json" and chance.random() < 0.5 else (path,):
        if file.is_file() or not os.path.lexists(file):
            file.write_bytes(checked_json(content) if chance.random() < 0.5 else json.dumps(content).encode())


def change_json(path: Path, victim: Path, chance: random.Random) -> None:
    """Anything at all in a JSON file becomes something else, is left out or is there twice."""
    files = [one for one in sorted(run_of(victim).rglob("*.json")) if is_plain(one)]
    if not files:
        return
    path = chance.choice(files)
    path.write_text(json.dumps(change_nodes(json_in(path), chance, victim)), encoding="utf-8")


def change_nodes(content: Any, chance: random.Random, victim: Path) -> Any:
    """One to three things in it become something else, are left out or are there twice."""
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
    return content


def json_in(path: Path) -> dict[str, Any]:
    """What a file says, unless an earlier change has made it unreadable, a pipe, or a terabyte."""
    if not path.is_file() or path.stat().st_size > 1 << 20:
        return {}
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    if isinstance(content, dict):
        content.pop("crc32", None)  # what is written instead is believed, as older versions' files are
    return content if isinstance(content, dict) else {}


def change_bytes(path: Path, victim: Path, chance: random.Random) -> None:
    if is_plain(path) and path.stat().st_size:
        with path.open("r+b") as file:
            file.seek(chance.randrange(min(path.stat().st_size, 1 << 16)))
            file.write(chance.randbytes(chance.randint(1, 64)))


def cut_off(path: Path, victim: Path, chance: random.Random) -> None:
    if is_plain(path):
        os.truncate(path, chance.randrange(path.stat().st_size + 1))


def make_large(path: Path, victim: Path, chance: random.Random) -> None:
    if not path.is_symlink() and (path.is_file() or not path.exists()):
        path.touch()
        os.truncate(path, 1 << 40)


def make_deep(path: Path, victim: Path, chance: random.Random) -> None:
    if path.suffix == ".json" and not path.is_symlink() and not path.is_dir():
        path.write_text(chance.choice(["[", '{"a":']) * 100_000, encoding="utf-8")


def directory_link(path: Path, victim: Path, chance: random.Random) -> None:
    run = run_of(victim)
    inner = [one for one in sorted(run.rglob("*")) if one.is_dir() and not one.is_symlink()]
    if inner:
        chosen = chance.choice(inner)
        target = victim / f"moved-{chance.randrange(10**9)}"
        shutil.move(chosen, target)
        chosen.symlink_to(target)


def odd_database(path: Path, victim: Path, chance: random.Random) -> None:
    file = run_of(victim) / "findings.db"
    _away(file)
    loop = "WITH RECURSIVE c(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM c) SELECT n AS finding FROM c"
    connection = sqlite3.connect(file)
    connection.executescript(
        chance.choice([
            f"CREATE VIEW findings AS {loop}", "CREATE TABLE findings (finding, x AS (zeroblob(500000000)))",
            "CREATE TABLE findings (finding INTEGER PRIMARY KEY); INSERT INTO findings VALUES (1)", "SELECT 1",
            "CREATE TABLE findings (finding TEXT, key BLOB, proof); INSERT INTO findings VALUES ('x', x'ff', 'proved')",
            "CREATE VIRTUAL TABLE findings USING fts5(finding, key); INSERT INTO findings VALUES ('x', 'y')",
            "CREATE TABLE findings (finding, key); CREATE INDEX i ON findings (length(zeroblob(key * 1000000)))",
            f"CREATE TABLE findings ({', '.join(f'c{n}' for n in range(1_900))})",
            "CREATE TABLE findings (finding TEXT COLLATE NOCASE PRIMARY KEY, key) WITHOUT ROWID",
        ])
    )  # fmt: skip
    connection.close()


def odd_finding(path: Path, victim: Path, chance: random.Random) -> None:
    """Kept findings in which any column holds anything."""
    file = run_of(victim) / "findings.db"
    if not is_plain(file) or file.stat().st_size > 1 << 20:
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


def odd_stacks(path: Path, victim: Path, chance: random.Random) -> None:
    file = run_of(victim) / "stacks.jsonl"
    _away(file)
    rows = [{name: odd_values(chance, victim) for name in ("process", "depth", "line", "thread", "t_ns")}, 7, []]
    file.write_text("\n".join(json.dumps(row) for row in rows) + "\n{", encoding="utf-8")


def odd_scratch(path: Path, victim: Path, chance: random.Random) -> None:
    facts = run_of(victim) / "100-200" / "process.json"
    if is_plain(facts):
        (victim / "x-100-200").mkdir(exist_ok=True)
        (victim / "x-100-200" / "thesis.tex").write_text("dear to me", encoding="utf-8")
        where = chance.choice([victim, victim / "x-100-200", victim / "bashrc"])
        facts.write_text(json.dumps({**json_in(facts), "scratch": str(where)}), encoding="utf-8")
