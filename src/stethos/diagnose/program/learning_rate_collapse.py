"""PRG007: a learning rate that falls to nothing while the training goes on."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from stethos.diagnose.detector import Needs, threshold
from stethos.diagnose.finding import Evidence, Finding, Severity
from stethos.diagnose.training import STEP_COLUMNS, Training, level_at_start, thinned, trainings_of
from stethos.diagnose.window import Window


@dataclass(frozen=True, slots=True)
class LearningRateCollapse:
    """A schedule brings the learning rate to a thousandth of its peak, or to 0, long before the training ends.

    What it looks at: the learning rate of each step, against its peak and the length of the run.
    Why it matters: all steps after that cost time and change nothing.
    Not a fault when: the schedule ends at 0 with the training; that is in the last fifth of its steps.
    Next step: check whether `scheduler.step()` is called per batch where it is meant per epoch, and `T_max`, `gamma`.
    """

    code: ClassVar[str] = "PRG007"
    name: ClassVar[str] = "learning-rate-collapse"
    severity: ClassVar[Severity] = Severity.WARNING
    needs: ClassVar[Needs] = {"steps": frozenset({"step", "lr"})}
    reads: ClassVar[Needs] = {"steps": STEP_COLUMNS}
    explains: ClassVar[frozenset[str]] = frozenset(
        {
            "learning-rate-too-low",
            "plateau",
            "slow-progress",
            "update-to-weight-ratio",
            "frozen-layers",
            "implausible-loss",
        }
    )

    fallen: float = threshold(1e-3, "share of the peak rate that is left")
    share: float = threshold(0.2, "share of the training that is left then")
    least: int = threshold(20, "steps")
    done: float = threshold(0.1, "share of the first loss below which nothing more was to be learned")

    def check(self, window: Window) -> Iterator[Finding]:
        for one in trainings_of(window):
            if len(one) >= self.least and not one.is_relay:
                yield from self._check(one)

    def _check(self, one: Training) -> Iterator[Finding]:
        rates = np.where(np.isfinite(one.lr), one.lr, np.nan)
        if not np.isfinite(rates).all() or not rates.max() > 0:
            return
        peak = int(np.argmax(rates))
        low = rates <= self.fallen * rates[peak]
        low[: peak + 1] = False
        alive = np.flatnonzero(~low)
        first = int(alive[-1]) + 1
        if first >= len(rates) or len(rates) - first < max(self.share * len(rates), 5):
            return
        yield Finding(
            self.code, self.name, self.name, Severity.INFO if self._is_done(one, first) else self.severity,
            f"the learning rate fell from {rates[peak]:g} to {rates[-1]:g}: since step {one.step[first]:.0f} "
            "the weights hardly change",
            one.subject(first), 0.95,
            (Evidence(
                f"{len(rates) - first} of {len(rates)} steps are made with less than a thousandth of its peak",
                f"SELECT step, lr, loss FROM steps WHERE {one.where} ORDER BY step", thinned(rates),
            ),),
            "check the scheduler: is `step()` called per batch instead of per epoch, is its length right?",
            {"peak": float(rates[peak]), "last": float(rates[-1])},
        )  # fmt: skip

    def _is_done(self, one: Training, place: int) -> bool:
        """Whether the loss was nearly gone when the rate fell."""
        losses = one.loss[np.isfinite(one.loss)]
        around = one.loss[max(0, place - 20) : place]
        return len(losses) > 0 and float(np.nanmedian(around)) < self.done * level_at_start(losses)
