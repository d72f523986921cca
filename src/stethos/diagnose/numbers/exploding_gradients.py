"""NUM004: gradients that grow without end."""

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
class ExplodingGradients:
    """Gradients are many times larger than they have been, or grow from layer to layer.

    What it looks at: the norm of all gradients against its own history and against that of the untrained model, over
    several samples in a row; and each layer's gradient against the output's: a factor of a thousand means that depth
    multiplies it.
    Why it matters: one such step can undo all the others.
    Not a fault when: the loss is summed over batches whose size changes, or a loss scale is undone later.
    Next step: clip gradients; then look for the cause: learning rate, loss scale, recurrence, initialisation.
    """

    code: ClassVar[str] = "NUM004"
    name: ClassVar[str] = "exploding-gradients"
    severity: ClassVar[Severity] = Severity.ERROR
    needs: ClassVar[Needs] = {"steps": frozenset({"step", "grad_norm"})}
    reads: ClassVar[Needs] = {"steps": STEP_COLUMNS, "layers": LAYER_COLUMNS}
    explains: ClassVar[frozenset[str]] = frozenset(
        {"divergence", "weight-explosion", "non-finite-loss", "non-finite-gradients", "non-finite-weights",
         "dead-units", "saturated-units", "update-to-weight-ratio", "series-anomaly", "oscillation"}
    )  # fmt: skip

    times_before: float = threshold(30.0, "times the median norm of the last 200 steps")
    times_first: float = threshold(10.0, "times the largest norm of the first steps")
    in_a_row: int = threshold(3, "steps in a row with such a norm")
    by_depth: float = threshold(1e3, "times from the last layer to the first")
    least: int = threshold(5, "first steps that tell what is usual")

    def check(self, window: Window) -> Iterator[Finding]:
        for one in trainings_of(window):
            yield from self._in_time(one)
            yield from self._by_depth(one)

    def _in_time(self, one: Training) -> Iterator[Finding]:
        known = np.flatnonzero(np.isfinite(one.grad_norm))
        norms = one.grad_norm[known]
        if len(norms) < self.least + self.in_a_row:
            return
        first = float(norms[: self.least].max())
        for place in np.flatnonzero(norms[: len(norms) - self.in_a_row + 1] > self.times_first * first).tolist():
            bound = max(
                self.times_before * float(np.median(norms[max(0, place - 200) : place])), self.times_first * first
            )
            if bound > 0 and (norms[place : place + self.in_a_row] > bound).all():
                break
        else:
            return
        step = float(one.step[known[place]])
        layers = _most_grown(one.layers.get("gradient", []), step)
        yield Finding(
            self.code, self.name, self.name, self.severity,
            f"the gradient norm jumped from {np.median(norms[:place]):.3g} to {norms[place]:.3g}",
            one.subject(int(known[place]), layers=layers),
            sureness(float(np.median(norms[place : place + self.in_a_row])) / bound),
            (
                Evidence(
                    f"at most {first:.3g} at first, {norms.max():.3g} later"
                    + (f"; most in {layers[0]}" if layers else ""),
                    f"SELECT step, grad_norm FROM steps WHERE grad_norm IS NOT NULL AND {one.where} ORDER BY step",
                    thinned(norms), names=("gradient norm",),
                ),
            ),
            f"clip gradients before each step: `clip_grad_norm_(parameters, {2 * np.median(norms[:place]):.2g})`",
            {"before": float(np.median(norms[:place])), "after": float(norms[place]), "by": "history"},
        )  # fmt: skip

    def _by_depth(self, one: Training) -> Iterator[Finding]:
        tracks = [track for track in one.layers.get("gradient", []) if track.is_matrix]
        sizes = np.array([_early_size(track) for track in tracks])
        if len(sizes) < 4 or not (sizes > 0).all():
            return
        growth = float(sizes[0] / sizes[-1])
        steady = float(np.corrcoef(np.arange(len(sizes)), -np.log(sizes))[0, 1])
        if growth < self.by_depth or steady < 0.8:
            return
        yield Finding(
            self.code, self.name, self.name, Severity.WARNING if not one.fall > 0.5 else Severity.INFO,
            f"gradients grow from layer to layer: {growth:.1e} times from {tracks[-1].layer} to {tracks[0].layer}",
            one.subject(0, layers=[tracks[0].layer]),
            sureness(growth / self.by_depth),
            (
                Evidence(
                    "gradient per element at the first samples, from the first layer to the last",
                    f"SELECT layer, norm / sqrt(size) AS rms FROM layers WHERE kind = 'gradient' AND {one.where} "
                    f"AND step = {int(tracks[0].step[0])}",
                    thinned(sizes), names=("gradient by layer",),
                ),
            ),
            "initialise with the gain of the activation, or put a norm layer between",
            {"growth": growth, "by": "depth"},
        )  # fmt: skip


def _early_size(track: LayerTrack) -> float:
    """The gradient per element at the first few samples."""
    norms = track["norm"][np.isfinite(track["norm"])][:5]
    return float(np.median(norms)) / track.size**0.5 if len(norms) else 0.0


def _most_grown(tracks: list[LayerTrack], step: float) -> tuple[str, ...]:
    """The layers whose gradients grew most at a step, the first one first."""
    grown = []
    for track in tracks:
        before, after = track["norm"][track.step < step], track["norm"][track.step >= step][:3]
        before, after = before[np.isfinite(before)], after[np.isfinite(after)]
        if len(before) and len(after) and np.median(before) > 0:
            grown.append((float(after.max() / np.median(before)), track.layer))
    return tuple(layer for _, layer in sorted(grown, reverse=True)[:3])
