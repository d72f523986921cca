"""NUM011: weights that begin too large, too small or all alike."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import compress
from typing import ClassVar

import numpy as np

from stethos.diagnose.detector import Needs, threshold
from stethos.diagnose.finding import Evidence, Finding, Severity
from stethos.diagnose.training import LAYER_COLUMNS, STEP_COLUMNS, LayerTrack, Training, sureness, thinned, trainings_of
from stethos.diagnose.window import Window

_DENSE = 0.9  # of all elements, at least, are stored
_MOST_TABLES = 3  # of embeddings that a model begins with
_MOSTLY = 0.5  # of a gradient is 0: a batch has reached few rows


@dataclass(frozen=True, slots=True)
class PoorInitialisation:
    """The weights were initialised too large, too small, or all to the same number.

    What it looks at: the first sample of each weight matrix. Its variance times the root of its size lies between 0.02
    and 10 for every usual scheme, whatever the shape. And the first loss against the level soon after.
    Why it matters: weights that are too large saturate or explode, weights that are too small let the signal die out,
    and equal units stay equal.
    Not a fault when: embeddings (layers with `emb` in their name are left out, and standard normal ones whose gradient
    is sparse or mostly 0, or that come before all others), the scales of norm layers, single layers that begin at 0 on
    purpose, and parameters other than weights: tokens, positions, means. If the loss falls as it should, it is reported
    as info.
    Next step: `nn.init.kaiming_normal_` for ReLU, `nn.init.xavier_uniform_` for tanh; or torch's own defaults.
    """

    code: ClassVar[str] = "NUM011"
    name: ClassVar[str] = "poor-initialisation"
    severity: ClassVar[Severity] = Severity.WARNING
    needs: ClassVar[Needs] = {"layers": frozenset({"layer", "kind", "mean", "std", "size"})}
    reads: ClassVar[Needs] = {"steps": STEP_COLUMNS, "layers": LAYER_COLUMNS}
    explains: ClassVar[frozenset[str]] = frozenset(
        {"exploding-gradients", "vanishing-gradients", "saturated-units", "dead-units", "plateau", "slow-progress",
         "frozen-layers", "update-to-weight-ratio", "divergence", "oscillation", "weight-explosion", "series-anomaly",
         "learning-rate-too-high", "constant-outputs", "implausible-loss"}
    )  # fmt: skip

    large: float = threshold(12.0, "a layer's first variance, times the root of its size (about 1 is usual)")
    small: float = threshold(1e-3, "the same, below which weights are too small")
    share: float = threshold(0.5, "share of the layers that are so")
    learned: float = threshold(0.5, "fall of the loss, as a share, from which on it is info")
    begun: float = threshold(0.1, "the same where all layers may be embeddings")

    def check(self, window: Window) -> Iterator[Finding]:
        for one in trainings_of(window):
            yield from self._check(one)

    def _check(self, one: Training) -> Iterator[Finding]:
        tracks = [track for track in one.layers.get("weight", []) if track.is_matrix and len(track)]
        tracks = [track for track in tracks if track.since[0] == 0 and np.isfinite(track["std"][0])]
        named = [track for track in tracks if "weight" in track.layer.rpartition(".")[2]]
        if not tracks:
            return
        share = self.share if named else 1.0  # what no module calls a weight may be a mean, a token or a position
        tracks = named or tracks
        scales = np.array([float(track["std"][0]) ** 2 * track.size**0.5 for track in tracks])
        means = np.array([float(track["mean"][0]) for track in tracks])
        equal = (scales == 0) & (np.abs(means) != 1) & (means != 0)
        is_layer = (
            bool(named) or len(tracks) > 1
        )  # one parameter of no module is what is looked for: a picture, a point
        equal &= is_layer
        zero = (scales == 0) & (means == 0)
        big = (scales > self.large) & is_layer
        big &= np.array(["emb" not in track.layer.lower() for track in tracks])
        first = int(np.argmin(big)) if not big.all() else 0  # those before all others: of words, of places
        if 0 < first == big.sum() <= _MOST_TABLES and all(map(_is_standard_normal, tracks[:first])):
            big[:first] = False  # torch's own way to begin an embedding, whatever its name
        gradients = {track.layer: track for track in one.layers.get("gradient", []) if len(track)}
        big &= ~np.array([_is_embedding(track, gradients.get(track.layer)) for track in tracks])
        small = (scales < self.small) & (scales > 0)
        choices = (
            ("equal", equal, 5.0, "all equal"),
            ("zero", zero if len(tracks) > 1 and zero.all() else equal & False, 5.0, "all 0"),
            ("large", big, float(scales.max()) / self.large, "too large"),
            ("small", small if small.mean() >= share else small & False,
             self.small / max(float(np.median(scales)), 1e-12), "too small"),
        )  # fmt: skip
        for kind, found, margin, words in choices:
            if not found.any():
                continue
            track = tracks[int(np.argmax(found))]
            names = [other.layer for other, is_found in zip(tracks, found, strict=True) if is_found]
            is_harmful = kind == "equal" or not one.fall > self.learned or (kind == "large" and _fell_at_once(one))
            if kind == "large" and all(map(_is_standard_normal, compress(tracks, found))):
                is_harmful = not one.fall > self.begun  # they may all be embeddings, which torch begins so
            yield Finding(
                self.code, self.name, self.name, self.severity if is_harmful else Severity.INFO,
                f"weights of {len(names)} of {len(tracks)} matrices began {words}, first {names[0]}",
                one.subject(0, layers=names[:8]),
                sureness(margin),
                (
                    Evidence(
                        f"{track.layer}: mean {track['mean'][0]:.3g}, standard deviation {track['std'][0]:.3g}, "
                        f"{int(track.size)} elements",
                        f"SELECT layer, mean, std, size FROM layers WHERE kind = 'weight' AND {one.where} "
                        f"AND step = {int(track.step[0])}",
                        thinned(np.log10(np.maximum(scales, 1e-12))), names=("log10 by layer",),
                    ),
                ),
                "initialise with `nn.init.kaiming_normal_` (ReLU) or `nn.init.xavier_uniform_` (tanh), "
                "or leave it to torch",
                {"kind": kind, "fall": one.fall},
            )  # fmt: skip
            return


def _is_standard_normal(track: LayerTrack) -> bool:
    error = max(0.1, 4 / float(2 * track.size) ** 0.5)  # of the deviation of so few numbers
    off = abs(float(track["mean"][0])), abs(float(track["std"][0]) - 1)
    return bool(off[0] < max(0.1, 4 / float(track.size) ** 0.5) and off[1] < error)


def _is_embedding(track: LayerTrack, gradient: LayerTrack | None) -> bool:
    """Whether it begins as torch begins an embedding, and a batch reaches some of its rows only."""
    if gradient is None or not _is_standard_normal(track):
        return False
    norm, mean, std = (float(gradient[name][0]) for name in ("norm", "mean", "std"))
    stored = norm**2 / (mean**2 + std**2) if std > 0 else gradient.size  # of a sparse gradient: its numbers are theirs
    return stored < _DENSE * gradient.size or float(gradient["zero_share"][0]) > _MOSTLY


def _fell_at_once(one: Training) -> bool:
    """Whether most of the first loss was only the price of large weights."""
    finite = one.losses[np.isfinite(one.losses)]
    return len(finite) > 20 and float(np.median(finite[-len(finite) // 10 :])) < 0.2 * float(finite[0])
