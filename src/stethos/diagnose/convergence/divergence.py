"""CON001: the loss goes up."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from stethos.diagnose.curve import CLIENT_COLUMNS, ROUND_COLUMNS, Curve, curves_of
from stethos.diagnose.finding import Finding, Severity
from stethos.diagnose.training import STEP_COLUMNS, sureness
from stethos.diagnose.window import Window


@dataclass(frozen=True, slots=True)
class Divergence:
    """The loss ends well above the best it had reached.

    What it looks at: the median loss of the last tenth against the best level before, over steps, over turns of a loop
    of clients, or over the rounds of a federation. It must have lost half of what was gained and a quarter of the
    first loss.
    Why it matters: from here on every step makes the model worse.
    Not a fault when: the task was changed on purpose, as in a curriculum.
    Next step: lower the learning rate, clip gradients, or go back to the checkpoint before the rise.
    """

    code: ClassVar[str] = "CON001"
    name: ClassVar[str] = "divergence"
    severity: ClassVar[Severity] = Severity.ERROR
    needs: ClassVar[Mapping[str, frozenset[str]]] = {"steps": frozenset({"step", "loss"})}
    reads: ClassVar[Mapping[str, frozenset[str]]] = {
        "steps": STEP_COLUMNS,
        "rounds": ROUND_COLUMNS,
        "client_rounds": CLIENT_COLUMNS,
    }
    explains: ClassVar[frozenset[str]] = frozenset(
        {"weight-explosion", "exploding-gradients", "oscillation", "series-anomaly"}
    )

    lost_share: float = 0.5
    of_first_loss: float = 0.25
    noise_times: float = 6.0

    def check(self, window: Window) -> Iterator[Finding]:
        for curve in curves_of(window):
            if len(curve.finite) >= 5:
                yield from self._check(curve)

    def _check(self, curve: Curve) -> Iterator[Finding]:
        allowed = max(self.lost_share * (curve.start - curve.best), self.of_first_loss * abs(curve.start))
        allowed += self.noise_times * curve.level_noise
        if curve.training is not None and curve.training.has_rival:
            allowed = 10 * (allowed + abs(curve.start))
        best = min(curve.best, curve.start)
        end = curve.end
        if not np.isfinite(curve.values[-1]):  # it went up until it left the numbers
            end = max(end, float(curve.finite[-3:].max()))
        rise = end - best
        if not rise > allowed > 0:
            return
        after = int(np.argmin(curve.levels))
        high = np.flatnonzero(curve.levels[after:] > best + allowed / 2)
        onset = curve.position_of(after + int(high[0])) if len(high) else int(curve.at[-1])
        if curve.levels[0] > curve.start + allowed:  # at once
            onset = int(curve.at[0])
        yield Finding(
            self.code, self.name, self.name, self.severity,
            f"the loss rose from {best:.3g} to {end:.3g}",
            curve.subject(onset),
            sureness(rise / allowed),
            (curve.evidence(f"first {curve.start:.3g}, best {best:.3g}, at the end {end:.3g}"),),
            "lower the learning rate, clip gradients (`clip_grad_norm_(parameters, 1.0)`), "
            f"or go back to the checkpoint before {curve.unit} {onset}",
            {"start": curve.start, "best": best, "end": end},
        )  # fmt: skip
