"""PRG001: a loss function that is not given what it expects."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from stethos.diagnose.detector import Needs, threshold
from stethos.diagnose.finding import Finding, Severity
from stethos.diagnose.program.inspected import COLUMNS, NEEDS, Inspected, details, inspected_of, is_usual, merge_ranks
from stethos.diagnose.training import STEP_COLUMNS, texts_of
from stethos.diagnose.window import Window

# By kind: what is wrong, what to do, how bad it is, how sure.
_LOGITS = "pass the raw outputs of the last layer to the loss; apply the activation only where you need probabilities"
KINDS: dict[str, tuple[str, str, Severity, float]] = {
    "softmax-before-logits": (
        "softmax is applied before a loss that applies it itself", _LOGITS, Severity.WARNING, 0.97),
    "sigmoid-before-logits": (
        "sigmoid is applied before a loss that expects raw outputs", _LOGITS, Severity.WARNING, 0.97),
    "relu-before-logits": (
        "relu is applied to the outputs before the loss, so no output can be negative",
        "remove the relu after the last layer", Severity.WARNING, 0.85),
    "tanh-before-logits": (
        "tanh bounds the outputs before the loss", "remove the tanh after the last layer", Severity.INFO, 0.7),
    "no-log-probabilities": (
        "the loss expects log-probabilities and gets something else",
        "apply `log_softmax` first, or use `cross_entropy` on the raw outputs", Severity.ERROR, 0.95),
    "softmax-over-batch": (
        "softmax runs over the batch instead of the classes", "use dim=1 (or -1)", Severity.ERROR, 0.97),
    "softmax-over-places": (
        "softmax runs over the places of a sequence instead of its classes", "use dim=-1", Severity.ERROR, 0.95),
    "one-class": (
        "cross entropy over a single class is always 0",
        "use `binary_cross_entropy_with_logits`, or two outputs", Severity.ERROR, 0.98),
    "broadcast-loss": (
        "outputs and targets have different shapes: the loss compares every output with every target",
        "give both the same shape, for example `outputs.squeeze(1)`", Severity.ERROR, 0.97),
    "loss-of-means": (
        "the loss compares the mean of the outputs with the mean of the targets, not each output with its target",
        "take the error of each sample first, and the mean of the errors", Severity.WARNING, 0.87),
    "loss-is-a-leaf": (
        "the loss has no history: backward reaches no parameter",
        "do not rebuild the loss with `torch.tensor(...)` or from `.item()`, `.detach()` or `argmax`",
        Severity.ERROR, 0.98),
    "targets-out-of-range": (
        "targets of a binary cross entropy lie outside of 0 to 1", "scale or encode the targets as 0 and 1",
        Severity.ERROR, 0.95),
    "targets-out-of-reach": (
        "the activation before the loss cannot give these targets",
        "remove the activation after the last layer, or scale the targets into its range", Severity.WARNING, 0.88),
    "reshaped-outputs": (
        "outputs are reshaped for the loss where dimensions should be swapped",
        "use `outputs.transpose(1, 2)` instead of `view` or `reshape`", Severity.ERROR, 0.96),
    "held-out-labels": (
        "the loss is given the labels of samples that are kept for evaluation", "pick the training samples for the "
        "loss: `loss(out[train_mask], y[train_mask])`", Severity.WARNING, 0.88),
    "log-of-shares": (
        "the loss takes the logarithm of a softmax or sigmoid, which is -inf where that rounds to 0",
        "use `log_softmax`, `logsigmoid` or a loss that is given raw outputs", Severity.INFO, 0.85),
    "summed-loss": (
        "the loss is a sum over the batch, so steps grow with the size of the batch",
        "use reduction='mean', or divide the learning rate by the size of the batch", Severity.INFO, 0.85),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class WrongLoss:
    """A loss function does not get what it expects: an activation twice, no logarithm, unequal shapes.

    What it looks at: the autograd graph beside the loss, at the first backwards and now and then later; and a mask of
    the training samples (`train_mask`) among the program's variables, where the loss is given the labels of all.
    Why it matters: such a training runs and often learns a little, so it is easy to miss that it could learn far more.
    Not a fault when: the outputs are bounded on purpose. The logarithm of a softmax is a fault once the loss is NaN or
    infinite, until then a remark.
    Next step: correct the lines that compute the loss; the finding says how.
    """

    code: ClassVar[str] = "PRG001"
    name: ClassVar[str] = "wrong-loss"
    severity: ClassVar[Severity] = Severity.ERROR
    needs: ClassVar[Needs] = NEEDS
    reads: ClassVar[Needs] = {"inspections": COLUMNS, "steps": STEP_COLUMNS}
    explains: ClassVar[frozenset[str]] = frozenset(
        {"plateau", "slow-progress", "detached-loss", "oscillation", "divergence", "vanishing-gradients",
         "learning-rate-too-low", "frozen-layers", "implausible-loss", "telling-warning", "saturated-units",
         "exploding-gradients", "learning-rate-too-high", "weight-explosion", "non-finite-loss", "dead-units",
         "non-finite-gradients", "non-finite-weights", "series-anomaly", "constant-outputs", "odd-graph"}
    )  # fmt: skip

    share: float = threshold(0.3, "share of a long training's inspections in which it is seen")

    def check(self, window: Window) -> Iterator[Finding]:
        yield from merge_ranks(self._found(window))

    def _found(self, window: Window) -> Iterator[Finding]:
        for one in inspected_of(window):
            yield from self._check(one)

    def _check(self, one: Inspected) -> Iterator[Finding]:
        remarks = texts_of(one.training, "remark")
        steps = one.training["step"]
        backwards = len(np.unique(steps))
        for kind, (title, advice, severity, sure) in KINDS.items():
            places = np.flatnonzero(remarks == kind)
            if not len(places) or not is_usual(one, steps[places], self.share):
                continue
            seen = details(one.training)[places[0]].get("seen", "")
            text = f"{seen}; in {len(np.unique(steps[places]))} of {backwards} inspected backwards"
            if kind == "log-of-shares" and any(not np.isfinite(each.losses).all() for each in one.trainings):
                severity = Severity.ERROR
            yield Finding(
                self.code, self.name, kind, severity, title, one.subject(steps[places[0]]), sure,
                (one.evidence(text, "function, remark, detail"),), advice, {"kind": kind},
            )  # fmt: skip
