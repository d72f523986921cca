"""PRG005: the same batch, the same order or the same random numbers again and again."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from stethos.diagnose.detector import Needs
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
    explains: ClassVar[frozenset[str]] = frozenset({"overfitting"})

    least: int = 4
    least_passes: int = 3

    def check(self, window: Window) -> Iterator[Finding]:
        yield from merge_ranks(self._found(window))

    def _found(self, window: Window) -> Iterator[Finding]:
        yield from self._same_on_ranks(inspected_of(window))
        for one in inspected_of(window):
            if not one.is_federated:
                yield from self._same_batch(one)
                yield from self._same_order(one)
                yield from self._same_random(one)

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
        known = [(p, s) for p, s, i in zip(prints, steps, inside, strict=True) if p is not None and i]
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

    def _same_random(self, one: Inspected) -> Iterator[Finding]:
        states, steps = column_of(one.training, "random_hash"), one.training["step"]
        _, places = np.unique(steps, return_index=True)
        states, steps = states[places], steps[places]
        states, steps = states[~is_null(states)], steps[~is_null(states)]
        if len(states) < self.least:
            return
        if len(set(states.tolist())) == 1:
            if not (column_of(one.training, "dropouts") > 0).any():
                return
            title = "the random state is the same at every step: dropout drops the same units each time"
        elif _returns(states):
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
