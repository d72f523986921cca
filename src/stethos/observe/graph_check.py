"""Looks in a loss's graph for operations that mix up samples, stop gradients, or make a network less than it seems.

Only shapes and names are read, and single numbers that a node has saved; nothing of the graph is kept but leaves.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import torch

from stethos.observe.attention_check import AttentionCheck
from stethos.observe.autograd_graph import is_packed, name_of, nodes_of, saved, shape_of
from stethos.observe.batch_print import is_readable
from stethos.observe.divergences import Divergences
from stethos.observe.policy_sign import PICKS

Remark = tuple[str, str]

_VIEWS = ("ViewBackward", "UnsafeViewBackward", "ReshapeAliasBackward")
_STEPS = ("RoundBackward", "FloorBackward", "CeilBackward", "TruncBackward", "SignBackward")
_SOFTMAXES = ("SoftmaxBackward", "SafeSoftmaxBackward", "LogSoftmaxBackward")
_WEIGHTED = ("AddmmBackward", "MmBackward", "BmmBackward", "ConvolutionBackward", "LinearBackward")
_SQUARES = ("MseLossBackward", "SmoothL1LossBackward", "HuberLossBackward", "L1LossBackward")
# What hands on sums and multiples of its inputs: a chain of these alone is one linear layer.
_LINEAR = frozenset((
    *_VIEWS, *_WEIGHTED, "TBackward", "TransposeBackward", "PermuteBackward", "SqueezeBackward", "UnsqueezeBackward",
    "SliceBackward", "SelectBackward", "AddBackward", "SubBackward", "MeanBackward", "SumBackward", "CloneBackward",
    "ToCopyBackward", "ExpandBackward", "CatBackward", "StackBackward", "AliasBackward", "AvgPoolBackward",
    "torch::autograd::AccumulateGrad", "NegBackward", "RsubBackward",
))  # fmt: skip
_CONSTANT_FACTOR = ("MulBackward", "DivBackward")
_ARITHMETIC = ("AddBackward", "SubBackward", "RsubBackward", "MulBackward", "NegBackward", "SumBackward",
               "MeanBackward", "DivBackward", *_VIEWS, "SqueezeBackward", "UnsqueezeBackward", "SelectBackward",
               "SliceBackward", "IndexBackward", "ToCopyBackward", "CloneBackward", "TransposeBackward",
               "PermuteBackward", "GatherBackward")  # fmt: skip
_PICKS = ("MaxBackward", "AmaxBackward", "GatherBackward")
# A derivative that is infinite or NaN at some number, though the value is not.
_HAZARDS = {
    "SqrtBackward": "sqrt", "LinalgVectorNormBackward": "norm", "NormBackward": "norm", "StdBackward": "std",
    "AcosBackward": "acos", "AsinBackward": "asin", "CdistBackward": "cdist", "RsqrtBackward": "rsqrt",
    "LogBackward": "log", "PowBackward": "pow", "LogitBackward": "logit", "AtanhBackward": "atanh",
}  # fmt: skip
_NEAR_LOSS = 12
_FEW = 3  # samples, whose mean and deviation tell little more than which one is larger
_NEAR = 3  # operations from the tensor given to backward
_MOST_BEHIND = 400
_CONVOLUTION = "ConvolutionBackward"
_MOST_STOPS = 4
_MOST_CLAMPED, _MOST_OUTSIDE = 1 << 16, 0.9


@dataclass(slots=True)
class GraphCheck:
    """Takes the nodes of a graph one by one; `remarks_of` then says what is odd, given the size of the batch."""

    found: list[Remark] = field(default_factory=list)
    hazards: set[str] = field(default_factory=set)
    stops: list[tuple[str, list[torch.Tensor]]] = field(default_factory=list)  # what is behind an operation, by kind
    _views: set[tuple[tuple[int, ...], tuple[int, ...]]] = field(default_factory=set)
    _batch_norms: set[tuple[int, ...]] = field(default_factory=set)
    _layer_norms: set[tuple[tuple[int, ...], int]] = field(default_factory=set)
    _softmaxes: set[tuple[tuple[int, ...], int]] = field(default_factory=set)
    attention: AttentionCheck = field(default_factory=AttentionCheck)
    last_steps: set[tuple[int, int]] = field(default_factory=set)  # samples and lengths of which the last step is used
    pooled: set[tuple[int, ...]] = field(default_factory=set)  # shapes whose first dimension is averaged, in the model
    sides: list[tuple[set[int], set[int]]] = field(default_factory=list)  # ids of leaves behind a loss's two arguments
    divergences: Divergences = field(default_factory=Divergences)
    masks: list[torch.Tensor] = field(default_factory=list)  # that losses of single places are multiplied or picked by
    is_policy: bool = False  # whether chosen log-probabilities are weighed by numbers of either sign
    adds_constant: bool = False  # whether a term of the loss has no gradient
    has_choice: bool = False  # whether single entries of a table are picked, as those of actions are
    is_scaled: bool = False  # whether the loss is divided, or multiplied, by a number at last
    _layers: int = 0
    _is_linear: bool = True

    def note(self, node: Any, name: str, depth: int) -> None:
        """One node, the nearest to the loss first."""
        look = _LOOKS.get(name)
        if look is not None:
            look(self, node, name, depth)
        if depth == 0:
            self.is_scaled = name in _CONSTANT_FACTOR and _has_constant_factor(node)
        self.has_choice = self.has_choice or name in (*PICKS, "NllLossBackward")
        if depth <= _NEAR and name == "AddBackward" and any(edge[0] is None for edge in node.next_functions):
            self.adds_constant = True
        if name in _HAZARDS:
            self.hazards.add(_HAZARDS[name])
        if self._is_linear and name not in _LINEAR and not _is_loss(name, depth):
            self._is_linear = name in _CONSTANT_FACTOR and _has_constant_factor(node)

    def _note_view(self, node: Any, name: str, depth: int) -> None:
        sizes = getattr(node, "_saved_self_sym_sizes", None)
        if sizes is not None and len(sizes) > 2:
            self._views.add((tuple(int(size) for size in sizes), shape_of(node)))

    def _note_layer(self, node: Any, name: str, depth: int) -> None:
        self._layers += 1
        if name == "BmmBackward":
            self.attention.note_product(node)
        edges = node.next_functions
        if name == "AddmmBackward" and len(edges) > 1 and (shape := _averaged(edges[1][0])):
            self.pooled.add(shape)

    def _note_pick(self, node: Any, name: str, depth: int) -> None:
        """The last step of what a recurrent layer gives."""
        sizes, before = getattr(node, "_saved_self_sym_sizes", ()), node.next_functions[0][0]
        if name == "SliceBackward" or len(sizes) != 3 or before is None:
            return
        dim, place = (int(one) - (int(one) >> 63 << 64) for one in (node._saved_dim, node._saved_index))
        behind = before.next_functions[0][0] if name_of(before) == "TransposeBackward" else before
        is_recurrent = behind is not None and name_of(behind) in (
            "StackBackward",
            "MkldnnRnnLayerBackward",
            "CatBackward",
        )
        if is_recurrent and dim in (0, 1) and place % sizes[dim] == sizes[dim] - 1:
            self.last_steps.add((int(sizes[1 - dim]), int(sizes[dim])))

    def _note_sum(self, node: Any, name: str, depth: int) -> None:
        self.attention.note_sum(node)

    def _note_layer_norm(self, node: Any, name: str, depth: int) -> None:
        self._layer_norms.add((shape_of(node), len(tuple(getattr(node, "_saved_normalized_shape", ())))))

    def _note_norm(self, node: Any, name: str, depth: int) -> None:
        if getattr(node, "_saved_training", False):
            self._batch_norms.add(shape_of(node))

    def _note_clamp(self, node: Any, name: str, depth: int) -> None:
        """What lies outside of the bounds gets no gradient."""
        if depth > _NEAR_LOSS:
            return
        values = saved(node, "self")
        if values is None or not is_readable(values) or not 8 <= values.numel() <= _MOST_CLAMPED:
            return
        low, high = getattr(node, "_saved_min", None), getattr(node, "_saved_max", None)
        if not isinstance(low, int | float) or not isinstance(high, int | float):  # one bound makes a hinge
            return
        share = float(((values.detach() < low) | (values.detach() > high)).double().mean())
        if share > _MOST_OUTSIDE:
            self.found.append(("clamped-outputs", f"{share:.0%} of {values.numel()} numbers lie outside of the bounds"))

    def _note_picked(self, node: Any, name: str, depth: int) -> None:
        indices = getattr(node, "_saved_indices", None) if depth <= _NEAR_LOSS else None
        for one in indices if isinstance(indices, list | tuple) else ():
            if isinstance(one, torch.Tensor) and one.dtype is torch.bool:
                self._keep_mask(one)

    def _keep_mask(self, mask: torch.Tensor) -> None:
        if mask.dim() > 1 and len(self.masks) < _MOST_STOPS and is_readable(mask):
            self.masks.append(mask.detach())

    def _note_factor(self, node: Any, name: str, depth: int) -> None:
        if depth > _NEAR_LOSS:
            return
        if sum(edge[0] is not None for edge in node.next_functions) == 1:
            for mask in [one for kept in ("self", "other") if (one := saved(node, kept)) is not None]:
                if not mask.requires_grad and mask.grad_fn is None:
                    self._keep_mask(mask)
        for kept in ("self", "other"):
            factor = saved(node, kept)
            if factor is not None and not factor.dim() and is_readable(factor) and not bool(factor.any()):
                self.found.append(("factor-of-zero", "a term of the loss is multiplied by 0"))
            if factor is not None and 1 < factor.numel() <= _MOST_CLAMPED and is_readable(factor):
                values = factor.detach()
                if not values.is_complex() and bool((values < 0).any()) and bool((values > 0).any()):
                    self.is_policy = self.is_policy or _has_choice(node)

    def _note_rounding(self, node: Any, name: str, depth: int) -> None:
        if len(self.stops) < _MOST_STOPS:
            leaves = [one for behind, _ in nodes_of(node, _MOST_BEHIND) if (one := _leaf(behind)) is not None]
            self.stops.append(("rounding", leaves))

    def _note_softmax(self, node: Any, name: str, depth: int) -> None:
        shape = shape_of(node)
        if not shape:
            return
        dim = int(node._saved_dim)
        dim = (dim - (dim >> 63 << 64)) % len(shape)
        is_word = len(shape) > 2 and shape[-2:] == (1, 1)  # attention over a sequence of one
        if name != "LogSoftmaxBackward" and shape[dim] == 1 and len(shape) > 1 and not is_word:
            self.found.append(("softmax-over-one", f"softmax over dimension {dim} of shape {shape} is always 1"))
        self._softmaxes.add((shape, dim))
        before = node.next_functions[0][0]
        if len(shape) > 3 and dim > 1 and shape[1] > 1 and before is not None and name_of(before) == _CONVOLUTION:
            self.found.append(("softmax-over-places", f"softmax over dimension {dim} of a map of shape {shape}"))
        if name != "LogSoftmaxBackward":
            self.attention.note_softmax(node, shape, dim)

    def _note_where(self, node: Any, name: str, depth: int) -> None:
        """The branch that is not chosen has a gradient, too: 0 times infinity is NaN."""
        for branch, _ in node.next_functions:
            for behind, depth in nodes_of(branch, 8) if branch is not None else ():
                if depth <= 2 and name_of(behind) in ("DivBackward", *_HAZARDS):
                    self.hazards.add("where")

    def are_apart(self, losses: int, trained: set[int]) -> bool:
        """Whether all these losses compare two models that share nothing, and both are trained.

        If what is a target here is an output there the equations may have no solution but the one that is looked for.
        """
        first, second = (set[int]().union(*each) for each in zip(*self.sides, strict=True)) if self.sides else ((), ())
        return (
            0 < losses == len(self.sides)
            and not set(first) & set(second)
            and all(left & trained and right & trained for left, right in self.sides)
        )

    def _note_divergence(self, node: Any, name: str, depth: int) -> None:
        if depth <= _NEAR_LOSS:
            self.divergences.note(node)

    def _note_targets(self, node: Any, name: str, depth: int) -> None:
        """A goal made of the model's own best answer: it has to be a constant."""
        if depth > _NEAR_LOSS:
            return
        edges = [edge[0] for edge in node.next_functions[:2]]
        if len(edges) < 2 or None in edges:
            return
        reached = [[*nodes_of(edge, _MOST_BEHIND)] for edge in edges]
        leaves = [{id(one) for behind, _ in nodes if (one := _leaf(behind)) is not None} for nodes in reached]
        if max(map(len, reached)) < _MOST_BEHIND:
            self.sides.append((leaves[0], leaves[1]))
        names = [name_of(behind) for behind, depth in reached[1] if depth <= 6]
        has_reward = any(
            name_of(behind) == "AddBackward" and any(edge[0] is None for edge in behind.next_functions)
            for behind, depth in reached[1]
            if depth <= 2
        )
        if leaves[0] & leaves[1] and has_reward and any(name in _PICKS for name in names):
            self.found.append(("gradient-through-target", "the target of the loss depends on the weights it trains"))

    def _note_ratio(self, node: Any, name: str, depth: int) -> None:
        """Sums over raw outputs, divided by one another: an overlap of sets needs shares from 0 to 1."""
        if depth > _NEAR_LOSS:
            return
        edges = [edge[0] for edge in node.next_functions[:2]]
        if len(edges) == 2 and None not in edges and all(_is_raw_sum(edge) for edge in edges):
            self.found.append(("raw-overlap", "sums over a layer's raw outputs are divided by one another"))

    def remarks_of(self, batch: int, is_complete: bool, *, is_stacked: bool = False) -> Iterator[Remark]:
        """What is odd about the graph of a batch of this size; 0: not known. `is_stacked`: samples come first in it."""
        yield from dict.fromkeys(self.found)
        for was, now in sorted(self._views):
            if _mixes_samples(was, now, batch):
                yield "samples-mixed", f"a tensor of shape {was} is viewed as {now}, which mixes up the {batch} samples"
            elif _mixes_axes(was, now):
                yield "axes-mixed", f"a tensor of shape {was} is viewed as {now}, where axes should be swapped"
        yield from self.attention.remarks(self._views)
        for shape in sorted(self.pooled):
            if is_stacked and shape[0] == batch > 1:
                yield (
                    "pooled-over-samples",
                    f"the mean of a tensor of shape {shape} over its first dimension, the batch",
                )
        for shape, dim in sorted(self._softmaxes):
            if len(shape) >= 3 and shape[-1] == shape[-2] > 1 and dim == len(shape) - 2:
                yield "softmax-over-queries", f"softmax over dimension {dim} of shape {shape}"
            elif dim == 0 and len(shape) >= 2 and shape[0] == batch > 1 and 1 < shape[1] != batch:
                yield "softmax-over-samples", f"softmax over dimension 0 of shape {shape}, which is the batch"
        for shape in sorted(self._batch_norms):
            if len(shape) == 2 and 1 < shape[0] <= _FEW and shape[0] == batch:
                yield "norm-over-few", f"batch statistics of {shape[0]} samples, shape {shape}"
            if batch == 1 == shape[0] and len(shape) > 2:  # a norm of instances has a 1 there, too
                yield "norm-over-one-sample", f"batch statistics of a single sample, shape {shape}"
        for shape, over in sorted(self._layer_norms):
            if len(shape) >= 2 and over == len(shape) and shape[0] == batch > 1:
                yield "norm-over-samples", f"a layer norm over all of {shape}, the samples among it"
        if is_complete and self._is_linear and self._layers >= 2:
            yield "linear-model", f"{self._layers} layers with weights follow one another, and nothing between them"


