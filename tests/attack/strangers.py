"""Run directories, captures and bundles made to mislead: links, pipes, paths, absurd values, in any combination."""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from attack import tampered_files as files
from attack import tampered_tables as tables
from attack.forked import do_together
from attack.kept_engine import keep_engines
from attack.outcome import Outcome, copy_run, place
from attack.reading import LINES, any_line, own_home, prepared, read_in

LONG = 50
TOGETHER = 40
INNER = ("process.json", "manifest.json", "manifest.copy.json", "ring", "000001.seg", "000002.seg", "000003.seg",
         "000001.steps.parquet", "000001.layers.parquet", ".manifest.json", ".000002.steps.parquet")  # fmt: skip


Action = Callable[[Path, Path, random.Random], None]  # a file of the run, the directory outside, chance
ACTIONS: dict[str, Action] = {
    "link": files.link, "hard link": files.hard_link, "pipe": files.make_pipe, "directory": files.make_directory,
    "value": files.change_value, "node": files.change_json, "bytes": files.change_bytes, "cut": files.cut_off,
    "directory link": files.directory_link, "database": files.odd_database, "finding": files.odd_finding,
    "scratch": files.odd_scratch, "large": files.make_large, "deep": files.make_deep, "object": tables.add_object,
    "bomb": tables.add_bomb, "columns": tables.change_columns, "rows": tables.repeat_rows,
    "stacks": files.odd_stacks, "absent": files.take_away, "mode": files.change_mode, "device": files.make_device,
    "odd name": files.add_odd_name, "length": files.change_length,
}  # fmt: skip


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
    name = chance.choice([*ACTIONS, "node", "node", "node", "object"])
    ACTIONS[name](target, victim, chance)
    return f"{name} {target.relative_to(run)}"


def state_of(directory: Path) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for root, *names in os.walk(directory):
        for name in (*names[0], *names[1]):
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
        tables.make_bombs(base / "bombs", size=32 << 20 if tries >= LONG else 1 << 20)
        numbers = [chance.randrange(2**60) for _ in range(tries)]
        for at in range(0, tries, TOGETHER):
            do_together(outcome, numbers[at : at + TOGETHER], lambda number: _try(clean, base, number))
            shutil.rmtree(base / "try", ignore_errors=True)
    outcome.notes["commands"] = len(LINES)
    return outcome


def _try(clean: Path, base: Path, number: int) -> str | None:
    """One directory and one command, which `number` says; what is wrong."""
    chance = random.Random(number)
    keep_engines()
    place_of_it = base / "try"
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
