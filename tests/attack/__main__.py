"""Run all attacks and print their table: `make attack`, or `make attack ATTACK=--quick`.

With `--keep DIRECTORY` or `--jobs N` an attack is done in pieces, each with a seed and a process of its own, and each
counted in a file there: what was interrupted goes on, and pieces that other machines did can be put beside them.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from pathlib import Path

from attack import captures, faults, fuzz, mutations, power, races, soak, strangers, surroundings
from attack.outcome import Outcome, place
from attack.pieces import do_pieces

ATTACKS: dict[str, tuple[Callable[[int, int], Outcome], int, int, int]] = {  # how often: shortly, at length, in a piece
    "power": (power.attack, 60, 10_000, 250),
    "bytes": (mutations.attack_every_byte, 60, 100_000, 1_000),
    "mutations": (mutations.attack, 20, 10_000, 200),
    "strangers": (strangers.attack, 20, 10_000, 200),
    "captures": (captures.attack, 15, 10_000, 500),
    "faults": (faults.attack, 60, 100_000, 500),
    "parsers": (fuzz.attack, 0, 100_000, 100_000),
    "races": (races.attack, 2, 200, 20),
    "surroundings": (surroundings.attack, 5, 1_000, 1_000),
    "soak": (soak.attack, 0, 3_600, 3_600),
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a few tries of each")
    parser.add_argument("--only", choices=list(ATTACKS), action="append", help="just this one")
    parser.add_argument("--tries", type=int, help="that many")
    parser.add_argument("--keep", type=Path, help="count here, and go on from there")
    parser.add_argument("--jobs", type=int, default=1, help="that many pieces side by side, each on two cores")
    parser.add_argument("--within", type=float, help="seconds, after which no further piece begins")
    parser.add_argument("--seed", type=int, default=1)
    chosen = parser.parse_args()
    ends = time.monotonic() + chosen.within if chosen.within else None
    is_good = True
    print("| attack | tries | failures | promise | seen |\n|---|---|---|---|---|")
    for name, (attack, short, long, piece) in ATTACKS.items():
        if chosen.only and name not in chosen.only:
            continue
        tries = chosen.tries or (short if chosen.quick else long)
        if not tries:
            continue
        began = time.monotonic()
        if chosen.keep is not None or chosen.jobs > 1:
            with place() as base:
                kept = (chosen.keep or base) / name
                outcome = do_pieces(name, tries, piece, kept.absolute(), jobs=chosen.jobs, ends=ends)
        else:
            outcome = attack(tries, chosen.seed)
        if outcome is None:
            sys.stderr.write(f"{name}: no piece came to its end\n")
            is_good = False
            continue
        print(outcome.row(), flush=True)
        is_good &= not outcome.failures
        for failure in outcome.failures[:20]:
            sys.stderr.write(f"{name}: {failure}\n")
        sys.stderr.write(f"{name}: {time.monotonic() - began:.0f} s\n")
    return 0 if is_good else 1


if __name__ == "__main__":
    sys.exit(main())
