"""One thing in which runs are compared, and the word for how they differ."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

from stethos.profile.column import known_or_none
from stethos.profile.resample import Interval

Word = Literal["better", "worse", "no difference shown", "too little to tell", "equal", "not judged", "chance"]
SMALLEST = 0.01  # of a quantity: less is never called a difference
_NUMBER_TOLERANCE = 0.05  # where there is one number per run and no interval


@dataclass(frozen=True, slots=True)
class Quantity:
    """One thing in which a run is compared with the first: `change` is relative, above 0 where it is larger."""

    name: str
    unit: str
    first: float | None
    second: float | None
    change: Interval
    is_lower_better: bool = True
    paired: int = 0
    is_judged: bool = True
    part: str = ""  # of the runs that it is about, if not the whole

    @property
    def word(self) -> Word:
        if not self.is_judged:
            return "not judged"
        bounds = self._bounds()
        if bounds is None or math.isnan(self.change.value):
            return "too little to tell"
        low, high = bounds
        if self.first == self.second and low == high == 0:
            return "equal"
        if low > SMALLEST or high < -SMALLEST:
            return "worse" if (low > 0) == self.is_lower_better else "better"
        return "no difference shown"

    def is_worse_than(self, gate: float) -> bool:
        """Whether it is worse by more than `gate`, with the whole interval."""
        bounds = self._bounds()
        if bounds is None or self.word != "worse":
            return False
        low, high = bounds
        return low > gate if self.is_lower_better else -high > gate

    def _bounds(self) -> tuple[float, float] | None:
        low, high = self.change.low, self.change.high
        if low is not None and high is not None:
            return low, high
        if self.paired:
            return None
        value = self.change.value
        near = value - math.copysign(min(abs(value), _NUMBER_TOLERANCE), value)
        return min(near, value), max(near, value)

    def _known_bounds(self) -> dict[str, float | None]:
        bounds = {"low": self.change.low, "high": self.change.high}
        return {name: None if value is None else known_or_none(value) for name, value in bounds.items()}

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "quantity": self.name, "unit": self.unit, "first": self.first, "second": self.second,
            "change": known_or_none(self.change.value), **self._known_bounds(),
            "verdict": self.word, "lower_is_better": self.is_lower_better,
        }  # fmt: skip
