"""PRG008: a loss that cannot be, or is too good to be true."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from stethos.diagnose.detector import Needs, threshold
from stethos.diagnose.finding import Evidence, Finding, Severity
from stethos.diagnose.program.inspected import COLUMNS, Inspected, details, inspected_of, known, merge_ranks
from stethos.diagnose.training import STEP_COLUMNS, Training, level_at_start, texts_of, thinned
from stethos.diagnose.window import Window

_NOT_NEGATIVE = frozenset(
    {"NllLoss", "NllLoss2D", "NllLossNd", "MseLoss", "L1Loss", "SmoothL1Loss", "HuberLoss", "BinaryCrossEntropy",
     "BinaryCrossEntropyWithLogits", "square", "absolute difference"}
)  # fmt: skip
_CLASSES = frozenset({"NllLoss", "NllLoss2D", "NllLossNd"})
_BINARY = frozenset({"BinaryCrossEntropy", "BinaryCrossEntropyWithLogits"})
_BOTTOMLESS = 1e4  # times the first loss, below 0


@dataclass(frozen=True, slots=True)
class ImplausibleLoss:
    """A loss that cannot be negative is; it is 0 at once, or no better than guessing or the mean of the targets.

    What it looks at: the loss functions that the loss consists of (beside other terms, as in a likelihood, it may well
    be negative), the number of classes, the variance of the targets, and the losses of all steps; of a generator and
    its critic, whether both can be as low as they are.
    Why it matters: a negative cross entropy has the wrong sign or inputs; a loss near 0 after a few steps means that
    the model sees the answer; a loss at ln(classes) means that it has learned nothing.
    Not a fault when: the task is easy; a task solved at once is reported as info, as an easy one looks the same.
    Next step: compare the model's inputs with what it should predict.
    """

    code: ClassVar[str] = "PRG008"
    name: ClassVar[str] = "implausible-loss"
    severity: ClassVar[Severity] = Severity.WARNING
    needs: ClassVar[Needs] = {"inspections": frozenset({"step", "phase"}), "steps": frozenset({"step", "loss"})}
    reads: ClassVar[Needs] = {"inspections": COLUMNS, "steps": STEP_COLUMNS}
    explains: ClassVar[frozenset[str]] = frozenset(
        {"plateau", "slow-progress", "divergence", "weight-explosion", "exploding-gradients", "oscillation",
         "series-anomaly"}
    )  # fmt: skip

    least: int = threshold(30, "losses")
    solved: float = threshold(0.01, "share of the first loss that is left at once")
    early: float = threshold(0.03, "share of the training that counts as at once")
    zero: float = threshold(0.9, "share of losses that are exactly 0")
    chance: float = threshold(0.02, "distance from the loss of guessing, as a share of it")
    too_high: float = threshold(3.0, "times the loss of guessing")
    at_odds: float = threshold(1.1, "sum of the chances that two rivals give the right answers")
    apart: float = threshold(0.35, "distance of smoothed labels from 0 and 1")
    constant: float = threshold(0.96, "times the loss of the best constant answer")
    worse: float = threshold(1.5, "the same: above that something else is wrong")
    switches: float = threshold(0.25, "switches between rivals, per step")

    def check(self, window: Window) -> Iterator[Finding]:
        yield from merge_ranks(self._found(window))

    def _found(self, window: Window) -> Iterator[Finding]:
        for one in inspected_of(window):
            functions = {name for name in texts_of(one.training, "function").tolist() if name}
            is_alone = all(each.get("is_alone", False) for each in details(one.training))
            bounded = functions if is_alone and functions <= _NOT_NEGATIVE else set()
            for training in one.trainings:
                if len(training.losses) >= self.least and not training.has_rival:
                    yield from self._check(one, training, functions, bounded)
            if is_alone and functions and functions <= _BINARY and len(one.trainings) == 2:
                yield from self._rivals(one, *one.trainings)
                yield from self._rivals(one, *reversed(one.trainings))

    def _rivals(self, one: Inspected, critic: Training, maker: Training) -> Iterator[Finding]:
        """What deceives a critic cannot be told by it: of a maker and its critic one at least has a high loss.

        The critic's share of belief in what is made is at least exp(-maker's loss), and what is left of it is at least
        exp(-2 times the critic's), the mean or sum of its losses on what is real and what is made: together 1 at most.
        """
        told, made = (one.training.where(np.isin(one.training["step"], each.step)) for each in (critic, maker))
        wanted, given = known(made, "label_mean"), known(told, "label_mean")
        if min(len(wanted), len(given)) < 2 or min(len(critic.losses), len(maker.losses)) < self.least:
            return
        is_game = known(made, "leaves").min() > known(told, "leaves").max() and len(set(wanted.tolist())) == 1
        has_both = known(told, "label_min").min() < self.apart and known(told, "label_max").max() > 1 - self.apart
        order = np.argsort(np.concatenate([critic.step, maker.step]), kind="stable")
        switches = float(np.diff(order < len(critic)).mean())  # else each has time to win in its turns
        late = [float(np.mean(each.losses[-len(each.losses) // 4 :])) for each in (critic, maker)]
        if not (is_game and has_both and switches > self.switches and min(late) >= 0):
            return
        if float(np.exp(-2 * np.array(late)).sum()) > self.at_odds:
            yield self._finding(
                maker, "rivals-agree",
                f"{maker.model or 'the generator'} is rewarded for being found out: its loss and its critic's are both "
                "low, which rivals' cannot be", maker.losses, 0,
                "in the generator's loss, label what it makes as real", self.severity, 0.88,
            )  # fmt: skip

    def _check(self, one: Inspected, training: Training, functions: set[str], bounded: set[str]) -> Iterator[Finding]:
        losses = training.losses[np.isfinite(training.losses)]
        if not len(losses):
            return
        start, low = level_at_start(losses), float(losses.min())
        if functions and float((losses == 0).mean()) > self.zero and (losses[:5] == 0).all():
            yield self._finding(
                training, "always-zero", "the loss is 0 from the first step on: there is nothing to learn from", losses,
                0, "look for a softmax over one output, a mask or an index that leaves every label out, or a loss that "
                "leaves out all that is infinite", Severity.ERROR, 0.93,
            )  # fmt: skip
        elif bounded and low < -1e-3:
            yield self._finding(
                training, "negative-loss", f"the loss falls to {low:.4g}, though {', '.join(sorted(bounded))} "
                "cannot be negative", losses, 0,
                "check the sign of the loss, and that targets and log-probabilities are what the loss expects",
                Severity.ERROR, 0.9,
            )  # fmt: skip
        elif _is_bottomless(losses, start):
            yield self._finding(
                training, "unbounded-loss",
                f"the loss falls to {low:.4g}, ever faster: a term of it has no lower bound", losses, 0,
                "check the sign of each term (a KL divergence, an entropy, a distance that is to grow), and "
                "bound it: a hinge, a logarithm, a square",
                self.severity, 0.85,
            )  # fmt: skip
        elif functions == {"MseLoss"} and bounded and not training.may_rise and self._is_constant_level(one, losses):
            yield self._finding(
                training, "constant-level", f"the loss stays at {np.median(losses[len(losses) // 2 :]):.3g}, as if the "
                "model always gave the mean of the targets", losses, len(losses) // 2,
                "check that targets belong to their inputs, and that inputs reach the last layer", self.severity, 0.8,
            )  # fmt: skip
        elif functions and functions <= _CLASSES | _BINARY:
            found: list[Finding] = []
            if functions <= _CLASSES:
                found += self._classes(one, training, losses, start, is_alone=bool(bounded))
            yield from found
            is_new = not any(each.kind == "chance-level" for each in found)
            if is_new and bounded and not training.may_rise and self._is_constant_level(one, losses):
                yield self._finding(
                    training, "shares-level", f"the loss stays at {np.median(losses[len(losses) // 2 :]):.3g}, as if "
                    "the model knew nothing but how common each class is", losses, len(losses) // 2,
                    "check that labels belong to their inputs, and that inputs reach the last layer; try to fit one "
                    "single batch", self.severity, 0.8,
                )  # fmt: skip

    def _is_constant_level(self, one: Inspected, losses: np.ndarray[tuple[int], np.dtype[np.float64]]) -> bool:
        """Whether a loss ends where that of the best constant is: at the entropy of labels, the variance of targets."""
        rows = details(one.training)
        priors = [row["prior"] for row in rows if "prior" in row]
        is_told = len(priors) >= 3 and len(one.trainings) == 1 and not any(row.get("is_policy") for row in rows)
        if len(losses) < 4 * self.least or not is_told or any(row.get("is_mixed") for row in rows):
            return False
        half = losses[len(losses) // 2 :]
        before, after = (float(np.median(part)) for part in np.array_split(half, 2))
        by_chance = 3 * float(np.std(half)) / float(np.sqrt(len(half) / 2))
        low, high = self.constant * priors[-1], self.worse * priors[-1]
        return low < float(np.median(half)) < high and before - after < max(0.02 * before, by_chance)

    def _classes(
        self, one: Inspected, training: Training, losses: np.ndarray[tuple[int], np.dtype[np.float64]], start: float,
        *, is_alone: bool,
    ) -> Iterator[Finding]:  # fmt: skip
        outputs = known(one.training, "outputs")
        soon = max(10, int(self.early * len(losses)))
        if start > 0.2 and len(losses) > 2 * soon and float(np.median(losses[soon : 2 * soon])) < self.solved * start:
            yield self._finding(
                training, "solved-at-once", f"the loss is nearly 0 after {soon} steps: the model may see the answer",
                losses, soon,
                "look for labels among the inputs, a missing shift of the targets or a missing mask",
                Severity.INFO, 0.75,
            )  # fmt: skip
        chance = float(np.log(np.median(outputs))) if len(outputs) and np.median(outputs) > 1 else np.nan
        late = float(np.median(losses[len(losses) // 2 :]))
        is_mixed = any(each.get("is_mixed", False) for each in details(one.training))
        is_mean = (
            is_alone and not is_mixed and late < self.too_high * chance
        )  # else it is on a scale of its own, as a sum
        if is_mean and float(losses[0]) > self.too_high * chance and training.step[0] == 0:
            yield self._finding(
                training, "high-at-start",
                f"the loss begins at {losses[0]:.3g}, far above {chance:.3g}, the level of guessing among "
                f"{np.median(outputs):.0f} classes", losses, 0,
                "make the first outputs smaller: scale down the initialisation of the last layer (or of embeddings "
                "that are tied to it), and scale the inputs", self.severity, 0.85,
            )  # fmt: skip
        is_at_chance = abs(late - chance) < self.chance * chance and start < 1.5 * chance
        if is_at_chance and len(losses) >= 4 * self.least and not training.is_relay:
            yield self._finding(
                training, "chance-level",
                f"the loss stays at {late:.3g}, the level of guessing among {np.median(outputs):.0f} classes",
                losses, len(training) // 2,
                "try to fit one single batch: if that fails, inputs and labels do not belong together, or nothing is "
                "updated", self.severity, 0.8,
            )  # fmt: skip

    def _finding(
        self, one: Training, kind: str, title: str, losses: np.ndarray[tuple[int], np.dtype[np.float64]], place: int,
        advice: str, severity: Severity, sure: float,
    ) -> Finding:  # fmt: skip
        text = f"{len(losses)} losses from {losses[0]:.4g} to {losses[-1]:.4g}"
        sql = f"SELECT step, loss FROM steps WHERE {one.where} ORDER BY step"
        return Finding(
            self.code, self.name, kind, severity, title, one.subject(place), sure,
            (Evidence(text, sql, thinned(losses)),), advice,
        )  # fmt: skip


def _is_bottomless(losses: np.ndarray[tuple[int], np.dtype[np.float64]], start: float) -> bool:
    """Whether a loss far below 0 falls no slower at the end than in the middle, or is where no measure ever gets."""
    if float(np.median(losses[-len(losses) // 4 :])) < -_BOTTOMLESS * max(abs(start), 0.5):
        return True
    levels = [float(np.median(part)) for part in np.array_split(losses, 8)]
    falls = -np.diff(levels)
    is_far = levels[-1] < -10 * max(abs(start), 0.5)
    return is_far and bool((falls > 0).all()) and float(falls[-1]) > 0.8 * float(np.max(falls[:-1]))
