"""The demo's training: ten clients learn handwritten digits together, and one is not what it seems.

python -m stethos.lab.demo --seed 7

The seed decides which client, and what is wrong with it.
"""

from __future__ import annotations

import argparse
import random
import sys
import time

from stethos.lab.fault import Fault
from stethos.lab.federation import federate
from stethos.lab.split import Dirichlet

CLIENTS = 10
ROUNDS = 20
START = 5
OVERHEAD = 0.05  # steps of a third of a millisecond: with the usual share there would be hardly a sample of layers
KINDS = ("label-flip", "label-noise", "sign-flip", "scaling", "update-noise", "free-rider-delta")


def fault_of(seed: int) -> Fault:
    """The truth: who, how, and since when."""
    draw = random.Random(seed)
    return Fault(draw.choice(KINDS), clients=draw.randrange(CLIENTS), start=START)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m stethos.lab.demo", description=__doc__)
    parser.add_argument("--dir", default="runs")
    parser.add_argument("--name", default="hidden-fault")
    parser.add_argument("--seed", type=int, default=49)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--pause", type=float, default=0.0, metavar="S", help="seconds before each aggregation")
    choice = parser.parse_args()
    result = federate(
        "digits", clients=CLIENTS, rounds=choice.rounds, split=Dirichlet(0.7), seed=choice.seed,
        faults=[fault_of(choice.seed)], dir=choice.dir, run=choice.name, capture="all", overhead=OVERHEAD,
        each_round=(lambda _: time.sleep(choice.pause)) if choice.pause else None,
    )  # fmt: skip
    first, last = result.accuracies[0], result.accuracy
    sys.stderr.write(f"test accuracy {first:.3f} after the first round, {last:.3f} after the last\n")


if __name__ == "__main__":
    main()
