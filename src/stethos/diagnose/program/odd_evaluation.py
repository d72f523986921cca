"""PRG017: evaluations whose answers do not fit what the model has learned."""

from __future__ import annotations

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
    is_guess,
    merge_ranks,
)
from stethos.diagnose.training import STEP_COLUMNS, texts_of
from stethos.diagnose.window import Window
from stethos.store.frame import Array


@dataclass(frozen=True, slots=True)
class OddEvaluation:
    """Evaluations are made on the training labels, name classes otherwise, or find one answer or none right.

    What it looks at: evaluations, if there are several or one of many samples at the end: how many answers are
    right, which class is answered and wanted how often, and how many would be right if classes had other names; the
    share of right answers in training batches; checksums of labels, and of samples of data sets that lie in memory.
    Why it matters: the number by which a model is chosen says nothing, or the model does not work outside of the
    training loop.
    Not a fault when: a rare class is left to a later stage. A model that has learned its few samples by heart looks
    like this, too.
    Next step: print a batch of both kinds, inputs and labels, as the model gets them.
    """

    code: ClassVar[str] = "PRG017"
    name: ClassVar[str] = "odd-evaluation"
    severity: ClassVar[Severity] = Severity.WARNING
    needs: ClassVar[Needs] = NEEDS
    reads: ClassVar[Needs] = {"inspections": COLUMNS, "steps": STEP_COLUMNS}
    explains: ClassVar[frozenset[str]] = frozenset({"overfitting", "series-anomaly"})

    least: int = threshold(2, "evaluations")
    samples: int = threshold(50, "samples of an evaluation")
    folds: int = threshold(20, "folds, at most")
    entry: float = threshold(0.6, "share of the first loss with which later folds begin")
    many: int = threshold(100, "samples of a single evaluation")
    late: float = threshold(0.9, "share of the steps from which on the training is over")
    constant: float = threshold(0.6, "share of what the commonest label alone would get right")
    several: float = threshold(0.3, "share of the commonest label")
    rows: int = threshold(30, "samples of a fold or a batch")
    again: float = threshold(0.2, "share of an evaluation's samples that a few inspected batches held before")
    trained: float = threshold(0.7, "share of right answers in the training")
    named: float = threshold(0.75, "share of right answers once classes are renamed")
    same: float = threshold(0.98, "share of the commonest answer")
    common: float = threshold(0.8, "share of the commonest label")
    lost: float = threshold(0.25, "right answers as a share of those once classes are renamed")
    far: float = threshold(0.6, "right answers as a share of those in the training")
    learned: float = threshold(0.5, "share of the targets' variance that is left in the training")
    missed: float = threshold(0.95, "share of the targets' variance that evaluations miss")
    fall: float = threshold(0.08, "fall of the training loss, as a share")

    def check(self, window: Window) -> Iterator[Finding]:
        yield from merge_ranks(self._found(window))

    def _found(self, window: Window) -> Iterator[Finding]:
        for one in inspected_of(window):
            rows = [row for row in details(one.answers) if row.get("answers", 0) >= self.samples]
            if (len(rows) >= self.least or self._is_last(one, rows)) and not one.is_federated:
                found = list(self._check(one, rows))
                yield from found
                if any(each.kind == "evaluated-on-training-data" for each in found):
                    continue
            numbers = [row for row in details(one.answers) if row.get("numbers", 0) >= self.samples]
            if (len(numbers) >= self.least or self._is_last(one, numbers)) and not one.is_federated:
                yield from self._numbers(one, numbers)
            if not one.is_federated:
                yield from self._shared(one)

    def _is_last(self, one: Inspected, rows: list[dict[str, Any]]) -> bool:
        """Whether there is a single evaluation, of many samples, when the training is over."""
        last = max((float(each.step[-1]) for each in one.trainings if len(each)), default=np.inf)
        counts = [max(row.get("answers", 0), row.get("numbers", 0)) for row in rows]
        return len(rows) == 1 and counts[0] >= self.many and float(rows[0].get("at", 0)) >= self.late * last

    def _shared(self, one: Inspected) -> Iterator[Finding]:
        """Samples of an evaluation's data set that are in that of the training as well, or were before."""
        rows = details(one.evaluation)
        last = rows[-1] if len(rows) >= self.least else {}
        now, before = last.get("held_in_training"), last.get("held_trained_before")
        if now is None and before is None:
            before, last = self._seen_before(one)
        if now is None and before is None and self._goes_on_in_folds(one):
            yield self._in_folds(one)
            return
        if now is not None:
            text = f"{now:.0%} of {last['held_samples']} samples that are evaluated are in the training data"
            advice = "split the data once, and keep the parts apart: check the indices, or what is sliced"
        elif before is not None:
            text = f"{before:.0%} of {last['held_samples']} samples that are evaluated were trained on before"
            advice = "make a new model for each fold"
        else:
            return
        seen_in = one.evaluation if len(one.evaluation) else one.inputs
        yield Finding(
            self.code, self.name, "evaluated-on-training-data", self.severity,
            "the model is evaluated on samples that it was trained on" + (", in an earlier fold" * (now is None)),
            one.subject(float(seen_in["step"][-1])), 0.9, (one.evidence(text, "detail", "evaluation"),), advice,
            {"kind": "evaluated-on-training-data"},
        )  # fmt: skip

    def _goes_on_in_folds(self, one: Inspected) -> bool:
        """Whether optimizers as long as each other follow on one model, each with samples of its own to evaluate.

        A model that had not seen them before would begin each time with the loss of a new one.
        """
        runs = _runs_of(one)
        lengths = [len(steps) for steps, _ in runs]
        is_series = (
            all(a[-1] < b[0] for (a, _), (b, _) in pairwise(runs)) and len({e.model for e in one.trainings}) == 1
        )
        if not 3 <= len(runs) <= self.folds or not is_series or not self.rows <= max(lengths) <= 1.1 * min(lengths):
            return False
        entries = [float(np.nanmedian(losses[:3])) for _, losses in runs]
        if not np.isfinite(entries).all() or max(entries[1:]) > self.entry * entries[0]:
            return False
        rows = [row for row in details(one.answers) if "labels" in row]
        sets = [[row["labels"] for row in rows if steps[0] < row["at"] <= steps[-1] + 1] for steps, _ in runs]
        is_kept = all(len(each) >= self.least and len(set(each)) == 1 for each in sets)  # not drawn anew each time
        return is_kept and len({each[0] for each in sets}) == len(sets)

    def _in_folds(self, one: Inspected) -> Finding:
        runs = _runs_of(one)
        entries = ", ".join(f"{np.nanmedian(losses[:3]):.3g}" for _, losses in runs[:8])
        return Finding(
            self.code, self.name, "evaluated-on-training-data", self.severity,
            "the model is evaluated on samples that it was trained on in an earlier fold",
            one.subject(float(runs[1][0][0])), 0.85,
            (one.evidence(f"{len(runs)} optimizers on one model; losses at their starts {entries}", "detail"),),
            "make a new model for each fold", {"kind": "evaluated-on-training-data"},
        )  # fmt: skip

    def _seen_before(self, one: Inspected) -> tuple[float | None, dict[str, Any]]:
        """Samples of which none was trained on when first evaluations came, and many from some evaluation on."""
        rows = [row for row in details(one.inputs) if row.get("rows", 0) >= self.rows]
        shares = [row["trained_on"] / row["rows"] for row in rows]
        later = next((place for place, share in enumerate(shares) if share > 0), len(shares))
        if later == 0 or len(shares) < later + 2 or min(shares[later:]) < self.again:
            return None, {}
        return shares[-1], {"held_samples": rows[-1]["rows"]}

    def _check(self, one: Inspected, rows: list[dict[str, Any]]) -> Iterator[Finding]:
        seen = [row["hits"] for row in details(one.training) if "hits" in row]
        trained = float(np.mean(seen[-4:])) if seen else np.nan
        last = rows[-1]
        text = f"{last['hits']:.0%} of {last['answers']} answers right in the last of {len(rows)} evaluations"
        if seen:
            text += f", {trained:.0%} in the training"
        if all(row.get("known") for row in rows):
            if len(rows) < self.least:  # how well the training data are answered, in the end
                return
            yield self._finding(
                one, rows, "evaluated-on-training-data", "evaluations use the labels of the training, one by one", text,
                "evaluate on samples that the model is not trained on: check the split, the mask or the loader", 0.88,
            )  # fmt: skip
        elif last["renamed"] >= self.named and all(row["hits"] < self.lost * row["renamed"] for row in rows[-2:]):
            yield self._finding(
                one, rows, "classes-renamed", "the labels of evaluations name the classes otherwise than the training",
                f"{text}; {last['renamed']:.0%} would be if classes had other names",
                "make the map from names to numbers once, and use it for both kinds of data", 0.93,
            )  # fmt: skip
        elif self._is_same(rows) and (trained > last["top_label"] + 0.15 or not one.has_learned):
            share = f"{last['top_answer']:.0%} of the answers, {last['top_label']:.0%} of the labels"
            yield self._finding(
                one, rows, "same-answer", "in evaluations the model gives nearly all samples the same answer",
                f"{text}; the commonest class has {share}",
                "compare the inputs of both kinds and the mode of the model; else look at the loss, at the weights of "
                "the classes and at the last layer", 0.85,
            )  # fmt: skip
        elif trained >= self.trained and all(map(is_guess, rows[-2:])):
            yield self._finding(
                one, rows, "no-better-than-guessing",
                "evaluations are no better than guessing, though the training is mostly right", text,
                "compare a batch of both kinds: how inputs are made, which labels they have, the mode of the model",
                0.85,
            )  # fmt: skip

        elif are_guesses(one) and any(each.fall > self.fall and not each.may_rise for each in one.trainings):
            yield self._finding(
                one, rows, "no-better-than-guessing",
                "all evaluations are no better than guessing, though the training loss falls", text,
                "check that labels belong to their inputs in both kinds of data, and that inputs are made alike", 0.82,
            )  # fmt: skip
        elif one.has_learned and all(map(self._is_worse_than_constant, rows[-2:])):
            yield self._finding(
                one, rows, "worse-than-one-answer",
                "evaluations are far worse than always naming the commonest class, though the training loss falls",
                f"{text}; the commonest class has {last['top_label']:.0%} of the labels",
                "look for a class that the loss leaves out or for labels that are turned round, and compare a batch of "
                "both kinds", 0.82,
            )  # fmt: skip
        elif trained >= self.trained and all(row["hits"] < self.far * trained for row in rows[-2:]):
            yield self._finding(
                one, rows, "far-below-training", "evaluations are far below the training",
                text, "compare a batch of both kinds: scale and order of inputs, names of classes, the mode of the "
                "model; if they are alike the model learns its samples by heart", 0.8,
            )  # fmt: skip

    def _numbers(self, one: Inspected, rows: list[dict[str, Any]]) -> Iterator[Finding]:
        """Answers that are numbers: errors in evaluations, against what a constant would give, and in the training."""
        priors = [row["prior"] for row in details(one.training) if row.get("prior", 0) > 0]
        late = [float(np.median(each.losses[-20:])) for each in one.trainings if len(each.losses) >= 30]
        functions = {name for name in texts_of(one.training, "function").tolist() if name}
        if functions == {"square"} and all(row.get("is_alone") for row in details(one.training)):
            priors = [row["variance"] for row in rows if "variance" in row] * self.least  # of what is evaluated
        if len(priors) < self.least or len(late) != 1 or any(each.has_rival for each in one.trainings):
            return
        trained, missed = late[0] / priors[-1], [row["missed"] for row in rows]
        if trained < self.learned and all(share > self.missed for share in missed[-2:]):
            text = (
                f"{min(missed[-1], 99):.0%} of the targets' variance is missed in the last of {len(rows)} evaluations"
            )
            yield self._finding(
                one, rows, "no-better-than-the-mean",
                "evaluations are no better than the mean of their targets, though the training is",
                f"{text}, {trained:.0%} in the training",
                "compare a batch of both kinds: scale and order of inputs and targets, the mode of the model; if they "
                "are alike the model learns its samples by heart", 0.82,
            )  # fmt: skip

    def _is_worse_than_constant(self, row: dict[str, Any]) -> bool:
        return bool(row["top_label"] >= self.several and row["hits"] < self.constant * row["top_label"])

    def _is_same(self, rows: list[dict[str, Any]]) -> bool:
        return all(row["top_answer"] >= self.same and row["top_label"] <= self.common for row in rows[-2:])

    def _finding(
        self, one: Inspected, rows: list[dict[str, Any]], kind: str, title: str, text: str, advice: str, sure: float
    ) -> Finding:
        return Finding(
            self.code, self.name, kind, self.severity, title, one.subject(float(rows[0].get("at", 0))), sure,
            (one.evidence(text, "detail", "evaluation answers"),), advice, {"kind": kind},
        )  # fmt: skip


def _runs_of(one: Inspected) -> list[tuple[Array, Array]]:
    """The steps and losses of each optimizer, in the order of their first steps."""
    found = []
    for each in one.trainings:
        for number in np.unique(each.optimizer):
            mine = each.optimizer == number
            found.append((each.step[mine], np.where(np.isfinite(each.loss[mine]), each.loss[mine], np.nan)))
    return sorted(found, key=lambda run: float(run[0][0]))
