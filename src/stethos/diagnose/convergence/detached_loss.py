"""CON008: a loss that no parameter feels."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from stethos.diagnose.detector import Needs, threshold
from stethos.diagnose.finding import Evidence, Finding, Severity
from stethos.diagnose.training import LAYER_COLUMNS, STEP_COLUMNS, Training, thinned, trainings_of
from stethos.diagnose.window import Window
from stethos.store.frame import is_null


@dataclass(frozen=True, slots=True)
class DetachedLoss:
    """A loss is given to backward, but no parameter of the optimizer gets a gradient.

    What it looks at: the gradients of all layers of an optimizer: missing, or exactly 0, at every sample.
    Why it matters: the loop runs and prints a loss, but nothing is learned.
    Not a fault when: never; an optimizer whose parameters get no gradient does nothing.
    Next step: compare `optimizer.param_groups` with the model that makes the loss (a copy? made before `.to(device)`?),
    and look for `detach`, `.item()`, `no_grad` or a factor of 0 between model and loss.
    """

    code: ClassVar[str] = "CON008"
    name: ClassVar[str] = "detached-loss"
    severity: ClassVar[Severity] = Severity.ERROR
    needs: ClassVar[Needs] = {
        "steps": frozenset({"step", "loss"}),
        "layers": frozenset({"layer", "kind"}),
    }
    reads: ClassVar[Needs] = {"steps": STEP_COLUMNS, "layers": LAYER_COLUMNS}
    explains: ClassVar[frozenset[str]] = frozenset(
        {"plateau", "frozen-layers", "learning-rate-too-low", "update-to-weight-ratio", "slow-progress",
         "vanishing-gradients", "dead-units"}
    )  # fmt: skip

    least_steps: int = threshold(5, "losses given to backward")

    def check(self, window: Window) -> Iterator[Finding]:
        for one in trainings_of(window):
            if len(one.losses) >= self.least_steps:
                yield from self._check(one)

    def _check(self, one: Training) -> Iterator[Finding]:
        tracks = one.layers.get("gradient", [])
        if not tracks or (np.nan_to_num(one.grad_norm, nan=0.0) > 0).any() or _is_broken(one):
            return
        norms = np.concatenate([track["norm"] for track in tracks])
        known = ~is_null(norms)
        if (norms[known] != 0).any():
            return
        moved = [track["drift"][np.isfinite(track["drift"])] for track in one.layers.get("weight", ())]
        if any((drift != 0).any() for drift in moved):
            return
        samples = max(len(track) for track in tracks)
        what = "exactly 0" if known.any() else "missing"
        yield Finding(
            self.code, self.name, self.name, self.severity,
            f"the loss is not connected to the parameters: all gradients are {what}",
            one.subject(0),
            0.98 if samples > 2 else 0.9 if len(one) > 20 else 0.8,
            (
                Evidence(
                    f"{len(tracks)} layers, {samples} samples, {len(one.losses)} losses given to backward",
                    f"SELECT step, layer, norm FROM layers WHERE kind = 'gradient' AND {one.where} ORDER BY step",
                    thinned(one.losses), names=("loss",),
                ),
            ),
            "compare `optimizer.param_groups` with the parameters of the model that makes the loss; "
            "look for `detach`, `no_grad` or a factor of 0 on the way",
            {"gradients": what, "optimizer": int(one.optimizer[0])},
        )  # fmt: skip


def _is_broken(one: Training) -> bool:
    """Whether a norm is not finite: that is another trouble."""
    return bool((~np.isfinite(one.grad_norm) & ~is_null(one.grad_norm)).any())
