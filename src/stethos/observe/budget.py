"""How often samples may be taken so that observing stays within the user's overhead budget.

Time for samples is earned by training: elapsed time earns a share of itself,
and a sample is taken when its expected cost has been saved up. The always-on
rows are paid first; what they leave goes to samples, and at least a quarter
of the budget always does, so that a very fast loop is still sampled.
"""

from __future__ import annotations

from dataclasses import dataclass

_LEAST_SHARE = 0.25
_MOST_SAVED = 2.0
_SMOOTH = 0.3
_WORST_DEBT_NS = 2e9


@dataclass(slots=True)
class Purse:
    """Savings for one kind of sample; `cost_ns` is what the next one is expected to cost."""

    share: float
    saved_ns: float = 0.0
    cost_ns: float = 0.0
    payments: int = 0

    def can_afford(self) -> bool:
        return self.saved_ns >= self.cost_ns

    def pay(self, spent_ns: float) -> None:
        """Take the cost of a sample out of the savings.

        The first one is free, as a cold start says little about the next; it
        sets the expectation only where it is large.
        """
        self.payments += 1
        if self.payments == 1:
            self.cost_ns = spent_ns / 2
            return
        self.saved_ns = max(self.saved_ns - spent_ns, -_WORST_DEBT_NS)
        self.cost_ns = spent_ns if self.payments == 2 else self.cost_ns + _SMOOTH * (spent_ns - self.cost_ns)


class Budget:
    """Splits what training earns between the kinds of sample.

    What a purse cannot use (it can pay for two samples already) flows to the
    next, so a cheap norm on a big model is taken at every step and the rest
    goes to layers.
    """

    def __init__(self, overhead: float, shares: dict[str, float]) -> None:
        self.overhead = overhead
        self.purses = {name: Purse(share) for name, share in shares.items()}

    def earn(self, elapsed_ns: float, always_on_ns: float) -> None:
        """Credit a stretch of training."""
        allowed = self.overhead * elapsed_ns
        earned = max(allowed - always_on_ns, _LEAST_SHARE * allowed)
        spill = 0.0
        for purse in self.purses.values():
            saved = purse.saved_ns + earned * purse.share + spill
            limit = _MOST_SAVED * purse.cost_ns
            spill = max(saved - limit, 0.0)
            purse.saved_ns = min(saved, limit)
