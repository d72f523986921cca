"""Looks at the arguments of torch's functions that a program calls: losses, clipping, and loading of weights.

Only the first calls are looked at; after them the wrapper passes on. It stays in its place until the end, as a program
that keeps a loss function pickles it by its name, and pickle asks whether what has that name is still the same.

What was seen is kept until the next inspected backward, and written with it. Arguments are read in CPU memory only, and
never changed.
"""

from __future__ import annotations

import functools
import inspect
from collections import Counter
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.nn import functional
from torch.nn.utils import clip_grad

from stethos.observe.batch_print import class_counts, is_readable, numbers_of

if TYPE_CHECKING:
    from stethos.observe.step_recorder import StepRecorder

Remark = tuple[str, str]
Check = Callable[[dict[str, Any]], Iterator[Remark]]

_MOST_CALLS = 48  # of each function
_MOST_KINDS = 32
_MOST_ELEMENTS = 65_536
_MOST_TENSORS = 8


class CallCheck:
    """Wraps functions of torch's; `take` gives what was odd about their calls, by kind, and how often they came."""

    def __init__(self, watch: StepRecorder) -> None:
        self._watch = watch
        self._undo: dict[str, Callable[[], object]] = {}
        self._calls: Counter[str] = Counter()
        self._odd: Counter[str] = Counter()
        self._seen: dict[str, str] = {}
        self._is_new = False

    def install(self) -> None:
        for name, check in _CHECKS.items():
            self._wrap(functional, name, check)
        for name in ("clip_grad_norm_", "clip_grad_value_"):
            self._wrap(clip_grad, name, self._on_clipping)
            self._wrap(torch.nn.utils, name, self._on_clipping)
        self._wrap(torch.nn.Module, "load_state_dict", self._on_loading, _MOST_CALLS * _MOST_CALLS)

    def uninstall(self) -> None:
        """Give torch its own functions back; if somebody has wrapped ours meanwhile it stays inside and passes on."""
        for undo in list(self._undo.values()):
            undo()

    def take(self) -> list[dict[str, Any]]:
        """What is odd so far, if something has come since this was asked last."""
        if not self._is_new:
            return []
        self._is_new = False
        return [
            {"kind": kind, "seen": self._seen[kind], "times": self._odd[kind], "calls": self._calls[key]}
            for kind, key in ((kind, kind.partition(" ")[0]) for kind in self._odd)
        ]

    def note(self, name: str, remarks: Iterator[Remark]) -> None:
        """Remarks on one call of a function."""
        self._calls[name] += 1
        for kind, text in remarks:
            key = f"{name} {kind}"
            if key in self._seen or len(self._seen) < _MOST_KINDS:
                self._odd[key] += 1
                self._seen.setdefault(key, text)
                self._is_new = True

    def _wrap(self, owner: Any, name: str, check: Check, most: int = _MOST_CALLS) -> None:
        original = getattr(owner, name)
        parameters = inspect.signature(original)
        run, left = self._watch.session.guard.run, [most]

        def look(result: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            left[0] -= 1
            bound = parameters.bind_partial(*args, **kwargs)
            bound.apply_defaults()
            self.note(name, check({**bound.arguments, "result": result}))

        @functools.wraps(original)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            result = original(*args, **kwargs)
            if left[0] > 0 and self._watch.is_active and not torch.compiler.is_compiling():
                run("calls", look, result, args, kwargs)
            return result

        def restore() -> None:
            self._undo.pop(f"{id(owner)} {name}", None)
            if getattr(owner, name) is wrapper:
                setattr(owner, name, original)

        setattr(owner, name, wrapper)
        self._undo[f"{id(owner)} {name}"] = restore

    def _on_clipping(self, call: dict[str, Any]) -> Iterator[Remark]:
        """Clipping has to lie between backward and step, and to find gradients."""
        iteration = self._watch.local.iteration
        if iteration.has_stepped and self._watch.session.steps and not iteration.depth:
            yield "clipped-after-step", "gradients are clipped when no backward has come since the last step"
        result = call["result"]
        has_backward = not iteration.has_stepped
        if has_backward and isinstance(result, torch.Tensor) and is_readable(result) and float(result) == 0:
            yield "clipped-nothing", "the norm of the gradients that are clipped is 0"

    def _on_loading(self, call: dict[str, Any]) -> Iterator[Remark]:
        module, state, keys = call["self"], call["state_dict"], call["result"]
        own = dict(module.named_parameters())
        pairs = [(own[name], one) for name, one in state.items() if name in own][:_MOST_TENSORS]
        if pairs and self._watch.session.steps and all(a.data_ptr() == b.data_ptr() for a, b in pairs):
            yield "loads-itself", "`load_state_dict` is given the module's own weights: nothing changes"
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
    target = call.get("target")
    yield from _on_order(call)
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
    if target.is_floating_point():
        yield from _on_order(call)
        sums = numbers_of(target).sum(1) if target.dim() == 2 else np.ones(1)
        if float(np.mean(np.abs(sums - 1) > 0.05)) > 0.3:
            yield "targets-not-shares", "`cross_entropy` is given targets that do not add up to 1 for each sample"
    elif isinstance(weight, torch.Tensor) and _small(weight):
        counts = class_counts(target)
        if counts is not None and len(counts) <= len(weight):
            yield from _on_weights(np.array(counts + [0] * (len(weight) - len(counts))), numbers_of(weight))


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
    """CTC needs a step for each letter."""
    steps, letters = call.get("input_lengths"), call.get("target_lengths")
    given = [
        np.atleast_1d(numbers_of(one)) if isinstance(one, torch.Tensor) and is_readable(one) else np.atleast_1d(one)
        for one in (steps, letters)
        if one is not None
    ]
    if len(given) == 2 and bool((given[1] > given[0]).any()) and not call.get("zero_infinity"):
        count = int((given[1] > given[0]).sum())
        yield "targets-too-long", f"{count} samples of a batch have more letters than steps, so their loss is infinite"


_CHECKS: dict[str, Check] = {
    "cosine_embedding_loss": _on_signs, "margin_ranking_loss": _on_signs, "soft_margin_loss": _on_signs,
    "hinge_embedding_loss": _on_signs, "kl_div": _on_divergence, "cross_entropy": _on_classes,
    "nll_loss": _on_classes, "binary_cross_entropy": _on_binary, "binary_cross_entropy_with_logits": _on_binary,
    "ctc_loss": _on_alignment,
}  # fmt: skip
