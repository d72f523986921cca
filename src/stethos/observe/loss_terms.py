"""The terms that a loss adds up: which of them are sums over a batch, and which are means."""

from __future__ import annotations

import math
from typing import Any

from stethos.observe.autograd_graph import name_of, nodes_of, saved, shape_of

_MEAN, _SUM = 1, 2  # torch's numbers of reductions
_MOST_TERMS = 64
_MOST_BETWEEN = 8
_LEAST_COEFFICIENT = 0.1  # below that a term is weighed on purpose
_SCALES = ("MulBackward", "DivBackward")
_MOST_WEIGHT, _LEAST_FEATURES = 16.0, 16  # of a divergence, against that in the bound of a likelihood
_HALF = 0.5  # the factor that belongs to a divergence of normal distributions


def mixed_reductions(root: Any) -> str:
    """A sum over samples and features beside a mean over as many samples, in words; empty if there is none."""
    sums: list[tuple[int, ...]] = []
    means: list[tuple[int, ...]] = []
    weighed: list[tuple[tuple[int, ...], float]] = []  # means over samples and features, with their coefficients
    divergences: list[float] = []  # coefficients of sums over the features of a sample
    waiting: list[tuple[Any, float, frozenset[float]]] = [(root, 1.0, frozenset())]
    for count, (node, coefficient, divisors) in enumerate(waiting):  # grows while it is read
        name, parents = name_of(node), [edge[0] for edge in node.next_functions if edge[0] is not None]
        if count > _MOST_TERMS:
            return ""
        if name in ("AddBackward", "SubBackward", "NegBackward", "RsubBackward"):
            waiting += [(parent, coefficient, divisors) for parent in parents]
        elif name in _SCALES and len(parents) == 1:
            factor = _constant_of(node)
            if factor and name == "MulBackward":
                waiting.append((parents[0], coefficient * factor, divisors | {round(1 / factor, 3)}))
            elif factor:
                waiting.append((parents[0], coefficient / factor, divisors | {round(factor, 3)}))
        else:
            own: list[tuple[int, ...]] = []
            if abs(coefficient) >= _LEAST_COEFFICIENT:
                _note(node, name, own, means)
            sums += [size for size in own if size[0] not in divisors]  # else it is a mean over samples
            found: list[tuple[int, ...]] = []
            _note(node, name, [], found)
            weighed += [(size, coefficient) for size in found if len(size) > 1]
            if weight := _divergence(node, name):
                divergences.append(abs(coefficient) * weight)
    for size in sums:
        for other in means:
            if len(size) > 1 and size[0] == other[0] > 1 and math.prod(size) >= 2 * size[0]:
                return f"a sum over a tensor of shape {size} beside a mean over one of shape {other}"
    for other, coefficient in weighed:
        features = math.prod(other[1:])
        times = max(divergences, default=0.0) / _HALF / max(abs(coefficient) / features, 1e-12)
        if features >= _LEAST_FEATURES and times >= _MOST_WEIGHT:
            return (
                f"a divergence that is summed over its features beside a mean over all numbers of shape {other}: it "
                f"weighs {times:.3g} times what it does in a variational bound"
            )
    return ""


def _divergence(node: Any, name: str) -> float:
    """What each sample's sum over features is multiplied by, where an exponential is summed; 0 for anything else."""
    sizes = tuple(int(size) for size in getattr(node, "_saved_self_sym_sizes", ()))
    weight, one, is_summed = 1.0, node, False
    if shape_of(node) or not sizes:
        return 0.0
    if name == "SumBackward" and len(sizes) > 1:  # divided by the samples somewhere above, or not at all
        weight, is_summed = float(sizes[0]), True
    elif name == "SumBackward":
        weight = float(sizes[0])
    elif name != "MeanBackward" or len(sizes) > 1:
        return 0.0
    for _ in range(_MOST_BETWEEN):
        parents = [edge[0] for edge in one.next_functions if edge[0] is not None]
        if is_summed or len(parents) != 1:
            break
        one = parents[0]
        if name_of(one) in _SCALES:
            factor = _constant_of(one)
            weight *= abs(factor) if name_of(one) == "MulBackward" else 1 / abs(factor) if factor else 0.0
        elif name_of(one) == "SumBackward":
            is_summed = len(getattr(one, "_saved_self_sym_sizes", ())) > 1
        elif name_of(one) != "NegBackward":
            break
    has_exponential = is_summed and any(
        name_of(inner) == "ExpBackward" for inner, _ in nodes_of(one, _MOST_BETWEEN * 2)
    )
    has_square = is_summed and any(name_of(inner) == "PowBackward" for inner, _ in nodes_of(one, _MOST_BETWEEN * 2))
    return weight if has_exponential and has_square else 0.0


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
