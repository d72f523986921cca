"""Reads the autograd graph of a loss before its backward: what kind of loss it is, what feeds it, what lies behind it.

Nothing is computed on the graph and nothing of it is kept.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch

from stethos.observe.attention import FUSED, SOFTMAXES, keys_seen, looks_ahead
from stethos.observe.autograd_graph import is_count, name_of, nodes_of, saved, shape_of, unwrapped_of
from stethos.observe.batch_print import is_readable
from stethos.observe.graph_check import GraphCheck, saved_rows
from stethos.observe.loss_terms import mixed_reductions
from stethos.observe.policy_sign import has_rewards, policy_sign

_MOST_NODES = 20_000
_MOST_TABLES = 4
_NEAR = 3  # operations from the tensor given to backward
_MARGIN, _OUTSIDE = 0.05, 0.05  # beyond the bounds of an activation; the share of targets that may be there
_MEAN, _SUM = 1, 2  # torch's numbers of reductions
_LOSS_DEPTH = 16  # operations between the tensor given to backward and the loss function
_CLASSES = ("NllLossBackward", "NllLoss2DBackward", "NllLossNdBackward")
_SQUARES = ("MseLossBackward", "SmoothL1LossBackward", "HuberLossBackward", "L1LossBackward")
_BINARY = ("BinaryCrossEntropyBackward",)
_LOGITS = ("BinaryCrossEntropyWithLogitsBackward",)
_DIVERGENCE = ("KlDivBackward",)
_LOSSES = (*_CLASSES, *_SQUARES, *_BINARY, *_LOGITS, *_DIVERGENCE)
_NEVER_NEGATIVE = ("PowBackward", "AbsBackward", "LinalgVectorNormBackward", "NormBackward")
_SUMS = ("MeanBackward", "SumBackward", "AddBackward", "StackBackward", "CatBackward")
_MOST_FEATURES = 6
_MOST_ROWS = 256
_MOST_TERMS = 256  # of a sum of losses
# Operations that hand values on as they are, in another shape or dtype.
_SHAPES = (
    "ViewBackward", "UnsafeViewBackward", "ReshapeAliasBackward", "SqueezeBackward", "UnsqueezeBackward",
    "TransposeBackward", "PermuteBackward", "TBackward", "ToCopyBackward", "CloneBackward", "SliceBackward",
    "SelectBackward", "AliasBackward", "ExpandBackward", "IndexBackward", "GatherBackward",
)  # fmt: skip
_VIEWS = ("ViewBackward", "UnsafeViewBackward", "ReshapeAliasBackward")
_BOUNDED = {"SigmoidBackward": "sigmoid", "SoftmaxBackward": "softmax", "ReluBackward": "relu", "TanhBackward": "tanh"}
# Operations on the data of a batch: the place of the data among what feeds them, and the name under which it is saved.
_FIRST = {
    "AddmmBackward": (1, "mat1"), "MmBackward": (0, "self"), "ConvolutionBackward": (0, "input"),
    "EmbeddingBackward": (1, "indices"), "LinearBackward": (0, "input"), "MkldnnRnnLayerBackward": (0, "input"),
}  # fmt: skip


@dataclass(slots=True)
class LossGraph:
    """What one walk over a graph has found. `remarks` are kinds of `wrong-loss` with what was seen, in words."""

    function: str = ""
    remarks: list[tuple[str, str]] = field(default_factory=list)
    leaves: list[torch.Tensor] = field(default_factory=list)
    labels: torch.Tensor | None = None
    outputs: torch.Tensor | None = None  # of the model, as the loss function got them
    inputs: torch.Tensor | None = None
    ignored: int | None = None  # the label that the loss leaves out
    unweighed: tuple[int, ...] = ()  # classes to which the loss gives a weight of 0
    losses: int = 0  # loss functions that are added up in it; labels and outputs are of the first found
    ahead: list[tuple[int, bool]] = field(default_factory=list)  # of attention: its length, whether it looks ahead
    keys: torch.Tensor | None = None  # of masked attention: which places of each sequence are seen
    is_alone: bool = False  # whether the loss is these functions, their mean or sum, and nothing else
    policy_sign: int = 0  # whether chosen actions get rarer, 1, or likelier, -1, if rewards stand in the program
    is_weighed: bool = False  # whether the first one is given a weight for each class, or for what is true
    is_plain_mean: bool = False  # whether the first one is a mean that weighs no class and no sample
    is_mixed: bool = False  # whether they are of several kinds, as with several tasks
    nodes: int = 0
    is_complete: bool = True
    check: GraphCheck = field(default_factory=GraphCheck)
    features: list[torch.Tensor] = field(default_factory=list)  # what some layers were given, a row for each sample
    rows: int = 0  # of the differences that a loss written out squares, one each
    first_weight: int = 0  # the id of the weight that `inputs` meet
    words: list[torch.Tensor] = field(default_factory=list)  # tables of words that are embedded, as of two languages


def read_loss_graph(loss: torch.Tensor) -> LossGraph:
    """Walk the graph of a loss once; at most `_MOST_NODES` of its nodes."""
    found = LossGraph()
    if loss.grad_fn is None:
        if loss.requires_grad:
            found.remarks.append(("loss-is-a-leaf", "the tensor given to backward has no history"))
        return found
    for node, depth in nodes_of(loss.grad_fn, _MOST_NODES):
        found.nodes += 1
        name = name_of(node)
        found.check.note(node, name, depth)
        rows = saved_rows(node, name) if len(found.features) < _MOST_FEATURES else None
        if rows is not None:
            found.features.append(rows)
        variable = getattr(node, "variable", None)
        if variable is not None:
            found.leaves.append(unwrapped_of(variable))
        elif name in _LOSSES and depth <= _LOSS_DEPTH:
            _note_loss(found, node, name)
        elif name in ("PowBackward", "AbsBackward") and depth <= _LOSS_DEPTH and not found.function:
            _note_hand_made(found, node)
        elif name in _FIRST and node.next_functions:
            _note_data(found, node, name)
        elif name == "SubBackward" and depth <= _NEAR and not found.function:
            _note_divergence(found, node)
        elif name == "LogBackward" and depth <= _LOSS_DEPTH:
            _note_logarithm(found, node)
        elif name in SOFTMAXES or name.startswith(FUSED):
            found.ahead.extend(filter(None, [looks_ahead(node, name)]))
            found.keys = keys_seen(node, name) if found.keys is None else found.keys
    found.is_complete = found.nodes < _MOST_NODES
    found.check.divergences.finish(loss.grad_fn)
    if mixed := mixed_reductions(loss.grad_fn):
        found.remarks.append(("mixed-reductions", mixed))
    if found.check.has_choice and has_rewards():
        found.policy_sign = policy_sign(loss.grad_fn)
    terms = _terms(loss.grad_fn)
    found.is_alone = bool(found.function and terms)
    found.is_mixed = len(terms) > 1
    if not found.is_alone and not _is_all(loss.grad_fn):
        found.remarks = [one for one in found.remarks if one[0] != "loss-of-means"]
    return found


def _terms(root: Any) -> set[str]:
    """The loss functions whose means, sums and constant multiples make up all of a loss, whatever its sign; or none.

    A likelihood has a square in it, too, beside a logarithm that may be negative.
    """
    waiting, terms = [root], set[str]()
    for count, node in enumerate(waiting):  # grows while it is read
        name, parents = name_of(node), [parent for parent, _ in node.next_functions if parent is not None]
        if name in _LOSSES or name in _NEVER_NEGATIVE:
            terms.add(name)
            continue
        is_scaled = name in ("MulBackward", "DivBackward", "NegBackward") and len(parents) == 1
        if count > _MOST_TERMS or not parents or not (is_scaled or name in (*_SHAPES, *_SUMS)):
            return set()
        waiting.extend(parents)
    return terms


def _is_all(root: Any) -> bool:
    """Whether the loss is a square, an absolute number or an error of one number, and nothing else."""
    node = root if name_of(root) not in ("MeanBackward", "SumBackward") else root.next_functions[0][0]
    return node is not None and name_of(node) in ("PowBackward", "AbsBackward", *_SQUARES)


def _behind(node: Any, place: int = 0) -> Any:
    """What feeds a node, past operations that only change a shape; None for what needs no gradient."""
    for _ in range(8):
        if len(node.next_functions) <= place:
            return None
        node, place = node.next_functions[place][0], 0
        if node is None or name_of(node) not in _SHAPES:
            return node
    return node


def _dim(node: Any, result: torch.Tensor) -> int:
    return _signed(node._saved_dim) % max(result.dim(), 1)


def _signed(number: Any) -> int:
    """A number that autograd keeps; a negative one is kept as an unsigned number."""
    return int(number) - ((int(number) >> 63) << 64)


def _note_loss(found: LossGraph, node: Any, name: str) -> None:
    found.losses += 1
    if not found.function:
        found.function = name.removesuffix("Backward")
        found.labels, found.outputs = saved(node, "target"), saved(node, "self")
        found.is_weighed = any(getattr(node, f"_saved_{one}", None) is not None for one in ("weight", "pos_weight"))
        found.is_plain_mean = getattr(node, "_saved_reduction", None) == _MEAN and not found.is_weighed
        found.ignored = _signed(node._saved_ignore_index) if name in _CLASSES else None
        weight = saved(node, "weight") if name in _CLASSES else None
        if weight is not None and is_readable(weight):
            found.unweighed = tuple((weight == 0).nonzero().reshape(-1)[:_MOST_TABLES].tolist())
    if getattr(node, "_saved_reduction", None) == _SUM:
        found.remarks.append(("summed-loss", f"`{name.removesuffix('Backward')}` with reduction='sum'"))
    remarks = _remarks_on(node, name)
    found.remarks.extend(remark for remark in remarks if remark not in found.remarks)


def _remarks_on(node: Any, name: str) -> Iterator[tuple[str, str]]:
    if name in _CLASSES:
        yield from _on_classes(node)
    elif name in _LOGITS:
        behind = _behind(node)
        activation = _BOUNDED.get(name_of(behind)) if behind is not None else None
        if activation:
            yield (
                f"{activation}-before-logits",
                f"`binary_cross_entropy_with_logits` is given the output of {activation}",
            )
        yield from _on_targets(node)
    elif name in _SQUARES:
        yield from _on_shapes(node)
        yield from _on_range(node)
        if not shape_of(node) and saved(node, "self") is not None and not saved(node, "self").dim():  # type: ignore[union-attr]
            yield from _on_means(node)
    elif name in _DIVERGENCE:
        values = saved(node, "self")
        if values is not None and is_readable(values) and bool((values > 0).any()):
            yield "no-log-probabilities", "`kl_div` is given values above 0, which are not log-probabilities"


def _on_classes(node: Any) -> Iterator[tuple[str, str]]:
    behind = _behind(node)
    name = name_of(behind) if behind is not None else ""
    if name == "LogSoftmaxBackward":
        result = saved(behind, "result")
        if result is not None and result.dim() > 1:
            dim = _dim(behind, result)
            if dim == 0 and result.dim() == 2 and result.shape[0] > 1:
                yield "softmax-over-batch", f"log_softmax(dim=0) over outputs of shape {tuple(result.shape)}"
            elif result.shape[dim] == 1:
                yield "one-class", f"cross entropy over one class: outputs of shape {tuple(result.shape)}"
            elif result.dim() > 2 and _adds_up_elsewhere(node):
                yield "softmax-over-places", f"log_softmax(dim={dim}) over outputs of shape {tuple(result.shape)}"
        yield from _on_reshape(behind, result)
        before = _behind(behind)
        activation = _BOUNDED.get(name_of(before)) if before is not None else None
        if activation:
            yield f"{activation}-before-logits", f"`cross_entropy` is given the output of {activation}"
            if activation == "softmax":
                yield from _on_softmax(before)
    elif name in ("SoftmaxBackward", "SigmoidBackward"):
        yield "no-log-probabilities", f"`nll_loss` is given the output of {_BOUNDED[name]}, without a logarithm"
        if name == "SoftmaxBackward":
            yield from _on_softmax(behind)
    elif name not in ("LogBackward", "LogSigmoidBackward"):
        values = saved(node, "self")
        if is_readable(values) and values is not None and values.dim() == 2:
            sums = values.detach().exp().sum(1)
            if bool(((sums - 1).abs() > 0.05).float().mean() > 0.5):
                yield "no-log-probabilities", "`nll_loss` is given values that are not log-probabilities"


def _adds_up_elsewhere(node: Any) -> bool:
    """Whether the shares of the classes of a place do not add up to 1, though a softmax has made them."""
    values = saved(node, "self")
    if values is None or not is_readable(values) or values.dim() != 2 or not values.shape[1] > 1:
        return False
    return bool(((values.detach()[:_MOST_ROWS].exp().sum(1) - 1).abs() > 0.05).float().mean() > 0.5)


def _on_reshape(node: Any, result: torch.Tensor | None) -> Iterator[tuple[str, str]]:
    """Outputs [batch, length, classes] that were brought into the loss's order by a view, which mixes them up."""
    before = node.next_functions[0][0]
    sizes = getattr(before, "_saved_self_sym_sizes", None) if before is not None else None
    if result is None or result.dim() < 3 or sizes is None or name_of(before) not in _VIEWS:
        return
    was, now = tuple(int(size) for size in sizes), tuple(result.shape)
    if was != now and len(was) == len(now) and was[0] == now[0] and was[-1] == now[1] and sorted(was) == sorted(now):
        yield "reshaped-outputs", f"outputs of shape {was} were viewed as {now}, which mixes up classes and places"


