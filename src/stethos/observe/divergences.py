"""Divergences whose target is made by a model of its own, as a teacher's answers are: is it trained along?"""

from __future__ import annotations

from collections.abc import Container
from typing import Any

from stethos.observe.autograd_graph import name_of

_MOST_KEPT = 4
_MOST_BEHIND = 4000


class Divergences:
    """Takes the nodes of `kl_div` in a graph; ids are those of leaves."""

    def __init__(self) -> None:
        self._targets: list[tuple[Any, set[int], set[int]]] = []  # a target, what the outputs come from, and the target

    def note(self, node: Any) -> None:
        """A difference: perhaps the target's entropy less its product with the outputs."""
        edges = [edge[0] for edge in node.next_functions[:2]]
        known, product = edges if len(edges) == 2 else (None, None)
        if known is None or name_of(known) != "XlogyBackward" or product is None:
            return
        target = known.next_functions[0][0]
        own = [edge[0] for edge in product.next_functions if edge[0] is not None and edge[0] is not target]
        if target is not None and len(own) == 1 and len(self._targets) < _MOST_KEPT:
            reached, behind = leaves_behind(own[0]), leaves_behind(target)
            if behind and not reached & behind:
                self._targets.append((target, reached, behind))

    def finish(self, root: Any) -> None:
        """Keep those whose targets are made by weights that have no other part in the loss; let go of the graph."""
        targets = {one[0] for one in self._targets}
        others = leaves_behind(root, targets) if targets else set()
        self._targets = [
            (None, reached, behind) for _, reached, behind in self._targets if others and not behind & others
        ]

    def are_trained(self, trained: set[int]) -> bool:
        """Whether what makes a target is trained, too, and by that alone."""
        return any(reached & trained and behind & trained for _, reached, behind in self._targets)


def leaves_behind(root: Any, but: Container[Any] = ()) -> set[int]:
    """Ids of the leaves that a node depends on, but for those behind these others; none if that takes too long."""
    seen, waiting, leaves = {root}, [root], set[int]()
    for node in waiting:  # grows while it is read
        leaf = getattr(node, "variable", None)
        leaves |= {id(leaf)} if leaf is not None else set()
        for parent, _ in node.next_functions:
            if parent is not None and parent not in seen and parent not in but:
                seen.add(parent)
                waiting.append(parent)
        if len(seen) > _MOST_BEHIND:
            return set()
    return leaves
