"""Where a loss that is NaN or infinite comes from, read before its backward, while its graph is still there.

In CPU memory, on a GPU where the user allows to wait for it (`--explain-nan`), and only for the first such losses of a
process: nothing of it runs in a healthy training. Nothing is computed on the graph; what it has saved is read.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import torch

from stethos.observe.autograd_graph import name_of, nodes_of, saved
from stethos.observe.batch_print import is_readable

_MOST_NODES = 20_000
_MOST_BYTES = 1 << 30
_MOST_LAYERS = 8
_RESULTS = frozenset({"result", "result0", "output", "out"})
# Which input of an operation is saved under a name; under any other it is the first.
_EDGES = {"other": 1, "target": 1, "exponent": 1, "mat1": 1, "batch1": 1, "batch2": 2, "key": 1, "value": 2}
_SHAPES = (
    "View", "UnsafeView", "ReshapeAlias", "Squeeze", "Unsqueeze", "Transpose", "Permute", "T", "ToCopy", "Clone",
    "Slice", "Select", "Alias", "Expand",
)  # fmt: skip
_FINITE = ("Addmm", "Mm", "Bmm", "Convolution", "Linear", "Relu", "Sigmoid", "Tanh", "Gelu", "Embedding", *_SHAPES)


class Owner(NamedTuple):
    """A parameter's name, and what its optimizer keeps for it."""

    layer: str
    state: dict[str, Any]


class _Node(NamedTuple):
    """A node of the graph, in the order of the forward pass."""

    order: int
    node: Any
    layers: tuple[str, ...]  # whose parameters it uses directly


Test = Callable[[torch.Tensor], bool]


def find_origin(loss: torch.Tensor, value: float, owners: dict[int, Owner]) -> dict[str, Any]:
    """What was not finite first: `kind` is gradient (of the step before), weight, input, label, activation or loss.

    With `layers`, and for an activation or a loss the `operation` that made it.
    """
    left = [_MOST_BYTES]

    def is_bad(tensor: torch.Tensor) -> bool:
        """Whether it holds a NaN or an overflow: minus infinity is a mask in healthy models, unless the loss has it."""
        left[0] -= tensor.nbytes
        if left[0] < 0 or not tensor.is_floating_point():
            return False
        own = tensor.detach()
        return bool((own.isnan() | own.isposinf()).any() if math.isnan(value) else own.isinf().any())

    nodes, leaves = _graph_of(loss, owners)
    return find_broken_weights(leaves, owners) or _of_forward(nodes, is_bad)


def find_broken_weights(weights: list[torch.Tensor], owners: dict[int, Owner]) -> dict[str, Any] | None:
    """Which weights are not finite, and by what: the gradient of the step before, or something else; None if all are.

    For use before an optimizer's step has spread it over all layers.
    """
    bad = [weight for weight in weights if _is_there(weight) and not bool(weight.detach().isfinite().all())]
    return _of_weights(bad, owners) if bad else None


def _of_weights(bad: list[torch.Tensor], owners: dict[int, Owner]) -> dict[str, Any]:
    """Weights are broken: by the gradient of the step before if the optimizer has kept it, else somebody wrote it."""
    known = [owners[id(leaf)] for leaf in bad if id(leaf) in owners]
    layers = {owner.layer for owner in known}
    ordered = [owner.layer for owner in owners.values() if owner.layer in layers]
    kept = {owner.layer: [one for one in owner.state.values() if _is_like_weight(one)] for owner in known}
    written = [name for name in ordered if kept[name] and all(bool(one.isfinite().all()) for one in kept[name])]
    if written:
        return {"kind": "weight", "layers": written[:_MOST_LAYERS]}
    if known and all(kept.values()):  # a backward goes from the last layer to the first
        return {"kind": "gradient", "layers": ordered[::-1][:_MOST_LAYERS]}
    return {"kind": "weight", "layers": ordered[:_MOST_LAYERS], "is_unsure": True}


def _is_there(tensor: torch.Tensor | None) -> bool:
    """Whether a tensor can be read; on a GPU it is waited for, which is allowed where this is called at all."""
    if tensor is not None and type(tensor) in (torch.Tensor, torch.nn.Parameter) and tensor.is_cuda:
        return tensor.layout is torch.strided and tensor.untyped_storage().nbytes() >= tensor.nbytes
    return is_readable(tensor)


