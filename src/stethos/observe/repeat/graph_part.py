"""Which part of a loss's graph one call of a module has made: the outputs it was used by, and its own parameters."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import torch

from stethos.observe.repeat.module_state import CannotRepeatError

_MOST_NODES = 50_000
Edge = tuple[Any, int]  # a node and the number of its output


class GraphPart(NamedTuple):
    """`outputs` are those through which the loss depends on the call; `leaves` get their gradients from it alone."""

    outputs: list[Edge]
    leaves: list[Any]  # nodes that accumulate a gradient


def edge_of(tensor: torch.Tensor) -> Edge | None:
    """Where a tensor was made; None for data and parameters."""
    return (tensor.grad_fn, tensor.output_nr) if tensor.grad_fn is not None else None


def part_of(loss: Iterable[torch.Tensor], inputs: Iterable[Edge], outputs: Iterable[Edge]) -> GraphPart:
    """Walk the graph of a loss; CannotRepeatError if the outputs cannot be told apart.

    Parameters that the loss also reaches by another way (a penalty, another call, what has made the inputs) get
    gradients from there too, and are left out.
    """
    starts = [edge for tensor in loss if (edge := edge_of(tensor)) is not None]
    around, used = _walk(starts, set(outputs))
    inside, again = _walk([*_behind(used)], set(inputs) | set(used))
    if any(edge in used for edge in again):
        raise CannotRepeatError("the loss uses outputs of which one is made from another")
    before, _ = _walk(list(inputs), set())
    others = around | before
    leaves = [node for node in inside if hasattr(node, "variable") and node not in others]
    return GraphPart(sorted(used, key=lambda edge: edge[1]), leaves)


def _behind(edges: Iterable[Edge]) -> Iterable[Edge]:
    for node, _ in edges:
        yield from ((parent, number) for parent, number in node.next_functions if parent is not None)


def _walk(starts: list[Edge], stops: set[Edge]) -> tuple[set[Any], set[Edge]]:
    """The nodes from `starts` on, and the `stops` that were come to; what lies behind those is not entered."""
    nodes: set[Any] = set()
    met: set[Edge] = set()
    waiting = list(starts)
    while waiting:
        edge = waiting.pop()
        if edge in stops:
            met.add(edge)
        elif edge[0] not in nodes:
            nodes.add(edge[0])
            if len(nodes) > _MOST_NODES:
                raise CannotRepeatError(f"its graph has more than {_MOST_NODES:,} operations")
            waiting.extend(_behind([edge]))
    return nodes, met
