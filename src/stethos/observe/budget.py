"""How often samples may be taken so that observing stays within the user's overhead budget.

Time for samples is earned by training: elapsed time earns a share of itself,
and a sample is taken when its expected cost has been saved up, at a step whose
number is a multiple of a power of two: so ranks and repeated runs are sampled
at the same steps, or one of them at some of the other's. The always-on
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
_ACCOUNTING_SHARE = 0.1
_GROWS_AFTER, _LONGEST_PAUSE = 40, 10
_MOST_SAVED = 2.0
_COLD_SAMPLES = 8  # on a GPU: the kernel is loaded, addresses are learned
_DEVICE_SHARES = {"gradients": 0.65, "norm": 0.05, "layers": 0.1, "modules": 0.1, "memory": 0.07, "histograms": 0.03}
_LONGEST_STRIDE = 1 << 20
NEVER = 1 << 62  # a step that does not come
_SMOOTH = 0.3
_SMOOTH_FALL = 0.8  # one that is rare because it was expensive once is never warm
_WORST_DEBT_NS = 2e9
_PLAIN_STRETCHES = 5
_SMOOTH_PLAIN = 0.1
_SMOOTH_UNSEEN = 0.1
_LARGEST_CHANGE = 0.2
_LARGEST_UNSEEN_NS = 200_000.0


@dataclass(slots=True)
class SampleBudget:
    """Savings for one kind of sample; `cost_ns` is what the next one is expected to cost."""

    share: float
    saved_ns: float = 0.0
    cost_ns: float = 0.0
    payments: int = 0
    late_ns: float = 0.0  # what a device spends on one, told later
    unseen_ns: float = 0.0  # what one costs beyond its clock, on average; below 0 it is noise
    earned_ns: float = 0.0  # by a step, on average
    cold: int = 1  # samples that are free, as they say little about the next
    is_frequent: bool = False  # taken at every step if possible: savings last until the next time of accounting

    def can_afford(self) -> bool:
        return self.saved_ns >= self.cost_ns + self.late_ns

    def stride(self) -> int:
        """Steps from one sample to the next: the smallest power of two in which one is earned."""
        price_ns = self.cost_ns + self.late_ns
        if price_ns <= self.earned_ns:
            return 1
        least = price_ns / self.earned_ns if self.earned_ns > 0 else math.inf
        return _LONGEST_STRIDE if least >= _LONGEST_STRIDE else 1 << math.ceil(math.log2(least))

    def is_due(self, step: int, optimizers: int) -> bool:
        """Whether to sample at this step: one of each optimizer's, where several take turns."""
        return self.can_afford() and step % self.stride() < optimizers

    def next_step(self, after: int, optimizers: int) -> int:
        """The first step after this one at which a sample is due, as far as is known now."""
        if not self.can_afford():
            return NEVER
        step, stride = after + 1, self.stride()
        return step if step % stride < optimizers else step + stride - step % stride

    def learn_unseen(self, unseen_ns: float, clocked_ns: float) -> None:
        """One sample seems to have cost that much beyond its clock.

        A single step says little, as steps vary by more than a sample costs:
        outliers are cut off on both sides alike, so that the mean stays true.
        """
        most = _LARGEST_UNSEEN_NS + clocked_ns
        self.unseen_ns += _SMOOTH_UNSEEN * (min(max(unseen_ns, -most), most) - self.unseen_ns)

    def pay(self, clocked_ns: float, *, is_cold: bool = False) -> int:
        """Take the cost of a sample out of the savings, and return it.

        The first ones (`cold`) are free, as a cold start says little about the
        next; they set the expectation only where they are large, and not at all if
        it `is_cold`: on a GPU it loads the kernel and makes room for the results.
        """
        self.payments += 1
        spent_ns = clocked_ns + max(self.unseen_ns, 0.0)
        if self.payments <= self.cold:
            self.cost_ns = 0.0 if is_cold else spent_ns / 2
            return int(spent_ns)
        self.saved_ns = max(self.saved_ns - spent_ns, -_WORST_DEBT_NS)
        is_first = self.payments == self.cold + 1
        smooth = _SMOOTH_FALL if self.is_frequent and spent_ns < self.cost_ns else _SMOOTH
        self.cost_ns = spent_ns if is_first else self.cost_ns + smooth * (spent_ns - self.cost_ns)
        return int(spent_ns)

    def pay_more(self, late_ns: float) -> int:
        """A sample that was paid for has cost a device this much besides, as is known only now."""
        if self.payments > self.cold:
            self.saved_ns = max(self.saved_ns - late_ns, -_WORST_DEBT_NS)
            self.late_ns += late_ns if not self.late_ns else _SMOOTH * (late_ns - self.late_ns)
        return int(late_ns)