def _note_divergence(found: LossGraph, node: Any) -> None:
    """`kl_div`: what is known of the targets, less targets times log-probabilities; a softmax is not a logarithm."""
    known, product = (edge[0] for edge in node.next_functions[:2])
    if known is not None or product is None or name_of(product) != "MulBackward":
        return
    for place in range(len(product.next_functions)):
        factor = _behind(product, place)
        if factor is not None and name_of(factor) in ("SoftmaxBackward", "SigmoidBackward"):
            detail = f"`kl_div` is given the output of {_BOUNDED[name_of(factor)]}, without a logarithm"
            found.remarks.append(("no-log-probabilities", detail))


def _is_exponential(node: Any) -> bool:
    return node is not None and name_of(node) == "ExpBackward"


def _note_logarithm(found: LossGraph, node: Any) -> None:
    """The logarithm of a softmax in a loss written out by hand."""
    behind = _behind(node)
    before = _behind(behind) if behind is not None and name_of(behind) == "RsubBackward" else behind
    is_by_hand = before is not None and name_of(before) == "DivBackward" and _is_exponential(_behind(before))
    if is_by_hand or (before is not None and name_of(before) in ("SoftmaxBackward", "SigmoidBackward")):
        detail = f"the logarithm of {_BOUNDED.get(name_of(before), 'softmax')}, which is -inf where that rounds to 0"
        found.remarks.extend({("log-of-shares", detail)} - set(found.remarks))
    if behind is not None and name_of(behind) in ("AddBackward", "ClampBackward", "ClampMinBackward"):
        behind = _behind(behind)
    if behind is not None and name_of(behind) == "SoftmaxBackward":
        found.remarks.extend(remark for remark in _on_softmax(behind) if remark not in found.remarks)


