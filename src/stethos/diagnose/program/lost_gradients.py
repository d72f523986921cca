"""PRG004: gradients that the optimizer never gets."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from stethos.diagnose.detector import Needs
from stethos.diagnose.finding import Evidence, Finding, Severity
from stethos.diagnose.program.inspected import COLUMNS, Inspected, details, inspected_of, known, merge_ranks
from stethos.diagnose.training import LAYER_COLUMNS, STEP_COLUMNS, Training, column_of, trainings_of
from stethos.diagnose.window import Window
from stethos.store.frame import is_null


@dataclass(frozen=True, slots=True)
class LostGradients:
    """Backward makes gradients, but they are gone when the optimizer steps; or they stop coming at some step.

    What it looks at: gradients right after backward against those at the optimizer's step; sampled gradients of all
    layers over time; backwards without any step; weights whose gradients are 0 at every look.
    Why it matters: the loop runs and prints a loss, but nothing is learned any more.
    Not a fault when: the whole model is frozen on purpose from some step on. Where the loss is 0, as with a margin that
    is kept, no gradient is expected, and nothing is reported.
    Next step: look at what happens between `backward()` and `step()`: `zero_grad()`, clipping, `detach()`.
    """

    code: ClassVar[str] = "PRG004"
    name: ClassVar[str] = "lost-gradients"
    severity: ClassVar[Severity] = Severity.ERROR
    needs: ClassVar[Needs] = {"inspections": frozenset({"step", "phase"})}
    reads: ClassVar[Needs] = {"inspections": COLUMNS, "steps": STEP_COLUMNS, "layers": LAYER_COLUMNS}
    explains: ClassVar[frozenset[str]] = frozenset(
        {"plateau", "slow-progress", "detached-loss", "frozen-layers", "learning-rate-too-low",
         "update-to-weight-ratio", "vanishing-gradients", "dead-units", "implausible-loss", "constant-outputs",
         "learning-rate-too-high", "weight-explosion", "exploding-gradients", "non-finite-loss",
         "non-finite-gradients", "non-finite-weights", "divergence", "oscillation", "series-anomaly"}
    )  # fmt: skip

    least_backwards: int = 5
    least_samples: int = 3
    shrunk: float = 1e-4
    looks: int = 6

    def check(self, window: Window) -> Iterator[Finding]:
        yield from merge_ranks(self._found(window))

    def _found(self, window: Window) -> Iterator[Finding]:
        for one in inspected_of(window):
            if not one.trainings:
                yield from self._without_step(one)
            else:
                yield from self._started_anew(one)
                yield from self._never_any(one)
            for training in one.trainings:
                yield from self._emptied(one, training)
        inspected = {one.process for one in inspected_of(window) if len(one.training)}
        for training in trainings_of(window):
            yield from self._since(training)
            if training.process not in inspected and len(training) >= self.least_backwards:
                yield from self._without_backward(training)

    def _without_step(self, one: Inspected) -> Iterator[Finding]:
        backwards = len(one.training)
        if backwards < self.least_backwards or one.is_federated:
            return
        yield Finding(
            self.code, self.name, "backward-without-step", self.severity,
            "backward is called, but no optimizer steps and no weight changes", one.subject(0), 0.9,
            (one.evidence(f"{backwards} inspected backwards, 0 steps", "gradient_norm, leaves"),),
            "call `optimizer.step()` after `backward()`",
        )  # fmt: skip

    def _never_any(self, one: Inspected) -> Iterator[Finding]:
        """Layers that the loss reaches by a way on which every gradient is 0: their output is not used."""
        rows = [row["silent"] for row in details(one.training) if "silent" in row]
        names = [name for name in rows[-1] if all(name in row for row in rows)] if len(rows) >= self.looks else []
        if names and not one.is_federated:
            yield Finding(
                self.code, self.name, "never-a-gradient", Severity.WARNING,
                f"the gradient of {', '.join(names)} is 0 at every look, while others have one",
                one.subject(float(one.training["step"][0]), tuple(names[:1])), 0.85,
                (one.evidence(f"all numbers are 0 in {len(rows)} inspected backwards", "detail"),),
                "look whether the output of this layer is used: another's may be picked, or it is multiplied by 0",
            )  # fmt: skip

    def _without_backward(self, one: Training) -> Iterator[Finding]:
        """Steps without any loss or gradient; `inspections` would have the backwards."""
        norms = [track["norm"] for track in one.layers.get("gradient", [])]
        has_gradient = (
            any((~is_null(values) & (values != 0)).any() for values in norms)
            or (one.grad_norm[~is_null(one.grad_norm)] != 0).any()
        )
        if len(one.losses) or has_gradient or not norms or one.is_relay:
            return
        yield Finding(
            self.code, self.name, "step-without-backward", self.severity,
            "the optimizer steps, but backward is never called", one.subject(0), 0.9,
            (Evidence(f"{len(one)} steps without backward", f"SELECT step, loss FROM steps WHERE {one.where}"),),
            "call `loss.backward()` before `optimizer.step()`",
        )  # fmt: skip

    def _started_anew(self, one: Inspected) -> Iterator[Finding]:
        """Several backwards before a step, each of which finds the gradients of the last one gone."""
        sums = [row["accumulates"] for row in details(one.training) if "accumulates" in row]
        if len(sums) < self.least_samples or any(sums):
            return
        yield Finding(
            self.code, self.name, "accumulation-emptied", Severity.WARNING,
            "gradients are emptied between the backwards of one step: only the last batch of each step counts",
            one.subject(float(one.training["step"][0])), 0.9,
            (one.evidence(f"before {len(sums)} inspected backwards the last one's gradients were gone", "detail"),),
            "call `zero_grad()` once per step, not once per batch",
        )  # fmt: skip

    def _emptied(self, one: Inspected, training: Training) -> Iterator[Finding]:
        after, steps = column_of(one.training, "gradient_norm"), one.training["step"]
        has = {float(step): float(norm) for step, norm in zip(steps, after, strict=True) if norm > 0}
        alone, leaves = known(one.training, "unoptimized"), known(one.training, "leaves")
        if not has or (len(alone) and alone[-1] >= leaves[-1]):  # it trains another model
            return
        scales = dict(zip(steps.tolist(), (row.get("scale", 1.0) for row in details(one.training)), strict=True))
        applied = _applied(training)
        empty, left = [], []
        for step in sorted(has.keys() & applied.keys()):
            empty.append((step, applied[step] == 0))
            left.append(applied[step] / (has[step] / scales[step]))
        gone = [step for step, is_empty in empty if is_empty]
        shared = sorted(has.keys() & applied.keys())
        large = [s for s in shared if scales[s] > 8 and 0.5 < left[shared.index(s)] / scales[s] < 2]
        if len(large) >= self.least_samples and len(large) > 0.5 * len(shared):
            yield self._still_scaled(one, scales[large[0]])
            return
        if not gone and len(left) >= self.least_samples and max(left) < self.shrunk:
            yield self._shrunk(one, max(left))
        if not gone or len(gone) < 0.5 * len(empty):
            return
        text = f"norm {has[gone[0]]:.3g} after backward in step {gone[0]:.0f}, nothing left when the optimizer steps"
        yield Finding(
            self.code, self.name, "emptied-before-step", self.severity,
            "gradients are emptied between backward and the optimizer's step", one.subject(gone[0]), 0.95,
            (one.evidence(text, "gradient_norm"),),
            "call `zero_grad()` before `backward()`, not after it; check that clipping has a limit above 0",
        )  # fmt: skip

    def _still_scaled(self, one: Inspected, scale: float) -> Finding:
        return Finding(
            self.code, self.name, "still-scaled", self.severity,
            "the optimizer steps by gradients that are still multiplied by the loss scale",
            one.subject(float(one.training["step"][0])), 0.95,
            (one.evidence(f"{scale:g} times too large", "gradient_norm, detail"),),
            "call `scaler.step(optimizer)` instead of `optimizer.step()`",
        )  # fmt: skip

    def _shrunk(self, one: Inspected, share: float) -> Finding:
        scaled = any("scale" in row for row in details(one.training))
        advice = "check the limit of the clipping"
        if scaled:
            advice = (
                "call `scaler.unscale_(optimizer)` before clipping: the gradients are still multiplied by the scale"
            )
        return Finding(
            self.code, self.name, "shrunk-before-step", self.severity,
            "between backward and the optimizer's step gradients shrink to nearly nothing",
            one.subject(float(one.training["step"][0])), 0.9,
            (one.evidence(f"at most {share:.2g} of their norm is left at the step", "gradient_norm, detail"),), advice,
        )  # fmt: skip

    def _since(self, one: Training) -> Iterator[Finding]:
        """All gradients of a training that had some are missing or 0 from some sample on, to its end."""
        if one.is_relay:
            return
        norms = _applied(one)
        steps = np.array(sorted(step for step in norms if step == step))  # of a client elsewhere it may be unknown
        alive = np.array([norms[step] != 0 for step in steps.tolist()], bool)
        if not alive.any() or alive[-1]:
            return
        last = int(np.flatnonzero(alive)[-1])
        if len(steps) - last - 1 < self.least_samples or one.step[-1] - steps[last] < 0.1 * len(one.step):
            return
        since = float(steps[last + 1])
        losses = one.loss[np.isin(one.step, steps[last + 1 :])]
        if len(losses) and (losses == 0).all():  # a margin that is kept, say: nothing is left to learn
            return
        yield Finding(
            self.code, self.name, "no-gradients-since", self.severity,
            f"all gradients are missing or 0 since about step {since:.0f}", one.subject(one.place_of(since)), 0.95,
            (Evidence(
                f"the last sample with a gradient is of step {steps[last]:.0f}, {len(steps) - last - 1} without follow",
                f"SELECT step, grad_norm, loss FROM steps WHERE grad_norm IS NOT NULL AND {one.where} ORDER BY step",
            ),),
            "find what changed at that step: `requires_grad_(False)`, `detach()`, `no_grad()`, a factor of 0",
        )  # fmt: skip


def _applied(one: Training) -> dict[float, float]:
    """By step the norm of all gradients that the optimizer got, NaN and infinity among them; of sampled steps alone."""
    found: dict[float, float] = {}
    for track in one.layers.get("gradient", []):
        norms = np.where(is_null(track["norm"]), 0.0, track["norm"])
        norms = np.where((track["nan"] > 0) | (track["inf"] > 0), np.inf, norms)
        for step, norm in zip(track.step.tolist(), norms.tolist(), strict=True):
            found[step] = float(np.hypot(found.get(step, 0.0), norm))
    known = ~is_null(one.grad_norm)
    return found | dict(zip(one.step[known].tolist(), one.grad_norm[known].tolist(), strict=True))
