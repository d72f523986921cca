"""PRG006: batches from which a model cannot learn, or learns the wrong thing."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from stethos.diagnose.detector import Needs
from stethos.diagnose.finding import Finding, Severity
from stethos.diagnose.program.inspected import COLUMNS, NEEDS, Inspected, details, inspected_of, known, merge_ranks
from stethos.diagnose.training import STEP_COLUMNS, column_of
from stethos.diagnose.window import Window
from stethos.store.frame import Frame


@dataclass(frozen=True, slots=True)
class OddBatch:
    """Inputs are constant, NaN or far from scale, or labels are sorted, of one class, or among the inputs.

    What it looks at: scale, zeros and NaN of the inputs and the classes of the labels, of inspected batches.
    Why it matters: most trainings that do not learn have a fault in their data, not in their model.
    Not a fault when: features have a natural scale that the model's first layer takes care of.
    Next step: print one batch just before the model gets it.
    """

    code: ClassVar[str] = "PRG006"
    name: ClassVar[str] = "odd-batch"
    severity: ClassVar[Severity] = Severity.WARNING
    needs: ClassVar[Needs] = NEEDS
    reads: ClassVar[Needs] = {"inspections": COLUMNS, "steps": STEP_COLUMNS}
    explains: ClassVar[frozenset[str]] = frozenset(
        {"plateau", "slow-progress", "oscillation", "divergence", "exploding-gradients", "learning-rate-too-high",
         "dead-units", "saturated-units", "non-finite-loss", "non-finite-gradients", "non-finite-weights",
         "implausible-loss", "overfitting", "weight-explosion", "frozen-layers", "series-anomaly",
         "detached-loss", "vanishing-gradients", "learning-rate-too-low", "update-to-weight-ratio"}
    )  # fmt: skip

    least: int = 3
    large: float = 30.0
    tiny: float = 1e-3
    top_share: float = 0.95
    padding: float = 0.4
    least_batch: int = 8

    def check(self, window: Window) -> Iterator[Finding]:
        yield from merge_ranks(self._found(window))

    def _found(self, window: Window) -> Iterator[Finding]:
        for one in inspected_of(window):
            if not one.is_federated and len(one.training) >= self.least:
                yield from self._inputs(one)
                yield from self._labels(one)
                yield from self._counts(one)

    def _finding(
        self, one: Inspected, kind: str, title: str, text: str, columns: str, advice: str, sure: float,
        severity: Severity | None = None,
    ) -> Finding:  # fmt: skip
        return Finding(
            self.code, self.name, kind, severity or self.severity, title, one.subject(float(one.training["step"][0])),
            sure, (one.evidence(text, columns),), advice,
        )  # fmt: skip

    def _inputs(self, one: Inspected) -> Iterator[Finding]:
        rows = one.training
        spread, nan = known(rows, "input_std"), known(rows, "input_nan_share")
        columns = "input_mean, input_std, input_min, input_max, input_zero_share, input_nan_share"
        if len(nan) and (nan > 0).mean() > 0.3:
            text = f"{nan.max():.1%} of the inputs are NaN"
            advice = "find where the NaN come from: missing values, a division by 0, log of 0 in the preprocessing"
            yield self._finding(
                one, "nan-inputs", "the inputs contain NaN", text, columns, advice, 0.96, Severity.ERROR
            )
        if len(spread) >= self.least and (spread == 0).all():
            is_zero = (known(rows, "input_zero_share") == 1).all()
            title = "all inputs are 0" if is_zero else "all inputs are the same number"
            advice = (
                "check the transfer to the device (a non-blocking copy that was not awaited?) and the preprocessing"
            )
            yield self._finding(
                one, "constant-inputs", title, f"{len(spread)} inspected batches", columns, advice, 0.96, Severity.ERROR
            )
        yield from self._scale(one, "input", "unscaled-inputs", columns)
        is_all_ignored = any(row.get("ignored") == 1 for row in details(rows))
        if not (known(rows, "classes") > 0).any() and not is_all_ignored:
            yield from self._scale(one, "label", "unscaled-targets", "label_mean, label_std, label_min, label_max")

    def _scale(self, one: Inspected, what: str, kind: str, columns: str) -> Iterator[Finding]:
        spread, mean = known(one.training, f"{what}_std"), known(one.training, f"{what}_mean")
        if len(spread) < self.least:
            return
        size = float(np.median(np.hypot(spread, mean)))
        is_tiny = what == "input" and 0 < size < self.tiny and not one.has_learned
        if size < self.large and not is_tiny:
            return
        name = "inputs" if what == "input" else "targets"
        text = f"{name} around {np.median(mean):.3g} with a standard deviation of {np.median(spread):.3g}"
        yield self._finding(
            one, kind, f"the {name} are not scaled: typical size {size:.3g}", text, columns,
            f"scale the {name} to mean 0 and standard deviation 1", 0.85,
            Severity.INFO if one.has_learned else None,
        )  # fmt: skip

    def _is_sorted(self, rows: Frame) -> bool:
        """Whether batches of several classes differ in their mean label as shuffled ones never do."""
        mean, spread, classes = known(rows, "label_mean"), known(rows, "label_std"), known(rows, "classes")
        if len(mean) < 2 * self.least or len(spread) != len(mean) or (classes == 1).mean() >= 0.8:
            return False
        return float(np.std(mean)) > 3 * float(np.median(spread)) > 0

    def _counts(self, one: Inspected) -> Iterator[Finding]:
        rows = details(one.training)
        ignored = [row["ignored"] for row in rows if "ignored" in row]
        if len(ignored) >= self.least and np.mean(np.array(ignored) == 1) > 0.5:
            yield self._finding(
                one, "ignored-labels", "the loss ignores every label", f"{len(ignored)} inspected batches", "detail",
                "compare the labels with the loss's `ignore_index`", 0.96, Severity.ERROR,
            )  # fmt: skip
        copies = [row["is_copy"] for row in rows if "is_copy" in row]
        if len(copies) >= self.least and all(copies):
            yield self._finding(
                one, "leaking-labels", "the model is to predict exactly what it is given",
                f"inputs and labels are equal in {len(copies)} inspected batches", "detail",
                "shift the labels by one: predict `tokens[:, 1:]` from `tokens[:, :-1]`", 0.9,
            )  # fmt: skip
        padding = [row["padding"] for row in rows if "padding" in row]
        outputs = known(one.training, "outputs")
        if len(padding) >= self.least and np.mean(padding) > self.padding and len(outputs) and outputs.max() >= 10:
            yield self._finding(
                one, "padding-in-loss", f"padding counts in the loss: {np.mean(padding):.0%} of the labels",
                "the same word is the commonest of the inputs", "detail",
                "leave padding out: `cross_entropy(..., ignore_index=padding)`", 0.88,
            )  # fmt: skip
        lost = [(row["labels"], row["samples"]) for row in rows if row.get("labels") and row.get("samples")]
        if len(lost) >= self.least and all(count == 1 and came >= self.least_batch for count, came in lost):
            yield self._finding(
                one, "lost-batch-dimension", f"of each batch of {lost[0][1]} only one sample reaches the loss",
                f"{len(lost)} inspected batches, one label each", "detail",
                "check what happens to the first dimension between loader and loss", 0.9,
            )  # fmt: skip

    def _labels(self, one: Inspected) -> Iterator[Finding]:
        rows = one.training.where(column_of(one.training, "batch") >= self.least_batch)
        leaks = known(one.training, "leaking_column")
        if len(leaks) >= self.least and len(set(leaks.tolist())) == 1:
            yield self._finding(
                one, "leaking-labels", f"column {int(leaks[0])} of the inputs equals the labels",
                f"in {len(leaks)} of {len(one.training)} inspected batches", "leaking_column",
                "remove that column from the inputs", 0.93, Severity.ERROR,
            )  # fmt: skip
        classes = known(rows, "classes")
        if len(classes) < self.least:
            return
        columns = "classes, top_class_share, label_mean, batch"
        if self._is_sorted(rows):
            yield self._finding(
                one, "sorted-labels", "the data are sorted by class: each batch holds neighbouring classes",
                "labels differ more between batches than within them", columns, "shuffle the training data", 0.88,
            )  # fmt: skip
            return
        if (classes == 1).mean() >= 0.8:
            yield self._finding(
                one, "sorted-labels", "each batch holds a single class: the data are sorted by class",
                f"{int((classes == 1).sum())} of {len(classes)} inspected batches have a single class", columns,
                "shuffle the training data; if all labels are the same, check where they come from", 0.9,
            )  # fmt: skip
            return
        share = known(rows, "top_class_share")
        if len(share) >= self.least and float(np.mean(share)) > self.top_share:
            yield self._finding(
                one, "one-class-dominates", f"one class has {np.mean(share):.0%} of the labels",
                f"{np.mean(classes):.1f} classes a batch on average", columns,
                "weight the classes in the loss, or sample them evenly; judge by more than accuracy", 0.85,
            )  # fmt: skip