def _on_softmax(node: Any) -> Iterator[tuple[str, str]]:
    result = saved(node, "result")
    if result is not None and result.dim() == 2 and result.shape[0] > 1 and _dim(node, result) == 0:
        yield "softmax-over-batch", f"softmax(dim=0) over outputs of shape {tuple(result.shape)}"


def _on_targets(node: Any) -> Iterator[tuple[str, str]]:
    target = saved(node, "target")
    if is_readable(target) and target is not None and target.numel():
        low, high = float(target.min()), float(target.max())
        if low < 0 or high > 1:
            yield "targets-out-of-range", f"targets of `binary_cross_entropy_with_logits` from {low:g} to {high:g}"


def _on_shapes(node: Any) -> Iterator[tuple[str, str]]:
    for name in ("self", "target"):
        tensor = saved(node, name)
        if tensor is not None and any(s == 0 and n > 1 for s, n in zip(tensor.stride(), tensor.shape, strict=True)):
            real = tuple(1 if s == 0 else n for s, n in zip(tensor.stride(), tensor.shape, strict=True))
            what = "outputs" if name == "self" else "targets"
            yield "broadcast-loss", f"{what} of shape {real} were stretched to {tuple(tensor.shape)}"
            return


def _on_range(node: Any) -> Iterator[tuple[str, str]]:
    """Targets that the activation before the loss cannot give."""
    behind, target = _behind(node), saved(node, "target")
    activation = _BOUNDED.get(name_of(behind)) if behind is not None else None
    if activation is None or target is None or not is_readable(target) or not target.numel():
        return
    low, high = (0.0, math.inf) if activation == "relu" else (-1.0, 1.0) if activation == "tanh" else (0.0, 1.0)
    outside = float(((target < low - _MARGIN) | (target > high + _MARGIN)).double().mean())
    if outside > _OUTSIDE:
        yield "targets-out-of-reach", f"{outside:.0%} of the targets lie outside of what {activation} can give"


