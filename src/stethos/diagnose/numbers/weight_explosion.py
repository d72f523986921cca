"""NUM006: weights that grow without end."""

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
class WeightExplosion:
    """A layer's weights have become many times larger than they were, and large.

    What it looks at: the size of a layer's elements (root mean square) against its first sample; layers that began at
    0 against `large` alone.
    Why it matters: outputs and gradients grow with them until they overflow.
    Not a fault when: the inputs are tiny, or the targets large, and the weights must make up for it; scale these
    instead. Where the loss has fallen by nine tenths it is reported as info.
    Next step: weight decay (and its sign), a lower learning rate, norm layers.
    """

    code: ClassVar[str] = "NUM006"
    name: ClassVar[str] = "weight-explosion"
    severity: ClassVar[Severity] = Severity.WARNING
    needs: ClassVar[Needs] = {"layers": frozenset({"layer", "kind", "norm", "size"})}
    reads: ClassVar[Needs] = {"steps": STEP_COLUMNS, "layers": LAYER_COLUMNS}
    explains: ClassVar[frozenset[str]] = frozenset(
        {"non-finite-loss", "non-finite-gradients", "non-finite-weights", "saturated-units", "divergence",
         "exploding-gradients", "dead-units", "series-anomaly"}
    )  # fmt: skip

    times: float = threshold(10.0, "times the size of the layer's elements at its first sample")
    large: float = threshold(2.0, "size of an element (root mean square) below which no layer counts")
    learned: float = threshold(0.9, "fall of the loss, as a share, from which on it is info")

    def check(self, window: Window) -> Iterator[Finding]:
        for one in trainings_of(window):
            yield from self._check(one)

    def _check(self, one: Training) -> Iterator[Finding]:
        grown: list[tuple[float, int, LayerTrack]] = []
        for track in one.layers.get("weight", []):
            sizes = track["norm"] / track.size**0.5
            finite = np.flatnonzero(np.isfinite(sizes))
            if len(finite) < 2 or not track.is_matrix:
                continue
            bound = max(self.times * float(sizes[finite[0]]), self.large)
            over = finite[sizes[finite] > bound]
            if len(over) and sizes[finite[-1]] > bound:
                grown.append((float(sizes[finite[-1]]) / bound, int(over[0]), track))
        if not grown:
            return
        margin, _place, track = max(grown, key=lambda one: one[0])
        sizes = track["norm"] / track.size**0.5
        first = min(float(other.step[at]) for _, at, other in grown)
        layers = [other.layer for _, _, other in sorted(grown, key=lambda one: float(one[2].step[one[1]]))]
        yield Finding(
            self.code, self.name, self.name, Severity.INFO if one.fall >= self.learned else self.severity,
            f"weights of {track.layer} grew from {sizes[0]:.3g} to {sizes[np.isfinite(sizes)][-1]:.3g} per element",
            one.subject(one.place_of(first), layers=layers[:8]),
            sureness(margin),
            (
                Evidence(
                    f"{len(grown)} layers more than {self.times:g} times their first size",
                    f"SELECT step, layer, norm / sqrt(size) AS rms FROM layers WHERE kind = 'weight' AND {one.where} "
                    f"AND layer = '{track.layer}' ORDER BY step",
                    thinned(sizes[np.isfinite(sizes)]), names=("size of a weight",),
                ),
            ),
            "check the sign and size of the weight decay, lower the learning rate, or add norm layers",
            {"layers": len(grown), "times": margin * self.times},
        )  # fmt: skip
