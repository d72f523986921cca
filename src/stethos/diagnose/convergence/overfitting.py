"""CON005: better on what was seen, worse on what was not."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from stethos.diagnose.detector import Needs, threshold
from stethos.diagnose.finding import Evidence, Finding, Severity
from stethos.diagnose.program.inspected import COLUMNS, details, inspected_of
from stethos.diagnose.training import (
    STEP_COLUMNS,
    Training,
    column_of,
    sureness,
    texts_of,
    thinned,
    trainings_of,
)  # fmt: skip
from stethos.diagnose.window import Window
from stethos.store.frame import Array, is_null
from stethos.store.literal import literal

_HELD_OUT = re.compile(r"(^|[/_.\- ])(val|valid|validation|test|eval|dev|holdout|held_out)([/_.\- ]|$)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Overfitting:
    """The loss on held-out data rises while the training loss keeps falling.

    What it looks at: a logged metric with `loss` and one of val, valid, validation, test, eval or dev in its name
    (`stethos.log(val_loss=...)`), or the evaluated loss of federated rounds, against the loss of the steps.
    Why it matters: after the best evaluation, the model only memorises its training data.
    Not a fault when: only accuracy matters; it may still rise while the loss does. Where the program loads weights that
    it has kept into the model in the end it is reported as info.
    Next step: keep the checkpoint of the best evaluation; add data, weight decay, dropout or augmentation.
    """

    code: ClassVar[str] = "CON005"
    name: ClassVar[str] = "overfitting"
    severity: ClassVar[Severity] = Severity.WARNING
    needs: ClassVar[Needs] = {"steps": frozenset({"step", "loss"})}
    reads: ClassVar[Needs] = {
        "steps": STEP_COLUMNS,
        "metrics": frozenset({"process", "step", "name", "value"}),
        "rounds": frozenset({"federation", "round", "loss"}),
        "inspections": COLUMNS,
    }
    explains: ClassVar[frozenset[str]] = frozenset({"series-anomaly", "divergence"})

    rise: float = threshold(0.2, "rise of the held-out loss, as a share of its best")
    gap: float = threshold(1.5, "times the training loss")
    patience: int = threshold(4, "evaluations after the best one")
    never: float = threshold(0.9, "share of the first training loss that the held-out loss never falls below")
    far: float = threshold(3.0, "times the training loss, where the held-out loss never fell")

    def check(self, window: Window) -> Iterator[Finding]:
        trainings = [one for one in trainings_of(window) if len(one.losses) >= 10]
        frame = window.frame("metrics")
        names, process = texts_of(frame, "name"), texts_of(frame, "process")
        for name in dict.fromkeys(names.tolist()):
            if name is None or "loss" not in name.lower() or not _HELD_OUT.search(name):
                continue
            for one in trainings:
                rows = (names == name) & (process == one.process)
                sql = (
                    f"SELECT step, value FROM metrics WHERE name = {literal(name)} "
                    f"AND process = {literal(one.process)} ORDER BY step"
                )
                at, value = column_of(frame, "step")[rows], column_of(frame, "value")[rows]
                order = np.argsort(at, kind="stable")
                severity = Severity.INFO if _is_restored(window, one) else None
                for found in self._check(one, one.step, name, at[order], value[order], sql):
                    yield found if severity is None else replace(found, severity=severity)
        rounds = window.frame("rounds")
        if len(rounds):
            sql = "SELECT round, loss FROM rounds ORDER BY round"
            for one in trainings:
                if one.unit == "round":
                    at, value = column_of(rounds, "round"), column_of(rounds, "loss")
                    yield from self._check(one, one.round, "rounds.loss", at, value, sql)

    def _never(self, one: Training, place: Array, name: str, at: Array, held: Array, sql: str) -> Iterator[Finding]:
        """The training loss falls, that of held-out data never does."""
        finite = np.isfinite(one.loss)
        first, now = one.loss[finite][:20], one.loss[finite & (place <= at[-1])][-50:]
        if len(now) < 10:
            return
        start, trained, last = float(np.median(first)), float(np.median(now)), float(np.median(held[-3:]))
        has_learned = trained < 0.5 * start and start > 0
        if not has_learned or float(held.min()) < self.never * start or last < self.far * trained:
            return
        yield Finding(
            self.code, self.name, "never-learned", self.severity,
            f"the training loss falls from {start:.3g} to {trained:.3g}, but {name} never does: it is {last:.3g}",
            one.subject(0), 0.8, (Evidence(f"{len(held)} evaluations, the best {held.min():.3g}", sql, thinned(held)),),
            "compare a batch of both kinds of data, and the mode of the model: labels that do not belong to their "
            "inputs, other preprocessing, statistics of batches",
        )  # fmt: skip

    def _check(self, one: Training, place: Array, name: str, at: Array, held: Array, sql: str) -> Iterator[Finding]:
        known = ~is_null(held) & np.isfinite(held) & np.isfinite(at)
        at, held = at[known], held[known]
        if len(held) < self.patience + 2:
            return
        never = list(self._never(one, place, name, at, held, sql))
        if never:
            yield from never
            return
        best = int(np.argmin(held))
        after = held[best + 1 :]
        if len(after) < self.patience:
            return
        last = float(np.median(after[-max(1, len(after) // 4) :]))
        noise = float(np.median(np.abs(np.diff(held)))) if len(held) > 2 else 0.0
        rise = (last - float(held[best])) / max(abs(float(held[best])), 1e-12)
        finite = np.isfinite(one.loss)
        before = one.loss[finite & (place <= at[best])][-50:]
        now = one.loss[finite & (place > at[best])][-50:]
        if not len(before) or not len(now):
            return
        trained = float(np.mean(now))
        has_gap = last > self.gap * trained and trained < float(np.mean(before))
        if not has_gap or rise < self.rise or last - held[best] < 3 * noise:
            return
        unit = "round" if place is one.round else "step"
        subject = (
            one.subject(one.place_of(at[best]))
            if unit == "step"
            else one.subject(int(np.searchsorted(place, at[best])))
        )
        yield Finding(
            self.code, self.name, self.name, self.severity,
            f"{name} was best at {unit} {int(at[best])} ({held[best]:.3g}) and has risen by {rise:.0%} since; "
            f"the training loss fell to {trained:.3g}",
            subject,
            sureness(rise / self.rise),
            (Evidence(f"{name} over the training", sql, thinned(held), thinned(one.loss[finite]),
                      (name, "training loss")),),
            f"keep the checkpoint of {unit} {int(at[best])}; add data, weight decay, dropout or augmentation",
            {"metric": name, "best": float(held[best]), "best_at": int(at[best]), "last": last, "trained": trained},
        )  # fmt: skip


def _is_restored(window: Window, one: Training) -> bool:
    """Whether, when a training was over, weights that had been kept were loaded into its model."""
    for seen in inspected_of(window):
        if seen.process == one.process:
            rows = [row for row in details(seen.calls) if row.get("kind") == "load_state_dict weights-restored"]
            return any(row.get("at", 0) > one.step[-1] for row in rows)
    return False
