"""Looks at what the program itself does: on its first backwards, at the start of passes over the data, rarely later.

While nothing is to be inspected nothing of this is in the way: `torch.autograd.backward` is wrapped for the next few
calls only. Everything is read, nothing is computed on the graph, and no random number is drawn.
"""

from __future__ import annotations

import functools
import weakref
import zlib
from collections.abc import Callable
from time import process_time_ns, thread_time_ns
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.utils._python_dispatch import _disable_current_modes

from stethos.clock import monotonic_ns
from stethos.observe.autograd_graph import unwrapped_of
from stethos.observe.batch_facts import Facts, batch_facts, label_facts, loader_facts, mask_facts
from stethos.observe.budget import NEVER
from stethos.observe.checksum import checksums_of, crc_of
from stethos.observe.evaluation import Evaluations
from stethos.observe.gradient_call import GradientCalls
from stethos.observe.gradient_facts import Stillness, left_of, silent_layers
from stethos.observe.hand_step import HandSteps
from stethos.observe.inspection_row import put_inspection
from stethos.observe.kept_graph import KeptGraphs
from stethos.observe.loss_graph import LossGraph, read_loss_graph
from stethos.observe.mode_facts import mode_facts
from stethos.observe.nan_origin import Owner, find_broken_weights, find_origin
from stethos.observe.parameter_facts import ParameterFacts, kinds_of
from stethos.observe.program_check import ProgramCheck
from stethos.observe.replica import is_rank, unwrapped
from stethos.observe.statistic import estimated_norm_of
from stethos.schema import NULL_F64

if TYPE_CHECKING:
    from stethos.observe.step_recorder import StepRecorder

_FIRST_BACKWARDS = 8  # inspected in any case
_FIRST_PASSES = 4  # over the data, of which the first backward is inspected in any case
_PER_LOOK = 2  # backwards inspected in a row, so that neighbours can be compared; 1 where that takes too long
_MOST_EVALUATIONS = 64
_MOST_OPTIMIZERS = 4  # whose first backwards are inspected, beside those of the first
_FIRST_EVALUATIONS = 4  # after which the first backward is inspected in any case: the model may still be in their mode
_MOST_EXPLAINED = 4
_MOST_CHANGES = 8
_SHARE, _ALLOWED_NS = 0.004, 20_000_000  # what inspections may take: of the CPU time so far, and in any case
_SMALL_MODEL = 1 << 20  # elements; to read the gradients of more takes long
_MOST_NAMES = 8
_PROBES = 4  # weights whose first element is looked at
_MOST_RANK_STEPS = 4096  # ranks can only be compared where all of them look, so until then they look whatever it takes
_PLAIN = (torch.Tensor, torch.nn.Parameter)


