"""Play federations that the lab does not have, and say how often `faulty-client` accuses exactly the faulty ones.

python -m benchmarks.wild play development 0 200     play federations of these seeds, in families for development
python -m benchmarks.wild play opened 10000 10420    the same with those that were held out until they were opened
python -m benchmarks.wild play held-out 20000 20400  the same with those that are held out
python -m benchmarks.wild play third 30000 30250     a third set, with data, models and faults of its own, held out
python -m benchmarks.wild play fourth 40000 40110    a fourth set, of whole families that no earlier set has, held out
python -m benchmarks.wild play fifth 50000 50130     a fifth set, again of families of its own, held out
python -m benchmarks.wild score development          tables of what was played
"""

from __future__ import annotations

import argparse
import sys

from benchmarks.wild.families import DEVELOPMENT, HELD_OUT, OPENED, has_member
from benchmarks.wild.fifth import draw as fifth
from benchmarks.wild.fifth.loop import Loop as FifthLoop
from benchmarks.wild.fourth import draw as fourth
from benchmarks.wild.fourth.loop import Loop as FourthLoop
from benchmarks.wild.kept import keep, seeds
from benchmarks.wild.play import Case, Loop, case_of, play
from benchmarks.wild.third import loop as third

_AT_ONCE = 8
CLEAN_SHARE = 0.4
_LOOPS = {"third": third.Loop, "fourth": FourthLoop, "fifth": FifthLoop}  # of sets that bring their own
_CASE_OF = {"third": third.case_of, "fourth": fourth.case_of, "fifth": fifth.case_of}


def cases(name: str, first: int, last: int) -> list[Case]:
    """The federations of some seeds: for development, or with at least one member that was held out."""
    done = seeds(name)
    if name in _CASE_OF:
        return [_CASE_OF[name](seed) for seed in range(first, last) if seed not in done]
    newest = {"development": None, "opened": OPENED, "held-out": HELD_OUT}[name]
    older = [DEVELOPMENT, OPENED] if newest is HELD_OUT else [DEVELOPMENT]
    found = [case_of(seed, [*older, newest] if newest else older, CLEAN_SHARE) for seed in range(first, last)]
    if newest is not None:
        found = [one for one in found if has_member(newest, one.data, one.model, one.algorithm, one.split, one.fault)]
    return [one for one in found if one.seed not in done]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["play", "score"])
    parser.add_argument("name", choices=["development", "opened", "held-out", "third", "fourth", "fifth"])
    parser.add_argument("first", type=int, nargs="?", default=0)
    parser.add_argument("last", type=int, nargs="?", default=100)
    parser.add_argument("--misses", action="store_true", help="list what went wrong")
    arguments = parser.parse_args()
    if arguments.what == "score":
        from benchmarks.wild.score import show

        show(arguments.name, lists_misses=arguments.misses)
        return 0
    todo = cases(arguments.name, arguments.first, arguments.last)
    for start in range(0, len(todo), _AT_ONCE):
        for played in play(todo[start : start + _AT_ONCE], _LOOPS.get(arguments.name, Loop)):
            keep(arguments.name, played)
        print(f"{start + _AT_ONCE} of {len(todo)}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
