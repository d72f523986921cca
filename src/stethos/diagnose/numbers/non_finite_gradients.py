"""NUM002: gradients that are NaN or infinite."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from stethos.diagnose.detector import Needs
from stethos.diagnose.finding import Finding, Severity
from stethos.diagnose.numbers.chronology import READS, Onset, findings_of
from stethos.diagnose.window import Window


@dataclass(frozen=True, slots=True)
class NonFiniteGradients:
    """A gradient became NaN or infinite although the loss was finite: the backward pass is to blame.

    What it looks at: NaN and infinite elements of each layer's gradient at sampled steps (on a GPU nearly all), the
    norm of all gradients, the loss of the same step, and the optimizer's state once the next loss is broken.
    Why it matters: the next optimizer step writes it into the weights.
    Not a fault when: a gradient scaler skips such steps.
    Next step: `torch.autograd.set_detect_anomaly(True)` names the operation: a root or norm at 0, a `where` that hides
    an infinity.
    """

    code: ClassVar[str] = "NUM002"
    name: ClassVar[str] = "non-finite-gradients"
    severity: ClassVar[Severity] = Severity.ERROR
    needs: ClassVar[Needs] = {
        "steps": frozenset({"step"}),
        "layers": frozenset({"kind", "nan", "inf"}),
    }
    reads: ClassVar[Needs] = READS
    explains: ClassVar[frozenset[str]] = frozenset(
        {"non-finite-weights", "non-finite-loss", "divergence", "plateau", "dead-units", "series-anomaly",
         "frozen-layers", "non-finite-model"}
    )  # fmt: skip

    def check(self, window: Window) -> Iterator[Finding]:
        return findings_of(window, "gradient", self.code, self.name, _advice)


def _advice(onset: Onset) -> str:
    step, layers = int(onset.training.step[onset.place]), onset.layers
    where = f"what changes the gradient of {layers[0]} (hooks, scaling)" if len(layers) == 1 else "the loss"
    if "where" in onset.hazards:
        return (
            "the branch that `where` does not choose has a gradient, too, and 0 times infinity is NaN: make its "
            "arguments harmless first, for example `x / size.clamp_min(1)`"
        )
    seen = ", ".join(sorted(onset.hazards))
    if seen:
        return (
            f"go back to a checkpoint before step {step}; behind the loss there are operations whose gradient is "
            f"infinite at 0: {seen}; add a small number to what they are given"
        )
    return (
        f"go back to a checkpoint before step {step}; look for a root, norm, logarithm or division at 0 in {where}; "
        f"`torch.autograd.set_detect_anomaly(True)` names the operation"
    )
