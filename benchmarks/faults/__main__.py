"""Find faulty clients in federations with known faults: `make faultbench`, all of it with `make faultbench FULL=1`.

python -m benchmarks.faults [--full] [--limit-s SECONDS] [--processes N] [--json FILE] [--write docs/benchmarks]
python -m benchmarks.faults --full --keep DIR     play into DIR; begun again, it goes on where it ended
python -m benchmarks.faults --from DIR            judge what is kept there, without playing
python -m benchmarks.faults --tabulate FILE       only make tables of outcomes written by --json
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "src"))

import numpy as np

from benchmarks.faults.baseline import BASELINES
from benchmarks.faults.design import KIND_OF, cases
from benchmarks.faults.kept import Job
from benchmarks.faults.outcome import UNSURE, Outcome, outcome_of
from benchmarks.report import Grid, machine, say, section_text, write_section
from stethos.diagnose.federated.verdict import IN_COMPANY, SURE

_LEAST_FLIP = 0.2  # of a client's data, under strong skew


def wilson(good: int, total: int) -> tuple[float, float]:
    """The 95 % interval of a share."""
    if not total:
        return 0.0, 1.0
    z, p = 1.96, good / total
    middle, half = p + z * z / (2 * total), z * np.sqrt(p * (1 - p) / total + z * z / (4 * total * total))
    return float((middle - half) / (1 + z * z / total)), float((middle + half) / (1 + z * z / total))


def share(results: Iterable[bool]) -> str:
    listed = list(results)
    if not listed:
        return ""
    low, high = wilson(sum(listed), len(listed))
    return f"{100 * sum(listed) / len(listed):.1f} % of {len(listed)} ({100 * low:.0f} to {100 * high:.0f})"


def grids_of(outcomes: Sequence[Outcome]) -> list[Grid]:
    faulty = [one for one in outcomes if one.truth]
    clean = [one for one in outcomes if not one.truth]
    one_bad = [one for one in faulty if len(one.truth) == 1]
    return [
        _headline(one_bad, faulty, clean),
        _by("fault", "One faulty client, by kind", one_bad, lambda one: one.fault),
        _by("data, clients", "One faulty client, by data", one_bad, lambda one: f"{one.data}, {one.clients}"),
        _by("split", "One faulty client, by split", one_bad, lambda one: one.split),
        _confusion(faulty),
    ]


def _headline(one_bad: Sequence[Outcome], faulty: Sequence[Outcome], clean: Sequence[Outcome]) -> Grid:
    def exact(chosen: Iterable[Outcome]) -> str:
        return share(one.is_exact for one in chosen)

    def told(name: str, chosen: Iterable[Outcome]) -> str:
        return share(one.baselines[name] for one in chosen)

    skewed = [one for one in one_bad if "0.3" in one.split and "flip" in one.fault and "sign" not in one.fault]
    groups = {
        "one faulty client, any kind": [one for one in one_bad if one.clients < 400],
        "one, targeted flip at Dirichlet 0.3 (>= 20 % of its data)": [
            one for one in skewed if one.weakest_flip >= _LEAST_FLIP
        ],
        "2 to 7 faulty, number not told": [one for one in faulty if len(one.truth) > 1 and one.clients < 400],
        "400 clients, 2 faulty": [one for one in faulty if one.clients == 400],
    }
    rows = [[name, exact(chosen), *(told(base, chosen) for base in BASELINES)] for name, chosen in groups.items()]
    alarms = [bool(one.accused) for one in clean]
    wrong = sum(one.suspected[client][2] for one in clean for client in one.accused)
    total = sum(one.clients * one.rounds for one in clean)
    kinds = [
        one.suspected[client][0] == one.truth[client] for one in faulty for client in one.accused if client in one.truth
    ]
    innocent = [
        f"c{number}" in one.accused for one in faulty for number in range(one.clients) if f"c{number}" not in one.truth
    ]
    fifty = [one.localise_ms for one in (*faulty, *clean) if one.clients == 50]
    notes = [
        "Exact: the set of accused clients is the set of faulty ones. In brackets the 95 % Wilson interval. Baselines "
        f"are told the number of faulty clients and always accuse; Stethos is not told and accuses at {SURE:g}, "
        f"and at {IN_COMPANY:g} where another client surely has the same fault.",
        f"Clean federations with a false alarm: {share(alarms)}; client-rounds accused in them: "
        f"{100 * wrong / max(total, 1):.3f} %. Innocent clients accused in faulty federations: "
        f"{100 * float(np.mean(innocent or [0])):.3f} %. Kind named correctly: {share(kinds)}. Calibration error of "
        f"the confidence (accusations from {UNSURE:g}): {calibration_error((*faulty, *clean)):.3f}. CPU time to "
        f"localise among 50 clients over 12 rounds: {np.median(fifty or [0]):.0f} ms.",
        "Tuned on digits, breast cancer, Fashion-MNIST and synthetic data with seeds below 50,000; reported on "
        "MNIST (never tuned on), and on digits and breast cancer with seeds from 600,000.",
    ]
    return Grid("Who finds the faulty clients", ["", "Stethos", *BASELINES], rows, notes)


def calibration_error(outcomes: Iterable[Outcome]) -> float:
    """Expected calibration error: how far confidence and truth are apart, in ten bins weighted by their size."""
    pairs = [(sure, client in one.truth) for one in outcomes for client, (_, sure, _) in one.suspected.items()]
    if not pairs:
        return 0.0
    sure, right = np.array([pair[0] for pair in pairs]), np.array([pair[1] for pair in pairs], float)
    bins = np.minimum((sure * 10).astype(int), 9)
    return float(
        sum(
            abs(sure[bins == one].mean() - right[bins == one].mean()) * (bins == one).mean()
            for one in set(bins.tolist())
        )
    )


def _by(heading: str, title: str, outcomes: Sequence[Outcome], key: Callable[[Outcome], str]) -> Grid:
    rows = []
    for name in sorted({key(one) for one in outcomes}):
        chosen = [one for one in outcomes if key(one) == name]
        told = [share(one.baselines[base] for one in chosen) for base in BASELINES]
        rows.append([name, share(one.is_exact for one in chosen), *told])
    return Grid(title, [heading, "Stethos", *BASELINES], rows)


def _confusion(outcomes: Sequence[Outcome]) -> Grid:
    kinds = sorted(set(KIND_OF.values()))
    counts = {kind: dict.fromkeys([*kinds, "not found"], 0) for kind in kinds}
    for one in outcomes:
        for client, kind in one.truth.items():
            counts[kind][one.suspected[client][0] if client in one.accused else "not found"] += 1
    rows = [[kind, *(str(value) for value in row.values())] for kind, row in counts.items()]
    return Grid("Kinds: true (rows) and named (columns)", ["", *kinds, "not found"], rows)


def jobs_of(source: Path | None, keep: Path | None, *, is_full: bool, clients: int | None = None) -> list[Job]:
    """What to do, in an order drawn once, so that whatever ends it early leaves a fair sample of all cells."""
    if source is not None:
        return [Job(None, path) for path in sorted(source.glob("[0-9]*[0-9].npz"))]
    if keep is not None:
        keep.mkdir(parents=True, exist_ok=True)
    listed = cases(is_full=is_full)
    order = np.random.default_rng(0).permutation(len(listed)).tolist()
    return [
        Job(listed[place], keep / f"{at:05d}.npz" if keep else None)
        for at, place in enumerate(order)
        if clients is None or listed[place].clients == clients
    ]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.faults", description=__doc__.partition("\n")[0])
    parser.add_argument("--full", action="store_true", help="the whole published sample: two hours on two cores")
    parser.add_argument("--limit-s", type=float, default=float("inf"), help="stop beginning new cases after this")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--clients", type=int, help="play only federations with that many")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every outcome to this file")
    parser.add_argument("--write", type=Path, metavar="PLACE", help="put the tables onto this page, or a page of these")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="keep every federation there, to be judged again")
    parser.add_argument("--from", type=Path, metavar="DIR", dest="source", help="judge the federations kept there")
    parser.add_argument("--tabulate", type=Path, metavar="FILE", help="only make tables of outcomes written by --json")
    arguments = parser.parse_args()
    if arguments.tabulate:
        outcomes = [Outcome(**one) for one in json.loads(arguments.tabulate.read_text())]
        _show(outcomes, arguments.write)
        return
    os.environ["OMP_NUM_THREADS"] = "1"
    jobs = jobs_of(arguments.source, arguments.keep, is_full=arguments.full, clients=arguments.clients)
    if not jobs:
        parser.error("there is no such federation")
    say(f"{len(jobs)} federations on {arguments.processes} processes")
    outcomes: list[Outcome] = []
    start = time.monotonic()
    with multiprocessing.get_context("spawn").Pool(arguments.processes) as pool:
        for outcome in pool.imap_unordered(outcome_of, jobs):
            outcomes.append(outcome)
            if sys.stderr.isatty() or len(outcomes) % 100 == 0:
                done, spent = len(outcomes) / len(jobs), time.monotonic() - start
                end = "\r" if sys.stderr.isatty() else "\n"
                sys.stderr.write(f"{len(outcomes)}/{len(jobs)}, {spent:.0f} s, {spent / done - spent:.0f} s left {end}")
                sys.stderr.flush()
            if time.monotonic() - start > arguments.limit_s:
                pool.terminate()
                break
    if arguments.json:
        arguments.json.write_text(json.dumps([asdict(one) for one in outcomes]))
    if len(outcomes) < len(jobs):
        say(f"stopped after {len(outcomes)} of {len(jobs)} federations")
    _show(outcomes, arguments.write)


def _show(outcomes: Sequence[Outcome], page: Path | None) -> None:
    grids = grids_of(outcomes)
    print(machine(), "", *grids, sep="\n", flush=True)
    if page:
        asked = [word for word in sys.argv[1:] if not word.startswith("--write") and word != str(page)]
        words = ["DIR" if Path(word).is_dir() else word for word in asked]
        write_section(page, "faults", section_text(grids, " ".join(["python -m benchmarks.faults", *words])))


if __name__ == "__main__":
    main()
