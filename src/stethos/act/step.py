"""Corrections of single optimizer steps: `stethos.watch(correct=...)`.

Looks at the gradients just before each step. What is exact counts at once: a
gradient that is not finite is not applied. A gradient far beyond the usual is
shortened. The learning rate is lowered only where two independent witnesses
agree: gradients out of bounds again and again, and weights that have grown. On
a GPU each look waits for the device; a dry run only looks.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from stethos.act.action import Action, CorrectionLimits, Mode, What

if TYPE_CHECKING:
    from torch import Tensor
    from torch.optim import Optimizer

_FIRST_NUMBER = 1000  # of our actions: those of a federation count from 1
_USUAL = 50
_FEWEST = 10  # steps before anything is usual
_FAR = 10.0  # times the usual: a gradient is shortened
_ALLOWED = 3.0  # to so many times the usual
_TROUBLES = 3  # within the last
_LATELY = 20  # steps, and
_GROWN = 1.5  # weights so many times as long as they were: the rate is too high
_CUT = 0.5


@dataclass(slots=True)
class _OptimizerHistory:
    """What is known of one optimizer."""

    steps: int = 0
    norms: deque[float] = field(default_factory=lambda: deque(maxlen=_USUAL))
    troubles: deque[int] = field(default_factory=deque)
    skips: deque[int] = field(default_factory=deque)
    weight_norm: float | None = None
    cuts: int = 0


class StepCorrector:
    """A hook before every optimizer step of this process; `tell` is given every action."""

    def __init__(
        self, mode: Mode, *, limits: CorrectionLimits = CorrectionLimits(), tell: Callable[[Action], None] | None = None
    ) -> None:
        self.mode = mode
        self.limits = limits
        self.actions: list[Action] = []
        self._tell = tell or (lambda action: None)
        self._histories: WeakKeyDictionary[Any, _OptimizerHistory] = WeakKeyDictionary()

    def install(self, guarded: Callable[[Callable[..., Any]], Callable[..., Any]]) -> Callable[[], None]:
        """Begin; returns what ends it. `guarded` makes a callback that never raises."""
        from torch.optim.optimizer import register_optimizer_step_pre_hook

        before = guarded(self.before_step)
        return register_optimizer_step_pre_hook(lambda optimizer, args, kwargs: before(optimizer)).remove

    def before_step(self, optimizer: Optimizer) -> None:
        """Gradients are ready and the step is about to be taken."""
        history = self._histories.setdefault(optimizer, _OptimizerHistory())
        history.steps += 1
        gradients = [parameter.grad for parameter in _parameters(optimizer) if parameter.grad is not None]
        if not gradients:
            return
        norm = _norm(gradients)
        usual = sorted(history.norms)[len(history.norms) // 2] if len(history.norms) >= _FEWEST else None
        if not math.isfinite(norm):
            history.troubles.append(history.steps)
            self._skip(optimizer, history)
        elif usual is not None and norm > _FAR * usual > 0:
            history.troubles.append(history.steps)
            self._clip(gradients, norm, usual, history)
        else:
            history.norms.append(norm)
            if history.weight_norm is None and len(history.norms) >= _FEWEST:
                history.weight_norm = _norm(list(_parameters(optimizer)))
        while history.troubles and history.troubles[0] <= history.steps - _LATELY:
            history.troubles.popleft()
        if len(history.troubles) >= _TROUBLES:
            self._lower(optimizer, history)

    def _skip(self, optimizer: Optimizer, history: _OptimizerHistory) -> None:
        while history.skips and history.skips[0] <= history.steps - 100:
            history.skips.popleft()
        reason = "the gradient is not finite"
        if len(history.skips) >= self.limits.skips:
            self._note(
                "skip-step", history, f"{reason}; {self.limits.skips} of the last 100 steps were left out", refused=True
            )
            return
        history.skips.append(history.steps)
        if self.mode == "on":
            for parameter in _parameters(optimizer):
                parameter.grad = None
        self._note("skip-step", history, reason, effect="left the step out: weights and momentum stay as they were")

    def _clip(self, gradients: list[Tensor], norm: float, usual: float, history: _OptimizerHistory) -> None:
        scale = _ALLOWED * usual / norm
        if self.mode == "on":
            for gradient in gradients:
                gradient.mul_(scale)
        reason = f"the gradient is {norm / usual:.0f} times as long as usual"
        self._note("clip-gradient", history, reason, effect=f"shortened it to {100 * scale:.2g} %")

    def _lower(self, optimizer: Optimizer, history: _OptimizerHistory) -> None:
        if history.weight_norm is None:
            return
        grown = _norm(list(_parameters(optimizer))) / max(history.weight_norm, 1e-12)
        if not grown >= _GROWN:
            return
        reason = (
            f"{len(history.troubles)} gradients out of bounds in {_LATELY} steps, "
            f"and the weights are {grown:.1f} times as long as they were"
        )
        history.troubles.clear()
        if history.cuts >= self.limits.rate_cuts:
            self._note("lower-rate", history, f"{reason}; it was lowered {history.cuts} times before", refused=True)
            return
        history.cuts += 1
        before = float(optimizer.param_groups[0]["lr"])
        if self.mode == "on":
            for group in optimizer.param_groups:
                group["lr"] = group["lr"] * _CUT
        self._note("lower-rate", history, reason, effect=f"learning rate {before:.3g} -> {before * _CUT:.3g}")

    def _note(
        self, what: What, history: _OptimizerHistory, reason: str, *, effect: str = "", refused: bool = False
    ) -> None:
        last = next((one for one in reversed(self.actions) if one.what == what), None)
        if last is not None and (last.state == "refused") == refused and history.steps - last.last <= _LATELY:
            last.last, last.times = history.steps, last.times + 1  # the same trouble goes on
        else:
            last = Action(
                _FIRST_NUMBER + len(self.actions), what, self.mode,
                "refused" if refused else "active" if self.mode == "on" else "proposed",
                reason, history.steps, history.steps, unit="step",
                effect=effect if self.mode == "on" or not effect else f"would have: {effect}",
            )  # fmt: skip
            self.actions.append(last)
        self._tell(last)


def _parameters(optimizer: Optimizer) -> Iterator[Tensor]:
    for group in optimizer.param_groups:
        yield from group["params"]


def _norm(tensors: list[Tensor]) -> float:
    import torch

    dense = [one.detach().coalesce().values() if one.is_sparse else one.detach() for one in tensors]
    norms = [torch.linalg.vector_norm(one, dtype=torch.float32) for one in dense if one.is_floating_point()]
    return float(torch.linalg.vector_norm(torch.stack([norm.cpu() for norm in norms]))) if norms else 0.0
