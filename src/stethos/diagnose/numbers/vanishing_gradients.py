"""NUM005: gradients that do not reach the first layers."""

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
class VanishingGradients:
    """Gradients of some layers are thousands of times smaller than those of others, and the loss does not fall.

    What it looks at: the gradient per element of each weight matrix against the largest of all layers, and against its
    own beginning. They are small, not exactly 0: those are frozen layers or dead units.
    Why it matters: these layers stay as they were initialised.
    Not a fault when: the loss falls anyway, or has not had time to, or the layers change by a hundred-thousandth of
    their norm per step, as they do with Adam; then it is reported as info.
    Next step: ReLU-like activations, norm layers, residual connections, or an initialisation with the right gain.
    """

    code: ClassVar[str] = "NUM005"
    name: ClassVar[str] = "vanishing-gradients"
    severity: ClassVar[Severity] = Severity.WARNING
    needs: ClassVar[Needs] = {"layers": frozenset({"layer", "kind", "norm", "size"})}
    reads: ClassVar[Needs] = {"steps": STEP_COLUMNS, "layers": LAYER_COLUMNS}
    explains: ClassVar[frozenset[str]] = frozenset(
        {"plateau", "slow-progress", "update-to-weight-ratio", "learning-rate-too-low"}
    )

    below: float = threshold(1e-4, "share of the largest layer's gradient per element")
    of_start: float = threshold(1e-5, "share of the layer's own first gradients")
    share: float = threshold(0.25, "share of the weight matrices whose gradients vanish")
    learned: float = threshold(0.5, "fall of the loss, as a share, from which on it is info")
    least_steps: int = threshold(50, "steps before it is more than info")
    moves: float = threshold(1e-5, "share of its norm that a layer may move per step without harm")

    def check(self, window: Window) -> Iterator[Finding]:
        for one in trainings_of(window):
            yield from self._check(one)

    def _check(self, one: Training) -> Iterator[Finding]:
        tracks = [track for track in one.layers.get("gradient", []) if len(_norms(track))]
        if not tracks:
            return
        sizes = np.array([float(np.median(_norms(track))) / track.size**0.5 for track in tracks])
        starts = np.array([float(np.median(_norms(track)[:3])) / track.size**0.5 for track in tracks])
        is_matrix = np.array([track.is_matrix for track in tracks])
        if sizes.max() <= 0 or is_matrix.sum() < 2:
            return
        bound = self.below * min(sizes.max(), starts.max())  # beside one that exploded nothing has vanished
        small = is_matrix & (sizes > 0) & (sizes < bound)
        if small.sum() < max(1, self.share * is_matrix.sum()):
            small = is_matrix & (sizes > 0) & (sizes < self.of_start * starts)
            bound = self.of_start * float(np.median(starts[small])) if small.any() else 0.0
        if small.sum() < max(1, self.share * is_matrix.sum()):
            return
        layers = [track.layer for track, is_small in zip(tracks, small, strict=True) if is_small]
        is_harmful = len(one) >= self.least_steps and not one.fall > self.learned and not self._move(one, layers)
        yield Finding(
            self.code, self.name, self.name, self.severity if is_harmful else Severity.INFO,
            f"gradients vanish in {len(layers)} of {int(is_matrix.sum())} weight matrices, first {layers[0]}",
            one.subject(0, layers=layers[:8]),
            sureness(bound / float(np.median(sizes[small]))),
            (
                Evidence(
                    f"gradient per element {sizes[small].min():.1e} in {layers[0]}, {sizes.max():.1e} at most",
                    "SELECT layer, median(norm / sqrt(size)) AS rms FROM layers WHERE kind = 'gradient' "
                    f"AND {one.where} GROUP BY layer",
                    thinned(np.log10(np.maximum(sizes[is_matrix], 1e-30))), names=("log10 by layer",),
                ),
            ),
            "use ReLU-like activations, norm layers or residual connections, or initialise with the activation's gain",
            {"smallest": float(sizes[small].min()), "largest": float(sizes.max()), "fall": one.fall},
        )  # fmt: skip

    def _move(self, one: Training, layers: list[str]) -> bool:
        """Whether the layers change all the same: Adam makes long steps of small gradients."""
        found = []
        for track in one.layers.get("weight", ()):
            known = (track.since > 0) & np.isfinite(track["drift"]) & (track["norm"] > 0)
            if track.layer in layers and known.any():
                way = track.since[known] * track["norm"][known]
                found.append(float(np.median(track["drift"][known] / way)))
        return bool(found) and float(np.median(found)) > self.moves


def _norms(track: LayerTrack) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    norms: np.ndarray[tuple[int], np.dtype[np.float64]] = track["norm"][np.isfinite(track["norm"])]
    return norms
