"""CON009: gradients that pile up."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from stethos.diagnose.detector import Needs, threshold
from stethos.diagnose.finding import Evidence, Finding, Severity
from stethos.diagnose.program.inspected import COLUMNS, details, inspected_of
from stethos.diagnose.training import (
    STEP_COLUMNS,
    Training,
    column_of,
    level_at_start,
    sureness,
    thinned,
    trainings_of,
)  # fmt: skip
from stethos.diagnose.window import Window
from stethos.store.frame import Array, Frame, is_null


@dataclass(frozen=True, slots=True)
class GradientsNotZeroed:
    """The norm of the gradients grows in proportion to the number of steps: they are added up, never cleared.

    What it looks at: the gradient norm from an optimizer's first step to its peak, in logarithms of both. Sums of
    gradients grow like the step number; the loss does not explode meanwhile, as it would with too high a learning rate.
    Of several optimizers, whether the weights of one have gradients of another's loss when its own backward begins.
    Why it matters: the optimizer follows the past; steps grow until the training oscillates or diverges.
    Not a fault when: gradients are accumulated on purpose. Accumulation ends with a step; these sums span many steps.
    Next step: call `optimizer.zero_grad()` before each `backward()`.
    """

    code: ClassVar[str] = "CON009"
    name: ClassVar[str] = "gradients-not-zeroed"
    severity: ClassVar[Severity] = Severity.ERROR
    needs: ClassVar[Needs] = {"steps": frozenset({"step", "grad_norm"})}
    reads: ClassVar[Needs] = {"steps": STEP_COLUMNS, "inspections": COLUMNS}
    explains: ClassVar[frozenset[str]] = frozenset(
        {"exploding-gradients", "divergence", "oscillation", "weight-explosion", "learning-rate-too-high", "dead-units",
         "update-to-weight-ratio", "series-anomaly", "non-finite-loss", "plateau", "saturated-units"}
    )  # fmt: skip

    growth: float = threshold(5.0, "times the first norm of the gradients")
    slope_least: float = threshold(0.55, "slope of the norm over the steps, both in logarithms")
    slope_most: float = threshold(1.6, "the same, at most")
    fit: float = threshold(0.85, "correlation of both")
    rising: float = threshold(0.8, "share of steps at which the norm rises")
    within: int = threshold(60, "first steps that are looked at")
    least: int = threshold(6, "norms among them")
    sparse: int = threshold(4, "norms among three times as many steps, where there are fewer")
    seen: int = threshold(3, "inspected backwards that begin with gradients of earlier steps")

    def check(self, window: Window) -> Iterator[Finding]:
        inspected = {one.process: one.training for one in inspected_of(window)}
        for one in trainings_of(window):
            left = _left_over(inspected[one.process], one) if one.process in inspected else np.array([])
            if len(left) >= self.seen and (left > 0).all() and not one.has_rival:
                yield self._left_over(one, left)
            elif one.has_rival and one.process in inspected and self._is_given(inspected[one.process], one):
                yield self._of_another(one)
            elif (left > 0).all():  # seen too seldom, or never
                yield from self._check(one)

    def _is_given(self, rows: Frame, one: Training) -> bool:
        """Whether, before the backwards of its steps, an optimizer's weights have gradients of another one's loss."""
        mine = rows.where(np.isin(rows["step"], one.step[1:]))
        numbers = dict(zip(one.step.tolist(), one.optimizer.tolist(), strict=True))
        seen = [
            numbers[step] in row["left_of"]
            for step, row in zip(mine["step"].tolist(), details(mine), strict=True)
            if "left_of" in row
        ]
        return len(seen) >= self.seen and all(seen)

    def _of_another(self, one: Training) -> Finding:
        name = one.model or "one model"
        return Finding(
            self.code, self.name, "gradients-of-another-loss", Severity.WARNING,
            f"{name} also steps by gradients that the loss of another optimizer has left in it", one.subject(0), 0.88,
            (
                Evidence(
                    "before each inspected backward of its own loss it had gradients already",
                    "SELECT step, leftover_norm, detail FROM inspections WHERE phase = 'training'",
                ),
            ),
            "call `zero_grad()` of this optimizer just before its own `backward()`, or `detach()` what the other loss "
            "gets from it",
            {"optimizer": int(one.optimizer[0])},
        )  # fmt: skip

    def _left_over(self, one: Training, left: Array) -> Finding:
        """The gradients of the step before are still there when the next backward begins."""
        return Finding(
            self.code, self.name, self.name, self.severity, "gradients are not zeroed: each step adds to the last ones",
            one.subject(0), 0.97,
            (
                Evidence(
                    f"before each of {len(left)} inspected backwards the gradients of earlier steps were still there",
                    "SELECT step, leftover_norm, gradient_norm FROM inspections WHERE phase = 'training'",
                    thinned(left),
                ),
            ),
            "call `optimizer.zero_grad()` before each `backward()`",
            {"optimizer": int(one.optimizer[0])},
        )  # fmt: skip

    def _check(self, one: Training) -> Iterator[Finding]:
        since = np.arange(len(one)).astype(float) if one.has_rival else one.since
        has_norm = np.isfinite(one.grad_norm) & (one.grad_norm > 0)
        rows, is_sparse = has_norm & (since < self.within), False
        if rows.sum() < self.least:  # few samples: look farther, ask for more
            rows, is_sparse = has_norm & (since < 3 * self.within), True
        order = np.argsort(since[rows], kind="stable")
        at, norms = since[rows][order] + 1, one.grad_norm[rows][order]
        if len(at) < self.sparse:
            return
        peak = int(np.argmax(norms)) + 1
        at, norms = at[:peak], norms[:peak]
        least, fit_least = (self.sparse, 0.95) if is_sparse else (self.least, self.fit)
        if peak < least or at[-1] < 4 * at[0] or norms[-1] < self.growth * norms[0]:
            return
        slope, fit = _line(np.log(at), np.log(norms))
        losses = one.loss[np.isfinite(one.loss) & (since < at[-1])]
        if not len(losses) or float(losses.max()) > 2 * abs(level_at_start(losses)) + 1e-12:
            return
        rising = float((np.diff(norms) > 0).mean())
        if fit < fit_least or rising < self.rising or not self.slope_least <= slope <= self.slope_most:
            return
        yield Finding(
            self.code, self.name, self.name, self.severity,
            f"gradients are not zeroed: their norm grew from {norms[0]:.3g} to {norms[-1]:.3g} "
            f"in proportion to the step number",
            one.subject(0),
            sureness(norms[-1] / norms[0] / self.growth * 1.5),
            (
                Evidence(
                    f"norm ~ step^{slope:.2f} over the first {int(at[-1])} steps, fit {fit:.2f}",
                    f"SELECT step, grad_norm FROM steps WHERE grad_norm IS NOT NULL AND {one.where} ORDER BY step",
                    thinned(norms), names=("gradient norm",),
                ),
            ),
            "call `optimizer.zero_grad()` before each `backward()`",
            {"slope": slope, "fit": fit, "optimizer": int(one.optimizer[0])},
        )  # fmt: skip


def _left_over(inspected: Frame, one: Training) -> Array:
    """The norms of what earlier steps had left at the backwards of a training, but for its first."""
    step, left = column_of(inspected, "step"), column_of(inspected, "leftover_norm")
    found: Array = left[(step > one.step[0]) & (step <= one.step[-1]) & ~is_null(left)]
    return found


def _line(x: Array, y: Array) -> tuple[float, float]:
    """Slope and share of variance explained of a straight line."""
    x, y = x - x.mean(), y - y.mean()
    both, wide, high = float((x * y).sum()), float((x * x).sum()), float((y * y).sum())
    if wide <= 0 or high <= 0:
        return 0.0, 0.0
    return both / wide, both * both / (wide * high)