_LOOKS: dict[str, Callable[[GraphCheck, Any, str, int], None]] = {
    **dict.fromkeys(_VIEWS, GraphCheck._note_view),
    **dict.fromkeys(_WEIGHTED, GraphCheck._note_layer),
    **dict.fromkeys(_STEPS, GraphCheck._note_rounding),
    **dict.fromkeys(_SOFTMAXES, GraphCheck._note_softmax),
    **dict.fromkeys(_SQUARES, GraphCheck._note_targets),
    **dict.fromkeys(("ClampBackward", "HardtanhBackward"), GraphCheck._note_clamp),
    "WhereBackward": GraphCheck._note_where,
    "DivBackward": GraphCheck._note_ratio,
    "NativeBatchNormBackward": GraphCheck._note_norm,
    "NativeLayerNormBackward": GraphCheck._note_layer_norm,
    "MulBackward": GraphCheck._note_factor,
    "SubBackward": GraphCheck._note_divergence,
    "IndexBackward": GraphCheck._note_picked,
    "SumBackward": GraphCheck._note_sum,
    "SelectBackward": GraphCheck._note_pick,
}


def _has_choice(node: Any) -> bool:
    """Whether what is multiplied are single entries of a table, as the log-probabilities of actions are."""
    edges = [edge[0] for edge in node.next_functions if edge[0] is not None]
    if len(edges) != 1:
        return False
    return any(name_of(behind) == "GatherBackward" for behind, depth in nodes_of(edges[0], _MOST_BEHIND) if depth <= 6)


