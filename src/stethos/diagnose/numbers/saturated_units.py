"""NUM008: units stuck at the ends of their range."""

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
class SaturatedUnits:
    """Nearly all outputs of a tanh or sigmoid lie at the ends of its range, where it has no slope.

    What it looks at: outputs of modules (preset deep) that stay within -1 and 1, or 0 and 1, and whose mean square is
    that of the ends.
    Why it matters: no gradient passes through a saturated unit.
    Not a fault when: it is the model's own answer, which may be certain; the last module is left out. If the loss falls
    anyway, it is reported as info.
    Next step: scale the inputs to unit variance, start with smaller weights, or put a norm layer in front.
    """

    code: ClassVar[str] = "NUM008"
    name: ClassVar[str] = "saturated-units"
    severity: ClassVar[Severity] = Severity.WARNING
    needs: ClassVar[Needs] = {"layers": frozenset({"layer", "kind", "mean", "std", "min", "max"})}
    reads: ClassVar[Needs] = {"steps": STEP_COLUMNS, "layers": LAYER_COLUMNS}
    explains: ClassVar[frozenset[str]] = frozenset({"vanishing-gradients", "plateau", "slow-progress", "frozen-layers"})

    inside: float = threshold(0.08, "share of outputs that lie inside of the range")
    learned: float = threshold(0.5, "fall of the loss, as a share, from which on it is info")
    least: int = threshold(2, "samples of a layer")

    def check(self, window: Window) -> Iterator[Finding]:
        for one in trainings_of(window):
            yield from self._check(one)

    def _check(self, one: Training) -> Iterator[Finding]:
        found: list[tuple[float, float, LayerTrack]] = []
        for track in one.layers.get("activation", [])[:-1]:
            inside = _inside(track)
            known = inside[np.isfinite(inside)]
            if len(known) < max(self.least, len(track) // 2) or float(np.std(known)) == 0:
                continue
            if float(np.median(known)) < self.inside:
                place = int(np.flatnonzero(inside < self.inside)[0])
                first = float(track.step[place]) if place else float(one.step[0])
                found.append((float(np.median(known)), first, track))
        if not found:
            return
        inside_share, first, track = min(found, key=lambda one: one[1])
        yield Finding(
            self.code, self.name, self.name, self.severity if not one.fall > self.learned else Severity.INFO,
            f"the outputs of {track.layer} are saturated: {1 - inside_share:.0%} at the ends of the range",
            one.subject(one.place_of(first), layers=[other.layer for _, _, other in found][:8]),
            sureness(self.inside / max(inside_share, 1e-6)),
            (
                Evidence(
                    f"between {np.nanmin(track['min']):.3g} and {np.nanmax(track['max']):.3g}",
                    f"SELECT step, min, max, mean, std FROM layers WHERE kind = 'activation' "
                    f"AND layer = '{track.layer}' AND {one.where} ORDER BY step",
                    thinned(_inside(track)), names=("room to the ends",),
                ),
            ),
            "scale the inputs to unit variance, start with smaller weights, or put a norm layer in front of it",
            {"inside": inside_share, "fall": one.fall},
        )  # fmt: skip


def _inside(track: LayerTrack) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """How far outputs lie from the ends of tanh or sigmoid: 0 at the ends, about 1 in the middle; NaN for others."""
    square = np.square(track["mean"]) + np.square(track["std"])
    low, high, mean = track["min"], track["max"], track["mean"]
    is_tanh = (low >= -1.0001) & (high <= 1.0001) & (low < -0.9) & (high > 0.9)
    is_sigmoid = (low >= 0) & (high <= 1.0001) & (high > 0.9) & (low < 0.1) & (mean > 0.1)
    return np.where(is_tanh, 1 - square, np.where(is_sigmoid, 4 * (mean - square), np.nan))
