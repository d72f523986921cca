"""CON006: steps that are too large."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from stethos.diagnose.detector import Needs, threshold
from stethos.diagnose.finding import Evidence, Finding, Severity
from stethos.diagnose.program.inspected import COLUMNS, inspected_of
from stethos.diagnose.training import (
    LAYER_COLUMNS,
    STEP_COLUMNS,
    Training,
    level_at_start,
    sureness,
    thinned,
    trainings_to_judge,
    until_broken,
)  # fmt: skip
from stethos.diagnose.window import Window
from stethos.store.frame import Array

_LEAST_NORM = 0.14  # times the fourth root of the size: a quarter of what usual schemes give a matrix


@dataclass(frozen=True, slots=True)
class LearningRateTooHigh:
    """The loss jumps up in the first steps, or after the rate was raised, and does not recover.

    What it looks at: the highest loss soon after the start against the first one, the level at the end, changes of the
    learning rate, and how far the weights moved per step.
    Why it matters: it is the most common cause of divergence, dead units and NaN losses.
    Not a fault when: the loss jumps at first and then falls far below its start, or falls below its start and is still
    falling; that is not reported, even if a NaN comes later out of a low loss. Neither is a loss whose target moves,
    such as the outputs of a target network or pairs from a queue.
    Next step: lower the learning rate, or warm it up.
    """

    code: ClassVar[str] = "CON006"
    name: ClassVar[str] = "learning-rate-too-high"
    severity: ClassVar[Severity] = Severity.ERROR
    needs: ClassVar[Needs] = {"steps": frozenset({"step", "loss", "lr"})}
    reads: ClassVar[Needs] = {"steps": STEP_COLUMNS, "layers": LAYER_COLUMNS, "inspections": COLUMNS}
    explains: ClassVar[frozenset[str]] = frozenset(
        {"divergence", "oscillation", "plateau", "exploding-gradients", "weight-explosion", "non-finite-loss",
         "non-finite-gradients", "non-finite-weights", "dead-units", "saturated-units", "update-to-weight-ratio",
         "series-anomaly", "frozen-layers", "vanishing-gradients", "constant-outputs", "implausible-loss"}
    )  # fmt: skip

    jump: float = threshold(3.0, "times the first loss")
    recovered: float = threshold(0.7, "share of the first loss above which the training has not recovered")
    falling: float = threshold(0.2, "fall over the second half, as a share, that shows that it still learns")
    ratio: float = threshold(0.1, "share of its norm that a layer moves per step")
    raised: float = threshold(3.0, "times the rate before, where the rate was raised")
    least: int = threshold(5, "steps")

    def check(self, window: Window) -> Iterator[Finding]:
        growing = {one.process for one in inspected_of(window) if one.has_fixed_place()}
        for one in trainings_to_judge(window, self.least):
            if one.process not in growing and not one.has_moving_goal:
                yield from self._check(one)

    def _check(self, one: Training) -> Iterator[Finding]:
        finite = np.isfinite(one.loss) & np.isfinite(one.lr)
        losses, rates, place = one.loss[finite], one.lr[finite], np.flatnonzero(finite)
        if len(losses) < 3:
            return
        first, early = level_at_start(losses), max(10, len(losses) // 10)
        if one.is_relay:  # the first turn alone
            early = int(max(2, (one.optimizer[finite] == one.optimizer[finite][0]).sum()))
            first = float(losses[0])
        end = float(np.median(losses[-max(3, len(losses) // 10) :]))
        is_lost = end > self.recovered * abs(first) or _blew_up(one.losses, losses, first)
        is_lost = is_lost and not (end < first and self._goes_on_falling(losses))
        peak = float(losses[:early].max())
        moved = _moved_per_step(one)
        noise = float(np.median(np.abs(np.diff(losses, 2)))) / 1.652
        is_clear = peak - first > 10 * noise and (moved is None or moved > 0.1 * self.ratio)
        margin = peak / (self.jump * max(abs(first), 1e-12)) if is_clear else 0.0
        if moved is not None and end > 0.95 * abs(first):  # learned nothing, by steps that are too long
            margin = max(margin, moved / self.ratio)
        if is_lost and margin > 1 and rates[0] > 0:
            yield self._found(one, int(place[0]), float(rates[0]), moved, first, peak, margin)
            return
        for turn in np.flatnonzero(rates[1:] > self.raised * rates[:-1]) + 1:
            before = float(np.median(losses[max(0, turn - 20) : turn]))
            after = losses[turn : turn + 20]
            is_up = float(np.median(after)) > max(2 * abs(before), 0.5 * abs(first))
            stays = not np.isfinite(one.losses[-1]) or end > max(2 * abs(before), 0.5 * abs(first))
            if turn >= 5 and is_up and stays:
                margin = float(np.median(after)) / max(2 * abs(before), 0.5 * abs(first))
                yield self._found(one, int(place[turn]), float(rates[turn]), None, before, float(after.max()), margin)
                return

    def _goes_on_falling(self, losses: Array) -> bool:
        """Whether the second half of a training falls from part to part, and clearly."""
        levels = np.array([float(np.median(part)) for part in np.array_split(losses[len(losses) // 2 :], 4)])
        return bool((np.diff(levels) < 0).all()) and float(levels[-1]) < (1 - self.falling) * float(levels[0])

    def _found(
        self, one: Training, place: int, rate: float, moved: float | None, first: float, peak: float, margin: float
    ) -> Finding:
        better = float(f"{rate * min(0.1, 0.01 / moved if moved else 0.01):.0e}")
        text = f"lr {rate:g}; loss {first:.3g} -> {peak:.3g}"
        if moved is not None:
            text += f"; weights moved by {moved:.2g} of their norm per step at first (0.001 to 0.01 is usual)"
        return Finding(
            self.code, self.name, self.name, self.severity,
            f"the learning rate of {rate:g} is too high: the loss goes from {first:.3g} to {peak:.3g}",
            one.subject(place),
            sureness(margin),
            (
                Evidence(
                    text,
                    f"SELECT step, lr, loss FROM steps WHERE {one.where} ORDER BY step",
                    thinned(until_broken(one.losses)), names=("loss",),
                ),
            ),
            f"lower lr from {rate:g} to about {better:g}, or warm it up; clip gradients",
            {"lr": rate, "better": better, "moved_per_step": moved, "optimizer": int(one.optimizer[place])},
        )  # fmt: skip


def _blew_up(losses: Array, finite: Array, first: float) -> bool:
    """Whether a training grew into its NaN: into a loss far below the first a batch brings one, not the rate."""
    return not np.isfinite(losses[-1]) and float(finite[-3:].max()) > abs(first)


def _moved_per_step(one: Training) -> float | None:
    """How far the weight matrices moved in the first steps, against their norm; None if not recorded."""
    found = []
    for track in one.layers.get("weight", ()):
        soon = (track.since > 0) & (track.since <= 5) & np.isfinite(track["drift"])
        start = track["norm"][track.since == 0]
        if track.is_matrix and soon.any() and len(start) and start[0] > 0:
            where = np.flatnonzero(soon)[0]
            usual = _LEAST_NORM * track.size**0.25  # a layer that begins near 0 on purpose moves far at first
            found.append(float(track["drift"][where] / track.since[where] / max(start[0], usual)))
    return max(found) if found else None
