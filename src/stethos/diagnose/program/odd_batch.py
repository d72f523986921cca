"""PRG006: batches from which a model cannot learn, or learns the wrong thing."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, ClassVar

import numpy as np

from stethos.diagnose.detector import Needs, threshold
from stethos.diagnose.finding import Finding, Severity
from stethos.diagnose.program.inspected import (
    COLUMNS,
    NEEDS,
    Inspected,
    are_guesses,
    details,
    inspected_of,
    known,
    merge_ranks,
)
from stethos.diagnose.training import STEP_COLUMNS, column_of, level_at_start, texts_of
from stethos.diagnose.window import Window
from stethos.store.frame import Frame


@dataclass(frozen=True, slots=True)
class OddBatch:
    """Inputs are constant, NaN, far from scale or masked; or labels are sorted, of one class, shifted or given away.

    What it looks at: scale, zeros and NaN of the inputs and the classes of the labels, of inspected batches; whether
    samples differ at all, and any feature between labels; where labels are words of the inputs, by how many places;
    what attention sees of words and padding; the scale of evaluations' inputs.
    Why it matters: most trainings that do not learn have a fault in their data, not in their model.
    Not a fault when: features have a natural scale that the model's first layer takes care of. A dominating class is
    reported as info if the loss weighs its terms, or is below what the class shares alone would give.
    Next step: print one batch just before the model gets it.
    """

    code: ClassVar[str] = "PRG006"
    name: ClassVar[str] = "odd-batch"
    severity: ClassVar[Severity] = Severity.WARNING
    needs: ClassVar[Needs] = NEEDS
    reads: ClassVar[Needs] = {
        "inspections": COLUMNS, "steps": STEP_COLUMNS,
        "metrics": frozenset({"process", "step", "name", "value"}),
    }  # fmt: skip
    explains: ClassVar[frozenset[str]] = frozenset(
        {"plateau", "slow-progress", "oscillation", "divergence", "exploding-gradients", "learning-rate-too-high",
         "dead-units", "saturated-units", "non-finite-loss", "non-finite-gradients", "non-finite-weights",
         "implausible-loss", "overfitting", "weight-explosion", "frozen-layers", "series-anomaly", "constant-outputs",
         "detached-loss", "vanishing-gradients", "learning-rate-too-low", "update-to-weight-ratio", "odd-evaluation"}
    )  # fmt: skip

    least: int = threshold(3, "inspected batches")
    large: float = threshold(30.0, "size of the inputs or targets")
    tiny: float = threshold(1e-3, "the same, where inputs are too small")
    top_share: float = threshold(0.95, "share of the commonest class")
    padding: float = threshold(0.4, "share of the targets that are padding")
    left_out: float = threshold(0.2, "share of the targets that the loss leaves out")
    bare: float = threshold(0.2, "share of the places of sequences that are padding and attended to")
    written: float = threshold(0.8, "share of neighbouring looks at the data between which they were written to")
    least_batch: int = threshold(8, "samples of a batch")
    fixed: float = threshold(0.1, "share of the loss of guessing below which a place in a sequence is given away")
    rescaled: float = threshold(2.5, "times the deviation of the other inputs")
    moved: float = threshold(1.5, "deviations between the means of both")
    alike: float = threshold(0.01, "deviation of a feature between samples, as a share of the inputs' size")
    tied: float = threshold(0.15, "times the share of the inputs' variance that labels explain by chance, on top of it")

    def check(self, window: Window) -> Iterator[Finding]:
        yield from merge_ranks(self._found(window))

    def _found(self, window: Window) -> Iterator[Finding]:
        for one in inspected_of(window):
            if not one.is_federated and len(one.training) >= self.least:
                about_inputs = list(self._inputs(one))
                yield from about_inputs or self._alike(one, window)
                yield from self._labels(one)
                yield from self._counts(one)
                yield from self._changes(one)
                yield from self._unrelated(one, window)

    def _alike(self, one: Inspected, window: Window) -> Iterator[Finding]:
        """Samples that are next to equal, each feature for itself, in a training that learns nothing of use."""
        spreads = [row["input_spread"] for row in details(one.training) if "input_spread" in row]
        share = float(np.median(spreads)) if len(spreads) >= 2 * self.least else np.inf
        if not share < self.alike or not _has_learned_nothing(one, window):
            return
        yield self._finding(
            one, "inputs-alike", f"the inputs of all samples are nearly the same: they differ by {share:.2%}",
            "the root of the mean variance of a feature over a batch, against the size of the inputs", "detail",
            "normalise each feature with its own mean and deviation, on the scale that the inputs have: pixels from 0 "
            "to 1 need constants between 0 and 1", 0.85,
        )  # fmt: skip

    def _unrelated(self, one: Inspected, window: Window) -> Iterator[Finding]:
        """Labels that no feature tells apart more than chance does, in a training that learns nothing of use."""
        ties = [(row["tie"], row["tie_by_chance"]) for row in details(one.training) if "tie" in row]
        batches = set(known(one.training, "label_hash").tolist())  # the same ones again prove no more
        if min(len(ties), len(batches)) < 2 * self.least or not _has_learned_nothing(one, window):
            return
        measured, chance = np.array(ties).T
        excess = measured - chance
        error = float(np.std(excess, ddof=1)) / math.sqrt(len(excess))
        if float(excess.mean()) > max(self.tied * float(chance.mean()), 0.0) or float(excess.mean()) > 2.5 * error:
            return
        yield self._finding(
            one, "unrelated-labels", "labels do not belong to their inputs: no feature differs between them",
            f"labels explain {measured.mean():.1%} of the inputs' variance, chance alone {chance.mean():.1%}", "detail",
            "look for inputs or labels that are shuffled, sorted or sliced apart from one another", 0.85,
        )  # fmt: skip

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
        is_zero = bool((known(rows, "input_zero_share") == 1).all())
        # A model that learns all the same has other inputs beside these, as at the edge of an equation.
        if len(spread) >= self.least and (spread == 0).all() and (is_zero or not one.has_learned):
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
        ahead = [row["sees_answer"] for row in rows if "sees_answer" in row]
        if len(ahead) >= self.least and all(ahead):
            yield self._finding(
                one, "sees-the-future", "attention sees the words that it is to predict",
                f"each label is the next input and nothing is masked, in {len(ahead)} inspected batches", "detail",
                "mask attention: `is_causal=True`, or `nn.Transformer.generate_square_subsequent_mask(length)`", 0.93,
            )  # fmt: skip
        seen = [(row["sees_words"], row["sees_padding"]) for row in rows if "sees_words" in row]
        if len(seen) >= self.least and all(words < 0.1 and padding > 0.9 for words, padding in seen):
            yield self._finding(
                one, "inverted-mask", "the padding mask is inverted: attention sees the padding and not the words",
                f"{np.mean([words for words, _ in seen]):.0%} of the words and "
                f"{np.mean([padding for _, padding in seen]):.0%} of the padding are seen", "detail",
                "invert the mask: in `key_padding_mask` True means that a place is left out", 0.95,
            )  # fmt: skip
        bare = [row["bare_padding"] for row in rows if "bare_padding" in row]
        if len(bare) >= self.least and len(bare) > len(rows) / 2 and np.mean(bare) > self.bare:
            yield self._finding(
                one, "padding-seen", "attention sees the padding: no mask leaves it out",
                f"{np.mean(bare):.0%} of the places are padding, in {len(bare)} inspected batches", "detail",
                "pass a mask: `src_key_padding_mask=tokens == padding`, or `masked_fill(mask, -inf)` before softmax",
                0.82,
            )  # fmt: skip
        last = [row["last_padding"] for row in rows if "last_padding" in row]
        if len(last) >= self.least and len(last) > len(rows) / 2 and np.mean(last) > self.bare:
            yield self._finding(
                one, "last-step-is-padding", "the last step of a recurrent layer is used, and mostly it is padding",
                f"{np.mean(last):.0%} of the places are padding, in {len(last)} inspected batches", "detail",
                "take the output at the last word, `states[torch.arange(n), lengths - 1]`, or `pack_padded_sequence`",
                0.85,
            )  # fmt: skip
        shifts = [row["shift"] for row in rows if "shift" in row]
        if len(shifts) >= self.least and set(shifts) <= {2, 3, -1} and len(set(shifts)) == 1:
            ahead_by = f"{shifts[0]} places ahead" if shifts[0] > 0 else "one place behind"
            yield self._finding(
                one, "wrong-shift", f"labels are shifted wrongly: each is the word {ahead_by}, not the next one",
                f"in {len(shifts)} inspected batches", "detail",
                "shift the labels once: many models shift them themselves, and are to be given the inputs as labels",
                0.92,
            )  # fmt: skip
        yield from self._left_out(one, rows)
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

    def _left_out(self, one: Inspected, rows: list[dict[str, Any]]) -> Iterator[Finding]:
        """A class of pictures that the loss is told to ignore."""
        left_out = [(row["left_out"], row["ignored"]) for row in rows if "left_out" in row]
        known_outputs = known(one.training, "outputs")
        if len(left_out) >= self.least and np.mean([share for _, share in left_out]) > self.left_out:
            label, share = left_out[-1]
            if len(known_outputs) and label < known_outputs.min():
                yield self._finding(
                    one, "class-left-out", f"the loss leaves out class {label}, {share:.0%} of all labels, though the "
                    "model has an output for it", f"in {len(left_out)} inspected batches",
                    "detail", "leave out only what is no class, such as 255; to give the background less weight use "
                    "`weight=`", 0.87,
                )  # fmt: skip

    def _changes(self, one: Inspected) -> Iterator[Finding]:
        """Inputs of another scale in evaluations, or later in the training."""
        changes = max((row.get("data_changes", 0) for row in details(one.training)), default=0)
        if changes >= 2:
            yield self._finding(
                one, "data-changed", "the data themselves change from one pass to the next",
                f"numbers of the data set were others than before, and much like them, at {changes} passes", "detail",
                "what changes a sample in place changes what is stored: copy it first, or write `x = x + noise` "
                "instead of `x += noise`", 0.9,
            )  # fmt: skip
            return
        writes = [(row["store"], row["written"]) for row in details(one.training) if "store" in row]
        grows = [after > before for (a, before), (b, after) in pairwise(writes) if a == b]
        if len(grows) >= 2 * self.least and np.mean(grows) > self.written:
            yield self._finding(
                one, "data-changed", "the data themselves are written to between the batches",
                f"batches are pieces of one tensor that was changed in place before {sum(grows)} of {len(grows)} "
                "inspected ones", "detail",
                "what changes a batch in place changes the data that it is a piece of: `clone()` it first", 0.88,
            )  # fmt: skip
            return
        spread, mean = known(one.training, "input_std"), known(one.training, "input_mean")
        if len(spread) < 2 * self.least or len(mean) != len(spread) or not np.median(spread) > 0:
            return
        if len(one.trainings) > 1:
            return  # one after the other, as when a model is tuned on other data
        columns = "input_mean, input_std"
        usual = float(np.median(mean)), float(np.median(spread))
        big = np.array([(row.get("shape") or [0])[0] >= self.least_batch for row in details(one.inputs)], bool)
        rows = one.inputs.where(big) if len(one.inputs) else one.inputs
        others = list(zip(known(rows, "input_mean").tolist(), known(rows, "input_std").tolist(), strict=False))
        if others and all(self._is_other(usual, other) for other in others):
            yield Finding(
                self.code, self.name, "evaluation-inputs-differ", self.severity,
                "the inputs of evaluations have another scale than those of the training",
                one.subject(float(rows["step"][0])), 0.88,
                (one.evidence(
                    f"mean {others[-1][0]:.3g} and deviation {others[-1][1]:.3g} in {len(others)} evaluations, "
                    f"{usual[0]:.3g} and {usual[1]:.3g} in the training", columns, "evaluation inputs",
                ),),
                "use the same preprocessing, with the statistics of the training data, for both",
            )  # fmt: skip
        first = float(np.median(mean[: self.least])), float(np.median(spread[: self.least]))
        last = float(np.median(mean[-self.least :])), float(np.median(spread[-self.least :]))
        passes = max(int(row.get("passes", 0)) for row in details(one.training))
        is_loader = any("batch_size" in row for row in details(one.training))
        if is_loader and passes >= self.least and first[1] > 0 and self._is_other(first, last):
            yield self._finding(
                one, "inputs-drift", "the inputs change their scale during the training",
                f"mean {first[0]:.3g} and deviation {first[1]:.3g} at first, {last[0]:.3g} and {last[1]:.3g} at last",
                columns, "check that the data are not normalised again, in place, at each pass", 0.85,
            )  # fmt: skip

    def _is_other(self, usual: tuple[float, float], other: tuple[float, float]) -> bool:
        """Whether mean or deviation are far from the usual ones."""
        ratio = other[1] / usual[1]
        return ratio > self.rescaled or ratio < 1 / self.rescaled or abs(other[0] - usual[0]) > self.moved * usual[1]

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
        if any(training.has_rival for training in one.trainings):
            return  # classes are what is real and what is made up
        if one.has_fixed_place(self.fixed):
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
            is_weighed = any(row.get("weighed") for row in details(one.training))
            is_told = one.is_weighted or is_weighed or _is_below(one, float(np.mean(share)))
            yield self._finding(
                one, "one-class-dominates", f"one class has {np.mean(share):.0%} of the labels",
                f"{np.mean(classes):.1f} classes a batch on average", columns,
                "weight the classes in the loss, or sample them evenly; judge by more than accuracy", 0.85,
                Severity.INFO if is_told else None,
            )  # fmt: skip


def _has_learned_nothing(one: Inspected, window: Window) -> bool:
    """Whether no loss falls, or what is learned does not hold in evaluations."""
    long = [training for training in one.trainings if len(training.losses) >= 30 and not training.may_rise]
    if not long:
        return False
    if all(not training.fall >= 0.1 for training in long) or are_guesses(one):
        return True
    frame = window.frame("metrics")
    mine = (texts_of(frame, "name") == "eval_loss (seen)") & (texts_of(frame, "process") == (one.process or None))
    held = column_of(frame, "value")[mine]
    held = held[np.isfinite(held)]
    first = [level_at_start(losses) for each in long if len(losses := each.losses[np.isfinite(each.losses)])]
    return len(held) >= 3 and bool(first) and float(held.min()) > 0.93 * min(first)


def _is_below(one: Inspected, share: float) -> bool:
    """Whether the loss has come clearly below what a model gives that knows the shares of the classes alone."""
    rest = max(1 - share, 1e-6)
    entropy = -share * math.log(max(share, 1e-6)) - rest * math.log(rest)
    late = [float(np.median(training.losses[-20:])) for training in one.trainings if len(training.losses)]
    return min(late, default=np.inf) < 0.8 * entropy
