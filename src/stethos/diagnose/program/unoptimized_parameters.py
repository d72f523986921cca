"""PRG002: an optimizer that does not hold what the loss trains."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, ClassVar

import numpy as np

from stethos.diagnose.detector import Needs, threshold
from stethos.diagnose.finding import Finding, Severity
from stethos.diagnose.program.inspected import COLUMNS, NEEDS, Inspected, details, inspected_of, last_start, merge_ranks
from stethos.diagnose.training import STEP_COLUMNS, Training, column_of
from stethos.diagnose.window import Window
from stethos.store.frame import is_null


@dataclass(frozen=True, slots=True)
class UnoptimizedParameters:
    """Parameters get gradients but no optimizer updates them, or an optimizer holds parameters that nothing uses.

    What it looks at: the parameters behind the loss, those of all optimizers, and those that belong to a module.
    Why it matters: layers added or replaced after the optimizer was created never learn.
    Not a fault when: only the head of a model is trained on purpose (freeze the rest: it also saves time).
    Next step: create the optimizer after the model is complete, from `model.parameters()`.
    """

    code: ClassVar[str] = "PRG002"
    name: ClassVar[str] = "unoptimized-parameters"
    severity: ClassVar[Severity] = Severity.ERROR
    needs: ClassVar[Needs] = NEEDS
    reads: ClassVar[Needs] = {"inspections": COLUMNS, "steps": STEP_COLUMNS}
    explains: ClassVar[frozenset[str]] = frozenset(
        {"plateau", "slow-progress", "detached-loss", "frozen-layers", "learning-rate-too-low",
         "update-to-weight-ratio", "vanishing-gradients", "lost-gradients", "dead-units", "gradients-not-zeroed",
         "constant-outputs"}
    )  # fmt: skip

    least: int = threshold(2, "inspected backwards")
    cut_share: float = threshold(0.25, "share of an optimizer's parameters that no loss reaches")
    after: int = threshold(20, "steps that go on so, as the next optimizer is seen at its first step")

    def check(self, window: Window) -> Iterator[Finding]:
        yield from merge_ranks(self._found(window))

    def _found(self, window: Window) -> Iterator[Finding]:
        for one in inspected_of(window):
            rows = one.training.where(~is_null(column_of(one.training, "unoptimized")))
            found = list(self._check(one, rows, details(rows)[-1])) if len(rows) >= self.least else []
            yield from found
            later = rows.where(rows["step"] >= last_start(one.trainings)) if len(rows) else rows
            if self.least <= len(later) < len(rows):  # one training after another, as when a model is tuned
                known = {each.kind for each in found}
                yield from (each for each in self._check(one, later, details(later)[-1]) if each.kind not in known)

    def _check(self, one: Inspected, rows: Any, last: dict[str, Any]) -> Iterator[Finding]:
        alone, leaves = column_of(rows, "unoptimized"), column_of(rows, "leaves")
        first = float(rows["step"][0])
        thawed = [bool(row.get("thawed")) for row in details(rows)]
        at = float(rows["step"][-1])
        is_last = all(each.step[0] <= at <= each.step[-1] - self.after for each in one.trainings[-1:])
        if thawed[-1] and is_last and all(thawed[thawed.index(True) :]) and not (alone > 0).all():
            yield self._unoptimized(one, float(rows["step"][thawed.index(True)]), int(alone[-1]), int(leaves[-1]), last)
        elif (alone > 0).all() and not is_null(leaves).any():
            yield self._unoptimized(one, first, int(alone[-1]), int(leaves[-1]), last)
        unused = column_of(rows, "unused")
        holders = last.get("unused_of")  # one that has stepped for the last time may hold what was replaced afterwards
        is_in_use = holders is None or any(
            np.isin(training.optimizer[training.step >= first], holders).any() for training in one.trainings
        )
        if is_in_use and not is_null(unused).any() and (unused > 0).all() and np.isfinite(unused).all():
            count = int(unused[-1])
            yield Finding(
                self.code, self.name, "replaced-parameters", Severity.ERROR,
                f"the optimizer holds {count} parameters that no module owns and the loss does not reach",
                one.subject(first), 0.95,
                (one.evidence("a module was replaced after the optimizer was made", "leaves, unoptimized, unused"),),
                "make the optimizer after the last change to the model, or add the new parameters to it",
            )  # fmt: skip
        cut = list(self._cut_off(one, first, details(rows)))
        yield from cut
        if not any(each.detail.get("in_vain") for each in cut):  # else these layers run: they are no copy
            yield from self._idle(one, first, details(rows))
        if last.get("shared") and _take_turns(one.trainings):
            names = ", ".join(last["shared"])
            yield Finding(
                self.code, self.name, "two-optimizers", Severity.WARNING,
                f"two optimizers update the same parameters: {names}", one.subject(first, tuple(last["shared"][:1])),
                0.85, (one.evidence("each parameter is listed in two optimizers", "detail"),),
                "give each parameter to one optimizer",
            )  # fmt: skip

    def _cut_off(self, one: Inspected, first: float, rows: list[dict[str, Any]]) -> Iterator[Finding]:
        """Parameters that no inspected loss reaches: of tasks that take turns each leaves out the others' heads."""
        missing = [row.get("unreached", ()) for row in rows]
        cut = [name for name in missing[-1] if all(name in names for names in missing)]
        held = rows[-1].get("optimized", 0)
        holders = rows[-1].get("cut_of")  # one that has stepped for the last time may hold a model of before
        is_over = holders is not None and not any(
            np.isin(training.optimizer[training.step >= first], holders).any() for training in one.trainings
        )
        if not cut or not held or is_over:
            return
        count = min(int(row.get("unreached_count", 0)) for row in rows)
        ran = [row["in_vain"] for row in rows if row.get("in_vain")]
        owners = {name.rpartition(".")[0] for name in cut}
        vain = [name for name in (ran[0] if ran else ()) if name in owners]
        is_many = count >= self.cut_share * held
        text = f"; in the training {', '.join(vain)} runs, but what it gives is cut off" if vain else ""
        yield Finding(
            self.code, self.name, "cut-off", Severity.WARNING if is_many or vain else Severity.INFO,
            f"the loss does not reach {count} of the optimizer's {held} parameters: {', '.join(cut)}",
            one.subject(first, tuple(cut[:1])), 0.88,
            (one.evidence(f"they require a gradient and get none{text}", "leaves, detail"),),
            "look for `detach()`, `item()`, `argmax`, `no_grad()` or `numpy()` between these layers and the loss",
            {"in_vain": vain},
        )  # fmt: skip

    def _idle(self, one: Inspected, first: float, rows: list[dict[str, Any]]) -> Iterator[Finding]:
        """An optimizer steps again and again beside others, but none of its parameters has ever had a gradient."""
        counts = Counter(number for row in rows for number in row.get("idle", ()))
        others = {number for training in one.trainings for number in training.optimizer.tolist()}
        for number, seen in counts.items():
            if seen < self.least or len(others) < 2:
                continue
            made = sum(int((training.optimizer == number).sum()) for training in one.trainings)
            yield Finding(
                self.code, self.name, "other-model", Severity.ERROR,
                "an optimizer steps, but its parameters never get a gradient: another model (a copy?) is trained",
                one.subject(first), 0.93,
                (one.evidence(f"optimizer {number} made {made} steps and has kept no numbers of any", "detail"),),
                "take the loss from the model that the optimizer holds; look for `copy.deepcopy`, `detach()`, `.data`",
            )  # fmt: skip
            return

    def _unoptimized(self, one: Inspected, first: float, alone: int, leaves: int, last: dict[str, Any]) -> Finding:
        names = [name for name in last.get("unoptimized", ()) if name]
        listed = f": {', '.join(names)}" if names else ""
        if last.get("thawed") == alone < leaves:
            kind, severity, sure = "unfrozen-not-optimized", Severity.WARNING, 0.9
            title = f"{alone} parameters that were unfrozen get gradients, but no optimizer updates them{listed}"
        elif alone >= leaves:
            kind, title, severity, sure = (
                "other-model", "the loss trains none of the optimizer's parameters", Severity.ERROR, 0.95)  # fmt: skip
        elif last.get("unowned"):
            kind, severity, sure = "unregistered-parameters", Severity.ERROR, 0.95
            title = f"{last['unowned']} parameters get gradients but belong to no module and no optimizer"
        else:
            kind, title = "not-in-optimizer", f"{alone} parameters get gradients but no optimizer updates them{listed}"
            severity, sure = (Severity.WARNING, 0.9) if alone <= leaves / 2 else (Severity.INFO, 0.8)
        advice = "create the optimizer after the model is complete; freeze on purpose with `requires_grad_(False)`"
        if kind == "other-model":
            advice = "the optimizer was made from another model, such as a copy: make it from the one that is trained"
        elif kind == "unfrozen-not-optimized":
            advice = "add them to the optimizer when you unfreeze them: `optimizer.add_param_group({'params': ...})`"
        elif kind == "unregistered-parameters":
            advice = "keep layers in an `nn.ModuleList` or `nn.ModuleDict`, not in a plain list or dict"
        text = f"{alone} of {leaves} parameters behind the loss are in no optimizer{listed}"
        return Finding(
            self.code, self.name, kind, severity, title, one.subject(first, tuple(names[:1])), sure,
            (one.evidence(text, "leaves, unoptimized, detail"),), advice,
        )  # fmt: skip


def _take_turns(trainings: list[Training]) -> bool:
    """Whether two optimizers step in turns; where one follows the other, as LBFGS after Adam, each has its time."""
    steps = np.concatenate([one.step for one in trainings]) if trainings else np.empty(0)
    makers = np.concatenate([one.optimizer for one in trainings]) if trainings else np.empty(0)
    spans = sorted((steps[makers == maker].min(), steps[makers == maker].max()) for maker in np.unique(makers))
    return any(following[0] < before[1] for before, following in pairwise(spans))
