"""NUM001: a loss that is NaN or infinite."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from stethos.diagnose.detector import Needs
from stethos.diagnose.finding import Finding, Severity
from stethos.diagnose.numbers.chronology import READS, Onset, findings_of
from stethos.diagnose.window import Window

# By the operation that made the first number that is not finite: what to do.
OPERATIONS = {
    "Std": "the deviation of a single number is NaN: leave out batches of one sample, or use `std(unbiased=False)`",
    "Var": "the variance of a single number is NaN: leave out batches of one sample, or use `var(unbiased=False)`",
    "CtcLoss": "a target is longer than its sequence of outputs: leave such samples out, or pass `zero_infinity=True`",
    "Log": "a logarithm is taken of 0: use `log_softmax`, `logsigmoid` or `log1p`, or clamp its argument",
    "Div": "something is divided by 0: clamp the denominator",
    "Softmax": "softmax runs over nothing but minus infinity: a row of the mask hides everything",
    "SafeSoftmax": "softmax runs over nothing but minus infinity: a row of the mask hides everything",
    "LogSoftmax": "softmax meets infinite outputs: they overflow (too high a learning rate?), or a mask hides a row",
    "Exp": "an exponential overflows: clamp its argument, or work with logarithms",
    "Pow": "a power overflows, or a root is taken of a negative number: clamp its argument",
    "Sqrt": "a root is taken of a negative number: clamp its argument",
}


@dataclass(frozen=True, slots=True)
class NonFiniteLoss:
    """The loss became NaN or infinite while the weights were still finite: data or the forward pass are to blame.

    What it looks at: the loss of every step, and whether weights were finite as that step began. In CPU memory, the
    tensors saved by the loss's graph are read before its backward: they show which input, target, layer or loss
    function was the first that was not finite.
    Why it matters: the gradients of such a step destroy every weight they reach.
    Not a fault when: a gradient scaler skips such steps.
    Next step: the finding says where it begins; otherwise look at the batch of that step: NaN in the inputs, log(0), a
    division by 0, an overflow of float16.
    """

    code: ClassVar[str] = "NUM001"
    name: ClassVar[str] = "non-finite-loss"
    severity: ClassVar[Severity] = Severity.ERROR
    needs: ClassVar[Needs] = {"steps": frozenset({"step", "loss"})}
    reads: ClassVar[Needs] = READS
    explains: ClassVar[frozenset[str]] = frozenset(
        {"non-finite-gradients", "non-finite-weights", "divergence", "plateau", "dead-units", "series-anomaly",
         "frozen-layers", "non-finite-model", "exploding-gradients"}
    )  # fmt: skip

    def check(self, window: Window) -> Iterator[Finding]:
        return findings_of(window, "loss", self.code, self.name, _advice)


def _advice(onset: Onset) -> str:
    step = int(onset.training.step[onset.place])
    kind = onset.origin.get("kind")
    known = OPERATIONS.get(str(onset.origin.get("operation")))
    if known is not None:
        return known
    if kind in ("input", "label") and onset.origin.get("rows") == 1:
        return "leave out batches of one sample (`drop_last=True`), or use `std(unbiased=False)` plus a small number"
    if kind == "input":
        return f"look at the batch of step {step}: `assert torch.isfinite(inputs).all()`; clean or skip such samples"
    if kind == "label":
        return f"look at the targets of step {step}: `assert torch.isfinite(targets).all()`; clean or skip such samples"
    if kind == "activation":
        layer = onset.layers[0] if onset.layers else "the first layer"
        return (
            f"look at what is computed on the output of {layer}: a logarithm, root or division of 0, or an overflow; "
            f"inputs and weights of step {step} are finite"
        )
    if kind == "loss":
        return f"look for a logarithm, root or division of 0 in the loss: inputs and weights of step {step} are finite"
    return (
        f"look at the batch of step {step}: `assert torch.isfinite(inputs).all()`; "
        "then for a logarithm, division or root of 0 in the loss; "
        "on a GPU `stethos run --explain-nan` says where it begins"
    )
