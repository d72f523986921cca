"""Looks at the arguments of torch's functions that a program calls: losses, clipping, and loading of weights.

Only the first calls are looked at; after them a function has its own code again, so that they cost nothing.

What was seen is kept until the next inspected backward, and written with it. Arguments are read in CPU memory only, and
never changed.
"""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Callable, Iterator
from types import FunctionType
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.nn import functional
from torch.nn.utils import clip_grad

from stethos.observe.batch_print import class_counts, is_readable, numbers_of
from stethos.observe.checkpoint_check import CheckpointCheck
from stethos.observe.function_code import look_at_calls

if TYPE_CHECKING:
    from stethos.observe.step_recorder import StepRecorder

Remark = tuple[str, str]
Check = Callable[[dict[str, Any]], Iterator[Remark]]

_MOST_CALLS = 48  # of each function
_MOST_KINDS = 32
_MOST_ELEMENTS = 65_536
_MOST_TENSORS = 8
_MASKED = 1e3  # below the largest output
_LEAST_PAIRS = 8
_MOST_LOST = 0.5  # of a batch, where losses that are infinite are left out on purpose


class CallCheck:
    """Looks at calls of torch's functions; `take` gives what was odd about them, by kind, and how often it came."""

    def __init__(self, watch: StepRecorder) -> None:
        self._watch = watch
        self.checkpoints = CheckpointCheck(watch)
        self.graphless_at = -1  # the step before which gradients of data were asked for, without a graph
        self._undo: dict[int, Callable[[], object]] = {}  # by the function
        self._calls: Counter[str] = Counter()
        self._odd: Counter[str] = Counter()
        self._seen: dict[str, str] = {}
        self._at: dict[str, int] = {}  # the number of steps before it was seen last
        self._is_new = False
        self._seeded: tuple[object, int] = (None, -1)  # the last seed, and the steps made before

    def install(self) -> None:
        for name, check in _CHECKS.items():
            self._watch_calls(functional, name, check)
        for owner in (clip_grad, torch.nn.utils):
            self._watch_calls(owner, "clip_grad_norm_", self._on_clipping)
            self._watch_calls(owner, "clip_grad_value_", self._on_clipping)
        self._watch_calls(torch.nn.Module, "load_state_dict", self._on_loading, _MOST_CALLS * _MOST_CALLS)
        self._watch_calls(torch, "load", self._on_checkpoint)
        self._watch_calls(torch.autograd, "grad", self._on_gradients)
        self._watch_calls(torch.optim.Optimizer, "load_state_dict", self._on_resuming)
        self._watch_calls(torch.random, "manual_seed", self._on_seed)

    def uninstall(self) -> None:
        """Give torch's functions their own code back."""
        for undo in list(self._undo.values()):
            undo()
        self._undo.clear()

    def take(self) -> list[dict[str, Any]]:
        """What is odd so far, if something has come since this was asked last."""
        for remark in self.checkpoints.remarks():
            self.note("torch.load", iter([remark]))
        if not self._is_new:
            return []
        self._is_new = False
        return [
            {
                "kind": kind, "seen": self._seen[kind], "times": self._odd[kind], "calls": self._calls[key],
                "at": self._at[kind],
            }
            for kind, key in ((kind, kind.partition(" ")[0]) for kind in self._odd)
        ]  # fmt: skip

    def note(self, name: str, remarks: Iterator[Remark]) -> None:
        """Remarks on one call of a function."""
        self._calls[name] += 1
        for kind, text in remarks:
            key = f"{name} {kind}"
            if key in self._seen or len(self._seen) < _MOST_KINDS:
                self._odd[key] += 1
                self._seen.setdefault(key, text)
                self._at[key] = self._watch.session.steps
                self._is_new = True

    def _watch_calls(self, owner: Any, name: str, check: Check, most: int = _MOST_CALLS) -> None:
        function = getattr(owner, name)
        if not isinstance(function, FunctionType) or id(function) in self._undo:  # torch has some under two names
            return
        parameters = inspect.signature(function)
        run, left = self._watch.session.guard.run, [most]

        @np.errstate(all="ignore")  # a warning of ours would be taken for one of the program's
        def note(result: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            bound = parameters.bind_partial(*args, **kwargs)
            bound.apply_defaults()
            self.note(name, check({**bound.arguments, "result": result}))

        def look(result: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            if self._watch.is_active:
                left[0] -= 1
                run("calls", note, result, args, kwargs)
                if left[0] <= 0:
                    self._undo.pop(id(function), restore)()

        restore = self._undo[id(function)] = look_at_calls(function, look)

    def _on_clipping(self, call: dict[str, Any]) -> Iterator[Remark]:
        """Clipping has to lie between backward and step, and to find gradients."""
        iteration = self._watch.local.iteration
        if iteration.has_stepped and self._watch.session.steps and not iteration.depth:
            yield "clipped-after-step", "gradients are clipped when no backward has come since the last step"
        result = call["result"]
        has_backward = not iteration.has_stepped
        if has_backward and isinstance(result, torch.Tensor) and is_readable(result) and float(result) == 0:
            yield "clipped-nothing", "the norm of the gradients that are clipped is 0"

    def _on_gradients(self, call: dict[str, Any]) -> Iterator[Remark]:
        """Gradients of data that cannot be differentiated again."""
        inputs = call["inputs"]
        first = next(iter(inputs), None) if isinstance(inputs, list | tuple) else inputs
        if isinstance(first, torch.Tensor) and not isinstance(first, torch.nn.Parameter) and not call["create_graph"]:
            self.graphless_at = self._watch.session.steps
        return iter(())

    def _on_seed(self, call: dict[str, Any]) -> Iterator[Remark]:
        """Random numbers that begin anew at each step."""
        steps, (seed, before) = self._watch.session.steps, self._seeded
        is_again = seed == call["seed"] and steps == before + 1
        self._seeded = call["seed"], steps
        if is_again:
            yield "seeded-each-step", f"`manual_seed({call['seed']})` at step {steps}, as at the step before"

    def _on_checkpoint(self, call: dict[str, Any]) -> Iterator[Remark]:
        self.checkpoints.checkpoint_loaded(call["result"])
        return iter(())

    def _on_resuming(self, call: dict[str, Any]) -> Iterator[Remark]:
        self.checkpoints.optimizer_loaded()
        return iter(())

    def _on_loading(self, call: dict[str, Any]) -> Iterator[Remark]:
        self.checkpoints.weights_loaded()
        module, state, keys = call["self"], call["state_dict"], call["result"]
        own = dict(module.named_parameters())
        pairs = [(own[name], one) for name, one in state.items() if name in own][:_MOST_TENSORS]
        if pairs and self._watch.session.steps and all(a.data_ptr() == b.data_ptr() for a, b in pairs):
            yield "loads-itself", "`load_state_dict` is given the module's own weights: nothing changes"
        elif pairs and self._watch.session.steps and self._watch.inspector.is_trained(module):
            yield "weights-restored", "weights that were kept are loaded into the model that was trained"
        missing = set(keys.missing_keys) & set(own)
        if own and len(missing) > 0.5 * len(own) and keys.unexpected_keys:
            given = next(iter(keys.unexpected_keys))
            yield (
                "nothing-loaded",
                f"`load_state_dict(strict=False)` finds {len(own) - len(missing)} of {len(own)} parameters: it is "
                f"given {given!r} where the model has {next(iter(own))!r}",
            )


def _small(tensor: Any) -> bool:
    return isinstance(tensor, torch.Tensor) and is_readable(tensor) and 0 < tensor.numel() <= _MOST_ELEMENTS


def _on_signs(call: dict[str, Any]) -> Iterator[Remark]:
    """Losses that tell pairs apart by the sign of their label."""
    target = call.get("target")
    if _small(target) and isinstance(target, torch.Tensor):
        zero = float((numbers_of(target) == 0).mean())
        if zero > 0:
            yield "targets-not-signs", f"{zero:.0%} of the targets are 0 where the loss expects 1 or -1"


def _on_order(call: dict[str, Any]) -> Iterator[Remark]:
    """Outputs and targets the other way round: only the targets have a history."""
    first, second = call.get("input"), call.get("target")
    if not isinstance(first, torch.Tensor) or not isinstance(second, torch.Tensor):
        return
    if second.requires_grad and not first.requires_grad:
        yield "swapped-arguments", "the first argument has no gradient and the second one has"


def _on_divergence(call: dict[str, Any]) -> Iterator[Remark]:
    target, given = call.get("target"), call.get("input")
    yield from _on_order(call)
    if isinstance(given, torch.Tensor) and _small(given) and given.dim() > 1:
        shares = numbers_of(given)
        if bool((shares >= 0).all()) and float(np.median(np.abs(shares.sum(-1) - 1))) < 0.01:
            yield "no-log-probabilities", "`kl_div` is given probabilities where it expects their logarithms"
    if _small(target) and isinstance(target, torch.Tensor) and not call.get("log_target"):
        values = numbers_of(target)
        if float((values < 0).mean()) > 0.5:
            yield "targets-not-shares", "`kl_div` is given logarithms as targets, without `log_target=True`"
        elif values.ndim == 2 and float(np.median(np.abs(values.sum(-1) - 1))) > 0.05:
            yield "targets-not-shares", "`kl_div` is given targets that do not add up to 1"


def _on_classes(call: dict[str, Any]) -> Iterator[Remark]:
    target, weight = call.get("target"), call.get("weight")
    if not isinstance(target, torch.Tensor) or not _small(target):
        return
    yield from _on_similarities(call.get("input"), target)
    if target.is_floating_point():
        yield from _on_order(call)
        sums = numbers_of(target).sum(1) if target.dim() == 2 else np.ones(1)
        if float(np.mean(np.abs(sums - 1) > 0.05)) > 0.3:
            yield "targets-not-shares", "`cross_entropy` is given targets that do not add up to 1 for each sample"
    elif isinstance(weight, torch.Tensor) and _small(weight):
        counts = class_counts(target)
        if counts is not None and len(counts) <= len(weight):
            yield from _on_weights(np.array(counts + [0] * (len(weight) - len(counts))), numbers_of(weight))


def _on_similarities(outputs: Any, labels: torch.Tensor) -> Iterator[Remark]:
    """Answers that are masked; and of a table of samples by samples, what the right one is compared with."""
    if not isinstance(outputs, torch.Tensor) or not _small(outputs) or labels.is_floating_point():
        return
    if outputs.dim() != 2 or labels.dim() != 1 or len(labels) != len(outputs) or len(labels) < _LEAST_PAIRS:
        return
    table, wanted = numbers_of(outputs).astype(np.float64), numbers_of(labels)
    if not bool(((wanted >= 0) & (wanted < table.shape[1])).all()):
        return
    rows = np.arange(len(table))
    right, best = table[rows, wanted], table.max(1)
    masked = right[right < best - _MASKED]
    if len(masked) > len(right) / 2 and len(set(masked.tolist())) == 1:  # a mask writes one number, a model does not
        yield "masked-answers", f"{len(masked)} of {len(right)} have outputs of {masked[0]:.3g}"
        return
    size = float(np.abs(best).mean())
    if table.shape[0] != table.shape[1] or not size > 0 or len(set(wanted.tolist())) < len(wanted):
        return
    own = np.diagonal(table)
    is_alike = float(np.ptp(own)) < 1e-4 * size and bool((own >= best - 1e-4 * size).all())
    if is_alike and not bool((wanted == rows).any()):
        yield (
            "similarity-to-itself",
            f"the diagonal of a table of {table.shape} is {own.mean():.4g}, its largest number",
        )
    others = table[table != right.max()]
    spread = float(np.std(others)) if len(others) else 0.0
    if float(np.ptp(right)) < 1e-4 * size and bool((right >= best - 1e-4 * size).all()) and spread > 1e-2 * size:
        yield "identical-pairs", f"all {len(right)} right answers have the same output, {right.mean():.4g}"


def _on_triplets(call: dict[str, Any]) -> Iterator[Remark]:
    """An anchor and what is to be near it."""
    anchor, positive, negative = call.get("anchor"), call.get("positive"), call.get("negative")
    if all(isinstance(one, torch.Tensor) and _small(one) and one.dim() > 1 for one in (anchor, positive, negative)):
        first, second, third = (numbers_of(one) for one in (anchor, positive, negative))  # type: ignore[arg-type]
        if first.shape == second.shape == third.shape and len(first) >= _LEAST_PAIRS:
            share = float(np.isclose(first, second, rtol=1e-4, atol=1e-6).all(-1).mean())
            if share > 0.5 and not bool(np.isclose(first, third, rtol=1e-4, atol=1e-6).all()):
                yield "identical-pairs", f"{share:.0%} of the positives are the anchors themselves"


def _on_weights(counts: np.ndarray[Any, Any], weights: np.ndarray[Any, Any]) -> Iterator[Remark]:
    """Weights are there for rare classes; those that grow with the number of samples make rare classes rarer."""
    seen = weights > 0
    counts, weights = counts[seen].astype(np.float64), weights[seen].astype(np.float64)
    if len(counts) < 2 or counts.max() < 3 * max(counts.min(), 1) or weights.max() < 1.5 * weights.min():
        return
    order = np.corrcoef(np.argsort(np.argsort(counts)), np.argsort(np.argsort(weights)))[0, 1]
    if order > 0.5 and float(weights[counts.argmax()]) > float(weights[counts.argmin()]):
        text = f"the commonest class weighs {weights[counts.argmax()]:.3g}, the rarest {weights[counts.argmin()]:.3g}"
        yield "weights-favour-frequent", text


def _on_binary(call: dict[str, Any]) -> Iterator[Remark]:
    yield from _on_order(call)
    target, factor = call.get("target"), call.get("pos_weight")
    if isinstance(target, torch.Tensor) and _small(target) and isinstance(factor, torch.Tensor) and _small(factor):
        share = float(numbers_of(target).mean())
        if factor.numel() == 1 and share < 0.3 and float(factor) < 0.7:
            text = f"{share:.0%} of the targets are 1, and `pos_weight` is {float(factor):.3g}"
            yield "weights-favour-frequent", text


def _on_alignment(call: dict[str, Any]) -> Iterator[Remark]:
    """CTC needs a step for each letter, shares of letters, and a blank that is no letter."""
    steps, letters = call.get("input_lengths"), call.get("target_lengths")
    given = [
        np.atleast_1d(numbers_of(one) if isinstance(one, torch.Tensor) else one)
        for one in (steps, letters)
        if one is not None and (not isinstance(one, torch.Tensor) or is_readable(one))
    ]
    if len(given) == 2 and given[0].size and given[1].size:
        share = float((given[1] > given[0]).mean())
        if share > (_MOST_LOST if call.get("zero_infinity") else 0):
            left_out = "left out" if call.get("zero_infinity") else "infinite"
            yield (
                "targets-too-long",
                f"{share:.0%} of a batch have more letters than steps, so their loss is {left_out}",
            )
    scores, targets = call.get("log_probs"), call.get("targets")
    if isinstance(scores, torch.Tensor) and is_readable(scores) and scores.dim() > 1 and scores.numel():
        sums = np.exp(numbers_of(scores[:1]).astype(np.float64)).sum(-1)
        if float((np.abs(sums - 1) > 0.05).mean()) > 0.5:
            yield "no-log-probabilities", "`ctc_loss` is given values that are not log-probabilities"
    blank = call.get("blank")
    if isinstance(targets, torch.Tensor) and _small(targets) and isinstance(blank, int) and targets.dim() == 1:
        share = float((numbers_of(targets) == blank).mean())
        if share > 0:
            yield "blank-in-targets", f"{share:.0%} of the letters are the blank, number {blank}"


_CHECKS: dict[str, Check] = {
    "cosine_embedding_loss": _on_signs, "margin_ranking_loss": _on_signs, "soft_margin_loss": _on_signs,
    "hinge_embedding_loss": _on_signs, "kl_div": _on_divergence, "cross_entropy": _on_classes,
    "nll_loss": _on_classes, "binary_cross_entropy": _on_binary, "binary_cross_entropy_with_logits": _on_binary,
    "ctc_loss": _on_alignment, "triplet_margin_loss": _on_triplets,
}  # fmt: skip
