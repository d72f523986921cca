"""The demo's training, which stands in its third round until a file is there: watched_demo.py DIRECTORY NAME FILE"""

from __future__ import annotations

import sys
import time
from pathlib import Path

from stethos.lab.demo import CLIENTS, OVERHEAD, fault_of
from stethos.lab.federation import Exchange, federate
from stethos.lab.split import Dirichlet

ROUNDS, SEED, HELD = 16, 2, 3


def main() -> None:
    directory, name, file = sys.argv[1:]
    rounds = 0

    def wait(_: Exchange) -> None:
        nonlocal rounds
        rounds += 1
        while rounds == HELD and not Path(file).exists():
            time.sleep(0.02)

    federate(
        "digits", clients=CLIENTS, rounds=ROUNDS, split=Dirichlet(0.7), seed=SEED, faults=[fault_of(SEED)],
        dir=directory, run=name, capture="all", overhead=OVERHEAD, each_round=wait,
    )  # fmt: skip


if __name__ == "__main__":
    main()
