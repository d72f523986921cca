"""PRG003: training in evaluation mode, or evaluating in training mode."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from stethos.diagnose.detector import Needs, threshold
from stethos.diagnose.finding import Finding, Severity
from stethos.diagnose.program.inspected import COLUMNS, NEEDS, Inspected, details, inspected_of, merge_ranks
from stethos.diagnose.training import STEP_COLUMNS, column_of, texts_of
from stethos.diagnose.window import Window
from stethos.store.frame import Array, Frame


@dataclass(frozen=True, slots=True)
class WrongMode:
    """Dropout and batch statistics are off while the model trains, or on while it is evaluated.

    What it looks at: the mode of dropout and normalisation modules at inspected backwards, pass by pass over the data,
    and whenever the model runs while gradients are off. If it does so every few steps, that is part of the training,
    and reported as info.
    Why it matters: without `model.train()` there is no regularisation; without `model.eval()` results are noisy, and
    batch statistics learn from the evaluation data.
    Not a fault when: statistics are refreshed on purpose, or dropout is kept on to estimate uncertainty.
    Next step: call `model.train()` at the start of each training pass and `model.eval()` before each evaluation.
    """

    code: ClassVar[str] = "PRG003"
    name: ClassVar[str] = "wrong-mode"
    severity: ClassVar[Severity] = Severity.WARNING
    needs: ClassVar[Needs] = NEEDS
    reads: ClassVar[Needs] = {"inspections": COLUMNS, "steps": STEP_COLUMNS | {"backwards"}}
    explains: ClassVar[frozenset[str]] = frozenset({"overfitting", "slow-progress", "plateau", "odd-evaluation"})

    least: int = threshold(2, "looks, evaluations or layers in the wrong mode")
    apart: int = threshold(4, "steps between evaluations; what runs more often is a part of the training")
    dropped: float = threshold(0.9, "share of values that dropout sets to 0")
    momentum: float = threshold(0.9, "momentum of a norm layer: how much of its statistics the last batch makes up")

    def check(self, window: Window) -> Iterator[Finding]:
        yield from merge_ranks(self._found(window))

    def _found(self, window: Window) -> Iterator[Finding]:
        for one in inspected_of(window):
            yield from self._training(one, window)
            yield from self._untouched(one)
            yield from self._evaluation(one)
            yield from self._dropout(one)
            yield from self._settings(one)

    def _training(self, one: Inspected, window: Window) -> Iterator[Finding]:
        rows = one.training.where(column_of(one.training, "stateful") > 0)
        is_off = (column_of(rows, "stateful_training") == 0) & (column_of(rows, "root_training") == 0)
        if self._take_turns(one, rows, is_off, window):
            passes = np.unique(_passes(rows)[is_off])
            yield Finding(
                self.code, self.name, "evaluation-trains", self.severity,
                "passes over the data in evaluation mode train the model: an evaluation makes steps",
                one.subject(float(rows["step"][is_off][0])), 0.88,
                (one.evidence(
                    f"backwards in evaluation mode in {len(passes)} inspected passes, not in those between",
                    "stateful, stateful_training, root_training, detail",
                ),),
                "keep `backward()` and `step()` out of the evaluation, and run it under `torch.no_grad()`",
            )  # fmt: skip
            return
        if not len(rows) or not is_off[-1] or is_off.sum() < self.least:
            return
        before = np.flatnonzero(~is_off)
        first = float(rows["step"][before[-1] + 1]) if len(before) else float(rows["step"][0])
        title = "the model trains in evaluation mode: dropout and batch statistics are off"
        if len(before):
            title = f"the model is not switched back to training mode after an evaluation, since step {first:.0f}"
        text = f"{int(is_off.sum())} of {len(rows)} inspected backwards with all of its modules in evaluation mode"
        yield Finding(
            self.code, self.name, "evaluation-mode-in-training", self.severity, title, one.subject(first), 0.93,
            (one.evidence(text, "stateful, stateful_training, root_training"),),
            "call `model.train()` before the training loop, and again after each evaluation",
        )  # fmt: skip

    def _take_turns(self, one: Inspected, rows: Frame, is_off: Array, window: Window) -> bool:
        """Whether whole passes over loaders are made in evaluation mode, between others in training mode, and step.

        An attack, a penalty or a second gradient in evaluation mode is part of a step that has another backward.
        """
        steps = window.frame("steps")
        steps = steps.where(texts_of(steps, "process") == (one.process or None))
        alone = set(column_of(steps, "step")[column_of(steps, "backwards") == 1].tolist())
        passes = _passes(rows)
        off, on = set(passes[is_off].tolist()), set(passes[~is_off].tolist())
        return (
            len(off) >= self.least
            and 0 not in off
            and not off & on
            and any(min(off) < each < max(off) for each in on)
            and set(rows["step"][is_off].tolist()) <= alone
        )

    def _untouched(self, one: Inspected) -> Iterator[Finding]:
        """Norms in evaluation mode inside a model that trains, with the statistics they were made with."""
        rows = one.training.where(column_of(one.training, "root_training") > 0)
        counts = [row.get("untouched", 0) for row in details(rows)]
        if len(counts) < self.least or not min(counts):
            return
        yield Finding(
            self.code, self.name, "evaluation-mode-in-training", self.severity,
            f"{counts[-1]} norms are in evaluation mode while the model trains, and have never seen a batch",
            one.subject(float(rows["step"][0])), 0.9,
            (one.evidence("their running statistics are those of a new module", "stateful_training, detail"),),
            "call `model.train()`; freeze statistics only after they were learned",
        )  # fmt: skip

    def _dropout(self, one: Inspected) -> Iterator[Finding]:
        """Dropout as a function, always on, in a model that is in evaluation mode."""
        rows = details(one.evaluation)
        drops = [row.get("functional_dropouts", 0) for row in rows]
        modules = column_of(one.evaluation, "dropouts")
        if len(drops) < self.least or drops[-1] <= drops[0] or (modules > 0).any():
            return
        yield Finding(
            self.code, self.name, "dropout-in-evaluation", self.severity,
            "dropout stays on in evaluation mode", one.subject(float(one.evaluation["step"][0])), 0.85,
            (one.evidence(f"{drops[-1]} calls of dropout in {len(drops)} evaluations", "detail", "evaluation"),),
            "pass `training=self.training` to `functional.dropout`, or use `nn.Dropout`",
        )  # fmt: skip

    def _settings(self, one: Inspected) -> Iterator[Finding]:
        """Dropout that leaves next to nothing, and norms that are frozen but for their statistics."""
        rows = details(one.training)
        if len(rows) < self.least:
            return
        share, drifting = float(rows[-1].get("dropout", 0)), min(int(row.get("drifting", 0)) for row in rows)
        if share >= self.dropped:
            yield Finding(
                self.code, self.name, "dropout-too-high", Severity.INFO if one.has_learned else self.severity,
                f"dropout drops {share:.0%} of a layer", one.subject(0), 0.85,
                (one.evidence(f"p = {share:g}", "detail"),),
                "`p` is the share that is dropped, not the one that is kept: use 0.1 to 0.5",
            )  # fmt: skip
        momentum = float(rows[-1].get("norm_momentum", 0.0))
        if momentum >= self.momentum:
            yield Finding(
                self.code, self.name, "statistics-of-last-batch", self.severity,
                f"norms with a momentum of {momentum:g} keep the statistics of the last batch alone", one.subject(0),
                0.88,
                (one.evidence(f"each batch replaces {momentum:.0%} of the running statistics", "detail"),),
                "torch's momentum is the share of the new batch: use 0.1, or 0.01 where another framework has 0.99",
            )  # fmt: skip
        if drifting:
            yield Finding(
                self.code, self.name, "statistics-of-frozen-layers", Severity.INFO,
                f"{drifting} norms are frozen but still learn statistics from each batch", one.subject(0), 0.85,
                (one.evidence("they are in training mode, and their weights require no gradient", "detail"),),
                "call `eval()` on frozen norms after each `model.train()`",
            )  # fmt: skip

    def _evaluation(self, one: Inspected) -> Iterator[Finding]:
        rows = one.evaluation.where(column_of(one.evaluation, "stateful") > 0)
        is_on = (column_of(rows, "stateful_training") > 0) & (column_of(rows, "root_training") > 0)
        if not len(rows) or not is_on.all():
            return
        text = f"{int(column_of(rows, 'stateful_training')[-1])} modules in training mode in {len(rows)} evaluations"
        gaps = np.diff(rows["step"])
        is_part = len(gaps) >= self.least and float(np.median(gaps)) <= self.apart  # samples of a generator, say
        yield Finding(
            self.code, self.name, "training-mode-in-evaluation", Severity.INFO if is_part else self.severity,
            "the model is evaluated in training mode: dropout is on, batch statistics move",
            one.subject(float(rows["step"][0])), 0.88 if len(rows) > 1 else 0.8,
            (one.evidence(text, "stateful, stateful_training, root_training", "evaluation"),),
            "call `model.eval()` before the evaluation and `model.train()` after it",
        )  # fmt: skip


def _passes(rows: Frame) -> Array:
    """Which pass over a data loader each row belongs to; 0 before the first."""
    return np.array([int(row.get("passes", 0)) for row in details(rows)])
