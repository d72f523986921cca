"""NUM007: units that always answer 0."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from stethos.diagnose.detector import Needs, threshold
from stethos.diagnose.finding import Evidence, Finding, Severity
from stethos.diagnose.training import LAYER_COLUMNS, STEP_COLUMNS, LayerTrack, Training, sureness, thinned, trainings_of
from stethos.diagnose.window import Window


@dataclass(frozen=True, slots=True)
class DeadUnits:
    """Nearly all units of a layer output 0 for every input, and so get no gradient (dead ReLU).

    What it looks at: the share of zeros in a module's outputs (preset deep), or in the gradient of a layer's biases: a
    bias without a gradient belongs to a unit that no sample of the batch activates.
    Why it matters: a dead unit stays dead, since nothing can move its weights.
    Not a fault when: the loss still falls, as with sparse features; then it is reported as info.
    Next step: lower the learning rate, start biases at 0, or use LeakyReLU or GELU.
    """

    code: ClassVar[str] = "NUM007"
    name: ClassVar[str] = "dead-units"
    severity: ClassVar[Severity] = Severity.WARNING
    needs: ClassVar[Needs] = {"layers": frozenset({"layer", "kind", "zero_share"})}
    reads: ClassVar[Needs] = {"steps": STEP_COLUMNS, "layers": LAYER_COLUMNS}
    explains: ClassVar[frozenset[str]] = frozenset(
        {"frozen-layers", "plateau", "vanishing-gradients", "update-to-weight-ratio", "slow-progress"}
    )

    of_outputs: float = threshold(0.97, "share of a layer's outputs that are 0")
    of_biases: float = threshold(0.9, "share of a layer's biases whose gradient is 0, where outputs are unknown")
    learned: float = threshold(0.5, "fall of the loss, as a share, from which on it is info")
    nearly_all: float = threshold(0.95, "share of dead units from which on it is a warning whatever the loss does")
    least: int = threshold(2, "samples of a layer")

    def check(self, window: Window) -> Iterator[Finding]:
        for one in trainings_of(window):
            yield from self._check(one)

    def _check(self, one: Training) -> Iterator[Finding]:
        found: list[tuple[float, float, LayerTrack]] = []  # share, first step, layer
        for track in one.layers.get("activation", []):
            found.extend(_dead(track, self.of_outputs, self.least))
        is_seen = bool(found)
        if not found:
            gradients = one.layers.get("gradient", [])
            for place, track in enumerate(gradients):
                is_silent = _is_zero(track) and not _is_starved(gradients[place + 1 :])
                if track.layer.endswith("bias") and track.size >= 8 and not is_silent:
                    found.extend(_dead(track, self.of_biases, self.least))
        if not found:
            return
        share, first, track = min(found, key=lambda one: one[1])
        place = one.place_of(first) if first > float(track.step[0]) else 0
        after = one.loss[place:][np.isfinite(one.loss[place:])]
        before = one.losses[np.isfinite(one.losses)]
        stays = not one.fall > self.learned and len(after) > 0 and len(before) > 0
        yield Finding(
            self.code, self.name, self.name, self.severity if stays or share >= self.nearly_all else Severity.INFO,
            f"{share:.0%} of {track.layer} is dead: "
            + ("outputs are 0" if is_seen else "biases get no gradient"),
            one.subject(place, layers=[other.layer for _, _, other in found][:8]),
            sureness((1 - self.of_outputs) / max(1 - share, 1e-3)) if is_seen else 0.85,
            (
                Evidence(
                    "share of zeros over the samples",
                    f"SELECT step, zero_share FROM layers WHERE layer = '{track.layer}' AND kind = "
                    f"'{'activation' if is_seen else 'gradient'}' AND {one.where} ORDER BY step",
                    thinned(track["zero_share"]), names=("share of zeros",),
                ),
            ),
            "lower the learning rate, start biases at 0, or use `nn.LeakyReLU` or `nn.GELU`",
            {"share": share, "fall": one.fall},
        )  # fmt: skip


def _dead(track: LayerTrack, bound: float, least: int) -> Iterator[tuple[float, float, LayerTrack]]:
    """Whether a layer is dead to the end, and since which sample."""
    known = np.flatnonzero(np.isfinite(track["zero_share"]))
    shares = track["zero_share"][known]
    if len(shares) < least:
        return
    alive = np.flatnonzero(shares < bound)
    since = int(alive[-1]) + 1 if len(alive) else 0
    if len(shares) - since >= max(least, len(shares) // 4):
        yield float(np.median(shares[since:])), float(track.step[known[since]]), track


def _is_zero(track: LayerTrack) -> bool:
    return bool((track["norm"] == 0).all())


def _is_starved(later: list[LayerTrack]) -> bool:
    """Whether a later layer gets inputs of 0 alone: its weights have no gradient, its bias has."""
    zero = {track.layer.rpartition(".")[0] for track in later if track.is_matrix and _is_zero(track)}
    return any(track.layer.rpartition(".")[0] in zero and not _is_zero(track) for track in later)
