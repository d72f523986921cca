"""Run jobs of several ranks, one of them faulty, and healthy ones, and count what is named.

python -m benchmarks.rankbench [--only NAME ...] [--worlds 2 4] [--variant faulty|healthy] [--keep FILE]
    [--runs DIRECTORY] [--write docs/benchmarks]
"""

from __future__ import annotations

import argparse
import tempfile
from collections import Counter
from pathlib import Path

from benchmarks.rankbench.play import Outcome, keep, play
from benchmarks.rankbench.table import KINDS
from benchmarks.report import Grid, machine, say, section_text, write_section

_TARGET = 0.95
_HANG_TARGET_S = 35


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.rankbench", description=__doc__.partition("\n")[0])
    parser.add_argument("--only", nargs="+", help="jobs by name")
    parser.add_argument("--worlds", nargs="+", type=int, default=[2, 4], help="numbers of ranks")
    parser.add_argument("--variant", choices=("faulty", "healthy"), help="only faulty jobs, or only healthy ones")
    parser.add_argument("--keep", type=Path, metavar="FILE", help="each outcome as a line of JSON")
    parser.add_argument("--runs", type=Path, metavar="DIRECTORY", help="keep runs here; read those that exist")
    parser.add_argument("--write", type=Path, metavar="PLACE", help="put the tables onto this page, or a page of these")
    arguments = parser.parse_args()
    print(machine(), flush=True)
    outcomes: list[Outcome] = []
    with tempfile.TemporaryDirectory(prefix="stethos-rankbench-", ignore_cleanup_errors=True) as scratch:
        place = arguments.runs or Path(scratch)
        place.mkdir(parents=True, exist_ok=True)
        for world in arguments.worlds:
            for name in arguments.only or KINDS:
                for variant in ("faulty", "healthy") if KINDS[name].causes else ("healthy",):
                    if arguments.variant in (None, variant):
                        outcomes.append(play(KINDS[name], variant, world, place))
                        one = outcomes[-1]
                        say(f"{name} {variant} x {world}: {one.verdict} {'; '.join(one.said)} ({one.took_s:.0f} s)")
                        if arguments.keep:
                            keep(outcomes, arguments.keep)
    grids = grids_of(outcomes)
    print("", *grids, sep="\n", flush=True)
    if arguments.write:
        command = f"python -m benchmarks.rankbench --worlds {' '.join(map(str, arguments.worlds))}"
        write_section(arguments.write, "rankbench", section_text(grids, command))


def grids_of(outcomes: list[Outcome]) -> list[Grid]:
    return [_summary(outcomes), _by_fault(outcomes)]


def _summary(outcomes: list[Outcome]) -> Grid:
    rows = []
    for world in sorted({one.world for one in outcomes}):
        mine = [one for one in outcomes if one.world == world]
        faulty, well = ([one for one in mine if one.variant == word] for word in ("faulty", "healthy"))
        count = Counter(one.verdict for one in faulty)
        cells = [str(count[word]) for word in ("right", "other rank", "second", "wrong", "nothing")]
        accused = sum(one.verdict == "accused" for one in well)
        rows.append([str(world), str(len(faulty)), *cells, f"{accused} of {len(well)}"])
    faulty = [one for one in outcomes if one.variant == "faulty"]
    right = sum(one.verdict == "right" for one in faulty) / max(len(faulty), 1)
    notes = [f"Right rank and cause first: {right:.0%} (target at least {_TARGET:.0%})."]
    hangs = [one.hang_s for one in outcomes if one.hang_s is not None]
    if hangs:
        notes.append(
            f"A hang is told {min(hangs):.0f} to {max(hangs):.0f} s after the last step (target {_HANG_TARGET_S} s)."
        )
    headings = ["ranks", "faults", "right", "other rank", "second", "wrong", "nothing", "healthy accused"]
    return Grid("Jobs of several ranks", headings, rows, notes)


def _by_fault(outcomes: list[Outcome]) -> Grid:
    rows = [
        [one.name, str(one.world), one.variant, one.verdict, "; ".join(one.said) or "nothing"]
        for one in outcomes
        if one.variant == "faulty" or one.verdict == "accused"
    ]
    notes = ["Said: detector, kind and ranks of each root cause, the gravest first; the first is the answer."]
    return Grid("Faults of ranks one by one", ["job", "ranks", "variant", "verdict", "said"], rows, notes)


if __name__ == "__main__":
    main()