class Inspector:
    """Inspects backwards of one process and writes a row of `inspections` for each; one per session."""

    def __init__(self, watch: StepRecorder) -> None:
        self._watch = watch
        self._session = watch.session
        self.hand = HandSteps(watch)
        self.gradients = GradientCalls(watch)
        self._kept = KeptGraphs()
        self.check = ProgramCheck(watch)
        self.evaluations = Evaluations(watch.session, self)
        self._last_weights: tuple[Any, ...] = ()  # behind the last inspected loss, where it left gradients
        self._still = Stillness()
        self._parameters_of = ParameterFacts(watch, self.check)
        self._pass_facts: Facts = {}
        self._left = 0
        self._pass_at = -1  # the number of steps before the last pass over the data; -1 once a backward has followed
        self._inner: Callable[..., Any] | None = None
        self._ours: Callable[..., Any] | None = None
        self._began_ns = process_time_ns()
        self._spent_ns = 0
        self._look_at = 2 * _FIRST_BACKWARDS  # a step whose number decides it: the same on all ranks
        self._accounted_at = 0
        self._passes = 0
        self._is_small = False  # of the model behind the last inspected loss
        self._asked_at = 0
        self._optimizers = 0
        self._last_roots: list[weakref.ref[torch.nn.Module]] = []
        self._is_installed = False
        self._evaluations = 0
        self._evaluated_at = -1
        self._explained = 0
        self._kinds: list[int] = []
        self._changes = 0

    # When ------------------------------------------------------------------------------------------

    def install(self) -> None:
        self._is_installed = True
        self._session.on_pass = self.pass_began
        if not self._session.steps:
            self._arm(_FIRST_BACKWARDS)
            self.check.calls.install()
            self.gradients.install()

    def finish(self) -> None:
        """The recording ends: write the last step that was made by hand, and the last evaluation."""
        self.hand.finish()
        self.evaluations.flush()
        self._put_calls()

    def uninstall(self) -> None:
        """Give torch its own function back."""
        self._is_installed = self.hand.is_needed = False
        self._left, self._look_at = 0, NEVER
        self._put_back()
        self.gradients.uninstall()
        self.check.uninstall()

    def refuse(self) -> None:
        """Code is about to be compiled, which must meet none of this."""
        self.evaluations.is_off = True
        self.gradients.uninstall()
        self.check.refuse()

    @np.errstate(all="ignore")  # here and below: a warning of ours would be taken for one of the program's
    def pass_began(self, iterator: Any) -> None:
        """The first batch of a pass over a training loader has come."""
        start_ns = thread_time_ns()
        if not (self._session.steps and self.is_evaluated()):
            data = getattr(iterator, "_dataset", None)
            self._session.guard.run("inspection", self.check.data.training_pass, data, self.last_root())
        self._spent_ns += thread_time_ns() - start_ns
        self._pass_at = self._session.steps
        self._pass_facts = self._session.guard.run("inspection", loader_facts, iterator) or {}
        self._passes += 1
        if self._can_afford():
            self._arm(_PER_LOOK)
        elif self._passes <= _FIRST_PASSES:
            self._arm(1)

    def optimizer_came(self) -> None:
        """Another optimizer has made its first step: another training may have begun."""
        if self._is_installed and self._session.steps and self._optimizers < _MOST_OPTIMIZERS:
            self._optimizers += 1
            self._arm(_PER_LOOK)

    def account(self) -> None:
        """Now and then: get ready for the next look, shortly before it comes: four while the steps double."""
        steps = self._session.steps
        pause, self._accounted_at = steps - self._accounted_at, steps
        if self._has_changed():
            self._look_at = steps
            self._arm(0)
            return
        stride = 1 << max(steps.bit_length() - 3, 0)
        following = steps + stride - steps % stride
        if self._look_at != NEVER or following - steps > 4 * pause:
            return
        is_power_of_4 = following.bit_count() == 1 and following.bit_length() % 2 == 1
        if is_power_of_4 or self._can_afford() or (steps < _MOST_RANK_STEPS and is_rank()):
            self._look_at = following
            self._arm(0)
        elif self._is_small and following != self._asked_at:  # gradients that vanish are to be noticed all the same
            self._asked_at = following
            self._watch.sampler.want_norm()

    def _has_changed(self) -> bool:
        """Whether modes or what is trained have changed since this was asked last; a few times, and not of ranks."""
        if self._changes >= _MOST_CHANGES or is_rank():
            return False
        before, self._kinds = self._kinds, [kinds_of(root) for root in self.roots()]
        is_other = bool(before) and before != self._kinds
        self._changes += is_other
        return is_other

    def leave_out(self, cpu_ns: int) -> None:
        """Let what is done once in a process take nothing from the looks that come after; it counts as overhead."""
        self._spent_ns -= cpu_ns

    def _can_afford(self) -> bool:
        return self._spent_ns < _ALLOWED_NS + _SHARE * (process_time_ns() - self._began_ns)

    def _arm(self, backwards: int) -> None:
        self._left = max(self._left, backwards)
        if self._inner is None:
            self._inner = torch.autograd.backward
            self._ours = torch.autograd.backward = self._wrapper_of(self._inner)

    def _put_back(self) -> None:
        """Out of the way again; if somebody has wrapped ours meanwhile it stays inside and only passes on."""
        is_wanted = self.hand.is_needed or self._look_at != NEVER
        if self._inner is not None and torch.autograd.backward is self._ours and not is_wanted:
            torch.autograd.backward, self._inner = self._inner, None

    def _begin_look(self) -> None:
        self._look_at = NEVER
        self._left = max(self._left, _PER_LOOK if self._can_afford() or is_rank() else 1)

    def _wrapper_of(self, inner: Callable[..., Any]) -> Callable[..., Any]:
        run, hand = self._session.guard.run, self.hand

        def backward(tensors: Any, *args: Any, **kwargs: Any) -> Any:
            run("inspection", self.gradients.uninstall)
            if self._session.steps >= self._look_at:
                run("inspection", self._begin_look)
            if hand.is_needed or self._left > 0:
                run("inspection", hand.before_backward)
            if self._left <= 0 or not self._watch.is_active:
                return inner(tensors, *args, **kwargs)
            seen = run("inspection", self._before, tensors)
            result = inner(tensors, *args, **kwargs)
            run("inspection", self._after, seen)
            return result

        return functools.wraps(inner)(backward)

    def gradients_begin(self, loss: torch.Tensor) -> tuple[LossGraph, Facts] | None:
        """Gradients of a loss are asked for, without a backward: inspect it if that is due."""
        if self._session.steps >= self._look_at:
            self._begin_look()
        return self._before(loss) if self._left > 0 else None

    def gradients_came(self, seen: tuple[LossGraph, Facts] | None, gradients: list[Any]) -> None:
        """They are there, and nowhere but in what the program is given."""
        self.hand.gradients_came([one for one in gradients if isinstance(one, torch.Tensor)])
        if seen is not None:
            self._after(seen, gradients)

    # What ------------------------------------------------------------------------------------------

    @np.errstate(all="ignore")
    def _before(self, tensors: Any) -> tuple[LossGraph, Facts] | None:
        start_ns, cpu_ns = monotonic_ns(), thread_time_ns()
        if self._watch.local.iteration.in_backward:
            return None
        self._left -= 1
        loss = tensors if isinstance(tensors, torch.Tensor) else next(iter(tensors or ()), None)
        if type(loss) is not torch.Tensor or loss.numel() != 1:
            return None
        with torch.no_grad(), _disable_current_modes():
            graph = read_loss_graph(loss)
            is_early = self._session.steps < _FIRST_BACKWARDS
            facts = {**batch_facts(graph, is_early), **self._parameters_of.facts(graph, self.roots())}
            facts["detail"] |= {
                "nodes": graph.nodes, "is_alone": graph.is_alone, "is_mixed": graph.is_mixed,
                "kept": self._kept.mark(loss), "passes": self._passes, **label_facts(graph), **mask_facts(graph),
                **self._pass_facts, **self._gradient_facts(graph, tensors), **self.check.facts(graph),
            }  # fmt: skip
            if self.hand.slope is not None:
                facts["detail"]["slope"] = self.hand.slope
        is_start = self._pass_at == self._session.steps  # else the first batches of the pass were not inspected
        facts |= {"phase": "training", "function": graph.function or None, "epoch_start": float(is_start)}
        if self._watch.local.iteration.has_stepped and self._session.steps:
            trained = set(map(id, self._parameters()))  # gradients of others are nobody's to clear
            left = [leaf.grad for leaf in graph.leaves if id(leaf) in trained and leaf.grad is not None]
            facts["leftover_norm"] = estimated_norm_of(left) if left else 0.0
            facts["detail"]["left_of"] = left_of(graph.leaves, self._watch.optimizers.seen())
        facts["random_hash"] = _random_hash(loss.device)
        self._pass_at = -1
        self._charge(start_ns, cpu_ns)
        return graph, facts

    @np.errstate(all="ignore")
    def _after(self, seen: tuple[LossGraph, Facts] | None, given: list[Any] | None = None) -> None:
        """The gradients are there: those of the leaves, or those that were `given` to the program."""
        start_ns, cpu_ns = monotonic_ns(), thread_time_ns()
        if seen is not None:
            graph, facts = seen
            gradients = [leaf.grad for leaf in graph.leaves]
            if given is not None:
                gradients = [unwrapped_of(one) if isinstance(one, torch.Tensor) else None for one in given]
            facts["detail"]["samples"] = self._watch.local.iteration.samples
            facts["detail"] |= self.check.rounding(graph)
            graph.remarks += self.check.remarks(graph, self._batch_of(graph), facts["detail"])
            self._put_calls()
            if all(gradient is None or gradient.is_cpu for gradient in gradients):
                facts["gradient_norm"] = estimated_norm_of(gradients)
            if "weights" in facts["detail"]:
                facts["gradient_hash"] = float(
                    crc_of(checksums_of(gradients, map(str, range(len(gradients)))).values())
                )
            self._last_weights = _marks_of(graph.leaves) if facts.get("gradient_norm", 0.0) > 0 else ()
            self._is_small = sum(leaf.numel() for leaf in graph.leaves) <= _SMALL_MODEL
            if given is None and self._is_small:
                if roots := self.roots():  # not before the first step, which looks for the models
                    facts["detail"]["silent"] = silent_layers(graph.leaves, roots)
                still = self._still.note(graph.leaves, self._session.steps)
                facts["detail"] |= {"still": still} if still is not None else {}
            put_inspection(self._session, facts, graph.remarks)
            if given is None:
                self.hand.after_backward(graph.leaves)
            if self._is_small or "weights" in facts["detail"] or self._can_afford():
                self._spent_ns += int(self._watch.sampler.want_norm())
        if self._left <= 0:
            self._put_back()
        self._charge(start_ns, cpu_ns)

    def _batch_of(self, graph: LossGraph) -> int:
        """How many samples the batch has: what the loader was told, or one label each; 0 if neither says."""
        labels, inputs = graph.labels, graph.inputs
        size = self._pass_facts.get("batch_size")
        if isinstance(size, int):
            return size
        is_each = labels is not None and labels.dim() == 1 and inputs is not None and len(labels) == len(inputs)
        return len(labels) if is_each and labels is not None else 0

    def _put_calls(self) -> None:
        """Rows for what was odd about calls of torch's functions."""
        for one in self.check.calls.take():
            put_inspection(self._session, {"phase": "call", "detail": one}, [])

    def _gradient_facts(self, graph: LossGraph, tensors: Any) -> Facts:
        """What these gradients are to be divided by, and whether they are added to those of an earlier backward."""
        iteration = self._watch.local.iteration
        facts: Facts = {}
        reference, raw = iteration.scaled.get(id(tensors), (None, None))
        scaled = reference() if reference is not None else None
        if scaled is not None and scaled is tensors and isinstance(raw, float) and raw:
            facts["scale"] = scaled.item() / raw
        if not iteration.has_stepped and self._last_weights == _marks_of(graph.leaves):
            has_some = any(leaf.grad is not None and bool(leaf.grad.any()) for leaf in graph.leaves if leaf.is_cpu)
            facts["accumulates"] = has_some or not all(leaf.is_cpu for leaf in graph.leaves)
        return facts

    def evaluating(self) -> None:
        """The model is about to run without gradients: once per evaluation, note the mode of the modules."""
        is_new = self._evaluated_at != self._session.steps
        if not is_new or self._evaluations >= _MOST_EVALUATIONS or not self._session.steps:
            return
        self._evaluated_at = self._session.steps
        self._evaluations += 1
        if self._evaluations <= _FIRST_EVALUATIONS and self.is_evaluated():
            self._arm(1)
        roots = self.roots()
        detail = {"functional_dropouts": self.evaluations.functional_dropouts, **self.check.data.facts}
        put_inspection(self._session, {"phase": "evaluation", **mode_facts(roots), "detail": detail}, [])

    def is_trained(self, module: torch.nn.Module) -> bool:
        """Whether a module is part of what is trained; a teacher or an average of weights is not."""
        return any(module is part for root in self.roots() for part in root.modules())

    def is_evaluated(self) -> bool:
        """Whether all that is trained is in evaluation mode."""
        roots = self.roots()
        return bool(roots) and not any(unwrapped(root).training for root in roots)

    def holds_trained(self, module: torch.nn.Module) -> bool:
        """Whether a model has parameters that an optimizer updates."""
        trained = set(map(id, self._parameters()))
        return any(id(parameter) in trained for parameter in module.parameters())

    def roots(self) -> list[torch.nn.Module]:
        """The models that optimizers update; the last of them where all optimizers are gone."""
        found = [root for watched in self._watch.optimizers.seen() if (root := _root_of(watched.named)) is not None]
        if found:
            self._last_roots = [weakref.ref(root) for root in found]
            return found
        return [root for reference in self._last_roots if (root := reference()) is not None]

    def last_root(self) -> torch.nn.Module | None:
        """The model of the optimizer that came last."""
        return next(reversed(self.roots()), None)

    def explain(self, tensors: Any, value: float) -> None:
        """A loss is not finite: note where that began. Of the first few alone, as all that follow have it from them."""
        can_wait = self._session.settings.explain_nan
        if self._explained >= _MOST_EXPLAINED or not isinstance(tensors, torch.Tensor):
            return
        if not tensors.is_cpu and not can_wait:
            return
        self._explained += 1
        with torch.no_grad(), _disable_current_modes():
            origin = find_origin(tensors, value, self._owners())
        put_inspection(self._session, {"phase": "not finite", "detail": origin}, [])

    def explain_weights(self) -> None:
        """The loss of a backward that is over was not finite: note which weights had been broken before it.

        On a GPU that keeps up with the host this is known before the optimizer's step spreads it; the reading waits.
        """
        if self._explained >= _MOST_EXPLAINED:
            return
        self._explained += 1
        with torch.no_grad(), _disable_current_modes():
            origin = find_broken_weights(self._parameters(), self._owners())
        if origin is not None:
            put_inspection(self._session, {"phase": "not finite", "detail": origin}, [])

    def _parameters(self) -> list[torch.Tensor]:
        return [parameter for watched in self._watch.optimizers.seen() for parameter in watched.params]

    def _owners(self) -> dict[int, Owner]:
        owners: dict[int, Owner] = {}
        for watched in self._watch.optimizers.seen():
            optimizer = watched.optimizer()
            state = optimizer.state if optimizer is not None else {}
            for parameter, layer in zip(watched.params, watched.named.layers, strict=False):
                owners[id(parameter)] = Owner(layer, dict(state.get(parameter) or {}))
        return owners

    def _charge(self, start_ns: int, cpu_ns: int) -> None:
        """What an inspection took is our cost, not the forward pass's; the budget goes by CPU time."""
        took_ns = monotonic_ns() - start_ns
        self._spent_ns += thread_time_ns() - cpu_ns
        self._watch.layers.spent_ns += int(self._watch.lead.lost_ns(took_ns))
        iteration = self._watch.local.iteration
        if iteration.mark_ns:
            iteration.mark_ns += took_ns


def _root_of(named: Any) -> torch.nn.Module | None:
    return named.root() if named.root is not None else None


def _marks_of(leaves: list[torch.Tensor]) -> tuple[Any, ...]:
    """Tells weights from others, and from themselves once they have moved, as between the two passes of a SAM step."""
    known = sorted((id(leaf), leaf._version) for leaf in leaves)
    firsts = [leaf.detach()[(0,) * leaf.dim()].item() for leaf in leaves[:_PROBES] if leaf.is_cpu and leaf.numel()]
    return known, firsts


def _random_hash(device: torch.device) -> float:
    """Of the random states that a training on a device draws from; NULL where that cannot be read without waiting."""
    states = torch.get_rng_state().numpy().tobytes()
    if device.type == "cuda" and not torch.cuda.is_current_stream_capturing():
        states += torch.cuda.default_generators[device.index].get_state().numpy().tobytes()  # seed and offset: no copy
    elif device.type != "cpu":
        return NULL_F64
    return float(zlib.crc32(states))
