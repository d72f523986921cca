"""Places the modules of one sampled step: who is inside whom, and in which order.

A trace of modules keeps each call's duration and the order of the calls: forward calls as they ended, so that a
module follows what it called, backward ones as they began, so that it precedes them. With the dotted names that gives
the nesting; calls of one level are laid end to end from the start of their parent.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class ModuleCall:
    """A call as recorded."""

    module: str
    stage: str
    duration_ns: int
    bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Placed:
    """A call with its start, counted from the start of the step's forward pass, and the length it is drawn with."""

    call: ModuleCall
    start_ns: int
    length_ns: int


@dataclass(slots=True)
class _Node:
    call: ModuleCall
    children: list[_Node] = field(default_factory=list)

    @property
    def length_ns(self) -> int:
        """At least as long as what it called: the clock around each call has its own grain."""
        return max(self.call.duration_ns, sum(child.length_ns for child in self.children))


def lay_out(calls: Sequence[ModuleCall], root: str | None) -> list[Placed]:
    """All calls in the order of their starts, parents first. `root` is the name of the module that owns all others."""
    placed: list[Placed] = []
    start_ns = 0
    for stage in ("forward", "backward", "step"):
        chosen = [call for call in calls if call.stage == stage]
        tops = _forward(chosen, root) if stage == "forward" else _backward(chosen, root)
        for node in tops:
            _place(node, start_ns, placed)
            start_ns += node.length_ns
    return placed


def _forward(calls: Sequence[ModuleCall], root: str | None) -> list[_Node]:
    """Children come before their parent: a call takes in those before it that lie below it."""
    done: list[_Node] = []
    for call in calls:
        node = _Node(call)
        while done and _is_below(done[-1].call.module, call.module, root):
            node.children.insert(0, done.pop())
        done.append(node)
    return done


def _backward(calls: Sequence[ModuleCall], root: str | None) -> list[_Node]:
    """A parent may come after its first child, whose output was its own: nest by name alone."""
    nodes = [_Node(call) for call in calls]
    first: dict[str, _Node] = {}
    for node in nodes:
        first.setdefault(node.call.module, node)
    tops: list[_Node] = []
    for node in nodes:
        above = _nearest(node.call.module, first, root)
        (tops if above is None else above.children).append(node)
    return tops


def _nearest(name: str, known: Mapping[str, _Node], root: str | None) -> _Node | None:
    """The innermost known module that a name lies below."""
    if name == root:
        return None
    while "." in name:
        name = name.rpartition(".")[0]
        if name in known:
            return known[name]
    return known.get(root) if root is not None else None


def _is_below(name: str, above: str, root: str | None) -> bool:
    return name != above and (name.startswith(f"{above}.") or (above == root and name != root))


def _place(node: _Node, start_ns: int, placed: list[Placed]) -> None:
    placed.append(Placed(node.call, start_ns, node.length_ns))
    for child in node.children:
        _place(child, start_ns, placed)
        start_ns += child.length_ns
