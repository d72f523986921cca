"""NUM009: layers that take no part."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from stethos.diagnose.detector import Needs, threshold
from stethos.diagnose.finding import Evidence, Finding, Severity
from stethos.diagnose.training import LAYER_COLUMNS, STEP_COLUMNS, Training, sureness, trainings_of
from stethos.diagnose.window import Window
from stethos.store.frame import is_null


@dataclass(frozen=True, slots=True)
class FrozenLayers:
    """Layers that the optimizer holds get no gradient at all, while others do.

    What it looks at: the gradient of each layer at every sample: missing (frozen with `requires_grad`, unused, or cut
    off by `detach`) or exactly 0. A gradient that is small but not 0 does not count: see vanishing-gradients.
    Why it matters: these layers never change; that may be intended, or a mistake.
    Not a fault when: layers are frozen on purpose. So missing gradients are reported as info; leave those layers out of
    the optimizer to silence it.
    Next step: look for `detach`, `no_grad`, a branch that is not used, or a factor of 0 before the named layer.
    """

    code: ClassVar[str] = "NUM009"
    name: ClassVar[str] = "frozen-layers"
    severity: ClassVar[Severity] = Severity.WARNING
    needs: ClassVar[Needs] = {"layers": frozenset({"layer", "kind", "size"})}
    reads: ClassVar[Needs] = {"steps": STEP_COLUMNS, "layers": LAYER_COLUMNS}
    explains: ClassVar[frozenset[str]] = frozenset({"update-to-weight-ratio"})

    least: int = threshold(3, "samples of a layer, all with a gradient of 0")

    def check(self, window: Window) -> Iterator[Finding]:
        for one in trainings_of(window):
            yield from self._check(one)

    def _check(self, one: Training) -> Iterator[Finding]:
        tracks = [track for track in one.layers.get("gradient", []) if len(track)]
        drifts = {track.layer: track["drift"] for track in one.layers.get("weight", [])}
        missing = [track for track in tracks if is_null(track["norm"]).all()]
        zero = [track for track in tracks if (track["norm"] == 0).all() and len(track) >= self.least]
        if len(missing) + len(zero) == len(tracks):
            return
        for kind, layers in (("missing", missing), ("zero", zero)):
            still = [track for track in layers if not (np.nan_to_num(drifts.get(track.layer, np.zeros(1))) > 0).any()]
            if not still or (kind == "zero" and len(still) == 1 and still[0].size < 8):
                continue
            names = [track.layer for track in still]
            samples = max(len(track) for track in still)
            what = "get no gradient: frozen, unused or cut off" if kind == "missing" else "have a gradient of exactly 0"
            yield Finding(
                self.code, self.name, self.name, Severity.INFO if kind == "missing" else self.severity,
                f"{len(names)} of {len(tracks)} layers {what}, first {names[0]}",
                one.subject(0, layers=names[:8]),
                sureness(samples / self.least),
                (
                    Evidence(
                        f"{samples} sample{'s' * (samples != 1)}, weights unchanged",
                        "SELECT layer, count(norm) AS samples, max(norm) AS most FROM layers WHERE kind = 'gradient' "
                        f"AND {one.where} GROUP BY layer HAVING coalesce(max(norm), 0) = 0",
                    ),
                ),
                f"look for `detach`, `no_grad`, an unused branch or a factor of 0 behind {names[-1]}; "
                "if it is meant, leave these layers out of the optimizer",
                {"kind": kind, "layers": len(names), "of": len(tracks)},
            )  # fmt: skip
