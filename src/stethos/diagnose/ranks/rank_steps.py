"""What ranks did at equal steps: their gradients, learning rates and how far they came, side by side."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from stethos.diagnose.training import column_of, texts_of
from stethos.diagnose.window import Window
from stethos.store.frame import Frame, is_null

ByRank = dict[int, Hashable]
Numbers = dict[int, dict[int, float]]  # by step and rank

_LEAST_SHARED = 8  # steps whose gradients are of different lengths


@dataclass(frozen=True, slots=True)
class RankSteps:
    """What is known of the steps of all ranks, by step and rank."""

    exchanged: Numbers  # checksums of gradients after backward
    applied: Numbers  # norms of gradients that the optimizer got
    made: Numbers  # norms of gradients after backward
    rates: Numbers
    count: dict[int, int]  # steps by rank
    is_over: bool  # all ranks have come to their end

    @classmethod
    def of(cls, window: Window, is_replicated: bool) -> RankSteps:
        inspections, steps = window.frame("inspections"), window.frame("steps")
        states = set(texts_of(window.frame("processes"), "state").tolist())
        count: dict[int, int] = {}
        for _, step, rank in by_rank(steps) if len(steps) and "rank" in steps else ():
            count[rank] = max(count.get(rank, 0), step + 1)
        return cls(
            of_steps(inspections, "gradient_hash") if is_replicated else {}, of_steps(steps, "grad_norm"),
            of_steps(inspections, "gradient_norm") if is_replicated else {}, of_steps(steps, "lr"), count,
            states == {"ended"},
        )  # fmt: skip

    @property
    def ranks(self) -> set[int]:
        return set(self.count)

    def behind(self) -> tuple[int, ...]:
        """The ranks that made fewer steps than the others."""
        most = max(self.count.values(), default=0)
        return tuple(sorted(rank for rank, steps in self.count.items() if steps < most))

    def is_shifted(self, first: int) -> bool:
        """Whether gradients of one rank are those that the others had one step later, or all ended after unlike counts.

        Ranks that still run, or were stopped, need not have come equally far.
        """
        late = [(step, hashes) for step, hashes in self.exchanged.items() if step >= first]
        if not any(differs(hashes) for _, hashes in late):
            return False
        following = [set(self.exchanged.get(step + 1, {}).values()) for step, _ in late]
        met = [set(hashes.values()) & after for (_, hashes), after in zip(late, following, strict=True)]
        return self.is_over or any(met)

    def other_rates(self, first: int) -> tuple[int, ...]:
        """The ranks with another learning rate, at the first step that differs and has differed before the weights."""
        for step in sorted(self.rates):
            if step > first:
                break
            if differs(self.rates[step]):
                return minority([dict(self.rates[step])])
        return ()

    def shared_scale(self) -> dict[int, float]:
        """How large the gradients of each rank are, those of the first being 1, if all ranks apply the same ones.

        Gradients that ranks have exchanged keep one ratio at every step, whatever the weights of each are. Nothing
        where there are few steps to compare, or norms that do not vary, as after clipping.
        """
        common = [norms for norms in self.applied.values() if len(norms) == len(self.count) > 1 and all(norms.values())]
        if len({f"{min(norms.values()):.3g}" for norms in common}) < _LEAST_SHARED:
            return {}
        first = min(self.count)
        ratios = {rank: [norms[rank] / norms[first] for norms in common] for rank in self.count}
        middle = {rank: statistics.median(seen) for rank, seen in ratios.items()}
        is_one = all(math.isclose(one, middle[rank], rel_tol=1e-5) for rank, seen in ratios.items() for one in seen)
        return middle if is_one else {}


def differs(ranks: Mapping[int, Hashable]) -> bool:
    return len(set(ranks.values())) > 1


def by_rank(frame: Frame) -> Iterator[tuple[int, int, int]]:
    """The place, step and rank of the rows that have a rank."""
    rank, step = column_of(frame, "rank"), column_of(frame, "step")
    for at in np.flatnonzero(~is_null(rank) & ~is_null(step)).tolist():
        yield at, int(step[at]), int(rank[at])


def of_steps(frame: Frame, column: str) -> Numbers:
    """A column by step and rank; of several inspected backwards of one step the last."""
    found: Numbers = {}
    if len(frame) and "rank" in frame and column in frame:
        values = column_of(frame, column)
        is_known = ~is_null(values)
        for at, step, rank in by_rank(frame):
            if is_known[at]:
                found.setdefault(step, {})[rank] = float(values[at])
    return found


def minority(places: list[ByRank]) -> tuple[int, ...]:
    """The ranks that differ from what most ranks have; all of them where there is no majority."""
    odd: Counter[int] = Counter()
    everybody: set[int] = set()
    for ranks in places:
        everybody |= set(ranks)
        value, count = Counter(ranks.values()).most_common(1)[0]
        if count > len(ranks) / 2:
            odd.update(rank for rank, mine in ranks.items() if mine != value)
    most = [rank for rank, count in odd.items() if count > len(places) / 2]
    return tuple(sorted(most or everybody))