class Pace:
    """How long the steps of one thread take without samples, and so what a sample costs them.

    Time comes in stretches of a few milliseconds. A sample is charged with
    what its stretch and the next one take longer than usual.
    """

    __slots__ = ("_clocked_ns", "_excess_ns", "_is_ending", "_is_mixed", "_plain", "_sample_budget", "_step_ns")

    def __init__(self) -> None:
        self._plain = 0
        self._step_ns = 0.0
        self._forget()

    def _forget(self) -> None:
        self._sample_budget: SampleBudget | None = None
        self._is_ending = self._is_mixed = False
        self._excess_ns = self._clocked_ns = 0.0

    def note(self, sample_budget: SampleBudget, clocked_ns: float = 0.0) -> None:
        """A sample belongs to this stretch; `clocked_ns` is what the clock around it saw."""
        self._is_mixed = self._is_mixed or self._sample_budget is not None
        self._is_ending = False
        self._sample_budget, self._clocked_ns = sample_budget, clocked_ns

    def note_price(self, clocked_ns: float) -> None:
        """What the clock saw of a sample noted before."""
        self._clocked_ns = clocked_ns

    def end_stretch(self, elapsed_ns: float, steps: int) -> None:
        """A stretch of that many steps is over."""
        if self._sample_budget is None:
            if elapsed_ns > 0:
                self._learn(elapsed_ns / steps)
            return
        self._excess_ns += elapsed_ns - steps * self._step_ns
        if not self._is_ending:
            self._is_ending = True
            return
        if not self._is_mixed and self._plain >= _PLAIN_STRETCHES:
            self._sample_budget.learn_unseen(self._excess_ns - self._clocked_ns, self._clocked_ns)
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

    What a sample_budget cannot use (it can pay for two samples already) flows to the
    next, so a cheap norm on a big model is taken at every step and the rest
    goes to layers.
    """

    def __init__(self, overhead: float, shares: dict[str, float]) -> None:
        self.overhead = overhead
        self.by_kind = {name: SampleBudget(share) for name, share in shares.items()}
        self._pauses = 0

    def earn(self, elapsed_ns: float, always_on_ns: float, steps: int = 1) -> None:
        """Credit a stretch of training, of that many steps."""
        allowed = (1 - _KEPT_BACK) * self.overhead * elapsed_ns
        earned = max(allowed - always_on_ns, _LEAST_SHARE * allowed)
        spill = 0.0
        for sample_budget in self.by_kind.values():
            mine = earned * sample_budget.share + spill
            sample_budget.earned_ns += _SMOOTH * (mine / steps - sample_budget.earned_ns)
            saved = sample_budget.saved_ns + mine
            most = _MOST_SAVED + (steps if sample_budget.is_frequent else 0)
            limit = most * (sample_budget.cost_ns + sample_budget.late_ns)
            spill = max(saved - limit, 0.0)
            sample_budget.saved_ns = min(saved, limit)

    def use_device(self) -> None:
        """The model is on a GPU: the norm comes with all gradients, and weights are read less often."""
        if "gradients" not in self.by_kind:
            self.by_kind = {"gradients": SampleBudget(0.0, cold=_COLD_SAMPLES, is_frequent=True), **self.by_kind}
            for kind, sample_budget in self.by_kind.items():
                sample_budget.share = _DEVICE_SHARES[kind]

    def pause_ns(self, accounting_ns: float, shortest_ns: int) -> int:
        """How long until the next accounting, if it takes `accounting_ns`.

        The pauses grow by and by, up to ten times the shortest, until it
        takes a tenth of the budget: at first there is much to learn.
        """
        self._pauses += 1
        allowed = _ACCOUNTING_SHARE * self.overhead
        wanted_ns = accounting_ns / allowed if allowed else math.inf
        longest = min(1 + self._pauses // _GROWS_AFTER, _LONGEST_PAUSE)
        return int(min(max(wanted_ns, shortest_ns), longest * shortest_ns))
