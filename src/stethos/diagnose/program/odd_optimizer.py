"""PRG010: an optimizer that is made anew, decays weights away, or may change next to nothing."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar

import numpy as np

from stethos.diagnose.detector import Needs, threshold
from stethos.diagnose.finding import Evidence, Finding, Severity, Subject
from stethos.diagnose.program.inspected import COLUMNS, NEEDS, Inspected, details, inspected_of, last_start, merge_ranks
from stethos.diagnose.training import STEP_COLUMNS, column_of, texts_of, trainings_of
from stethos.diagnose.window import Window
from stethos.store.frame import is_null
from stethos.store.literal import literal

_LEAST_HALF = 6e-8  # what is smaller is 0 in float16


@dataclass(frozen=True, slots=True)
class OddOptimizer:
    """An optimizer is created again and again, steps twice, has odd settings or loses updates; or the model is frozen.

    What it looks at: whether its steps change any weight; how many optimizers step how often, whether each makes
    one pass over the data and what the losses at their starts are, and how many backwards come before each step;
    betas, momentum, epsilon and the precision of the weights; and, in a training that does not learn, weight decay
    and the share of weights that require a gradient.
    Why it matters: a new optimizer has lost its momentum; strong decay pulls weights to 0 faster than they can learn.
    Not a fault when: only an adapter or a head is trained on purpose, and it learns.
    Next step: create the optimizer once, before the loop; use a weight decay of 0.01 or less.
    """

    code: ClassVar[str] = "PRG010"
    name: ClassVar[str] = "odd-optimizer"
    severity: ClassVar[Severity] = Severity.WARNING
    needs: ClassVar[Needs] = NEEDS
    reads: ClassVar[Needs] = {"inspections": COLUMNS, "steps": STEP_COLUMNS | {"backwards"}}
    explains: ClassVar[frozenset[str]] = frozenset(
        {"plateau", "slow-progress", "implausible-loss", "frozen-layers", "vanishing-gradients", "dead-units",
         "update-to-weight-ratio", "learning-rate-too-low", "weight-explosion", "non-finite-weights", "divergence",
         "non-finite-gradients", "non-finite-loss", "oscillation", "exploding-gradients", "learning-rate-too-high"}
    )  # fmt: skip

    least: int = threshold(20, "steps")
    least_passes: int = threshold(4, "passes over the data")
    decay_per_step: float = threshold(0.01, "share of the weights that decay takes away at each step")
    decay: float = threshold(0.1, "weight decay that is too much where a step's share is unknown")
    least_decay: float = threshold(0.02, "weight decay below which the learning rate makes that share large")
    again: float = threshold(0.3, "share of steps without a backward of their own")
    frozen: float = threshold(0.9, "share of the parameters that are frozen")
    rounded: float = threshold(0.5, "share of the updates that are lost in rounding")
    still: int = threshold(4, "looks at steps that change nothing")
    uphill: float = threshold(0.7, "cosine between steps and the gradients that they go up")

    def check(self, window: Window) -> Iterator[Finding]:
        yield from self._made_anew(window)
        yield from self._made_at_each_pass(window)
        yield from merge_ranks(self._stepped_again(window))
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
            losses = column_of(frame, "loss")[mine]
            parts = [float(np.nanmedian(part)) for part in np.array_split(losses[np.isfinite(losses)], 4) if len(part)]
            is_one = len(parts) == 4 and parts[-1] < 0.9 * parts[0]  # else each may be another, with a step of its own
            yield Finding(
                self.code, self.name, "optimizer-recreated", self.severity if is_one else Severity.INFO,
                "a new optimizer is made for every step, so momentum and moments are lost",
                Subject(process=process, first=0, unit="step"), 0.93,
                (Evidence(
                    f"{makers} optimizers make {steps} steps",
                    f"SELECT optimizer, count(*) FROM steps WHERE process = {literal(process)} GROUP BY 1",
                ),),
                "create the optimizer once, before the loop",
            )  # fmt: skip

    def _made_at_each_pass(self, window: Window) -> Iterator[Finding]:
        """Optimizers that each make the steps of one pass over the data, and no more."""
        frame = window.frame("steps")
        processes, makers = texts_of(frame, "process"), column_of(frame, "optimizer")
        for one in inspected_of(window):
            mine = processes == (one.process or None)
            starts = set(one.training["step"][column_of(one.training, "epoch_start") == 1].tolist())
            rows = frame.where(mine).sorted_by("step")
            places = [np.flatnonzero(column_of(rows, "optimizer") == maker) for maker in np.unique(makers[mine])]
            if one.is_federated or len(places) < self.least_passes or min(map(len, places)) < 2:
                continue
            steps, losses, rate = (column_of(rows, name) for name in ("step", "loss", "lr"))
            first = [float(steps[place[0]]) for place in places]
            lengths = {len(place) for place in places[:-1]}
            is_in_turns = all(a[-1] + 1 == b[0] for a, b in pairwise(places))
            if not is_in_turns or len(lengths) != 1 or not starts or not set(first[:4]) <= starts:
                continue
            entries = np.array([np.nanmedian(losses[place[:3]]) for place in places])
            exits = np.array([np.nanmedian(losses[place[-3:]]) for place in places])
            has_state = any("betas" in row or row.get("momentum", 0.0) > 0 for row in details(one.training))
            is_one_rate = len(set(rate[[place[0] for place in places]].tolist())) == 1
            if float(entries[1:].min()) > 0.8 * entries[0] and float(np.median(exits)) < 0.85 * entries[0]:
                kind, title = "model-recreated", "the model is made anew at each pass over the data: it forgets"
                advice, severity = "make the model once, before the loop over epochs", self.severity
            elif has_state and is_one_rate and float(np.median(entries[1:])) < 0.8 * entries[0]:
                kind = "optimizer-recreated"
                title = "a new optimizer is made for each pass over the data, so momentum and moments are lost"
                advice, severity = "make the optimizer once, before the loop over epochs", self.severity
            else:
                continue
            text = f"{len(places)} optimizers of {lengths.pop()} steps each; losses at their starts "
            yield Finding(
                self.code, self.name, kind, severity, title, one.subject(float(first[1])), 0.85,
                (Evidence(
                    text + ", ".join(f"{entry:.3g}" for entry in entries[:6]),
                    f"SELECT optimizer, count(*) FROM steps WHERE process = {literal(one.process)} GROUP BY 1",
                ),),
                advice,
            )  # fmt: skip

    def _stepped_again(self, window: Window) -> Iterator[Finding]:
        """An optimizer, alone at its time, that steps a second time after a backward, by the same gradients."""
        frame = window.frame("steps")
        places, step = texts_of(frame, "process"), column_of(frame, "step")
        for one in trainings_of(window):
            mine = (places == (one.process or None)) & (step >= one.step[0]) & (step <= one.step[-1])
            rows = frame.where(mine).sorted_by("step")
            backwards, makers = column_of(rows, "backwards"), column_of(rows, "optimizer")
            if one.is_relay or len(rows) < 2 * self.least or len(np.unique(makers)) > 1 or is_null(backwards).any():
                continue
            again = int(((backwards[1:] == 0) & (backwards[:-1] > 0)).sum())
            if again < max(self.least, self.again * len(rows)):
                continue
            yield Finding(
                self.code, self.name, "stepped-again", self.severity,
                "the optimizer steps twice for each backward: the second step repeats the same gradients",
                one.subject(0), 0.93,
                (Evidence(
                    f"{again} of {len(rows)} steps follow another one without a backward between them",
                    f"SELECT step, backwards, loss FROM steps WHERE {one.where} ORDER BY step",
                ),),
                "call `optimizer.step()` once after each `backward()`: look for a second call, as in a helper function",
            )  # fmt: skip

    def _found(self, window: Window) -> Iterator[Finding]:
        for one in inspected_of(window):
            if len(one.training) and not one.is_federated:
                yield from self._settings(one)
            is_long = any(len(training.losses) >= 3 * self.least for training in one.trainings)
            if len(one.training) and is_long and not one.has_learned and not one.is_federated:
                yield from self._check(one)

    def _settings(self, one: Inspected) -> Iterator[Finding]:
        """Settings that are wrong whatever the training does."""
        rows = details(one.training)
        last, subject = rows[-1], one.subject(float(one.training["step"][0]))
        betas, momentum = last.get("betas", (0.0, 1.0)), last.get("momentum", 0.0)
        rounded = [row["rounded_away"] for row in rows if "rounded_away" in row]
        is_negated = any(len(each.losses) and each.losses[0] < 0 for each in one.trainings)
        slopes = [row["slope"] for row in rows if "slope" in row and not is_negated]
        still = [row["still"] for row in rows if "still" in row]
        has_rate = any((each.lr > 0).any() for each in one.trainings) or not one.trainings
        later = rows[int(np.searchsorted(one.training["step"], last_start(one.trainings))) :]
        functions = {name for name in texts_of(one.training, "function").tolist() if name}
        is_bounded = functions and all(row.get("is_alone") for row in rows)
        for kind, is_so, title, text, advice in (
            ("swapped-betas", betas[0] > betas[1] and betas[0] > 0.95,
             "the betas of the optimizer are the other way round", f"betas = {tuple(betas)}", "use betas=(0.9, 0.999)"),
            ("momentum-too-high", momentum >= 1,
             f"a momentum of {momentum:g} never forgets: steps grow without end", f"momentum = {momentum:g}",
             "use a momentum of 0.9"),
            ("changes-nothing", len(still) >= self.still and all(still) and has_rate,
             "the optimizer steps, but no weight changes", f"the same numbers in {len(still)} inspected backwards",
             "change weights in place: `weight.add_(...)` or `weight -= ...`, not `weight = weight - ...`"),
            ("ascends", bool(last.get("maximize")) and bool(is_bounded),
             "the optimizer maximises a loss that is to be minimised", "maximize=True", "leave out `maximize=True`"),
            ("steps-uphill", len(slopes) >= 3 and min(slopes) > self.uphill and bool(is_bounded),
             "the updates by hand go up the gradient of a loss that is to be minimised",
             f"the cosine between updates and gradients is {np.mean(slopes or [0]):.2f}",
             "subtract the gradient: `weight -= rate * gradient`"),
            ("head-frozen", all("frozen_head" in row for row in later) and len(later) >= 3,
             "the last layer is frozen and all others are trained", f"frozen: {last.get('frozen_head', '')}",
             "freeze the body of the model and train its head: `head.requires_grad_(True)`"),
            ("epsilon-lost", 0 < last.get("half_epsilon", 1.0) < _LEAST_HALF,
             "the optimizer's epsilon is 0 in half precision: weights without a gradient are divided by 0",
             f"eps = {last.get('half_epsilon', 0):g}, weights in float16",
             "keep the weights in float32 and use autocast, or set eps=1e-4"),
            ("rounded-away", len(rounded) >= 3 and float(np.mean(rounded)) > self.rounded,
             "most updates are lost: they are smaller than the last bit of the weights, which are in half precision",
             f"{np.mean(rounded) if rounded else 0:.0%} of the weights looked at",
             "keep the weights in float32 and use autocast"),
            ("frozen-layers-move", any(row.get("frozen_with_gradient") for row in rows[-2:]),
             "frozen parameters still have gradients of before, by which the optimizer moves them",
             f"{last.get('frozen_with_gradient', 0)} parameters",
             "set `grad = None` when you freeze them, or leave them out of the optimizer"),
            ("tied-by-memory", all(row.get("same_memory") for row in rows[1:]) and len(rows) > 2,
             "two parameters share their memory, but each has a gradient and moments of its own",
             f"{last.get('same_memory', 0)} pairs", "tie the parameters themselves: `head.weight = embedding.weight`"),
        ):  # fmt: skip
            if is_so:
                yield Finding(
                    self.code, self.name, kind, self.severity, title, subject, 0.9, (one.evidence(text, "detail"),),
                    advice,
                )  # fmt: skip

    def _check(self, one: Inspected) -> Iterator[Finding]:
        last = details(one.training)[-1]
        decay, per_step = float(last.get("weight_decay", 0)), float(last.get("decay_per_step", 0))
        subject = one.subject(float(one.training["step"][0]))
        if (per_step >= self.decay_per_step and decay >= self.least_decay) or (decay >= self.decay and not per_step):
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
