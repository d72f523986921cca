"""The tables of the benchmark, from its outcomes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from benchmarks.faults.__main__ import share
from benchmarks.provebench.blame import Blamed
from benchmarks.provebench.correct import Mended
from benchmarks.provebench.proof import Cleared, Tried
from benchmarks.report import Grid

FIRST_SEED = 900_000  # of the federations that are reported on
UNSEEN = f"Seeds from {FIRST_SEED:,}, of which none was looked at; rules were tuned on seeds below 3,000."

_WITHIN = 0.02
_NOISE = 0.01


def _shares(found: Sequence[Any], by: str, verdicts: Iterable[tuple[str, str]]) -> list[list[str]]:
    """How often each of these fields has this verdict, in all and by another field."""
    kinds, wanted = [getattr(one, by) for one in found], list(verdicts)
    rows = []
    for name in ["all", *sorted(set(kinds))]:
        chosen = [one for one, kind in zip(found, kinds, strict=True) if name in ("all", kind)]
        rows.append([name, *(share(getattr(one, field) == verdict for one in chosen) for field, verdict in wanted)])
    return rows


def proof_grid(found: Sequence[Tried]) -> Grid:
    large = [one for one in found if one.is_large]
    verdicts = {
        "verdict": "proved", "innocent_verdict": "refuted", "fast_verdict": "proved",
        "innocent_fast_verdict": "proved",
    }  # fmt: skip
    rows = _shares(large, "fault", verdicts.items())
    wrong = [one for one in large if one.verdict == "refuted" or one.innocent_verdict == "proved"]
    notes = [
        f"Of {len(found)} federations, the {len(large)} in which the fault costs more accuracy than two standard "
        "errors of the test (over three orders of the samples that no proof uses; those in which it does not cost a "
        "quarter of that in the run itself were not looked at any closer). Guilty clients are accused "
        "together, the innocent one beside them. Verdicts that are the wrong way round: "
        f"{share([one in wrong for one in large])}. "
        f"Re-aggregation takes {np.median([one.fast_s for one in large] or [0]):.2f} s (median, 12 rounds). {UNSEEN}",
    ]
    alone = "re-aggregation alone"
    headings = ["fault", "guilty proved", "innocent refuted", f"guilty proved, {alone}", f"innocent proved, {alone}"]
    return Grid("Verdicts of proofs", headings, rows, notes)


def cleared_grid(found: Sequence[Cleared]) -> Grid:
    rows = _shares(found, "split", [("verdict", "proved"), ("verdict", "refuted"), ("fast_verdict", "proved")])
    notes = [f"Nothing is wrong in these federations, and one of their clients is accused at random. {UNSEEN}"]
    return Grid("False proofs", ["split", "proved", "refuted", "proved, re-aggregation alone"], rows, notes)


def blame_grid(found: Sequence[Blamed]) -> Grid:
    groups: dict[str, list[Blamed]] = {"all": list(found)}
    for one in sorted(found, key=lambda one: (one.data, one.model)):
        groups.setdefault(f"{one.data}, {one.model}", []).append(one)
    for one in sorted(found, key=lambda one: one.alpha):
        groups.setdefault(f"Dirichlet {one.alpha}", []).append(one)
    rows = []
    for name, chosen in groups.items():
        due = [place < one.due_right for one in chosen for place in range(one.due)]
        every = [place < one.all_right for one in chosen for place in range(one.all_inputs)]
        times = [one.input_ms for one in chosen if one.all_inputs]
        rows.append([name, share(due), share(every), f"{np.median(times or [0]):.0f} ms"])
    notes = [
        "One client of ten labels its most frequent class as another one; ten rounds. Inputs of that class which the "
        "global model calls the other one, at most ten of a federation. Due to the flip: the same federation without "
        f"it gets them right. {UNSEEN} TraceFL publishes 99.3 %, 3.7 s.",
    ]
    return Grid("Who is blamed for a wrong answer", ["", "due to the flip", "all", "time per input"], rows, notes)


def correct_grid(found: Sequence[Mended]) -> Grid:
    faulty = [one for one in found if one.fault != "none"]
    clean = [one for one in found if one.fault == "none"]
    rows = []
    for name in ["all", *sorted({one.fault for one in faulty})]:
        chosen = [one for one in faulty if name in ("all", one.fault)]
        rows.append(
            [
                name,
                share(one.faulty >= one.clean - _WITHIN for one in chosen),
                share(one.corrected >= one.clean - _WITHIN for one in chosen),
                f"{100 * np.mean([one.clean - one.faulty for one in chosen] or [0]):.1f}",
                f"{100 * np.mean([one.clean - one.corrected for one in chosen] or [0]):.1f}",
            ]
        )
    notes = [
        f"Clean federations whose accuracy stays within {100 * _NOISE:g} point: "
        f"{share(one.corrected >= one.clean - _NOISE for one in clean)}; in which nothing is done at all: "
        f"{share(one.actions == 0 for one in clean)}. Honest clients acted on in faulty ones: "
        f"{sum(one.wrongly for one in faulty)} of {sum(one.clients for one in faulty)}. The kinds of federations of "
        f"the fault benchmark. {UNSEEN}",
    ]
    headings = ["fault", "within 2 points of clean, without", "with correction", "mean points lost, without", "with"]
    return Grid("Corrections", headings, rows, notes)