def _note_hand_made(found: LossGraph, node: Any) -> None:
    """A squared or absolute difference written out: a row of N targets against a column of N outputs gives N x N."""
    difference, values = _behind(node), saved(node, "self")
    if difference is None or values is None or name_of(difference) != "SubBackward":
        return
    if not values.dim():
        found.remarks.extend(_on_means(difference))
        return
    found.rows = len(values) if values.numel() == len(values) else 0
    if values.dim() < 2:
        return
    found.function = "square" if name_of(node) == "PowBackward" else "absolute difference"
    count = values.shape[0]
    if values.dim() != 2 or values.shape[1] != count or count < 2:
        return
    for layer, _ in difference.next_functions:
        if layer is not None and _output_size(layer) == count:
            detail = f"{count} outputs less {count} targets make {tuple(values.shape)} differences"
            found.remarks.append(("broadcast-loss", detail))


def _on_means(difference: Any) -> Iterator[tuple[str, str]]:
    """The error of one number, the mean of a batch, is taken for the mean of the errors."""
    for one, _ in difference.next_functions:
        sizes = tuple(int(size) for size in getattr(one, "_saved_self_sym_sizes", ())) if one is not None else ()
        if sizes and name_of(one) == "MeanBackward" and sizes[0] > 1:
            yield "loss-of-means", f"the mean of outputs of shape {sizes} is compared with one number"


