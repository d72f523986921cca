"""Finds a batch in the graph of its loss: inputs, labels and the model's answers, without a hook in the model.

What a layer needs for its gradient, the graph keeps: the first layer its inputs, the loss its targets. They are read
just before `backward` runs.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch

from stethos.federate.mixed_inputs import joined, numbers_beside
from stethos.observe.autograd_graph import is_count, name_of, nodes_of, saved

Target = Literal["classes", "binary", "values", "residuals"]
_MOST_NODES = 3000
_MOST_BEFORE_STEPS = 6  # nodes between a recurrent layer's first product and its steps
_MOST_OF_A_WEIGHT = 24  # nodes that make a weight out of parameters, as weight and spectral norm do
_LOSSES: dict[str, tuple[Target, str | None, str]] = {  # kind of target, what holds the answers, what the targets
    "NllLossBackward": ("classes", "self", "target"),
    "NllLoss2DBackward": ("classes", "self", "target"),
    "MultiMarginLossBackward": ("classes", "self", "target"),
    "GatherBackward": ("classes", None, "index"),
    "BinaryCrossEntropyWithLogitsBackward": ("binary", "self", "target"),
    "BinaryCrossEntropyBackward": ("binary", "self", "target"),
    "SoftMarginLossBackward": ("binary", "self", "target"),
    "MseLossBackward": ("values", "self", "target"),
    "SmoothL1LossBackward": ("values", "self", "target"),
    "HuberLossBackward": ("values", "self", "target"),
}
_REDUCTIONS = {1: "mean", 2: "sum"}
_INPUTS: dict[str, tuple[str, ...]] = {
    "AddmmBackward": ("mat1",), "MmBackward": ("self",), "BmmBackward": ("self",), "MvBackward": ("self",),
    "BaddbmmBackward": ("batch1",), "LinearBackward": ("input",), "ConvolutionBackward": ("input",),
    "NativeLayerNormBackward": ("input",), "NativeBatchNormBackward": ("input",),
    "NativeGroupNormBackward": ("input",), "CudnnBatchNormBackward": ("input",), "CudnnRnnBackward": ("input",),
    "MkldnnRnnLayerBackward": ("input",), "MulBackward": ("self", "other"), "DivBackward": ("self",),
}  # fmt: skip
_PARAMETER = "torch::autograd::AccumulateGrad"
_BY_CONSTANT = ("DotBackward", "VdotBackward", "MvBackward")  # spectral norm multiplies with vectors that it keeps
_OF_LAYOUT = frozenset(  # they say how numbers lie in memory or how precise they are, not what is computed
    {"ToCopyBackward", "CloneBackward", "ViewBackward", "UnsafeViewBackward", "ReshapeAliasBackward", "TBackward",
     "TransposeBackward", "PermuteBackward", "ExpandBackward", "SqueezeBackward", "UnsqueezeBackward", "AliasBackward"}
)  # fmt: skip
_TOKENS = {"EmbeddingBackward": "indices", "EmbeddingBagBackward": "indices", "IndexSelectBackward": "index"}


@dataclass(frozen=True, eq=False)
class Batch:
    """What a loss was computed from, as far as its graph tells.

    `inputs` and `tokens` have a row per sample; a bag of tokens is flat, with its samples' first places in `offsets`.
    `answers` are log-probabilities, logits or predicted values, a row per sample; where only the differences between
    values and predictions are known, `labels` are those.
    """

    rows: int
    inputs: torch.Tensor | None = None
    tokens: torch.Tensor | None = None
    offsets: torch.Tensor | None = None
    labels: torch.Tensor | None = None
    target: Target | None = None
    answers: torch.Tensor | None = None
    loss: str = ""  # how the loss is computed, as "NllLoss sum"; empty where it is not one of torch's
    graph: int = 0  # equal for losses that are computed by the same operations, however often


def batch_of(loss: Any) -> Batch | None:
    """The batch behind a loss; None where its graph shows neither inputs nor labels."""
    root = getattr(loss, "grad_fn", None)
    if root is None:
        return None
    goal = _Goal()
    inputs: list[torch.Tensor] = []
    tokens: list[tuple[torch.Tensor, torch.Tensor | None]] = []
    beside: list[torch.Tensor] = []
    edges: set[str] = set()
    steps: dict[Any, int] = {}  # of what a recurrent layer projects for all steps at once
    for node, _ in nodes_of(root, _MOST_NODES):
        name = name_of(node)
        if name == "UnbindBackward" and (below := _projection(node)) is not None:
            steps[below] = len(node._input_metadata)
        if name not in _OF_LAYOUT:
            how = "" if getattr(node, "_saved_training", True) else " as in use"  # batch norm that does not train
            edges.update(f"{name}{how} {below}" for below in _below(node))
        goal.look(node, name)
        if (attributes := _INPUTS.get(name)) is not None and _is_first(node):
            inputs += [_by_sample(one, node, name, steps.get(node))
                       for one in (saved(node, each) for each in attributes)
                       if one is not None and _is_data(one) and not _is_beside_parameter(node, name, one)]  # fmt: skip
        elif name in _TOKENS:
            indices = saved(node, _TOKENS[name])
            if indices is not None and not is_count(indices):
                tokens.append((indices, saved(node, "offsets") if name == "EmbeddingBagBackward" else None))
        elif (numbers := numbers_beside(node)) is not None:
            beside.append(numbers)
    found = _assembled(goal, inputs, tokens, beside)
    return None if found is None else replace(found, graph=zlib.crc32("\n".join(sorted(edges)).encode()))


def _projection(unbound: Any) -> Any:
    """The product that a recurrent layer takes apart into its steps, the first axis; None where it is no such layer."""
    node = unbound.next_functions[0][0] if getattr(unbound, "_saved_dim", None) == 0 else None
    for _ in range(_MOST_BEFORE_STEPS):
        if node is None or name_of(node) in _INPUTS:
            return node
        node = next((one for one, _ in node.next_functions if one is not None and name_of(one) != _PARAMETER), None)
    return None


def _by_sample(tensor: torch.Tensor, node: Any, name: str, steps: int | None) -> torch.Tensor:
    """What a recurrent layer sees, with an axis for samples before that for steps; all else as it is.

    Which axis is which cannot be told from lengths: a batch may have as many samples as steps.
    """
    if steps is not None and tensor.dim() == 2 and steps and tensor.shape[0] % steps == 0:
        return tensor.reshape(steps, -1, tensor.shape[1]).transpose(0, 1)
    is_steps_first = name == "MkldnnRnnLayerBackward" or (
        name == "CudnnRnnBackward" and not getattr(node, "_saved_batch_first", False)
    )
    return tensor.transpose(0, 1) if is_steps_first and tensor.dim() == 3 else tensor


def _below(node: Any) -> Iterator[str]:
    """The operations that a node's inputs come from."""
    for below, _ in node.next_functions:
        while below is not None and name_of(below) in _OF_LAYOUT and below.next_functions:
            below = below.next_functions[0][0]
        if below is not None:
            yield name_of(below)