def _leaf(node: Any) -> torch.Tensor | None:
    variable = getattr(node, "variable", None)
    return variable if isinstance(variable, torch.Tensor) else None


def _is_loss(name: str, depth: int) -> bool:
    is_written_out = name in ("LogSoftmaxBackward", "PowBackward", "AbsBackward") and depth <= _NEAR
    return "Loss" in name or "CrossEntropy" in name or is_written_out


def _has_constant_factor(node: Any) -> bool:
    """Whether a product or quotient is by a single number, not by data."""
    if sum(edge[0] is not None for edge in node.next_functions) != 1:
        return False
    factors = [saved(node, name) for name in ("self", "other") if not is_packed(node, name)]
    return len(factors) == len(("self", "other")) and not any(one is not None and one.dim() for one in factors)


def _is_raw_sum(node: Any) -> bool:
    """Whether a sum lies between here and a layer with weights, and nothing but arithmetic."""
    waiting, has_sum = [(node, False)], False
    for count, (one, is_summed) in enumerate(waiting):  # grows while it is read
        name = name_of(one)
        if name in ("AddmmBackward", "ConvolutionBackward", "LinearBackward", "MmBackward"):
            has_sum = has_sum or is_summed
            continue
        if name not in _ARITHMETIC or count > 32:
            return False
        waiting += [(edge[0], is_summed or name == "SumBackward") for edge in one.next_functions if edge[0] is not None]
    return has_sum


