"""CON001: the loss goes up."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from stethos.diagnose.curve import CURVE_READS, Curve, curves_of, curves_to_judge
from stethos.diagnose.detector import Needs, threshold
from stethos.diagnose.finding import Evidence, Finding, Severity
from stethos.diagnose.program.inspected import COLUMNS, inspected_of, is_other_task
from stethos.diagnose.training import Training, sureness, thinned, trainings_of
from stethos.diagnose.window import Window


@dataclass(frozen=True, slots=True)
class Divergence:
    """The loss ends well above the best it had reached.

    What it looks at: the median loss of the last tenth against the best level before, over steps, over turns of a loop
    of clients, or over the rounds of a federation. It must have lost half of what was gained and a quarter of the
    first loss.
    Why it matters: from here on every step makes the model worse.
    Not a fault when: the task was changed on purpose, as in a curriculum, or becomes harder by itself, as when a pair
    must be told from others in a queue; that is not reported. A loss that stays below 0, such as a policy's, or comes
    back to 0 from there, as a difference does, is reported as info: it says little about how good the model is. So is
    one that rises as batches of another shape come.
    Next step: lower the learning rate, clip gradients, or go back to the checkpoint before the rise.
    """

    code: ClassVar[str] = "CON001"
    name: ClassVar[str] = "divergence"
    severity: ClassVar[Severity] = Severity.ERROR
    needs: ClassVar[Needs] = {"steps": frozenset({"step", "loss"})}
    reads: ClassVar[Needs] = {**CURVE_READS, "inspections": COLUMNS}
    explains: ClassVar[frozenset[str]] = frozenset(
        {"weight-explosion", "exploding-gradients", "oscillation", "series-anomaly", "non-finite-loss",
         "non-finite-gradients", "non-finite-weights"}
    )  # fmt: skip

    lost_share: float = threshold(0.5, "share of what was gained that is lost again")
    of_first_loss: float = threshold(0.25, "share of the first loss by which it has risen, at least")
    noise_times: float = threshold(6.0, "times the noise of the loss that is allowed on top")
    least: int = threshold(5, "values of the loss")

    def check(self, window: Window) -> Iterator[Finding]:
        growing = {one.process for one in inspected_of(window) if one.has_fixed_place()}
        curves = [curve for curve in curves_of(window) if curve.process is None or curve.process not in growing]
        found = [
            replace(finding, severity=Severity.INFO)
            if is_other_task(window, curve.process, finding.subject.first or 0) and curve.is_by_step
            else finding
            for curve in curves
            for finding in self._check(curve)
        ]
        yield from found
        known = {finding.subject.process for finding in found}
        for one in trainings_of(window):
            if one.process not in known and None not in known and not one.may_rise:
                yield from self._out_of_numbers(one)
        next(curves_to_judge(window, self.least), None)  # says so if there is too little

    def _out_of_numbers(self, one: Training) -> Iterator[Finding]:
        """A loss that goes up and up until it is no number, too soon for a curve."""
        losses = one.losses
        bad = np.flatnonzero(~np.isfinite(losses))
        before = losses[: bad[0]] if len(bad) else losses[:0]
        if len(before) < 2 or not before[-5:].max() > 10 * max(abs(float(before[0])), 1e-12):
            return
        start, peak = float(before[0]), float(before.max())
        onset = one.place_of(one.step[np.flatnonzero(one.loss > 3 * abs(start))[0]])
        yield Finding(
            self.code, self.name, self.name, self.severity,
            f"the loss rose from {start:.3g} to {peak:.3g}, then to {losses[bad[0]]}",
            one.subject(onset),
            sureness(peak / (10 * max(abs(start), 1e-12))),
            (
                Evidence(
                    f"first {start:.3g}, highest {peak:.3g}",
                    f"SELECT step, loss FROM steps WHERE {one.where} ORDER BY step",
                    thinned(before[-60:]), names=("loss",),
                ),
            ),
            "lower the learning rate, or clip gradients (`clip_grad_norm_(parameters, 1.0)`)",
            {"start": start, "end": peak},
        )  # fmt: skip

    def _check(self, curve: Curve) -> Iterator[Finding]:
        if len(curve.finite) < self.least:
            return
        allowed = max(self.lost_share * (curve.start - curve.best), self.of_first_loss * abs(curve.start))
        allowed += self.noise_times * curve.level_noise
        if curve.may_rise:
            allowed = 10 * (allowed + abs(curve.start))
        best = min(curve.best, curve.start)
        end = curve.end
        if not np.isfinite(curve.values[-1]):  # it went up until it left the numbers
            end = max(end, float(curve.finite[-3:].max()))
        rise = end - best
        if not rise > allowed > 0:
            return
        onset = self._onset(curve, best + allowed / 2)
        yield Finding(
            self.code, self.name, self.name, self.severity if end > max(0.0, -2 * best) else Severity.INFO,
            f"the loss rose from {best:.3g} to {end:.3g}",
            curve.subject(onset),
            sureness(rise / allowed),
            (curve.evidence(f"first {curve.start:.3g}, best {best:.3g}, at the end {end:.3g}"),),
            "lower the learning rate, clip gradients (`clip_grad_norm_(parameters, 1.0)`), "
            f"or go back to the checkpoint before {curve.unit} {onset}",
            {"start": curve.start, "best": best, "end": end},
        )  # fmt: skip

    def _onset(self, curve: Curve, bound: float) -> int:
        """The step or round from which on the loss stays high: by blocks, or by values where it leaves the numbers."""
        if curve.levels[0] > bound > curve.start:  # at once
            return int(curve.at[0])
        if not np.isfinite(curve.values[-1]):
            low = np.flatnonzero(curve.values <= bound)
            return int(curve.at[min(int(low[-1]) + 1 if len(low) else 0, len(curve.at) - 1)])
        low = np.flatnonzero(curve.levels <= bound)
        return curve.position_of(min(int(low[-1]) + 1 if len(low) else 0, len(curve.levels) - 1))
