"""Run all attacks and print their table: `make attack`, or `make attack ATTACK=--quick`.

With `--keep DIRECTORY` an attack is done in pieces, each with a seed of its own, and counted in a file after each: what
was interrupted goes on there.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path

from attack import captures, faults, fuzz, mutations, power, races, soak, strangers, surroundings
from attack.outcome import Outcome

ATTACKS: dict[str, tuple[Callable[[int, int], Outcome], int, int, int]] = {  # how often: shortly, at length, in a piece
    "power": (power.attack, 60, 10_000, 250),
    "bytes": (mutations.attack_every_byte, 60, 100_000, 1_000),
    "mutations": (mutations.attack, 20, 10_000, 1_000),
    "strangers": (strangers.attack, 20, 10_000, 1_000),
    "captures": (captures.attack, 15, 10_000, 2_000),
    "faults": (faults.attack, 60, 100_000, 100_000),
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
    chosen = parser.parse_args()
    is_good = True
    print("| attack | tries | failures | promise | seen |\n|---|---|---|---|---|")
    for name, (attack, short, long, piece) in ATTACKS.items():
        if chosen.only and name not in chosen.only:
            continue
        tries = chosen.tries or (short if chosen.quick else long)
        if not tries:
            continue
        began = time.monotonic()
        outcome = attack(tries, 1) if chosen.keep is None else _in_pieces(attack, tries, piece, chosen.keep / name)
        print(outcome.row(), flush=True)
        is_good &= not outcome.failures
        for failure in outcome.failures[:20]:
            sys.stderr.write(f"{name}: {failure}\n")
        sys.stderr.write(f"{name}: {time.monotonic() - began:.0f} s\n")
    return 0 if is_good else 1


def _in_pieces(attack: Callable[[int, int], Outcome], tries: int, piece: int, path: Path) -> Outcome:
    path.parent.mkdir(parents=True, exist_ok=True)
    kept = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {"seed": 0, "outcome": None}
    whole = Outcome(**kept["outcome"]) if kept["outcome"] else None
    while whole is None or whole.tries < tries:
        part = attack(min(piece, tries - (whole.tries if whole else 0)), kept["seed"] + 1)
        if whole is None:
            whole = part
        else:
            whole.add(part)
        kept = {"seed": kept["seed"] + 1, "outcome": vars(whole)}
        path.write_text(json.dumps(kept), encoding="utf-8")
        if not part.tries:
            break
    return whole


if __name__ == "__main__":
    sys.exit(main())