def _output_size(node: Any) -> int:
    """How many numbers a layer or a change of shape hands on; -1 where the node does not say."""
    if name_of(node) == "AddmmBackward":
        return int(node._saved_mat1_sym_sizes[0]) * int(node._saved_mat2_sym_sizes[1])
    sizes = getattr(node, "_saved_self_sym_sizes", None) if name_of(node) in _SHAPES else None
    return math.prod(int(size) for size in sizes) if sizes is not None else -1


def _note_data(found: LossGraph, node: Any, name: str) -> None:
    """The batch, where a node works on data that need no gradient; the deepest such node is asked last."""
    place, kept = _FIRST[name]
    edges = node.next_functions
    if name != "EmbeddingBackward" and (len(edges) <= place or edges[place][0] is not None):
        return
    tensor = saved(node, kept)
    is_places = name == "EmbeddingBackward" and tensor is not None and is_readable(tensor) and is_count(tensor)
    if tensor is not None and tensor.dim() and not is_places:
        if found.inputs is not None and is_readable(tensor) and not bool(tensor.any()):
            return  # the first state of a recurrent layer
        found.inputs = tensor.transpose(0, 1) if name.startswith("Mkldnn") and tensor.dim() == 3 else tensor
        if name == "EmbeddingBackward" and tensor.dim() == 2 and len(found.words) < _MOST_TABLES:
            found.words.append(tensor)
        weights = [leaf for edge, _ in edges for leaf in _leaves_at(edge) if leaf.dim() > 1]
        found.first_weight = id(weights[0]) if weights else 0


def _leaves_at(node: Any) -> list[torch.Tensor]:
    """A leaf that feeds an operation, perhaps transposed."""
    if node is not None and name_of(node) == "TBackward":
        node = node.next_functions[0][0]
    leaf = getattr(node, "variable", None)
    return [leaf] if isinstance(leaf, torch.Tensor) else []
