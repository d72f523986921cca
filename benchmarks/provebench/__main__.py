"""Proof, provenance and correction on federations with known faults: `make provebench`, all of it with FULL=1.

python -m benchmarks.provebench [--full] [--only proof|clean|blame|correct] [--processes N] [--limit-s S]
    [--keep FILE] [--first-seed N] [--write docs/benchmarks]

With --keep every outcome is added to the file as it comes, and the same command goes on where it was stopped.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "src"))

import numpy as np

from benchmarks.faults.design import SEEDS, cases
from benchmarks.provebench.blame import Blamed, blamed, settings
from benchmarks.provebench.correct import Mended, mended
from benchmarks.provebench.proof import Cleared, Tried, cleared, tried
from benchmarks.provebench.schedule import Part, played
from benchmarks.provebench.tables import FIRST_SEED, blame_grid, cleared_grid, correct_grid, proof_grid
from benchmarks.report import Grid, machine, section_text, write_section

GRIDS: dict[str, Callable[[Any], Grid]] = {
    "proof": proof_grid,
    "clean": cleared_grid,
    "blame": blame_grid,
    "correct": correct_grid,
}


def parts_of(first: int, *, is_full: bool) -> list[Part]:
    """What is played, in random order; the short one is the beginning of the full one."""

    def some(items: Sequence[Any], count: int) -> list[Any]:
        order = np.random.default_rng(0).permutation(len(items))
        return [items[place] for place in order][: None if is_full else count]

    seeds = range(first, first + (1500 if is_full else 60))
    corrected = [
        replace(case, seed=case.seed - SEEDS.start + first) for case in cases(is_full=True) if case.clients < 400
    ]
    return [
        Part("proof", tried, seeds, Tried),
        Part("clean", cleared, seeds[: len(seeds) // 10], Cleared),
        Part("blame", blamed, some(settings(range(first, first + 25)), 24), Blamed),
        Part("correct", mended, some(corrected, 80)[:1200], Mended),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.provebench", description=__doc__.partition("\n")[0])
    parser.add_argument("--full", action="store_true", help="the whole published sample: hours on two cores")
    parser.add_argument("--only", choices=list(GRIDS), action="append", help="only this part; can be given again")
    parser.add_argument(
        "--limit-s", type=float, default=float("inf"), help="stop after this time; 0: only the tables of what is kept"
    )
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--keep", type=Path, metavar="FILE", help="keep outcomes here, and go on from those it has")
    parser.add_argument("--first-seed", type=int, default=FIRST_SEED, help="below 1,000: to look at and to tune on")
    parser.add_argument("--write", type=Path, metavar="PLACE", help="put the tables onto this page, or a page of these")
    arguments = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"
    parts = parts_of(arguments.first_seed, is_full=arguments.full)
    parts = [part for part in parts if arguments.only is None or part.name in arguments.only]
    found = played(parts, processes=arguments.processes, limit_s=arguments.limit_s, keep=arguments.keep)
    grids = [GRIDS[name](outcomes) for name, outcomes in found.items() if outcomes]
    count, total = sum(map(len, found.values())), sum(len(part.items) for part in parts)
    if grids and count < total:
        words = f"These are the first {count:,} of {total:,} federations, which come in random order."
        grids[0] = replace(grids[0], notes=[*grids[0].notes, words])
    print(machine(), "", *grids, sep="\n", flush=True)
    if arguments.write:
        command = f"make provebench{' FULL=1' if arguments.full else ''}"
        write_section(arguments.write, "proofs", section_text(grids, command))


if __name__ == "__main__":
    main()
