"""How often samples may be taken so that observing stays within the user's overhead budget.

Time spent observing is earned by training: each step earns a share of its
duration, a sample is taken when its expected cost has been saved up. The
always-on rows are paid first; what they leave goes to samples, and at least
a fifth of the budget always does, so that a very fast loop is still sampled.
"""

from __future__ import annotations

from dataclasses import dataclass

_LEAST_SHARE = 0.2
_MOST_SAVED = 2.0
_SMOOTH = 0.3
_WORST_DEBT_S = 2.0


@dataclass(slots=True)
class Purse:
    """Savings for one kind of sample."""

    share: float
    saved_ns: float = 0.0
    cost_ns: float = 0.0
    is_known: bool = False

    def can_afford(self) -> bool:
        return self.is_known and self.saved_ns >= self.cost_ns

    def pay(self, spent_ns: float) -> None:
        """Take the cost of a sample out, and expect the next to cost about the same."""
        self.saved_ns = max(self.saved_ns - spent_ns, -_WORST_DEBT_S * 1e9)
        self.cost_ns = spent_ns if not self.is_known else self.cost_ns + _SMOOTH * (spent_ns - self.cost_ns)
        self.is_known = True


class Budget:
    """Splits what steps earn between the kinds of sample.

    What a purse cannot use (it can pay for two samples already) flows to the
    others, so a cheap norm on a big model is taken at every step and the
    rest goes to layers.
    """

    def __init__(self, overhead: float, shares: dict[str, float]) -> None:
        self.overhead = overhead
        self.purses = {name: Purse(share) for name, share in shares.items()}
        self._in_order = tuple(self.purses.values())

    def earn(self, step_ns: float, always_on_ns: float) -> None:
        """Credit one step; called on every step."""
        allowed = self.overhead * step_ns
        earned = max(allowed - always_on_ns, _LEAST_SHARE * allowed)
        spill = 0.0
        for purse in self._in_order:
            saved = purse.saved_ns + earned * purse.share + spill
            limit = _MOST_SAVED * purse.cost_ns if purse.is_known else saved
            if saved > limit:
                spill, saved = saved - limit, limit
            else:
                spill = 0.0
            purse.saved_ns = saved