class _Goal:
    """What the model is to answer, and what it does, as seen by the nodes next to the loss."""

    def __init__(self) -> None:
        self.target: Target | None = None
        self.labels: torch.Tensor | None = None
        self.answers: torch.Tensor | None = None
        self.loss = ""

    def look(self, node: Any, name: str) -> None:
        if (known := _LOSSES.get(name)) is not None:
            self._take(known[0], saved(node, known[2]), saved(node, known[1]) if known[1] is not None else None)
            if (reduction := getattr(node, "_saved_reduction", None)) is not None and not self.loss:
                self.loss = f"{name.removesuffix('Backward')} {_REDUCTIONS.get(reduction, '')}".strip()
        elif name == "IndexBackward" and self.labels is None:  # log_p[range(n), labels]
            self._take("classes", _last_index(node), None)
        elif name == "MulBackward" and self.labels is None:
            for one, other in (("self", "other"), ("other", "self")):
                shares = saved(node, one)
                if shares is not None and _is_one_hot(shares):
                    self._take("classes", shares.argmax(1), saved(node, other))
        elif name in ("PowBackward", "AbsBackward") and self.target in (None, "residuals"):
            self._take("residuals", saved(node, "self"), None)

    def _take(self, target: Target, labels: torch.Tensor | None, answers: torch.Tensor | None) -> None:
        is_better = self.target == "residuals" != target
        if labels is not None and (self.labels is None or is_better or labels.numel() > self.labels.numel()):
            self.target, self.labels, self.answers = target, labels.detach(), answers


