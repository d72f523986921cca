"""How often samples may be taken so that observing stays within the user's overhead budget.

Time for samples is earned by training: elapsed time earns a share of itself,
and a sample is taken when its expected cost has been saved up. The always-on
rows are paid first; what they leave goes to samples, and at least a quarter
of the budget always does, so that a very fast loop is still sampled. A part
is kept back: what is measured on one's own clock is never all.

A clock around a sample misses what it does to the steps after it: their code
and data have to come back into the caches. `Pace` learns this from how long
steps take with and without samples, and the samples pay for it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

_LEAST_SHARE = 0.25
_KEPT_BACK = 0.15
_HOUSE_SHARE = 0.1
_GROWS_AFTER, _LONGEST_PAUSE = 40, 10
_MOST_SAVED = 2.0
_SMOOTH = 0.3
_WORST_DEBT_NS = 2e9
_PLAIN_STRETCHES = 5
_SMOOTH_PLAIN = 0.1
_SMOOTH_UNSEEN = 0.1
_LARGEST_CHANGE = 0.2
_LARGEST_UNSEEN_NS = 200_000.0


@dataclass(slots=True)
class Purse:
    """Savings for one kind of sample; `cost_ns` is what the next one is expected to cost."""

    share: float
    saved_ns: float = 0.0
    cost_ns: float = 0.0
    payments: int = 0
    late_ns: float = 0.0  # what a device spends on one, told later
    unseen_ns: float = 0.0  # what one costs beyond its clock, on average; below 0 it is noise

    def can_afford(self) -> bool:
        return self.saved_ns >= self.cost_ns + self.late_ns

    def learn_unseen(self, unseen_ns: float, clocked_ns: float) -> None:
        """One sample seems to have cost that much beyond its clock.

        A single step says little, as steps vary by more than a sample costs:
        outliers are cut off on both sides alike, so that the mean stays true.
        """
        most = _LARGEST_UNSEEN_NS + clocked_ns
        self.unseen_ns += _SMOOTH_UNSEEN * (min(max(unseen_ns, -most), most) - self.unseen_ns)

    def pay(self, clocked_ns: float, *, is_cold: bool = False) -> int:
        """Take the cost of a sample out of the savings, and return it.

        The first one is free, as a cold start says little about the next; it
        sets the expectation only where it is large, and not at all if it
        `is_cold`: on a GPU it loads the kernel and makes room for the results.
        """
        self.payments += 1
        spent_ns = clocked_ns + max(self.unseen_ns, 0.0)
        if self.payments == 1:
            self.cost_ns = 0.0 if is_cold else spent_ns / 2
            return int(spent_ns)
        self.saved_ns = max(self.saved_ns - spent_ns, -_WORST_DEBT_NS)
        self.cost_ns = spent_ns if self.payments == 2 else self.cost_ns + _SMOOTH * (spent_ns - self.cost_ns)
        return int(spent_ns)

    def pay_more(self, late_ns: float) -> int:
        """A sample that was paid for has cost a device this much besides, as is known only now."""
        if self.payments > 1:
            self.saved_ns = max(self.saved_ns - late_ns, -_WORST_DEBT_NS)
            self.late_ns += late_ns if not self.late_ns else _SMOOTH * (late_ns - self.late_ns)
        return int(late_ns)


class Pace:
    """How long the steps of one thread take without samples, and so what a sample costs them.

    Time comes in stretches of a few milliseconds. A sample is charged with
    what its stretch and the next one take longer than usual.
    """

    __slots__ = ("_clocked_ns", "_excess_ns", "_is_ending", "_is_mixed", "_plain", "_purse", "_step_ns")

    def __init__(self) -> None:
        self._plain = 0
        self._step_ns = 0.0
        self._forget()

    def _forget(self) -> None:
        self._purse: Purse | None = None
        self._is_ending = self._is_mixed = False
        self._excess_ns = self._clocked_ns = 0.0

    def note(self, purse: Purse, clocked_ns: float = 0.0) -> None:
        """A sample belongs to this stretch; `clocked_ns` is what the clock around it saw."""
        self._is_mixed = self._is_mixed or self._purse is not None
        self._is_ending = False
        self._purse, self._clocked_ns = purse, clocked_ns

    def note_price(self, clocked_ns: float) -> None:
        """What the clock saw of a sample noted before."""
        self._clocked_ns = clocked_ns

    def end_stretch(self, elapsed_ns: float, steps: int) -> None:
        """A stretch of that many steps is over."""
        if self._purse is None:
            if elapsed_ns > 0:
                self._learn(elapsed_ns / steps)
            return
        self._excess_ns += elapsed_ns - steps * self._step_ns
        if not self._is_ending:
            self._is_ending = True
            return
        if not self._is_mixed and self._plain >= _PLAIN_STRETCHES:
            self._purse.learn_unseen(self._excess_ns - self._clocked_ns, self._clocked_ns)
        self._forget()

    def _learn(self, step_ns: float) -> None:
        self._plain += 1
        if self._plain == 1 or (self._plain <= _PLAIN_STRETCHES and step_ns < self._step_ns):
            self._step_ns = step_ns  # the first steps are slow
        else:
            change = min(max(step_ns / self._step_ns - 1, -_LARGEST_CHANGE), _LARGEST_CHANGE)
            self._step_ns *= 1 + _SMOOTH_PLAIN * change


class Budget:
    """Splits what training earns between the kinds of sample.

    What a purse cannot use (it can pay for two samples already) flows to the
    next, so a cheap norm on a big model is taken at every step and the rest
    goes to layers.
    """

    def __init__(self, overhead: float, shares: dict[str, float]) -> None:
        self.overhead = overhead
        self.purses = {name: Purse(share) for name, share in shares.items()}
        self._pauses = 0

    def earn(self, elapsed_ns: float, always_on_ns: float) -> None:
        """Credit a stretch of training."""
        allowed = (1 - _KEPT_BACK) * self.overhead * elapsed_ns
        earned = max(allowed - always_on_ns, _LEAST_SHARE * allowed)
        spill = 0.0
        for purse in self.purses.values():
            saved = purse.saved_ns + earned * purse.share + spill
            limit = _MOST_SAVED * (purse.cost_ns + purse.late_ns)
            spill = max(saved - limit, 0.0)
            purse.saved_ns = min(saved, limit)

    def pause_ns(self, house_ns: float, shortest_ns: int) -> int:
        """How long until the next housekeeping, if one takes `house_ns`.

        The pauses grow by and by, up to ten times the shortest, until it
        takes a tenth of the budget: at first there is much to learn.
        """
        self._pauses += 1
        allowed = _HOUSE_SHARE * self.overhead
        wanted_ns = house_ns / allowed if allowed else math.inf
        longest = min(1 + self._pauses // _GROWS_AFTER, _LONGEST_PAUSE)
        return int(min(max(wanted_ns, shortest_ns), longest * shortest_ns))
