"""Run known bugs of training programs and their corrected twins, and count what is named.

python -m benchmarks.wildtraining [--half dev|held|both] [--only NAME ...] [--keep FILE] [--write docs/benchmarks]
python -m benchmarks.wildtraining --said FILE    run those of `blind`, and write what was said of each, to be judged
python -m benchmarks.wildtraining --second --said FILE    those of `second` instead

The half `held` is not for development: it is run to report, after the detectors are final.
"""

from __future__ import annotations

import argparse
import tempfile
from collections import Counter
from pathlib import Path

from benchmarks.report import Grid, machine, say, section_text, write_section
from benchmarks.wildtraining.play import Outcome, jobs_of, keep, play_all, play_together
from benchmarks.wildtraining.said import write_said
from benchmarks.wildtraining.table import BLIND, CASES, SECOND

_TARGETS = {"cause": 0.7, "symptom": 0.9, "wrong": 0.03, "accused": 0.02}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.wildtraining", description=__doc__.partition("\n")[0])
    parser.add_argument("--half", choices=("dev", "held", "both"), default="both")
    parser.add_argument("--only", nargs="+", help="cases by name")
    parser.add_argument("--variant", choices=("bug", "fixed"), help="only the buggy programs, or only their twins")
    parser.add_argument("--all-twins", action="store_true", help="the twins of all mutations, not of every third")
    parser.add_argument("--together", action="store_true", help="as processes of few runs: a third of the time")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--keep", type=Path, metavar="FILE", help="each outcome as a line of JSON")
    parser.add_argument("--runs", type=Path, metavar="DIRECTORY", help="keep runs here; read those that exist")
    parser.add_argument("--said", type=Path, metavar="FILE", help="the programs of `blind`: what was said, for reading")
    parser.add_argument("--second", action="store_true", help="with --said: the programs of `second` instead")
    parser.add_argument("--write", type=Path, metavar="PLACE", help="put the tables onto this page, or a page of these")
    arguments = parser.parse_args()
    table = (SECOND if arguments.second else BLIND) if arguments.said else CASES
    cases = [one for one in table.values() if arguments.said or arguments.half in ("both", one.half)]
    if arguments.only:
        cases = [table[name] for name in arguments.only]
    jobs = [job for job in jobs_of(cases, arguments.all_twins) if arguments.variant in (None, job[1])]
    print(machine(), flush=True)
    outcomes: list[Outcome] = []
    with tempfile.TemporaryDirectory(prefix="stethos-wildtraining-", ignore_cleanup_errors=True) as scratch:
        place = arguments.runs or Path(scratch)
        if arguments.said:
            write_said(jobs, place, arguments.said)
            return
        played = play_together(jobs, place) if arguments.together else play_all(jobs, place, arguments.workers)
        for outcome in played:
            outcomes.append(outcome)
            say(f"{outcome.name} {outcome.variant}: {outcome.verdict or ''} {' '.join(outcome.said)}"
                f" ({' '.join(outcome.mentioned)})")  # fmt: skip
            if arguments.keep:
                keep(outcomes, arguments.keep)
    grids = grids_of(outcomes)
    print("", *grids, sep="\n", flush=True)
    if arguments.write:
        command = f"python -m benchmarks.wildtraining --half {arguments.half}" + " --together" * arguments.together
        write_section(arguments.write, "wildtraining", section_text(grids, command))


def grids_of(outcomes: list[Outcome]) -> list[Grid]:
    halves = [half for half in ("dev", "held") if any(one.half == half for one in outcomes)]
    return [_summary(outcomes, half) for half in halves] + [_misses(outcomes)]


def _summary(outcomes: list[Outcome], half: str) -> Grid:
    mine = [one for one in outcomes if one.half == half]
    rows = []
    for family in ("port", "pattern", "mutation", "all"):
        chosen = [one for one in mine if family in (one.family, "all")]
        bugs, twins = [one for one in chosen if one.variant == "bug"], [one for one in chosen if one.variant != "bug"]
        count = Counter(one.verdict for one in bugs)
        cells = [f"{count[word]}" for word in ("cause", "symptom", "nothing", "wrong")]
        rows.append([family, str(len(bugs)), *cells, f"{sum(one.is_accused for one in twins)} of {len(twins)}"])
    bugs = [one for one in mine if one.variant == "bug"]
    total, count = max(len(bugs), 1), Counter(one.verdict for one in bugs)
    shares = (
        f"Cause named {count['cause'] / total:.0%} (target at least {_TARGETS['cause']:.0%}), at least a symptom "
        f"{(count['cause'] + count['symptom']) / total:.0%} ({_TARGETS['symptom']:.0%}), wrong "
        f"{count['wrong'] / total:.1%} (at most {_TARGETS['wrong']:.0%})."
    )
    words = {"dev": "the half used for development", "held": "the half kept apart"}[half]
    headings = ["programs", "bugs", "cause named", "symptom only", "nothing", "wrong", "twins accused"]
    return Grid(f"Bugs in training programs, {words}", headings, rows, [shares])


def _misses(outcomes: list[Outcome]) -> Grid:
    rows = [
        [one.name, one.half, one.verdict or "twin accused", ", ".join(one.said) or "nothing"]
        for one in outcomes
        if one.verdict not in (None, "cause") or one.is_accused
    ]
    notes = ["Causes and symptoms are written down beside each program; remarks below a warning do not count."]
    return Grid("Misses by name", ["program", "half", "verdict", "what was said"], rows, notes)


if __name__ == "__main__":
    main()
