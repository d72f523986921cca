"""CON004: the loss stays where it is."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import ClassVar

from stethos.diagnose.convergence.slow_progress import slope_of
from stethos.diagnose.curve import CURVE_READS, Curve, curves_to_judge
from stethos.diagnose.detector import Needs, threshold
from stethos.diagnose.finding import Finding, Severity
from stethos.diagnose.training import sureness
from stethos.diagnose.window import Window


@dataclass(frozen=True, slots=True)
class Plateau:
    """The loss stays at the level it began with, or stopped far from the end.

    What it looks at: how much of the first loss was gained, and whether there is any slope beyond the noise. A loss
    that never moved is a warning; one that stopped half-way is reported as info.
    Why it matters: nothing is learned: wrong labels, inputs without information, dead units, or a learning rate far
    off.
    Not a fault when: training continues from a trained model; a loss below `floor` is never reported. A loss below 0,
    such as a policy's, is reported as info: it says little about how good the model is. So is one whose model another
    optimizer trains afterwards, and well.
    Next step: train on one batch until the loss is 0; if that fails, look at data and graph, else at the learning rate.
    """

    code: ClassVar[str] = "CON004"
    name: ClassVar[str] = "plateau"
    severity: ClassVar[Severity] = Severity.WARNING
    needs: ClassVar[Needs] = {"steps": frozenset({"step", "loss"})}
    reads: ClassVar[Needs] = CURVE_READS
    explains: ClassVar[frozenset[str]] = frozenset()

    gained: float = threshold(0.1, "fall of the loss, as a share, below which it never moved")
    half_way: float = threshold(0.5, "share of the first loss that is left where it stopped half-way")
    least_steps: int = threshold(100, "steps")
    least_rounds: int = threshold(10, "rounds, for a federation")
    floor: float = threshold(0.2, "loss below which nothing is said")

    def check(self, window: Window) -> Iterator[Finding]:
        curves = list(curves_to_judge(window, self.least_steps, self.least_rounds))
        for curve in curves:
            is_over = any(self._learns_later(curve, other) for other in curves)
            for found in self._check(curve):
                yield replace(found, severity=Severity.INFO) if is_over else found

    def _learns_later(self, curve: Curve, other: Curve) -> bool:
        """Whether another optimizer trains the same model afterwards, and well: a search for a learning rate, say."""
        both = curve.training, other.training
        return (
            both[0] is not None and both[1] is not None and both[0].model == both[1].model
            and curve.process == other.process and curve.at[-1] < other.at[0] and other.fall > self.half_way
        )  # fmt: skip

    def _check(self, curve: Curve) -> Iterator[Finding]:
        if curve.may_rise or abs(curve.end) < self.floor:
            return
        best_fall = (curve.start - curve.best) / curve.scale
        noise = 3 * curve.level_noise / curve.scale
        never = best_fall < self.gained + noise and curve.fall < self.gained
        third = max(1, len(curve.levels) // 3)
        late = float(curve.levels[third : 2 * third].mean() - curve.levels[-third:].mean()) / curve.scale
        stopped = not never and abs(late) < 0.01 and curve.end > self.half_way * curve.start > 0
        if not (never or stopped) or (never and slope_of(curve) < -8 and late > 0.01):
            return
        has_risen = never and curve.fall < -min(self.gained + noise, 1.0)
        what = "has risen and stays there" if has_risen else "has hardly moved" if never else "no longer moves"
        yield Finding(
            self.code, self.name, self.name, self.severity if never and curve.end > 0 else Severity.INFO,
            f"the loss {what}: {curve.end:.3g} after {curve.length_text}, {curve.start:.3g} at the start",
            curve.subject(int(curve.at[0]) if never else curve.position_of(third)),
            sureness(self.gained / max(best_fall, 0.02)) if never else 0.75,
            (curve.evidence(f"start {curve.start:.4g}, best {curve.best:.4g}, end {curve.end:.4g}"),),
            "train on a single batch until its loss is 0: if that fails look at the data, the labels and the graph, "
            "else change the learning rate",
            {"start": curve.start, "best": curve.best, "end": curve.end},
        )  # fmt: skip
