"""PRG015: a model beside the trained one that is in the wrong mode, or never what it should be."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from stethos.diagnose.detector import Needs, threshold
from stethos.diagnose.finding import Finding, Severity
from stethos.diagnose.program.inspected import COLUMNS, NEEDS, Inspected, details, inspected_of, merge_ranks
from stethos.diagnose.training import STEP_COLUMNS, column_of
from stethos.diagnose.window import Window


@dataclass(frozen=True, slots=True)
class HelperModel:
    """A teacher, target network or average of weights runs in the wrong mode, or with statistics that never saw data.

    What it looks at: models that run without gradients and that no optimizer updates: the mode of their dropout and
    norms, whether their statistics have ever seen a batch, and a checksum of their weights.
    Why it matters: their outputs are targets, or the result of the whole training.
    Not a fault when: a teacher is meant to be noisy, or a copy is frozen on purpose.
    Next step: call `eval()` on it; copy or recompute buffers as well as weights.
    """

    code: ClassVar[str] = "PRG015"
    name: ClassVar[str] = "helper-model"
    severity: ClassVar[Severity] = Severity.WARNING
    needs: ClassVar[Needs] = NEEDS
    reads: ClassVar[Needs] = {"inspections": COLUMNS, "steps": STEP_COLUMNS}
    explains: ClassVar[frozenset[str]] = frozenset(
        {"plateau", "slow-progress", "overfitting", "implausible-loss", "series-anomaly", "oscillation"}
    )

    least: int = threshold(2, "looks at the helper")
    apart: int = threshold(4, "steps between evaluations; a helper that runs more often is part of the training")
    evaluations: int = threshold(4, "evaluations of the helper")

    def check(self, window: Window) -> Iterator[Finding]:
        yield from merge_ranks(self._found(window))

    def _found(self, window: Window) -> Iterator[Finding]:
        for one in inspected_of(window):
            rows = list(zip(details(one.helpers), one.helpers["step"].tolist(), strict=True))
            modes = list(zip(
                column_of(one.helpers, "stateful_training").tolist(), column_of(one.helpers, "root_training").tolist(),
                column_of(one.helpers, "dropouts").tolist(), strict=True,
            ))  # fmt: skip
            for number in dict.fromkeys(row["helper"] for row, _ in rows):
                places = [place for place, (row, _) in enumerate(rows) if row["helper"] == number]
                if len(places) >= self.least and not one.is_federated:
                    yield from self._check(one, [rows[place] for place in places], [modes[place] for place in places])

    def _check(
        self, one: Inspected, rows: list[tuple[dict[str, Any], float]], modes: list[tuple[float, float, float]]
    ) -> Iterator[Finding]:
        last, first = rows[-1][0], rows[0][1]
        title = f"a {last['kind']} beside the trained model"
        if all(on > 0 and is_training > 0 for on, is_training, _ in modes):
            is_momentum = bool(last.get("is_part")) and not modes[-1][2] > 0  # its batch statistics may well move
            yield self._finding(
                one, first, "training-mode", f"{title} is in training mode: dropout is on, batch statistics move",
                f"{modes[-1][0]:.0f} of its modules in {len(rows)} runs", "call `eval()` on it before it is used", 0.9,
                Severity.INFO if is_momentum else None,
            )  # fmt: skip
        if last.get("untouched") and all(row.get("untouched") for row, _ in rows):
            yield self._finding(
                one, first, "old-statistics",
                f"{title} uses batch statistics that no batch has ever changed: those of a new module",
                f"{last['untouched']} of its {last['norms']} norms",
                "copy buffers with the weights, or call `torch.optim.swa_utils.update_bn(loader, model)`", 0.93,
            )  # fmt: skip
        prints = {row["weights"] for row, _ in rows}
        likes = {row["like"] for row, _ in rows}
        gaps = np.diff([step for _, step in rows])
        is_evaluated = len(rows) >= self.evaluations and float(np.median(gaps)) > self.apart
        if is_evaluated and last["is_copy"] and len(prints) == 1 and None not in prints and len(likes) > 1:
            yield self._finding(
                one, first, "never-changes",
                "a copy of the model is evaluated that never changes while the model learns",
                f"the same weights in {len(rows)} evaluations",
                "evaluate the model that is trained, or bring the copy up to date before", 0.85,
            )  # fmt: skip

    def _finding(
        self, one: Inspected, first: float, kind: str, title: str, text: str, advice: str, sure: float,
        severity: Severity | None = None,
    ) -> Finding:  # fmt: skip
        return Finding(
            self.code, self.name, kind, severity or self.severity, title, one.subject(first), sure,
            (one.evidence(text, "stateful, stateful_training, detail", "helper"),), advice,
        )  # fmt: skip
