"""The terms that a loss adds up: which of them are sums over a batch, and which are means."""

from __future__ import annotations

import math
from typing import Any

from stethos.observe.autograd_graph import name_of, saved, shape_of

_MEAN, _SUM = 1, 2  # torch's numbers of reductions
_MOST_TERMS = 64
_LEAST_COEFFICIENT = 0.1  # below that a term is weighed on purpose
_SCALES = ("MulBackward", "DivBackward")


def mixed_reductions(root: Any) -> str:
    """A sum over samples and features beside a mean over as many samples, in words; empty if there is none."""
    sums: list[tuple[int, ...]] = []
    means: list[tuple[int, ...]] = []
    waiting = [(root, 1.0)]
    for count, (node, coefficient) in enumerate(waiting):  # grows while it is read
        name, parents = name_of(node), [edge[0] for edge in node.next_functions if edge[0] is not None]
        if count > _MOST_TERMS:
            return ""
        if name in ("AddBackward", "SubBackward", "NegBackward", "RsubBackward"):
            waiting += [(parent, coefficient) for parent in parents]
        elif name in _SCALES and len(parents) == 1:
            factor = _constant_of(node)
            if factor:
                waiting.append((parents[0], coefficient * factor if name == "MulBackward" else coefficient / factor))
        elif abs(coefficient) >= _LEAST_COEFFICIENT:
            _note(node, name, sums, means)
    for size in sums:
        for other in means:
            if len(size) > 1 and size[0] == other[0] > 1 and math.prod(size) >= 2 * size[0]:
                return f"a sum over a tensor of shape {size} beside a mean over one of shape {other}"
    return ""


def _note(node: Any, name: str, sums: list[tuple[int, ...]], means: list[tuple[int, ...]]) -> None:
    if name in ("SumBackward", "MeanBackward"):
        sizes = tuple(int(size) for size in getattr(node, "_saved_self_sym_sizes", ()))
        if len(sizes) > 1 and not shape_of(node) and not hasattr(node, "_saved_dim"):
            (sums if name == "SumBackward" else means).append(sizes)
        return
    target = saved(node, "target")
    reduction = getattr(node, "_saved_reduction", None)
    if target is not None and target.dim() and reduction in (_MEAN, _SUM):
        (means if reduction == _MEAN else sums).append(tuple(target.shape))


def _constant_of(node: Any) -> float:
    """The single number that a term is multiplied or divided by; 0 where it is something else."""
    for name in ("other", "self"):
        factor = saved(node, name)
        if factor is not None:
            return float(factor) if not factor.dim() and factor.is_cpu else 0.0
    return 0.0
