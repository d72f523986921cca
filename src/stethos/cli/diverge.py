"""Find where two runs of the same program start to differ.

    stethos diverge first second

Two runs with the same seed should be equal to the last bit. This command names the first step
at which something differs, and what: the random state, the inputs or targets of the batch, the weights or gradients of
a layer, the loss, or the learning rate. Losses are compared at every step, layers at sampled steps; batches and the
random state on the first steps and occasionally later, in CPU memory.
"""

from __future__ import annotations

import argparse

from stethos.cli.screen.jsontext import print_json
from stethos.cli.task.target import add_directory


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("first", metavar="RUN", help="a run: its name, directory or pid")
    parser.add_argument("second", metavar="RUN", help="another run of the same program")
    parser.add_argument("--json", action="store_true", help="print one object")
    add_directory(parser)


def run(arguments: argparse.Namespace) -> int:
    from stethos.profile.divergence import find_parting
    from stethos.store.find import find_run
    from stethos.store.run import Run

    with (
        Run(find_run(arguments.first, arguments.dir)) as first,
        Run(find_run(arguments.second, arguments.dir)) as second,
    ):
        found = find_parting(first, second)
    if arguments.json:
        print_json(found.as_dict() | {"sentence": found.sentence})
    else:
        from stethos.cli.screen.text import clean

        print(clean(found.sentence))
    return 0
