"""NUM010: steps out of proportion to the weights."""

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
class UpdateToWeightRatio:
    """A layer's weights move per step by a share of their norm that is far too large, or far smaller than others do.

    What it looks at: the distance of the weights from their start between samples, per step, against their norm. About
    0.001 is usual. Too small means a thousandth of what the median layer does, with a gradient that is not 0.
    Why it matters: large steps forget what was learned; a layer that hardly moves is not trained.
    Not a fault when: the loss falls anyway, or layers have different rates on purpose; then it is reported as info.
    Next step: another learning rate for the layer (a separate parameter group), or another initialisation.
    """

    code: ClassVar[str] = "NUM010"
    name: ClassVar[str] = "update-to-weight-ratio"
    severity: ClassVar[Severity] = Severity.WARNING
    needs: ClassVar[Needs] = {"layers": frozenset({"layer", "kind", "norm", "drift"})}
    reads: ClassVar[Needs] = {"steps": STEP_COLUMNS, "layers": LAYER_COLUMNS}
    explains: ClassVar[frozenset[str]] = frozenset({"dead-units", "saturated-units", "plateau"})

    large: float = threshold(0.2, "share of its norm that a layer moves per step")
    small: float = threshold(1e-8, "the same share, where it is too small in any case")
    times_less: float = threshold(1e-3, "times the median layer's share, where it is too small beside the others")
    learned: float = threshold(0.5, "fall of the loss, as a share, from which on it is info")

    def check(self, window: Window) -> Iterator[Finding]:
        for one in trainings_of(window):
            tracks = [track for track in one.layers.get("weight", []) if track.is_matrix]
            ratios = {track.layer: _ratio(track) for track in tracks}
            known = {layer: ratio for layer, ratio in ratios.items() if ratio is not None}
            large = {layer: ratio for layer, ratio in known.items() if ratio > self.large}
            if large:
                yield self._found(one, "large", large, max(large.values()) / self.large)
            usual = float(np.median(list(known.values()))) if known else 0.0
            bound = max(self.small, self.times_less * usual)
            small = {layer: ratio for layer, ratio in known.items() if 0 < ratio < bound}
            if small and len(small) < len(known):
                yield self._found(one, "small", small, bound / min(small.values()))

    def _found(self, one: Training, kind: str, layers: dict[str, float], margin: float) -> Finding:
        names = sorted(layers, key=lambda layer: -layers[layer] if kind == "large" else layers[layer])
        return Finding(
            self.code, self.name, self.name,
            self.severity if not one.fall > self.learned else Severity.INFO,
            f"{names[0]} moves by {layers[names[0]]:.3g} times its norm per step: too {kind}",
            one.subject(one.place_of(self._first(one, names[0])), layers=names[:8]),
            sureness(margin),
            (
                Evidence(
                    f"{len(layers)} layers; about 0.001 is usual",
                    f"SELECT step, layer, drift / norm AS moved FROM layers WHERE kind = 'weight' AND {one.where} "
                    f"AND layer = '{names[0]}' ORDER BY step",
                    thinned(next(t["drift"] for t in one.layers["weight"] if t.layer == names[0])),
                    names=("drift",),
                ),
            ),
            f"give {names[0]} a {'lower' if kind == 'large' else 'higher'} learning rate: a separate parameter group",
            {"kind": kind, "ratio": layers[names[0]], "fall": one.fall},
        )  # fmt: skip

    def _first(self, one: Training, layer: str) -> float:
        """The step of the first samples that are near each other."""
        track = next(track for track in one.layers["weight"] if track.layer == layer)
        gaps = np.diff(track.since)
        return float(track.step[int(np.argmax((gaps > 0) & (gaps <= 5)))])


def _ratio(track: LayerTrack) -> float | None:
    """The typical move per step between neighbouring samples, a lower bound; None if too few are near each other."""
    finite = np.isfinite(track["drift"]) & np.isfinite(track["norm"]) & (track["norm"] > 1e-3 * track.size**0.5)
    since, drift, norm = track.since[finite], track["drift"][finite], track["norm"][finite]
    gap = np.diff(since)
    near = (gap > 0) & (gap <= 5)
    if near.sum() < 3:
        return None
    moves = np.abs(np.diff(drift))[near] / gap[near] / norm[:-1][near]
    return float(np.median(moves[:5]))
