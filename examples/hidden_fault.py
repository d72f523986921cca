"""Train a model over ten clients on handwritten digits. One is not what it seems; the seed decides which."""

from __future__ import annotations

import argparse
import random

from stethos import lab

CLIENTS = 10
START = 5
KINDS = ("label-flip", "label-noise", "sign-flip", "scaling", "update-noise", "free-rider-delta")


def fault_of(seed: int) -> lab.Fault:
    """The truth: who, how, and since when."""
    draw = random.Random(seed)
    return lab.Fault(draw.choice(KINDS), clients=draw.randrange(CLIENTS), start=START)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--name", default="hidden-fault")
    parser.add_argument("--dir", default="runs")
    parser.add_argument("--seed", type=int, default=49)
    parser.add_argument("--rounds", type=int, default=20)
    choice = parser.parse_args()
    result = lab.federate(
        "digits", clients=CLIENTS, rounds=choice.rounds, split=lab.Dirichlet(0.7), seed=choice.seed,
        faults=[fault_of(choice.seed)], dir=choice.dir, run=choice.name, capture="all",
    )  # fmt: skip
    print(f"test accuracy {result.accuracies[0]:.3f} after the first round, {result.accuracy:.3f} after the last")


if __name__ == "__main__":
    main()
