"""PRG005: the same batch, the same order or the same random numbers again and again."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, ClassVar

import numpy as np

from stethos.diagnose.detector import Needs, threshold
from stethos.diagnose.finding import Evidence, Finding, Severity, Subject
from stethos.diagnose.program.inspected import COLUMNS, NEEDS, Inspected, details, inspected_of, merge_ranks
from stethos.diagnose.training import STEP_COLUMNS, column_of
from stethos.diagnose.window import Window
from stethos.store.frame import Array, is_null


@dataclass(frozen=True, slots=True)
class RepeatedData:
    """A data loader gives the same batch each time, or each pass in the same order; or random numbers repeat.

    What it looks at: checksums of inputs and labels of inspected batches, and of torch's random state.
    Why it matters: the model sees a fraction of its data, learns its order, or gets the same noise at every step.
    Not a fault when: all data fit into one batch, or the order matters (a time series).
    Next step: look at the sampler, at `shuffle`, at `set_epoch`, and at calls of `manual_seed` inside the loop.
    """

    code: ClassVar[str] = "PRG005"
    name: ClassVar[str] = "repeated-data"
    severity: ClassVar[Severity] = Severity.WARNING
    needs: ClassVar[Needs] = NEEDS
    reads: ClassVar[Needs] = {"inspections": COLUMNS, "steps": STEP_COLUMNS}
    explains: ClassVar[frozenset[str]] = frozenset({"overfitting", "oscillation"})

    least: int = threshold(4, "batches, or looks at random states")
    least_passes: int = threshold(3, "passes over the data")
    distinct: float = threshold(0.6, "share of a batch's samples that differ from each other")
    nearly_none: float = threshold(0.1, "the same where no loader is known")
    used: float = threshold(0.6, "share of the data that a pass uses")

    def check(self, window: Window) -> Iterator[Finding]:
        yield from merge_ranks(self._found(window))

    def _found(self, window: Window) -> Iterator[Finding]:
        yield from self._same_on_ranks(inspected_of(window))
        for one in inspected_of(window):
            if not one.is_federated:
                yield from self._same_batch(one)
                yield from self._same_order(one)
                yield from self._same_random(one)
                yield from self._few_samples(one)
                yield from self._repeats(one)

    def _same_on_ranks(self, ranks: list[Inspected]) -> Iterator[Finding]:
        """Ranks that hold whole models are to get different data."""
        ranked = [one for one in ranks if one.rank is not None and not one.is_federated]
        seen = [dict(zip(one.training["step"].tolist(), _prints(one), strict=True)) for one in ranked]
        common = set.intersection(*map(set, seen)) if len(seen) > 1 else set()
        prints = [{rank[step] for rank in seen} for step in common]
        equal = [found for found in prints if len(found) == 1 and None not in found]
        if len(equal) < self.least or len(equal) < len(prints) or not _are_copies(ranked):
            return
        numbers = tuple(sorted(one.rank for one in ranked if one.rank is not None))
        yield Finding(
            self.code, self.name, "same-data-on-ranks", self.severity, "all ranks train on the same batches",
            Subject(ranks=numbers, first=0, unit="step"), 0.93,
            (Evidence(
                f"{len(equal)} of {len(prints)} compared batches are equal on {len(ranked)} ranks",
                "SELECT step, rank, input_hash, label_hash FROM inspections ORDER BY step, rank",
            ),),
            "give each rank its part: `DistributedSampler(dataset)`, or another seed for each rank",
        )  # fmt: skip

    def _same_batch(self, one: Inspected) -> Iterator[Finding]:
        prints, steps = _prints(one), one.training["step"]
        inside = column_of(one.training, "epoch_start") == 0
        is_loader = (column_of(one.training, "epoch_start") == 1).any()
        given = [bool(row.get("samples", 1)) for row in details(one.training)]  # not one batch that is kept
        known = [(p, s) for p, s, i, g in zip(prints, steps, inside, given, strict=True) if p is not None and i and g]
        distinct = {p for p, _ in known}
        if not is_loader or len({s for _, s in known}) < self.least or len(distinct) != 1:
            yield from self._first_batch_again(one, prints)
            return
        yield Finding(
            self.code, self.name, "same-batch", Severity.ERROR, "the data loader gives the same batch at every step",
            one.subject(known[0][1]), 0.95,
            (one.evidence(f"{len(known)} inspected batches, all equal", "input_hash, label_hash, epoch_start"),),
            "check the dataset's `__getitem__` (does it use its index?) and the sampler",
        )  # fmt: skip

    def _first_batch_again(self, one: Inspected, prints: list[tuple[float, float] | None]) -> Iterator[Finding]:
        """Each step asks a new iterator for its first batch, and never for another one."""
        starts = column_of(one.training, "epoch_start") == 1
        batches = [row.get("batches", 0) for row in details(one.training)]
        if len(prints) < self.least or not starts.all() or len(set(prints)) != 1 or None in prints or min(batches) < 2:
            return
        yield Finding(
            self.code, self.name, "same-batch", Severity.ERROR,
            f"every step trains on the first of {batches[-1]} batches", one.subject(float(one.training["step"][0])),
            0.95, (one.evidence(f"{len(prints)} passes over the data, each left after its first batch", "input_hash"),),
            "do not call `next(iter(loader))` in the loop: iterate over the loader",
        )  # fmt: skip

    def _same_order(self, one: Inspected) -> Iterator[Finding]:
        prints, starts = _prints(one), column_of(one.training, "epoch_start") == 1
        first = [p for p, is_start in zip(prints, starts, strict=True) if is_start and p is not None]
        others = {p for p, is_start in zip(prints, starts, strict=True) if not is_start and p is not None}
        if len(first) < self.least_passes or len(set(first)) != 1 or not others - set(first):
            return
        is_drawn = any(row.get("is_shuffled") for row in details(one.training))
        severity = Severity.WARNING if one.rank is not None or is_drawn else Severity.INFO
        yield Finding(
            self.code, self.name, "same-order", severity, "every pass over the data begins with the same batch",
            one.subject(float(one.training["step"][0])), 0.9,
            (one.evidence(f"{len(first)} passes begin with the same batch", "input_hash, label_hash, epoch_start"),),
            "do not seed torch, or the loader's generator, anew at each pass" if is_drawn else
            "set `shuffle=True`; with a DistributedSampler call `sampler.set_epoch(epoch)` at each pass",
        )  # fmt: skip

    def _few_samples(self, one: Inspected) -> Iterator[Finding]:
        """A sampler that draws few of the samples, or a loader that leaves most of them out."""
        rows = [row for row in details(one.training) if row.get("dataset")]
        if not rows:
            yield from self._alike(one, details(one.training), self.nearly_none)
            return
        last = rows[-1]
        first = float(one.training["step"][0])
        weights = last.get("sampler_weights", last.get("weights"))  # which in a rank of an older run are the model's
        if isinstance(weights, int) and weights != last["dataset"]:
            yield Finding(
                self.code, self.name, "few-samples", Severity.ERROR,
                f"the sampler has {weights} weights for {last['dataset']} samples: it never draws the others",
                one.subject(first), 0.96, (one.evidence("a weight is for a sample, not for a class", "detail"),),
                "give each sample its weight: `class_weights[labels]`",
            )  # fmt: skip
            return
        drawn = last["drawn_per_pass"]
        if last["used"] < self.used * drawn and len(rows) >= self.least:
            yield Finding(
                self.code, self.name, "few-samples", self.severity,
                f"each pass over the data uses {last['used']} of {drawn} samples", one.subject(first), 0.85,
                (one.evidence(f"batches of {last['batch_size']}", "detail"),),
                "check `drop_last` and the size of a batch",
            )  # fmt: skip
        yield from self._alike(one, rows, self.distinct)

    def _alike(self, one: Inspected, rows: list[dict[str, Any]], most: float) -> Iterator[Finding]:
        """Samples of one batch that are the same."""
        looked = [row for row in rows if row.get("rows", 0) >= 16]
        if len(looked) < self.least or max(row["distinct"] / row["rows"] for row in looked) >= most:
            return
        share = np.mean([row["distinct"] / row["rows"] for row in looked])
        yield Finding(
            self.code, self.name, "few-samples", self.severity,
            f"the samples of a batch repeat: only {share:.0%} of them are different",
            one.subject(float(one.training["step"][0])), 0.88,
            (one.evidence(f"in {len(looked)} inspected batches", "input_hash, detail"),),
            "check the sampler and the dataset's `__getitem__`; copy what you store: `state.clone()`",
        )  # fmt: skip

    def _repeats(self, one: Inspected) -> Iterator[Finding]:
        """Batches that come several times in a row, or whole batches that come again from a loader that shuffles."""
        prints, rows = _prints(one), details(one.training)
        steps = one.training["step"]
        seen = [
            (p, row, float(step))
            for p, row, step in zip(prints, rows, steps, strict=True)
            if p is not None and "batch_size" in row
        ]
        seen = [now for before, now in zip([None, *seen], seen, strict=False) if before is None or before[2] != now[2]]
        near = [(a[0], b[0]) for a, b in pairwise(seen) if b[2] == a[2] + 1 and b[1].get("samples")]
        equal = sum(a == b for a, b in near)
        distinct = len({p for p, _, _ in seen})
        if len(near) >= self.least and equal >= 3 and equal >= 0.4 * len(near) and distinct > 1:
            yield Finding(
                self.code, self.name, "batches-in-a-row", self.severity,
                "the same batch comes several times in a row", one.subject(seen[0][2]), 0.92,
                (one.evidence(f"{equal} of {len(near)} inspected batches equal the one before",
                              "input_hash, label_hash"),),
                "let each worker of the loader give its own part: `get_worker_info()` in an `IterableDataset`",
            )  # fmt: skip
            return
        first: dict[tuple[float, float], float] = {}
        again = 0
        for batch, _, step in seen:
            again += step - first.setdefault(batch, step) > 1
        late = [step for _, _, step in seen if step > self.least * 2]
        is_one_pass = max((int(row.get("passes", 0)) for _, row, _ in seen), default=0) <= 1
        is_drawn = any(row.get("is_shuffled") for _, row, _ in seen)
        if is_one_pass and is_drawn and distinct > 1 and again >= 2 and again >= 0.3 * len(late):
            yield Finding(
                self.code, self.name, "cached-batches", self.severity,
                "whole batches come again, though the loader shuffles: they are kept from the first pass",
                one.subject(seen[0][2]), 0.9,
                (one.evidence(f"{again} of {len(seen)} inspected batches had come before", "input_hash, label_hash"),),
                "do not use `itertools.cycle` or a list of batches: iterate over the loader anew for each pass",
            )  # fmt: skip

    def _same_random(self, one: Inspected) -> Iterator[Finding]:
        states, steps = column_of(one.training, "random_hash"), one.training["step"]
        _, places = np.unique(steps, return_index=True)
        states, steps = states[places], steps[places]
        states, steps = states[~is_null(states)], steps[~is_null(states)]
        if len(states) < self.least:
            return
        starts = np.sort([float(first) for each in one.trainings for first in each.turn_starts[1]])
        turns = np.searchsorted(starts, steps, side="right")  # folds and seeds that are compared may begin alike
        if len(set(states.tolist())) == 1:
            if not (column_of(one.training, "dropouts") > 0).any():
                return
            title = "the random state is the same at every step: dropout drops the same units each time"
        elif any(_returns(states[turns == turn]) for turn in np.unique(turns)):
            title = "torch's random state returns to an earlier one: random numbers repeat"
        else:
            return
        yield Finding(
            self.code, self.name, "same-random-numbers", self.severity, title, one.subject(float(steps[0])), 0.88,
            (one.evidence(f"{len(set(states.tolist()))} states in {len(states)} inspected steps", "random_hash"),),
            "call `manual_seed` once, before the training; not in the loop, the dataset or the model",
        )  # fmt: skip


def _prints(one: Inspected) -> list[tuple[float, float] | None]:
    """The checksums of each batch's inputs and labels; None where the inputs were not read or are constant."""
    inputs, labels = column_of(one.training, "input_hash"), column_of(one.training, "label_hash")
    spread = column_of(one.training, "input_std")
    is_known = ~is_null(inputs) & ~(spread == 0)
    labels = np.where(is_null(labels), 0.0, labels)
    return [(i, c) if ok else None for i, c, ok in zip(inputs.tolist(), labels.tolist(), is_known, strict=True)]


def _returns(states: Array) -> bool:
    """Whether a state comes again after another one; twice at least."""
    last: dict[float, int] = {}
    returns = 0
    for place, state in enumerate(states.tolist()):
        returns += state in last and place - last[state] > 1
        last[state] = place
    return returns >= 2


def _are_copies(ranked: list[Inspected]) -> bool:
    """Whether ranks hold the same model, so that each has to see data of its own; parts of one see the same data."""
    rows = [
        (step, row)
        for one in ranked
        for step, row in zip(one.training["step"].tolist(), details(one.training), strict=True)
    ]
    if any(row.get("replicated") for _, row in rows):
        return True
    weights: dict[float, list[str]] = {}
    for step, row in rows:
        weights.setdefault(step, []).append(str(row.get("weights")))
    return any(len(found) >= len(ranked) and len(set(found)) == 1 for step, found in weights.items() if step)