def _is_like_weight(value: object) -> bool:
    return isinstance(value, torch.Tensor) and value.dim() > 0 and _is_there(value) and value.is_floating_point()


def _of_forward(nodes: list[_Node], is_bad: Test) -> dict[str, Any]:
    """Weights are finite: the first operation of the forward pass whose result is not, or the data."""
    orders = {node.node: node.order for node in nodes}
    last_layer = max((node.order for node in nodes if node.layers), default=-1)
    found: tuple[int, Any] | None = None
    for one in nodes:
        for name, tensor in _saved_in(one.node):
            if not _is_there(tensor) or not tensor.numel() or not is_bad(tensor):
                continue
            maker = one.node if name in _RESULTS else _maker_of(one.node, name)
            if maker not in orders and not tensor.dim():  # a number in the program
                maker = one.node
            if maker not in orders or _is_by_data(maker):
                kind = "label" if one.order > last_layer else "input"
                layers = _modules(one.layers) if kind == "input" else []
                return {"kind": kind, "layers": layers, "rows": tensor.shape[0] if tensor.dim() else 1}
            if found is None or orders[maker] < found[0]:
                found = orders[maker], maker
        if found is not None and one.order > found[0]:
            break
    if found is None:
        return {"kind": "loss", "layers": [], "operation": ""}
    before = [node for node in nodes if node.order <= found[0] and node.layers]
    kind = "loss" if found[0] > last_layer else "activation"
    layers = _modules(before[-1].layers) if before and kind == "activation" else []
    return {"kind": kind, "layers": layers, "operation": _name(found[1])}


def _modules(layers: tuple[str, ...]) -> list[str]:
    """The module whose parameters are used."""
    return [layer.rpartition(".")[0] or layer for layer in layers[:1]]


def _maker_of(node: Any, name: str) -> Any:
    """The operation that made what a node has saved under a name; None if that is data or a parameter."""
    place = 2 if name == "mat2" and _name(node) == "Addmm" else 1 if name == "mat2" else _EDGES.get(name, 0)
    if name == "other" and len(node.next_functions) < 2:
        place = 0
    for _ in range(16):
        edges = node.next_functions
        node = edges[place][0] if place < len(edges) else None
        if node is None or _name(node) not in _SHAPES:
            return node
        place = 0
    return node


def _is_by_data(node: Any) -> bool:
    """Whether an operation only adds data to what is finite when its own inputs are."""
    parents = [parent for parent, _ in node.next_functions]
    return (
        _name(node) in ("Add", "Sub", "Rsub")
        and None in parents
        and all(_name(parent) in (*_FINITE, "torch::autograd::AccumulateGrad") for parent in parents if parent)
    )


def _name(node: Any) -> str:
    return name_of(node).removesuffix("Backward")


def _saved_in(node: Any) -> Iterator[tuple[str, torch.Tensor]]:
    for attribute in dir(node):
        if attribute.startswith("_raw_saved_"):
            name = attribute.removeprefix("_raw_saved_")
            tensor = saved(node, name)
            if tensor is not None:
                yield name, tensor


def _graph_of(loss: torch.Tensor, owners: dict[int, Owner]) -> tuple[list[_Node], list[torch.Tensor]]:
    """The operations behind a loss in the order of the forward pass, and the parameters."""
    nodes: list[_Node] = []
    leaves: list[torch.Tensor] = []
    for node, _ in nodes_of(loss.grad_fn, _MOST_NODES) if loss.grad_fn is not None else ():
        variable = getattr(node, "variable", None)
        if variable is not None:
            leaves.append(variable)
            continue
        used = [getattr(parent, "variable", None) for parent, _ in node.next_functions]
        layers = [owners[id(one)].layer for one in used if id(one) in owners]
        nodes.append(_Node(node._sequence_nr(), node, tuple(layers)))
    return sorted(_through_views(nodes), key=lambda one: one.order), leaves


def _through_views(nodes: Iterable[_Node]) -> Iterator[_Node]:
    """A weight is often transposed before it is used: then the layer is that of what uses it."""
    listed = list(nodes)
    by_node = {one.node: one for one in listed}
    for one in listed:
        layers = list(one.layers)
        for parent, _ in one.node.next_functions:
            above = by_node.get(parent)
            if above is not None and above.layers and len(parent.next_functions) == 1:
                layers += above.layers
        yield _Node(one.order, one.node, tuple(dict.fromkeys(layers)))
