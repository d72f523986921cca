"""PRG014: a learning rate that its scheduler does not bring where it is meant to go."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from stethos.diagnose.detector import Needs, threshold
from stethos.diagnose.finding import Evidence, Finding, Severity
from stethos.diagnose.program.inspected import COLUMNS, Inspected, details, inspected_of, merge_ranks
from stethos.diagnose.training import STEP_COLUMNS, Training, thinned
from stethos.diagnose.window import Window

_LATER = frozenset({"SWALR", "ReduceLROnPlateau"})  # have nothing to do at first


def _is_steady(one: Inspected) -> bool:
    """Whether no learning rate of a process has ever changed."""
    return all(len(np.unique(training.lr)) == 1 for training in one.trainings)


@dataclass(frozen=True, slots=True)
class OddSchedule:
    """A warm-up never ends, a scheduler never steps or steps past its end, or a rate jumps back to its first value.

    What it looks at: the learning rate of each step, and the state of schedulers at inspected backwards: how often they
    have stepped, how long they last, whose rate they set.
    Why it matters: most of these come from counting epochs where batches are meant, or the reverse.
    Not a fault when: the run is only the beginning of a long one.
    Next step: print the learning rate at each epoch.
    """

    code: ClassVar[str] = "PRG014"
    name: ClassVar[str] = "odd-schedule"
    severity: ClassVar[Severity] = Severity.WARNING
    needs: ClassVar[Needs] = {"inspections": frozenset({"step", "phase"}), "steps": frozenset({"step", "lr"})}
    reads: ClassVar[Needs] = {"inspections": COLUMNS, "steps": STEP_COLUMNS}
    explains: ClassVar[frozenset[str]] = frozenset(
        {"plateau", "slow-progress", "learning-rate-too-low", "update-to-weight-ratio", "oscillation", "divergence",
         "series-anomaly", "frozen-layers", "implausible-loss", "learning-rate-too-high", "exploding-gradients"}
    )  # fmt: skip

    least: int = threshold(40, "steps")
    least_passes: int = threshold(3, "passes over the data without a step of the scheduler")
    late: float = threshold(0.5, "share of the steps by when an optimizer with a scheduler is at work")
    unfinished: float = threshold(0.3, "share of the rate that a warm-up is to reach")
    factor: float = threshold(0.05, "share of the rate that was set, at most")
    jump: float = threshold(3.0, "times the last loss before the optimizer was replaced")

    def check(self, window: Window) -> Iterator[Finding]:
        yield from merge_ranks(self._found(window))

    def _found(self, window: Window) -> Iterator[Finding]:
        for one in inspected_of(window):
            if one.is_federated:
                continue
            rows = [row for row in details(one.training) if row.get("schedulers")]
            for training in one.trainings:
                if len(training) >= self.least and not training.is_relay:
                    yield from self._of_rates(one, training, rows[-1]["schedulers"] if rows else [])
            steps = max((float(training.step[-1]) for training in one.trainings if len(training)), default=0.0)
            if rows and steps >= self.least:
                yield from self._of_schedulers(one, rows, float(one.training["step"][-1]) >= self.late * steps)
            yield from self._begun_anew(one)

    def _of_schedulers(self, one: Inspected, rows: list[dict[str, Any]], is_late: bool) -> Iterator[Finding]:
        passes = max(int(row.get("passes", 0)) for row in rows)
        for made in rows[-1]["schedulers"]:
            name, steps, length = made["name"], made["steps"], made["length"]
            if made["is_stranger"] and is_late:
                yield self._finding(
                    one, "other-optimizer", f"`{name}` sets the rate of an optimizer that never steps",
                    "none of the optimizers that step is its own", "make the scheduler from the optimizer in use", 0.9,
                )  # fmt: skip
            elif steps <= 0 and passes >= self.least_passes and _is_steady(one) and name not in _LATER:
                yield self._finding(
                    one, "never-stepped", f"`{name}` is made but never steps: the learning rate stays as it is",
                    f"0 steps of it in {passes} passes over the data", "call `scheduler.step()`", 0.85,
                )  # fmt: skip
            elif name == "CosineAnnealingLR" and length and steps > 2 * length:
                yield self._finding(
                    one, "past-its-end", f"`{name}` goes on past its end: the rate rises again",
                    f"{steps} steps of it, where T_max is {length}",
                    "count T_max in the same unit as the calls of `step()`: batches or epochs", 0.88,
                )  # fmt: skip

    def _of_rates(self, one: Inspected, training: Training, made: list[dict[str, Any]]) -> Iterator[Finding]:
        rates = training.lr
        if not np.isfinite(rates).all() or not rates.max() > 0:
            return
        own = [one for one in made if not one["is_stranger"] and one["base"]]
        is_rising = bool((np.diff(rates) >= 0).all()) and rates[-1] > rates[0]
        if own and is_rising and rates[-1] < self.unfinished * own[0]["base"]:
            base = own[0]["base"]
            text = f"the rate is {rates[-1]:.3g} at the last of {len(rates)} steps, {rates[-1] / base:.0%} of {base:g}"
            yield self._finding(
                one, "warm-up-unfinished", "the warm-up never ends: the learning rate stays far below its goal", text,
                "call `scheduler.step()` after each batch, or count the warm-up in epochs", 0.9, training, rates,
            )  # fmt: skip

        elif own and own[0]["name"] == "LambdaLR" and rates.max() < self.factor * own[0]["base"]:
            base = own[0]["base"]
            text = f"the rate is at most {rates.max():.3g}, {rates.max() / base:.2%} of the {base:g} that was set"
            yield self._finding(
                one, "factor-not-rate", "the function given to `LambdaLR` seems to return a rate, not a factor of it",
                text, "return a factor: 1 for the rate that the optimizer was given", 0.9, training, rates,
            )  # fmt: skip

    def _begun_anew(self, one: Inspected) -> Iterator[Finding]:
        """An optimizer takes the place of another one and begins again at its first rate, and the loss jumps up."""
        for before, after in zip(one.trainings, one.trainings[1:], strict=False):
            if min(len(before), len(after)) < self.least or after.step[0] <= before.step[-1] or before.is_relay:
                continue
            first, last, again = float(before.lr[0]), float(before.lr[-1]), float(after.lr[0])
            peak = float(np.max(before.lr))
            losses = [float(np.median(part)) for part in (before.losses[-20:], after.losses[:40]) if len(part)]
            if len(losses) < 2 or before.model != after.model or not last > 0 or again < self.jump * last:
                continue
            if not 0.7 < again / peak < 1.4:  # another rate, as when a model is tuned
                continue
            if losses[1] > 1.2 * losses[0] and _goes_on(before, after):
                yield self._finding(
                    one, "begun-anew", f"the learning rate jumps back from {last:.3g} to {again:.3g}, and the loss up",
                    f"it was {first:g} at the start; a new optimizer and scheduler begin at step {after.step[0]:.0f}",
                    "load the state of optimizer and scheduler with that of the model", 0.88, after, after.lr,
                )  # fmt: skip

    def _finding(
        self, one: Inspected, kind: str, title: str, text: str, advice: str, sure: float,
        training: Training | None = None, rates: np.ndarray[Any, Any] | None = None,
    ) -> Finding:  # fmt: skip
        subject = one.subject(0) if training is None else training.subject(0)
        where = training.where if training is not None else "true"
        evidence = Evidence(
            text, f"SELECT step, lr, loss FROM steps WHERE {where} ORDER BY step",
            thinned(rates) if rates is not None else (),
        )  # fmt: skip
        return Finding(self.code, self.name, kind, self.severity, title, subject, sure, (evidence,), advice)


def _goes_on(before: Training, after: Training) -> bool:
    """Whether the weights are those of before: the first loss is nearer to the last one than to that of a new model."""
    first, last, again = float(np.median(before.losses[:5])), float(np.median(before.losses[-20:])), after.losses[0]
    return bool(abs(again - last) < abs(first - again))
