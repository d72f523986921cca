"""PRG012: operations in the model that mix up samples, stop gradients, or add nothing."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from stethos.diagnose.detector import Needs, threshold
from stethos.diagnose.finding import Finding, Severity
from stethos.diagnose.program.inspected import (
    COLUMNS,
    NEEDS,
    Inspected,
    details,
    inspected_of,
    is_usual,
    known,
    merge_ranks,
)
from stethos.diagnose.training import STEP_COLUMNS, texts_of
from stethos.diagnose.window import Window

# By kind: what is wrong, what to do, how sure.
KINDS: dict[str, tuple[str, str, float]] = {
    "dropout-too-strong": (
        "dropout leaves next to nothing", "torch's `p` is the share that is dropped: 0.1 to 0.5 is usual", 0.85),
    "samples-mixed": (
        "a view mixes up the samples of a batch: features do not belong to their labels",
        "bring the batch to the front with `transpose` or `permute` before `view`, `reshape` or `flatten`", 0.95),
    "axes-mixed": (
        "a view changes the order of axes, which mixes up their elements",
        "use `transpose` or `permute` instead of `view` or `reshape`", 0.92),
    "samples-as-sequence": (
        "a layer takes the samples of a batch for the steps of a sequence, so samples see one another",
        "set `batch_first=True`, or swap the first two dimensions of its input", 0.94),
    "softmax-over-one": (
        "softmax runs over a single element and is always 1: nothing before it gets a gradient",
        "apply softmax before a top-k of 1, or use a sigmoid", 0.95),
    "softmax-over-queries": (
        "softmax of an attention runs over the queries instead of the keys", "use dim=-1", 0.85),
    "softmax-over-heads": (
        "softmax of an attention runs over its heads instead of the keys", "use dim=-1", 0.93),
    "heads-mixed": (
        "the heads of an attention are made by a view alone, which mixes up places of a sequence",
        "use `x.view(batch, length, heads, size).transpose(1, 2)`, and `transpose(1, 2)` before the view back", 0.93),
    "scores-not-scaled": (
        "the scores of an attention are not scaled, so softmax picks few keys from the start",
        "divide them by the root of the size of a head: `q @ k.transpose(-2, -1) / math.sqrt(size)`", 0.82),
    "pooled-over-samples": (
        "features are averaged over the samples of a batch instead of over their places",
        "use `mean(1)` where the batch is the first dimension", 0.9),
    "softmax-over-samples": (
        "softmax runs over the samples of a batch", "use dim=1 (or -1)", 0.9),
    "rounding-stops-gradient": (
        "rounding stops the gradient: parameters behind it never learn",
        "pass the gradient straight through: `w + (w.round() - w).detach()`", 0.95),
    "gradient-through-target": (
        "the gradient flows through the target of the loss, which is made from the model's own answers",
        "compute the target under `no_grad()`, or `detach()` it", 0.88),
    "target-is-trained": (
        "the model that makes the targets is trained along: both can agree on a constant, whatever the inputs",
        "run the teacher under `no_grad()`, and give the optimizer the student's parameters alone", 0.88),
    "raw-overlap": (
        "an overlap (Dice, IoU) is computed from raw outputs where it needs shares from 0 to 1",
        "apply `sigmoid` or `softmax` to the outputs first", 0.92),
    "same-layer-again": (
        "a list of layers holds the same layer several times, so they share their weights",
        "make each layer anew: `nn.ModuleList(make() for _ in range(n))`, not `[layer] * n`", 0.88),
    "norm-over-one-sample": (
        "batch statistics are taken over a single sample",
        "use larger batches, or `GroupNorm` or `LayerNorm`, which do not depend on the batch", 0.85),
    "norm-over-few": (
        "batch statistics are taken over two or three samples: they tell next to nothing, and evaluations use others",
        "use larger batches, or `GroupNorm` or `LayerNorm`, which do not depend on the batch", 0.88),
    "softmax-over-places": (
        "softmax runs over the places of a map instead of its classes",
        "use dim=1, the dimension of the classes", 0.9),
    "norm-over-samples": (
        "a layer norm runs over the samples of a batch, too, so they depend on one another",
        "give it the size of the features alone: `nn.LayerNorm(features)`", 0.92),
    "clamped-outputs": (
        "most outputs lie outside of the bounds of a clamp, where there is no gradient",
        "use a smooth bound such as `sigmoid` or `softplus`, or clamp only in evaluations", 0.88),
    "factor-of-zero": (
        "the loss is multiplied by 0, so no gradient is left",
        "look for a factor of 0: a temperature, a weight or a coefficient of the loss", 0.93),
    "accumulated-sum": (
        "gradients of several batches are added up, not averaged: steps are as many times too long",
        "divide the loss by the number of batches of a step", 0.88),
    "penalty-without-graph": (
        "a penalty on gradients has no gradient itself: the loss takes it for a constant",
        "pass `create_graph=True` to `torch.autograd.grad`", 0.92),
    "mixed-reductions": (
        "one term of the loss is a sum over the batch and another one a mean, so the sum outweighs it",
        "take the mean, or the sum over features and the mean over samples, of both", 0.87),
    "policy-sign": (
        "the loss makes actions with a high reward rarer: its sign is wrong",
        "minimise `-(log_prob * reward).mean()`", 0.85),
    "state-carried-over": (
        "a recurrent layer goes on with the state of the last batch, though the data are shuffled",
        "begin each batch with a state of zeros: call the layer without a state", 0.88),
    "linear-model": (
        "the layers follow one another without an activation, so all of them together are one linear layer",
        "put a nonlinearity such as `ReLU` between them", 0.85),
}  # fmt: skip

_EARLY = frozenset(
    {"samples-as-sequence", "same-layer-again", "state-carried-over"}
)  # layers are looked at in the first steps only


@dataclass(frozen=True, slots=True)
class OddGraph:
    """An operation of the model mixes up samples, stops the gradient, or makes layers pointless.

    What it looks at: shapes and operations in the autograd graph of inspected losses, against the size of the batch,
    and the shapes that recurrent and attention layers get.
    Why it matters: such a model runs, and often learns a little, but from the wrong samples or with only some of its
    layers.
    Not a fault when: attention between samples of a batch, or a linear model, is intended.
    Next step: print the shapes before and after the operation that the finding names.
    """

    code: ClassVar[str] = "PRG012"
    name: ClassVar[str] = "odd-graph"
    severity: ClassVar[Severity] = Severity.WARNING
    needs: ClassVar[Needs] = NEEDS
    reads: ClassVar[Needs] = {"inspections": COLUMNS, "steps": STEP_COLUMNS}
    explains: ClassVar[frozenset[str]] = frozenset(
        {"plateau", "slow-progress", "oscillation", "divergence", "vanishing-gradients", "learning-rate-too-low",
         "frozen-layers", "implausible-loss", "exploding-gradients", "overfitting", "series-anomaly", "dead-units",
         "poor-initialisation", "weight-explosion", "constant-outputs", "update-to-weight-ratio", "detached-loss",
         "lost-gradients", "learning-rate-too-high"}
    )  # fmt: skip

    least: int = threshold(2, "inspected backwards")
    share: float = threshold(0.3, "share of the inspections in which it is seen")

    def check(self, window: Window) -> Iterator[Finding]:
        yield from merge_ranks(self._found(window))

    def _found(self, window: Window) -> Iterator[Finding]:
        for one in inspected_of(window):
            yield from self._check(one)

    def _check(self, one: Inspected) -> Iterator[Finding]:
        remarks, steps = texts_of(one.training, "remark"), one.training["step"]
        adding = sum(bool(row.get("accumulates")) for row in details(one.training))
        for kind, (title, advice, sure) in KINDS.items():
            places = np.flatnonzero(remarks == kind)
            seen, backwards = len(np.unique(steps[places])), len(np.unique(steps))
            if kind == "accumulated-sum":  # the first backward of each step adds to nothing
                seen, backwards = len(places), adding
            least = 1 if kind == "state-carried-over" else self.least  # the same numbers are no chance
            is_seldom = seen < self.share * backwards and not is_usual(one, steps[places], self.share)
            if seen < least or (is_seldom and kind not in _EARLY):
                continue
            if kind == "factor-of-zero" and (known(one.training, "gradient_norm") != 0).any():
                continue  # one term of several, switched off
            text = f"{details(one.training)[places[0]].get('seen', '')}; in {seen} of {backwards} inspected backwards"
            is_light = kind == "linear-model" and one.has_learned
            yield Finding(
                self.code, self.name, kind, Severity.INFO if is_light else self.severity, title,
                one.subject(steps[places[0]]), sure, (one.evidence(text, "remark, detail"),), advice, {"kind": kind},
            )  # fmt: skip
