"""Accusations that are not sure, tried before a diagnosis is shown."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING

from stethos.cli.screen.text import clean
from stethos.errors import StethosError

if TYPE_CHECKING:
    import argparse

    from stethos.diagnose.diagnosis import Diagnosis
    from stethos.replay.proof import Proof
    from stethos.store.run import Run


def prove_unsure(one: Run, diagnosis: Diagnosis, arguments: argparse.Namespace, *, below: float) -> None:
    """Prove or refute them from the captured updates, and keep what comes of it. Where that cannot be, say so.

    Those of at least the confidence `below` are shown as they are. Nothing is trained. After `arguments.timeout` s
    no further one is begun.
    """
    from stethos.cli.prove import cases_of, keep_proof_of
    from stethos.cli.task.trainer import functions_in, trainer_for
    from stethos.replay.bundle import open_bundle
    from stethos.replay.prover import Prover

    cases = cases_of(one, None, diagnosis, below=below)
    begun = time.monotonic()
    try:
        if not cases:
            return
        bundle = open_bundle(one.path, None)
        functions = functions_in(arguments, bundle)
        trainer = trainer_for(bundle, arguments, functions, is_fast=True)
        prover = Prover(one.path, bundle, trainer, may_train=False, functions=functions.values())
        for done, (number, _, accusation) in enumerate(cases):
            if time.monotonic() - begun > arguments.timeout:
                sys.stderr.write(f"note: {len(cases) - done} of {len(cases)} accusations were not tried in time\n")
                return
            proof = prover.prove(accusation, _unheard, _Unseen())
            if number is not None:
                keep_proof_of(one.path, number, proof)
    except StethosError as error:
        sys.stderr.write(f"note: not proved: {clean(error.message)}\n")


def _unheard(proof: Proof) -> None:
    """Stages are not shown; the finding says what came of them."""


class _Unseen:
    def __call__(self, done: int, total: int, words: str) -> None:
        pass

    def end(self) -> None:
        pass