def _assembled(
    goal: _Goal,
    inputs: list[torch.Tensor],
    tokens: list[tuple[torch.Tensor, torch.Tensor | None]],
    beside: list[torch.Tensor],
) -> Batch | None:
    labels, answers = goal.labels, goal.answers.detach() if goal.answers is not None else None
    rows = labels.shape[0] if labels is not None and labels.dim() else 0
    indices, offsets = max(tokens, key=lambda pair: pair[0].numel(), default=(None, None))
    if rows and tokens and all(one is None for _, one in tokens):
        table, several = joined(rows, [one for one, _ in tokens], [*beside, *inputs])
        if table is not None or several is not None:
            return Batch(rows, table, several, None, labels, goal.target, answers, goal.loss)
    if indices is not None:
        count = offsets.numel() if offsets is not None else indices.shape[0]
        if count != rows:  # as in a language model: a label for each token
            rows, labels, answers = count, None, None
        flat = indices.detach() if offsets is not None or indices.dim() > 1 else indices.detach()[:, None]
        return Batch(rows, None, flat, offsets, labels, goal.target, answers, goal.loss)
    if goal.target == "residuals" and not any(_by_row(one, rows) is not None for one in inputs):
        rows, labels = 0, None
    if not rows:
        rows = max((one.shape[0] for one in inputs), default=0)
    shaped = [one for one in (_by_row(tensor, rows) for tensor in inputs) if one is not None]
    wide = max(shaped, key=lambda one: one.numel(), default=None)
    if wide is None and labels is None:
        return None
    return Batch(rows, wide, None, None, labels, goal.target, answers, goal.loss)


def _last_index(node: Any) -> torch.Tensor | None:
    raw = getattr(node, "_raw_saved_indices", None)
    if not raw or any(one is not None and one.unpack_hook is not None for one in raw):
        return None
    indices = [one for one in node._saved_indices if isinstance(one, torch.Tensor)]
    return indices[-1] if len(indices) == 2 and not indices[-1].is_floating_point() and indices[-1].dim() == 1 else None


def _is_one_hot(shares: torch.Tensor) -> bool:
    if shares.requires_grad or shares.dim() != 2 or shares.shape[1] < 2:
        return False
    return bool((shares >= 0).all()) and bool((shares.sum(1) - 1).abs().max() < 1e-3)


def _is_first(node: Any) -> bool:
    """Whether nothing but parameters leads into a node: then what else goes in comes from outside of the model."""
    return all(below is None or _is_of_parameters(below) for below, _ in node.next_functions)


def _is_of_parameters(root: Any) -> bool:
    """Whether a tensor is made of parameters alone: one of them, as it is or transposed, normed, masked or composed."""
    for count, (node, _) in enumerate(nodes_of(root, _MOST_OF_A_WEIGHT + 1)):
        if count >= _MOST_OF_A_WEIGHT:
            return False
        name = name_of(node)
        if name in _TOKENS or (name != _PARAMETER and not node.next_functions):
            return False
        is_partly = any(below is None for below, _ in node.next_functions)
        if is_partly and name not in _BY_CONSTANT and not _is_of_constant(node, name):
            return False
    return True


def _is_of_constant(node: Any, name: str) -> bool:
    """Whether what a node multiplies with is a number, or a mask of a parameter."""
    if name not in ("MulBackward", "DivBackward"):
        return False
    others = [one for one in (saved(node, "self"), saved(node, "other")) if one is not None and not one.requires_grad]
    return all(one.dim() == 0 or _is_beside_parameter(node, name, one) for one in others)


def _is_beside_parameter(node: Any, name: str, tensor: torch.Tensor) -> bool:
    """Whether a parameter of a tensor's shape is multiplied with it by elements: a mask or a penalty, no batch."""
    return name in ("MulBackward", "DivBackward") and any(
        below is not None and name_of(below) == _PARAMETER and below.variable.shape == tensor.shape
        for below, _ in node.next_functions
    )


def _is_data(tensor: torch.Tensor) -> bool:
    """Whether a tensor can be a batch: nothing leads back from it, and it is more than a number."""
    return not tensor.requires_grad and tensor.dim() > 0 and tensor.numel() > 1 and tensor.dtype.is_floating_point


def _by_row(tensor: torch.Tensor, rows: int) -> torch.Tensor | None:
    """The tensor with a row per sample; None where it cannot be told which part belongs to which."""
    tensor = tensor.detach()
    if not rows or tensor.numel() < rows:
        return None
    if tensor.shape[0] == rows:
        return tensor
    if tensor.dim() == 3 and tensor.shape[1] == rows:
        return tensor.transpose(0, 1)
    if tensor.dim() == 2 and tensor.shape[0] % rows == 0:
        return tensor.reshape(rows, -1)
    return None
