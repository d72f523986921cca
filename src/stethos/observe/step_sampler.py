"""Decides before each optimizer step what is sampled of gradients and weights, and charges the budget for it."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch.utils._python_dispatch import _disable_current_modes

from stethos.clock import monotonic_ns
from stethos.observe.late_row import LateStep
from stethos.observe.memory_trace import is_only_mode
from stethos.observe.sample import LateSample, cuda_peak_of, tensor_bytes_of
from stethos.observe.statistic import norm_of

if TYPE_CHECKING:
    from stethos.observe.budget import SampleBudget
    from stethos.observe.iteration import Iteration
    from stethos.observe.optimizers import Watched
    from stethos.observe.step_recorder import StepRecorder


_WEIGHTS_EVERY = 64  # steps, where gradients are read at every one


class StepSampler:
    """Samples for one recorder, on the training thread.

    On a GPU all gradients are read at every step that the budget allows, by one launch, and weights more rarely. On a
    CPU it is the norm of the gradients that is cheap, and layers are sampled more rarely.
    """

    def __init__(self, recorder: StepRecorder) -> None:
        self._recorder = recorder
        self._budget = recorder.budget
        self._layers = recorder.layers
        self._run = recorder.session.guard.run
        self.is_norm_wanted = False

    def want_norm(self) -> float:
        """Read the gradients at the next step, whatever the budget has planned: their backward was inspected.

        Returns about what that will take, in ns.
        """
        self.is_norm_wanted = True
        self._recorder.sample_at = 0
        return self._budget.by_kind["norm"].cost_ns

    def sample(self, watched: Watched, iteration: Iteration) -> None:
        """Take the gradient norm, or all layer statistics, if due or if something looks wrong."""
        if not torch._C._len_torch_dispatch_stack():
            self._sample(watched, iteration)
        elif is_only_mode():  # our own trace of memory: it need not see our reading
            with _disable_current_modes():
                self._sample(watched, iteration)
        # the owner of any other mode would take our reading for the training's own work
        self.plan(iteration.step)
        if watched.is_new_structure:  # the device could not be asked now; a first sample is not given up for that
            self._recorder.sample_at = 0

    def plan(self, step: int) -> None:
        """Set the next step at which a sample is due."""
        kinds, optimizers = self._budget.by_kind, len(self._recorder.optimizers)
        wanted = ("gradients", "layers") if "gradients" in kinds else ("norm", "layers")
        self._recorder.sample_at = min(kinds[kind].next_step(step, optimizers) for kind in wanted if kind in kinds)

    def _sample(self, watched: Watched, iteration: Iteration) -> None:
        alarm = watched.alarm
        is_urgent = not alarm.low <= iteration.loss <= alarm.high and alarm.rings_for_loss(iteration.loss)
        layers, step, optimizers = self._budget.by_kind.get("layers"), iteration.step, len(self._recorder.optimizers)
        is_new, watched.is_new_structure = watched.is_new_structure, False
        is_asked, self.is_norm_wanted = self.is_norm_wanted, False
        wants_layers = layers is not None and (is_new or is_urgent or layers.is_due(step, optimizers))
        if layers is not None and watched.params and watched.params[0].is_cuda:
            self._budget.use_device()
            wants_layers = wants_layers and (is_new or is_urgent or step % _WEIGHTS_EVERY < optimizers)
            is_due = self._is_due("gradients", step, optimizers)
            if (is_due or wants_layers) and self._run("gradients", self._sample_gradients, watched, iteration):
                if wants_layers:
                    self._run("layers", self._sample_layers, watched, iteration, has_gradients=True)
                return
            if watched.every_step is not None and not wants_layers:
                return
        if wants_layers:
            self._run("layers", self._sample_layers, watched, iteration)
        elif is_new or is_urgent or is_asked or self._is_due("norm", step, optimizers):
            self._run("norm", self._sample_norm, watched, iteration)
            if alarm.rings_for_norm(iteration.grad_norm) and layers is not None:
                self._run("layers", self._sample_layers, watched, iteration)

    def _is_due(self, kind: str, step: int, optimizers: int) -> bool:
        return self._budget.by_kind[kind].is_due(step, optimizers)

    def _sample_norm(self, watched: Watched, iteration: Iteration) -> None:
        start = monotonic_ns()
        gradients = [param.grad for param in self._recorder.optimizers.params_now(watched)]
        if any(gradient is not None and gradient.is_cuda for gradient in gradients):
            sample = self._layers.start_norm(gradients, self._budget.by_kind["norm"])
            if sample is None:
                return
            _hold_for(iteration, sample)
        else:
            iteration.grad_norm = norm_of(gradients) if any(one is not None for one in gradients) else 0.0
        self._pay("norm", iteration, monotonic_ns() - start, is_cold=iteration.pending is not None)

    def _sample_gradients(self, watched: Watched, iteration: Iteration) -> bool:
        """All gradients of a model on a GPU, by one launch; False if that is not possible now."""
        start = monotonic_ns()
        self._recorder.optimizers.params_now(watched)
        sample_budget = self._budget.by_kind["gradients"]
        sample = self._layers.take_gradients(watched, iteration.step, sample_budget, self._looked)
        if sample is None:
            return False
        watched.was_sampled = True
        _hold_for(iteration, sample)
        self._pay("gradients", iteration, monotonic_ns() - start, is_cold=True)
        return True

    def _looked(self, watched: Watched, grad_norm: float) -> None:
        """The gradients of an earlier step have come: where they look wrong the next step's weights are sampled."""
        if watched.alarm.rings_for_norm(grad_norm) and not math.isfinite(grad_norm):
            watched.is_new_structure = True
            self._recorder.sample_at = 0

    def _sample_layers(self, watched: Watched, iteration: Iteration, *, has_gradients: bool = False) -> None:
        start, recorder = monotonic_ns(), self._recorder
        recorder.optimizers.params_now(watched)
        histograms = self._layers.histograms
        beside_ns = histograms.clocked_ns
        sample = self._layers.take(
            watched, iteration.step, self._budget.by_kind["layers"], has_gradients=has_gradients,
            has_histograms=histograms.is_due(iteration.step, len(recorder.optimizers)),
        )  # fmt: skip
        beside_ns = histograms.clocked_ns - beside_ns  # paid for already
        if sample is None:
            watched.is_new_structure = not watched.was_sampled
            return
        watched.was_sampled = True
        is_late = not sample.is_there()
        if has_gradients:
            pass  # the step's row waits for those
        elif is_late:
            _hold_for(iteration, sample)
        else:
            iteration.grad_norm = sample.grad_norm()
            watched.alarm.learn_norm(iteration.grad_norm)
        optimizer = watched.optimizer()
        if optimizer is not None:
            watched.allocated_bytes = tensor_bytes_of(optimizer, watched.params)
            peak = max(watched.allocated_bytes, cuda_peak_of(watched.params))
            recorder.peak_bytes = max(recorder.peak_bytes, peak, recorder.tracer.peak_bytes)
        recorder.session.look_after_drainer()
        self._pay("layers", iteration, monotonic_ns() - start, is_cold=is_late, beside_ns=beside_ns)

    def _pay(self, kind: str, iteration: Iteration, clocked_ns: int, *, is_cold: bool, beside_ns: int = 0) -> None:
        """Charge a sample with what the host has lost: nothing while the device is busy with work queued before.

        `beside_ns` of it went to something else that is paid for.
        """
        sample_budget: SampleBudget = self._budget.by_kind[kind]
        lost_ns = int(self._recorder.lead.lost_ns(clocked_ns))
        self._layers.spent_ns += sample_budget.pay(max(lost_ns - beside_ns, 0), is_cold=is_cold)
        if lost_ns:  # behind a busy device the host's pace says nothing
            iteration.pace.note(sample_budget, lost_ns)


def _hold_for(iteration: Iteration, sample: LateSample) -> None:
    """The step's row waits for a sample that a device is still busy with."""
    if iteration.pending is None:
        iteration.pending = LateStep()
    iteration.pending.sample = sample
