"""`make stalls`: plant stalls in federations and see which leg is named, and when. `--engines plain,nvflare,flower`."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "tests")]

from benchmarks.stalls.trial import Planted, Verdict, end_group, watch  # noqa: E402

PLAIN = [
    Planted("plain", "drop", "download", "c1"),
    Planted("plain", "client-sleep", "compute", "c1"),
    Planted("plain", "client-stop", "compute", "c1"),
    Planted("plain", "client-kill", "compute", "c1"),
    Planted("plain", "thread-sleep", "compute", "c1"),
    Planted("plain", "lost-reply", "upload", "c1"),
    Planted("plain", "aggregate-sleep", "aggregate"),
    Planted("plain", "evaluate-sleep", "evaluate"),
    Planted("plain", "server-stop", "server"),
    Planted("plain", "server-kill", "server"),
    Planted("plain", "slow-client", None),
    Planted("plain", "slow-client-often-idle", None),
    Planted("plain", "slow-link", None),
    Planted("plain", "slow-aggregate", None),
    Planted("plain", "slow-evaluate", None),
]


def plain_trial(planted: Planted, number: int) -> Verdict:
    """A loop of our own with clients in processes or threads."""
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        settings = {"dir": name, "kind": planted.kind, "round": 1 + number % 3}
        words = [sys.executable, str(Path(__file__).parent / "apps" / "plain.py"), json.dumps(settings)]
        process = subprocess.Popen(words, cwd=name, stdin=subprocess.DEVNULL, start_new_session=True)
        marker = directory / "planted"
        try:
            return watch(
                planted, directory / "run", lambda: float(marker.read_text() or 0) if marker.exists() else None,
                lambda: process.poll() is not None and planted.leg is None,
            )  # fmt: skip
        finally:
            end_group(process.pid)
            process.wait()
            time.sleep(2.0)  # its drainer ends by itself


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--engines", default="plain,nvflare,flower")
    parser.add_argument("--repeat", type=int, default=1)
    parser.add_argument("--only", default="", help="part of a kind's name")
    parser.add_argument("--jobs", type=int, default=4, help="plain trials at a time: they mostly wait")
    parser.add_argument("--keep", type=Path, help="add a line of JSON for each trial to this file")
    given = parser.parse_args()
    engines = given.engines.split(",")
    verdicts: list[Verdict] = []

    def told(one: Verdict) -> None:
        verdicts.append(one)
        after = f"{one.after_s:.0f} s" if one.after_s is not None else "-"
        mark = "right" if one.is_right else "WRONG"
        print(
            f"{mark}  {one.planted.engine:8} {one.planted.kind:24} {one.leg or 'nothing'!s:14} {after:>6}  {one.title}",
            flush=True,
        )
        if given.keep:
            facts = {
                "engine": one.planted.engine, "kind": one.planted.kind, "expected": one.planted.leg, "leg": one.leg,
                "clients": one.clients, "after_s": one.after_s, "right": one.is_right,
            }  # fmt: skip
            with given.keep.open("a") as file:
                file.write(json.dumps(facts) + "\n")

    if "plain" in engines:
        wanted = [(one, number) for number in range(given.repeat) for one in PLAIN if given.only in one.kind]
        with ThreadPoolExecutor(given.jobs) as pool:
            for verdict in pool.map(lambda pair: plain_trial(*pair), wanted):
                told(verdict)
    for engine in ("nvflare", "flower"):
        if engine in engines:
            from importlib import import_module

            module = import_module(f"benchmarks.stalls.{engine}_stalls")
            for verdict in module.trials(given.repeat, given.only):
                told(verdict)
    print(table(verdicts))


def table(verdicts: list[Verdict]) -> str:
    """Markdown: by engine and kind, how many, right, and how long after the stall began."""
    rows: dict[tuple[str, str], list[Verdict]] = defaultdict(list)
    for one in verdicts:
        rows[one.planted.engine, one.planted.kind].append(one)
    lines = ["| where | planted | leg | tries | right | seconds, longest |", "|---|---|---|---|---|---|"]
    for (engine, kind), ones in rows.items():
        times = [one.after_s for one in ones if one.after_s is not None and one.planted.leg is not None]
        longest = f"{max(times):.0f}" if times else "-"
        leg = ones[0].planted.leg or "none: healthy"
        lines.append(f"| {engine} | {kind} | {leg} | {len(ones)} | {sum(one.is_right for one in ones)} | {longest} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