def _averaged(node: Any) -> tuple[int, ...]:
    """The shape of what is averaged over its first dimension alone, between a layer and the one before; or nothing."""
    for _ in range(6):
        if node is None:
            return ()
        if name_of(node) == "MeanBackward" and (sizes := getattr(node, "_saved_self_sym_sizes", ())):
            dims = [int(dim) - (int(dim) >> 63 << 64) for dim in getattr(node, "_saved_dim", None) or ()]
            is_first = [dim % len(sizes) for dim in dims] == [0] and not node._saved_keepdim
            shape = tuple(int(size) for size in sizes)
            return shape if is_first and len(sizes) > 2 and _has_samples_first(node, shape) else ()
        parents = [edge[0] for edge in node.next_functions if edge[0] is not None]
        if len(parents) != 1 or name_of(node) not in _ARITHMETIC:
            return ()
        node = parents[0]
    return ()


def _has_samples_first(node: Any, shape: tuple[int, ...]) -> bool:
    """Whether words as they are, a row for each sample, come to a node and nothing swaps the first axis on the way.

    Shapes do not tell: samples and places are as many, or the mean over the wrong ones would not fit the labels.
    """
    seen, waiting = {node}, [node]
    for one in waiting:
        name = name_of(one)
        words = saved(one, "indices") if name == "EmbeddingBackward" else None
        if words is not None and tuple(words.shape) == shape[:2] and words.is_contiguous():
            return True
        if _moves_first(one, name):
            continue
        for parent, _ in one.next_functions:
            if parent is not None and parent not in seen and len(seen) < _MOST_BEHIND:
                seen.add(parent)
                waiting.append(parent)
    return False


