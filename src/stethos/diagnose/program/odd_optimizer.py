"""PRG010: an optimizer that is made anew, decays weights away, or may change next to nothing."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from stethos.diagnose.detector import Needs
from stethos.diagnose.finding import Evidence, Finding, Severity, Subject
from stethos.diagnose.program.inspected import COLUMNS, NEEDS, Inspected, details, inspected_of, merge_ranks
from stethos.diagnose.training import STEP_COLUMNS, column_of, texts_of
from stethos.diagnose.window import Window
from stethos.store.literal import literal


@dataclass(frozen=True, slots=True)
class OddOptimizer:
    """An optimizer is made anew for every step, its weight decay outweighs the gradients, or the model is frozen.

    What it looks at: how many optimizers step how often, their weight decay, and the share of weights that require a
    gradient, in a training that does not learn.
    Why it matters: a new optimizer has lost its momentum; strong decay pulls weights to 0 faster than they can learn.
    Not a fault when: only an adapter or a head is trained on purpose, and it learns.
    Next step: make the optimizer once, before the loop; use a weight decay of 0.01 or less.
    """

    code: ClassVar[str] = "PRG010"
    name: ClassVar[str] = "odd-optimizer"
    severity: ClassVar[Severity] = Severity.WARNING
    needs: ClassVar[Needs] = NEEDS
    reads: ClassVar[Needs] = {"inspections": COLUMNS, "steps": STEP_COLUMNS}
    explains: ClassVar[frozenset[str]] = frozenset(
        {"plateau", "slow-progress", "implausible-loss", "frozen-layers", "vanishing-gradients", "dead-units",
         "update-to-weight-ratio", "learning-rate-too-low", "weight-explosion"}
    )  # fmt: skip

    least: int = 20
    decay_per_step: float = 0.01
    decay: float = 0.1
    frozen: float = 0.9

    def check(self, window: Window) -> Iterator[Finding]:
        yield from self._made_anew(window)
        yield from merge_ranks(self._found(window))

    def _made_anew(self, window: Window) -> Iterator[Finding]:
        """Only optimizers with a state lose something; their number is all that is looked at."""
        frame = window.frame("steps")
        processes, clients = texts_of(frame, "process"), texts_of(frame, "client")
        for process in dict.fromkeys(processes.tolist()):
            mine = (processes == process) & np.array([client is None for client in clients.tolist()], bool)
            steps, makers = int(mine.sum()), len(np.unique(column_of(frame, "optimizer")[mine]))
            if steps < self.least or makers < 0.9 * steps:
                continue
            yield Finding(
                self.code, self.name, "optimizer-recreated", self.severity,
                "a new optimizer is made for every step, so momentum and moments are lost",
                Subject(process=process, first=0, unit="step"), 0.93,
                (Evidence(
                    f"{makers} optimizers make {steps} steps",
                    f"SELECT optimizer, count(*) FROM steps WHERE process = {literal(process)} GROUP BY 1",
                ),),
                "make the optimizer once, before the loop",
            )  # fmt: skip

    def _found(self, window: Window) -> Iterator[Finding]:
        for one in inspected_of(window):
            is_long = any(len(training.losses) >= 3 * self.least for training in one.trainings)
            if len(one.training) and is_long and not one.has_learned and not one.is_federated:
                yield from self._check(one)

    def _check(self, one: Inspected) -> Iterator[Finding]:
        last = details(one.training)[-1]
        decay, per_step = float(last.get("weight_decay", 0)), float(last.get("decay_per_step", 0))
        subject = one.subject(float(one.training["step"][0]))
        if per_step >= self.decay_per_step or (decay >= self.decay and not per_step):
            lost = f"{per_step:.1%} of each weight per step" if per_step else "more than most gradients"
            yield Finding(
                self.code, self.name, "weight-decay-too-high", self.severity,
                f"a weight decay of {decay:g} pulls the weights to 0 while the loss does not fall", subject, 0.88,
                (one.evidence(f"it takes away {lost}", "detail"),), "use a weight decay of 0.01 or less",
            )  # fmt: skip
        share = float(last.get("frozen", 0))
        if share >= self.frozen:
            yield Finding(
                self.code, self.name, "mostly-frozen", self.severity,
                f"{share:.0%} of the weights require no gradient, and the loss does not fall", subject, 0.85,
                (one.evidence("the rest is not enough to learn the task", "detail"),),
                "check which parameters have `requires_grad=False`",
            )  # fmt: skip
