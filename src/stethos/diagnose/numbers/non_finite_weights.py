"""NUM003: weights that are NaN or infinite."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from stethos.diagnose.detector import Needs
from stethos.diagnose.finding import Finding, Severity
from stethos.diagnose.numbers.chronology import READS, Onset, findings_of
from stethos.diagnose.window import Window


@dataclass(frozen=True, slots=True)
class NonFiniteWeights:
    """Weights were NaN or infinite before any loss was: the step before, or something that wrote into them, did it.

    What it looks at: NaN and infinite elements of each layer's weights at sampled steps, as the step began.
    Why it matters: no later step can repair them.
    Not a fault when: never.
    Next step: go back to a checkpoint before it; look at the gradients of the step before, and at what loads or
    averages weights.
    """

    code: ClassVar[str] = "NUM003"
    name: ClassVar[str] = "non-finite-weights"
    severity: ClassVar[Severity] = Severity.ERROR
    needs: ClassVar[Needs] = {
        "steps": frozenset({"step"}),
        "layers": frozenset({"kind", "nan", "inf"}),
    }
    reads: ClassVar[Needs] = READS
    explains: ClassVar[frozenset[str]] = frozenset(
        {"non-finite-gradients", "non-finite-loss", "divergence", "plateau", "dead-units", "series-anomaly",
         "frozen-layers", "non-finite-model"}
    )  # fmt: skip

    def check(self, window: Window) -> Iterator[Finding]:
        return findings_of(window, "weight", self.code, self.name, _advice)


def _advice(onset: Onset) -> str:
    step = int(onset.training.step[onset.place])
    if onset.is_inherited:
        return (
            'see who sent it: `stethos query "SELECT client, round, layer, nan, inf FROM updates '
            'WHERE nan > 0 OR inf > 0 ORDER BY round"`; leave such updates out of the average'
        )
    before = onset.training.loss[onset.place - 1] if onset.place else float("nan")
    if np.isfinite(before):
        return (
            f"go back to a checkpoint before step {step}: after a finite loss the gradients of step {step - 1} were "
            "most likely NaN, which clipping cannot fix; look for sqrt, norm, log or a division at 0 in the loss, "
            "and run that step under `torch.autograd.detect_anomaly()`"
        )
    return (
        f"go back to a checkpoint before step {step}; check what writes into "
        f"{onset.layers[0] if onset.layers else 'the weights'} between steps {step - 1} and {step}"
    )
