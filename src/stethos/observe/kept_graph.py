"""Notices graphs of losses that outlive their step: something in the program holds on to them."""

from __future__ import annotations

import weakref
from collections import deque
from typing import Any

import torch

_MOST = 12
_DEPTH = 6  # operations from the loss on


class _Mark:
    """Lives as long as the node of the graph that holds it."""

    __slots__ = ("__weakref__",)


class KeptGraphs:
    """Counts how many of the last inspected losses still have their graph."""

    def __init__(self) -> None:
        self._marks: deque[weakref.ref[_Mark]] = deque(maxlen=_MOST)

    def mark(self, loss: torch.Tensor) -> int:
        """Mark the graph of a loss; how many of those marked before are still alive."""
        alive = sum(mark() is not None for mark in self._marks)
        if loss.grad_fn is not None:
            mark = _Mark()
            node: Any = loss.grad_fn
            for _ in range(_DEPTH):  # the loss may be gone while the outputs behind it are kept
                if hasattr(node, "variable"):
                    break
                node.metadata["stethos"] = mark  # torch keeps it with the node, for anybody to use
                node = next((edge[0] for edge in node.next_functions if edge[0] is not None), None)
                if node is None:
                    break
            self._marks.append(weakref.ref(mark))
        return alive
