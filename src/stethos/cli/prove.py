"""Prove a finding: replay the history without the accused client, and as a control without another one.

    stethos prove                     every open finding about a client
    stethos prove 3                   finding number 3
    stethos prove c7                  the findings about a client, or any client you suspect
    stethos prove c7 --fast           from the recorded updates alone, nothing is trained
    stethos prove --on local          as tasks of Ray, on all cores; or --on ray://HOST:PORT

Needs a capture with all updates (`capture="all"`). First the recorded rounds are aggregated again without the client,
then the rounds since the accusation are trained again, with several orders of the samples. The finding becomes proved,
refuted or undecided, and `stethos diagnose` says so. Ctrl-C keeps what was trained; run the same command to continue.
The exit status is 0 if all was decided, 1 if something stayed undecided.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stethos.cli.screen.jsontext import print_json
from stethos.cli.screen.progress import show_progress
from stethos.cli.screen.text import clean
from stethos.cli.task.target import open_target
from stethos.cli.task.trainer import (
    add_cluster_arguments,
    add_trainer_arguments,
    functions_in,
    note_changes,
    trainer_for,
)
from stethos.errors import RecordingError, UsageError

if TYPE_CHECKING:
    from stethos.diagnose.diagnosis import Diagnosis
    from stethos.replay.proof import Accusation, Proof
    from stethos.store.run import Run

_WIDTH = 78


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("finding", metavar="FINDING", nargs="?", help="a finding's number, or a client")
    add_trainer_arguments(parser)
    add_cluster_arguments(parser)
    parser.add_argument("--fast", action="store_true", help="aggregate again, but train nothing")
    parser.add_argument(
        "--seeds",
        metavar="N",
        type=int,
        default=8,
        help="train with at most N orders of the samples (default: 8)",
    )
    parser.add_argument("--json", action="store_true", help="print one object per line")


def run(arguments: argparse.Namespace) -> int:
    if arguments.seeds < 2:
        raise UsageError(f"--seeds {arguments.seeds}", hint="an interval needs two at least")
    with open_target(arguments, is_replayed=True) as one:
        cases = cases_of(one, arguments.finding)
        if not cases:
            sys.stdout.write(f"run {clean(one.name)}: no open finding is about a client; name one: stethos prove c3\n")
            return 0
        from stethos.cli.task.on_cluster import arms_on
        from stethos.replay.bundle import open_bundle
        from stethos.replay.prover import Prover

        bundle = open_bundle(one.path, arguments.federation)
        functions = functions_in(arguments, bundle)
        trainer = trainer_for(bundle, arguments, functions, is_fast=True)
        prover = Prover(
            one.path, bundle, trainer, most_seeds=arguments.seeds, may_train=not arguments.fast,
            functions=functions.values(), run_arms=arms_on(arguments, one.path),
        )  # fmt: skip
        note_changes(bundle, functions.get("trainer"))
        is_decided = True
        for number, title, accusation in cases:
            if not arguments.json:
                sys.stdout.write(f"{clean(title)}{f' (finding {number})' if number is not None else ''}\n")
            for note in prover.notes(accusation):
                sys.stderr.write(f"note: {clean(note)}\n")
            proof = prover.prove(accusation, _line(arguments), _TrainingLine())
            is_decided &= proof.verdict != "undecided"
            if number is not None:
                keep_proof_of(one.path, number, proof)
            if arguments.json:
                print_json({"finding": number, "title": title, **proof.as_dict()})
            else:
                _show(proof)
        return 0 if is_decided else 1


def cases_of(
    one: Run, wanted: str | None, diagnosis: Diagnosis | None = None, below: float = 2.0
) -> list[tuple[int | None, str, Accusation]]:  # fmt: skip
    """Which accusations are meant: finding, title, accusation. Of all open ones, those that are less sure than this."""
    import json

    from stethos.diagnose.api import diagnose
    from stethos.diagnose.life import keep, rows_of
    from stethos.replay.proof import Accusation
    from stethos.store.findings import read_findings

    diagnosis = diagnose(one) if diagnosis is None else diagnosis
    try:
        keep(diagnosis, one.path)
        known = read_findings(one.path)
    except RecordingError:  # where a proof is to be kept, it says so
        known = rows_of(diagnosis)
    rows = [row for row in known if len(json.loads(row["clients"] or "[]")) == 1]
    faulty = {row["finding"]: json.loads(row["clients"])[0] for row in rows if row["code"] == "FED001"}
    open_ones = {client for row in rows if row["state"] == "open" and (client := faulty.get(row["finding"]))}

    def case(row: dict[str, Any]) -> tuple[int | None, str, Accusation]:
        client = json.loads(row["clients"])[0]
        others = tuple(sorted(open_ones - {client}))
        first = row["first"] if row["unit"] == "round" and row["first"] else 1
        source = json.loads(row["detail"] or "{}").get("source")
        focus = source if isinstance(source, int) else None
        return row["finding"], row["title"], Accusation((client,), row["kind"], first, None, others, focus)

    if wanted is None:
        return [
            case(row)
            for row in rows
            if row["finding"] in faulty and row["state"] == "open" and (row["confidence"] or 0.0) < below
        ]
    if wanted.isdecimal():
        found = [row for row in rows if row["finding"] == int(wanted)]
        if not found:
            listed = ", ".join(str(row["finding"]) for row in rows) or "none"
            raise UsageError(f"no finding {wanted} is about a client", hint=f"those about one client: {listed}")
        return [case(found[0])]
    about = [row for row in rows if row["finding"] in faulty and faulty[row["finding"]] == wanted]
    if about:
        return [case(about[-1])]
    return [(None, f"client {wanted}, about whom nothing was found", Accusation((wanted,), "", 1))]


def _line(arguments: argparse.Namespace) -> Any:
    def say(proof: Proof) -> None:
        if not arguments.json:
            sys.stdout.write(f"  {proof.way:15} {_extent(proof)}: {proof.verdict}\n")
            sys.stdout.flush()

    return say


def _extent(proof: Proof) -> str:
    what = f"rounds {proof.first} to {proof.last}, {proof.samples} test samples"
    return what if proof.way == "re-aggregation" else f"{what}, {proof.repetitions} seeds"


def _show(proof: Proof) -> None:
    import textwrap

    others = f" (left out on both sides: {', '.join(proof.others)})" if proof.others else ""
    for line in textwrap.wrap(f"{proof.verdict.upper()}: {clean(proof.words)}{clean(others)}", _WIDTH):
        sys.stdout.write(f"{line}\n")
    sys.stdout.write(f"  gain beyond the control {proof.excess}; {proof.reason}\n")


def keep_proof_of(path: Path, number: int, proof: Proof) -> None:
    """Write into the run what came of a finding's proof."""
    import json

    from stethos.store.findings import keep_proof

    try:
        keep_proof(path, number, proof.verdict, json.dumps(proof.as_dict()))
    except RecordingError as error:
        sys.stderr.write(f"note: {clean(error.message)}\n")


class _TrainingLine:
    """One line on a terminal that says how far the training is."""

    def __call__(self, done: int, total: int, words: str) -> None:
        show_progress(f"training {done + 1} of {max(total, done + 1)}: {words}")

    def end(self) -> None:
        show_progress()
