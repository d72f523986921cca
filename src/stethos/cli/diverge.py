"""Find where two runs of the same program part.

    stethos diverge first second

Two runs with the same seed should be equal to the last bit. The first step at which something differs is named, and
what it is: the random state, the inputs or targets of the batch, the weights or gradients of a layer, the loss, or the
learning rate. Batches and the random state are looked at on the first steps and now and then later, in CPU memory;
losses at every step; layers at sampled steps.
"""

from __future__ import annotations

import argparse

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
        from stethos.cli.screen.jsontext import print_json

        print_json(found.as_dict() | {"sentence": found.sentence})
    else:
        from stethos.cli.screen.text import clean

        print(clean(found.sentence))
    return 0
