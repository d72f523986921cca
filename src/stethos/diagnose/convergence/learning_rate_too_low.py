"""CON007: steps that are too small."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from stethos.diagnose.detector import Needs, threshold
from stethos.diagnose.finding import Evidence, Finding, Severity
from stethos.diagnose.training import LAYER_COLUMNS, STEP_COLUMNS, Training, sureness, thinned, trainings_to_judge
from stethos.diagnose.window import Window


@dataclass(frozen=True, slots=True)
class LearningRateTooLow:
    """There are gradients, but the weights hardly move and the loss stays where it was.

    What it looks at: how far the weights have moved from their start per step, relative to their norm; the learning
    rate; whether the loss fell.
    Why it matters: the training will take many times longer than it needs to.
    Not a fault when: a trained model is only fine-tuned (the loss must be above `floor`), or a schedule ends at 0.
    Next step: raise the learning rate by factors of ten until the loss falls visibly.
    """

    code: ClassVar[str] = "CON007"
    name: ClassVar[str] = "learning-rate-too-low"
    severity: ClassVar[Severity] = Severity.WARNING
    needs: ClassVar[Needs] = {"steps": frozenset({"step", "loss", "lr"})}
    reads: ClassVar[Needs] = {"steps": STEP_COLUMNS, "layers": LAYER_COLUMNS}
    explains: ClassVar[frozenset[str]] = frozenset(
        {"plateau", "slow-progress", "update-to-weight-ratio", "frozen-layers"}
    )

    moved: float = threshold(1e-4, "share of their norm that the weights move, at the farthest")
    fallen: float = threshold(0.1, "fall of the loss, as a share, below which it stays where it was")
    tiny_rate: float = threshold(1e-7, "learning rate that is too low where moves are unknown")
    least: int = threshold(50, "steps")
    floor: float = threshold(0.2, "loss below which nothing is said")

    def check(self, window: Window) -> Iterator[Finding]:
        for one in trainings_to_judge(window, self.least):
            yield from self._check(one)

    def _check(self, one: Training) -> Iterator[Finding]:
        rates = one.lr[np.isfinite(one.lr)]
        finite = one.losses[np.isfinite(one.losses)]
        if not len(rates) or not len(finite) or not one.fall < self.fallen or abs(float(finite[-1])) < self.floor:
            return
        rate = float(np.median(rates))
        if float(rates.max()) > 100 * rate:  # it was not low from the start: `learning-rate-collapse`
            return
        moved = _farthest(one)
        if rate == 0:
            title, sure = "the learning rate is 0", 0.98
        elif moved is not None and 0 < moved < self.moved and _has_gradient(one):
            title, sure = f"the learning rate of {rate:g} hardly moves the weights", sureness(self.moved / moved)
        elif moved is None and 0 < rate < self.tiny_rate:
            title, sure = f"the learning rate of {rate:g} is very low and the loss stays", 0.75
        else:
            return
        text = f"lr {rate:g}; the loss changed by {-one.fall:.1%}"
        if moved is not None:
            text += f"; the layer that moved most: {moved:.1e} times its norm per step (0.001 is usual)"
        better = float(f"{rate * 1e-3 / moved:.0e}") if moved and rate else 1e-3
        yield Finding(
            self.code, self.name, self.name, self.severity, title,
            one.subject(0),
            sure,
            (Evidence(text, f"SELECT step, lr, loss FROM steps WHERE {one.where} ORDER BY step", thinned(one.losses),
                      names=("loss",)),),
            f"raise lr from {rate:g} to about {better:g}",
            {"lr": rate, "better": better, "moved_per_step": moved, "optimizer": int(one.optimizer[0])},
        )  # fmt: skip


def _farthest(one: Training) -> float | None:
    """How far the layer that moved most came per step, against its norm; None if not recorded."""
    found = []
    for track in one.layers.get("weight", ()):
        late = np.flatnonzero((track.since >= 1) & np.isfinite(track["drift"]) & (track["norm"] > 0))
        if len(late) and track.is_matrix:
            last = late[np.argmax(track.since[late])]
            found.append(float(track["drift"][last] / track.since[last] / track["norm"][last]))
    return max(found) if found else None


def _has_gradient(one: Training) -> bool:
    known = one.grad_norm[np.isfinite(one.grad_norm)]
    return bool(len(known)) and float(np.median(known)) > 1e-6
