"""How runs differ: in their settings, and in convergence, time, memory, bytes and findings.

Loss and accuracy are compared round by round (stretch by stretch of steps) over the last quarter; times and bytes by
their medians. Intervals come from the block bootstrap, and say how sure a difference between these runs is. What
another seed would have done only several runs of each setting tell: where there are such, the spread between them
is used instead.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from stethos.profile.column import known_or_none, median_of
from stethos.profile.measure import Measures
from stethos.profile.quantity import Quantity, Word
from stethos.profile.resample import FEWEST, Interval, log_ratio_of_medians, mean_interval
from stethos.profile.setting import Difference, differences_of
from stethos.profile.spread import log_ratio_of_means
from stethos.store.frame import Array
from stethos.store.html import table_html

_CALLED = ("better", "worse")
_SMALLEST_BYTES = 1e6
_TAIL = 0.25
_MUCH = 0.1  # of the machine, for other programs: worth a note
_MOST_OTHERS = 0.95
_LARGE = 1e6
_MOST_PARTS = 6


@dataclass(frozen=True)
class Pair:
    """A run against the first one."""

    first: str
    second: str
    differences: tuple[Difference, ...]
    quantities: tuple[Quantity, ...]
    new_findings: tuple[str, ...]
    gone_findings: tuple[str, ...]
    notes: tuple[str, ...] = ()

    @property
    def is_seed_only(self) -> bool:
        are_seeds = [one.is_seed for one in self.differences if not one.is_place]
        return bool(are_seeds) and all(are_seeds)

    @property
    def cause(self) -> str:
        """In what the two were started differently, in words."""
        settings = [one for one in self.differences if not one.is_place]
        if not settings:
            return "nothing that was recorded"
        names = {one.name for one in settings}  # an argument that is known as a hyperparameter, too, is told once
        settings = [one for one in settings if one.name.lstrip("-").replace("-", "_") not in names - {one.name}]
        listed = ", ".join(one.words for one in settings[:4])
        more = f" and {len(settings) - 4} more" if len(settings) > 4 else ""
        return f"the seed only ({listed})" if self.is_seed_only else f"{listed}{more}"

    @property
    def verdict(self) -> str:
        """What came of it, in one sentence."""
        words = [(one, self.word_of(one)) for one in self.quantities]
        called = [f"{one.name} {ratio_words(one.change.value)} ({word})" for one, word in words if word in _CALLED]
        if not called:
            is_known = any(word not in ("too little to tell", "not judged") for _, word in words)
            called = ["no difference shown" if is_known else "too little was recorded to compare"]
        chance = [f"{one.name} {ratio_words(one.change.value)}" for one, word in words if word == "chance"]
        is_all = bool(self.new_findings) and not any(word in _CALLED for _, word in words)
        more = "; more was found in the second" if is_all else ""
        return ", ".join(called) + (f"; within chance: {', '.join(chance)}" if chance else "") + more

    def word_of(self, one: Quantity) -> Word:
        """The word for a quantity: where nothing but the seed differs, what differs does so by chance."""
        is_chance = self.is_seed_only and one.word in _CALLED
        return "chance" if is_chance else one.word

    def worse_than(self, gate: float) -> list[Quantity]:
        """What fails a gate, whatever the cause."""
        return [one for one in self.quantities if one.is_worse_than(gate)]

    def _repr_html_(self) -> str:
        rows = [
            (one.name, one.first, one.second, f"{one.change.value:+.1%}", self.word_of(one)) for one in self.quantities
        ]
        head = f"{self.second} against {self.first}: {self.verdict}"
        headings = ("quantity", self.first, self.second, "change", "verdict")
        return table_html(headings, rows, head, f"they differ in {self.cause}")

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "first": self.first,
            "second": self.second,
            "verdict": self.verdict,
            "differ_in": [{"name": one.name, "values": list(one.values)} for one in self.differences],
            "seed_only": self.is_seed_only,
            "quantities": [{**one.as_dict(), "verdict": self.word_of(one)} for one in self.quantities],
            "new_findings": list(self.new_findings),
            "gone_findings": list(self.gone_findings),
            "notes": list(self.notes),
        }


class PairList(list[Pair]):
    """Comparisons with the first run; tables in a notebook."""

    def _repr_html_(self) -> str:
        return "".join(one._repr_html_() for one in self)


def compare(runs: Sequence[Measures]) -> list[Pair]:
    """Every further run against the first; runs that differ in their seed only are taken as repetitions."""
    groups = grouped(runs)
    if len(groups) == 2 and len(runs) > 2 and min(len(group) for group in groups) >= 2:
        return [compare_groups(*groups)]
    return [compare_pair(runs[0], other) for other in runs[1:]]


def compare_pair(first: Measures, second: Measures) -> Pair:
    """The second run against the first."""
    pair = Pair(
        first.run,
        second.run,
        tuple(differences_of([first.settings, second.settings])),
        tuple(_quantities(first, second)),
        new_findings=_beyond([second], [first]),
        gone_findings=_beyond([first], [second]),
    )
    return replace(pair, notes=tuple(_notes_on(pair, first, second)))


def _quantities(first: Measures, second: Measures) -> Iterator[Quantity]:
    """In what two runs are compared; where one of them has several parts, part by part."""
    if not _has_several(first, second):
        yield from (*_convergence(first, second), *_costs(first, second))
        return
    for part in _shared_parts(first, second)[:_MOST_PARTS]:
        one, two = first.only(part), second.only(part)
        for quantity in (*_convergence(one, two), *_costs(one, two)):
            yield replace(quantity, name=f"{quantity.name} of {part}", part=part)
    yield from _costs(first.without_parts(), second.without_parts())


def _has_several(first: Measures, second: Measures) -> bool:
    return max(len(first.parts), len(second.parts)) > 1


def _shared_parts(first: Measures, second: Measures) -> list[str]:
    return [name for name in first.parts if name in second.parts and first.unit == second.unit]


def _notes_on_parts(first: Measures, second: Measures) -> Iterator[str]:
    """Which parts of two runs are not compared."""
    if not _has_several(first, second):
        return
    what, shared = "federations" if first.unit == "round" else "trainings", _shared_parts(first, second)
    if first.unit == second.unit == "step" and len(shared) > 1:
        yield "of models that are trained against each other, as in a GAN, a lower loss is not the better one"
    if len(shared) > _MOST_PARTS:
        yield f"{len(shared)} {what} are in both: the first {_MOST_PARTS} are compared"
    for run, other in ((first, second), (second, first)):
        alone = [name or "one without a name" for name in run.parts if name not in other.parts]
        if alone:
            more = f" and {len(alone) - 4} more" if len(alone) > 4 else ""
            yield f"{what} of {run.run} alone, which are not compared: {', '.join(alone[:4])}{more}"


def _notes_on(pair: Pair, first: Measures, second: Measures) -> Iterator[str]:
    """What a reader has to know to judge a pair: what is missing, and what else may be the cause."""
    empty = [one.run for one in (first, second) if not one.has_anything]
    if empty:
        yield f"no rounds and no steps in {' nor in '.join(dict.fromkeys(empty))}"
    elif first.unit != second.unit:
        yield f"one run has rounds, the other only steps: {first.run} counts {first.unit}s"
    yield from _notes_on_parts(first, second)
    if first.is_lost and second.is_lost and not _has_several(first, second):
        yield "the last losses of both are not finite"
    if any(one.word in _CALLED for one in pair.quantities):
        if pair.is_seed_only:
            yield "only the seed differs: another seed would make as large a difference, in either direction"
        elif any(one.is_seed and None not in one.values for one in pair.differences):
            yield "the seed differs too: one run each cannot tell the setting from chance; compare several of each"
        elif all(one.is_place for one in pair.differences):
            yield "no recorded setting differs: the cause is outside of them (machine, load, data, code)"
    others = max(first.others_share, second.others_share)
    virtual = "round time" if first.has_virtual_rounds and second.has_virtual_rounds else ""
    if others > _MUCH and any(one.unit == "ms" and one.name != virtual for one in pair.quantities):
        yield f"other processes kept {others:.0%} of the machine busy: times differ only beyond what that explains"


def _beyond(runs: Sequence[Measures], others: Sequence[Measures]) -> tuple[str, ...]:
    """Findings and bottlenecks that all of these runs have, and none of the others."""
    known = {trouble for one in others for trouble in one.troubles}
    return tuple(
        trouble.text
        for trouble in runs[0].troubles
        if trouble not in known and all(trouble in one.troubles for one in runs)
    )


# Convergence -------------------------------------------------------------------------------------------


def _convergence(first: Measures, second: Measures) -> list[Quantity]:
    is_one_lost = first.is_lost != second.is_lost
    found = [_lost(first, second)] if is_one_lost else []
    if first.unit == second.unit:
        for name, is_lower in (("loss", True), ("accuracy", False)):
            one = _curve(first, second, name, is_lower)
            if one is not None and not (is_one_lost and name == "loss"):
                found.append(one)
    target = _to_target(first, second)
    return [*found, target] if target is not None else found


def _lost(first: Measures, second: Measures) -> Quantity:
    """One of two runs ends with losses that are no numbers: beyond any that is one."""
    one, two = (None if run.is_lost else summary_of(run, "final loss") for run in (first, second))
    change = math.inf if second.is_lost else -math.inf
    return Quantity("final loss", "", one, two, Interval(change, change, change))


def _curve(first: Measures, second: Measures, name: str, is_lower: bool) -> Quantity | None:
    """The end of a curve: relative differences at the same round."""
    at, one, two = _common(first, second, name)
    if not len(at):
        return None
    tail = slice(len(at) - max(min(len(at), FEWEST), math.ceil(_TAIL * len(at))), None)
    one, two = one[tail], two[tail]
    usual = float(np.abs(one).mean())
    differences = (two - one) / usual if usual > 0 else two - one
    return Quantity(
        f"final {name}", "", median_of(one), median_of(two), mean_interval(differences), is_lower, len(differences)
    )


def _common(first: Measures, second: Measures, name: str) -> tuple[Array, Array, Array]:
    """The two series at the rounds both have; steps of runs of different length by their share of the shorter one."""
    one, two = getattr(first, name), getattr(second, name)
    if first.unit == "step":
        known = [np.isfinite(values) for values in (one, two)]
        end = min((at[use].max() if use.any() else -1.0) for at, use in zip((first.at, second.at), known, strict=True))
        grid = first.at[known[0] & (first.at <= end)] if end >= 0 else np.array([])
        if not len(grid):
            return grid, grid, grid
        left, right = (
            np.interp(grid, run.at[use], values[use])
            for run, values, use in zip((first, second), (one, two), known, strict=True)
        )
        return grid, left, right
    _, left, right = np.intersect1d(first.at, second.at, return_indices=True)
    use = np.isfinite(one[left]) & np.isfinite(two[right])
    return first.at[left][use], one[left][use], two[right][use]


def _to_target(first: Measures, second: Measures) -> Quantity | None:
    """How long each took to get to where the worse one ended; a single number each, without an interval."""
    if first.unit != second.unit:
        return None
    runs = [(one.at[np.isfinite(one.loss)], one.loss[np.isfinite(one.loss)]) for one in (first, second)]
    if min(len(at) for at, _ in runs) < FEWEST:
        return None
    target = max(float(loss[-max(1, len(loss) // 10) :].mean()) for _, loss in runs)
    reached = [
        float(at[np.flatnonzero(loss <= target)[0]]) if (loss <= target).any() else math.nan for at, loss in runs
    ]
    one, two = reached
    change = math.nan if not (math.isfinite(one) and math.isfinite(two) and one > 0) else two / one - 1
    unit = f"{first.unit}s"
    return Quantity(
        f"{unit} to loss {target:.3g}", unit, known_or_none(one), known_or_none(two), Interval(change), is_judged=False
    )


# Costs -------------------------------------------------------------------------------------------------


def _costs(first: Measures, second: Measures) -> list[Quantity]:
    found = []
    for name, unit, series in (
        ("round time", "ms", "round_ms"), ("step time", "ms", "step_ms"), ("bytes sent a round", "bytes", "sent_bytes"),
    ):  # fmt: skip
        one, two = getattr(first, series), getattr(second, series)
        if np.isfinite(one).any() and np.isfinite(two).any():
            ratio = log_ratio_of_medians(one, two)
            is_virtual = series == "round_ms" and first.has_virtual_rounds and second.has_virtual_rounds
            if unit == "ms" and not is_virtual:
                ratio = _widened(ratio, max(first.others_share, second.others_share))
            count = min(int(np.isfinite(one).sum()), int(np.isfinite(two).sum()))
            found.append(Quantity(name, unit, median_of(one), median_of(two), _as_change(ratio), paired=count))
    for name, one in first.peak_bytes.items():
        two = second.peak_bytes.get(name)
        if one and two:
            found.append(Quantity(f"memory of {name}", "bytes", float(one), float(two), _memory_change(one, two)))
    return found


def _memory_change(one: float, two: float) -> Interval:
    """Of two peaks; what is less than a megabyte depends on which steps were sampled."""
    change = two / one - 1
    return Interval(change) if abs(two - one) >= _SMALLEST_BYTES else Interval(change, min(0, change), max(0, change))


def _widened(ratio: Interval, others_share: float) -> Interval:
    """An interval of a ratio of times beside other work: that may have stretched either of them by so much."""
    if ratio.low is None or ratio.high is None:
        return ratio
    stretch = -math.log1p(-min(others_share, _MOST_OTHERS))
    return Interval(ratio.value, ratio.low - stretch, ratio.high + stretch)


def _as_change(ratio: Interval) -> Interval:
    """A logarithm of a ratio as a relative change."""
    low, high = (None if one is None else math.expm1(one) for one in (ratio.low, ratio.high))
    return Interval(math.expm1(ratio.value), low, high)


# Groups ------------------------------------------------------------------------------------------------


def grouped(runs: Sequence[Measures]) -> list[list[Measures]]:
    """Runs that differ in nothing but the seed, together; in the order of the first of each."""
    groups: list[list[Measures]] = []
    for one in runs:
        for group in groups:
            if all(each.is_seed or each.is_place for each in differences_of([group[0].settings, one.settings])):
                group.append(one)
                break
        else:
            groups.append([one])
    return groups


def compare_groups(first: Sequence[Measures], second: Sequence[Measures]) -> Pair:
    """Two settings with several runs each: intervals from the spread between runs (Student's t of logarithms)."""
    groups = first, second
    lost = [[run.run for run in group if run.is_lost] for group in groups]
    shares = {len(own) / len(group) for own, group in zip(lost, groups, strict=True)}
    quantities = []
    for one in compare_pair(first[0], second[0]).quantities:
        if not one.is_judged:
            continue
        values = [[value for run in group if (value := _summary_in(run, one)) is not None] for group in groups]
        if one.name == "final loss" and shares == {0.0, 1.0}:  # all runs of one setting, none of the other
            quantities.append(_lost(first[0], second[0]))
        elif min(map(len, values)) >= 2 and min(value for group in values for value in group) > 0:
            left, right = map(np.array, values)
            middles = [math.exp(float(np.mean(np.log(group)))) for group in (left, right)]
            change = _as_change(log_ratio_of_means(left, right))
            quantities.append(replace(one, first=middles[0], second=middles[1], change=change, paired=len(left)))
    differences = [each for each in differences_of([first[0].settings, second[0].settings]) if not each.is_seed]
    notes = [f"intervals from the spread between {len(first)} and {len(second)} runs"]
    if any(lost):
        notes.append(f"the last losses are not finite in {', '.join(lost[0] + lost[1])}")
    left_runs, right_runs = (", ".join(run.run for run in group) for group in groups)
    return Pair(
        left_runs, right_runs, tuple(differences), tuple(quantities), _beyond(second, first), _beyond(first, second),
        tuple(notes),
    )  # fmt: skip


def _summary_in(run: Measures, one: Quantity) -> float | None:
    if not one.part:
        return summary_of(run, one.name)
    return summary_of(run.only(one.part), one.name.removesuffix(f" of {one.part}")) if one.part in run.parts else None


def summary_of(run: Measures, name: str) -> float | None:
    """One number of a run for a quantity."""
    if name.startswith("final "):
        values = getattr(run, name.removeprefix("final "))
        known = values[np.isfinite(values)]
        return float(known[-max(1, math.ceil(_TAIL * len(known))) :].mean()) if len(known) else None
    if name.startswith("memory of "):
        found = run.peak_bytes.get(name.removeprefix("memory of "))
        return None if found is None else float(found)
    series = {"round time": run.round_ms, "step time": run.step_ms, "bytes sent a round": run.sent_bytes}[name]
    return known_or_none(median_of(series))


# Words -------------------------------------------------------------------------------------------------


def ratio_words(change: float) -> str:
    """A relative change in words: `14% higher`, `4.1 times as high`."""
    if math.isinf(change):
        return "not finite" if change > 0 else "finite"
    if math.isnan(change):
        return "-"
    if change >= 1:
        times = f"{1 + change:.1f}" if change < 99 else f"{1 + change:,.0f}" if change < _LARGE else f"{1 + change:.1e}"
        return f"{times} times as high"
    return f"{abs(change):.1%} {'higher' if change > 0 else 'lower'}"