def _moves_first(node: Any, name: str) -> bool:
    """Whether an operation brings another axis to the front."""
    size = max(len(shape_of(node)), 1)
    if name == "TransposeBackward":
        dims = [(int(dim) - (int(dim) >> 63 << 64)) % size for dim in (node._saved_dim0, node._saved_dim1)]
        return 0 in dims and dims[0] != dims[1]
    return name == "PermuteBackward" and int(next(iter(node._saved_dims), 0)) % size != 0


def _mixes_samples(was: tuple[int, ...], now: tuple[int, ...], batch: int) -> bool:
    """Whether samples, in the second dimension before, are said to be in the first without having been moved there."""
    return (
        batch > 1
        and len(was) >= 3
        and len(now) >= 2
        and was[1] == batch == now[0]
        and was[0] not in (1, batch)
        and was[1:] != now[1 - len(was) :]  # the first dimension alone is split up, as samples and heads are
    )  # fmt: skip


def _mixes_axes(was: tuple[int, ...], now: tuple[int, ...]) -> bool:
    """Whether sizes are the same but for their order: that is what a transposition is for."""
    moved = [size for size, other in zip(was, now, strict=False) if size != other]
    return (
        len(was) == len(now) >= 3
        and was != now
        and sorted(was) == sorted(now)
        and min(moved, default=1) > 1
        and was[0] == now[0]
        and not any(one % other == 0 or other % one == 0 for one, other in pairwise(moved))  # heads of attention
    )


def saved_rows(node: Any, name: str) -> torch.Tensor | None:
    """What a layer was given, a row for each sample: the input of a linear layer or of a norm over the batch."""
    kept = {"AddmmBackward": "mat1", "NativeBatchNormBackward": "input", "LinearBackward": "input"}.get(name)
    tensor = saved(node, kept) if kept is not None else None
    return tensor if tensor is not None and tensor.dim() == 2 and tensor.shape[0] >= 8 else None
