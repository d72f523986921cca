"""The stacks of many ranks as one tree: who is where, and who is somewhere else than the others."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from stethos.live.stack import StackFrame, ThreadStack
from stethos.live.stuck import training_thread


@dataclass(eq=False, slots=True)
class StackNode:
    """A frame and the processes that stand in it; the outermost is the root, which has none."""

    frame: StackFrame | None
    members: list[str] = field(default_factory=list)
    children: list[StackNode] = field(default_factory=list)

    def child(self, frame: StackFrame) -> StackNode:
        for node in self.children:
            if node.frame == frame:
                return node
        self.children.append(StackNode(frame))
        return self.children[-1]

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        frame = self.frame
        place = {} if frame is None else {"func": frame.func, "file": frame.file, "lineno": frame.lineno}
        return {**place, "members": self.members, "children": [node.as_dict() for node in self.children]}


def merge(stacks: Mapping[str, Sequence[ThreadStack]]) -> StackNode:
    """One tree of the training threads, by the processes' names."""
    root = StackNode(None)
    for name, threads in stacks.items():
        thread = training_thread(threads)
        node = root
        node.members.append(name)
        for frame in reversed(thread.frames if thread is not None else ()):
            node = node.child(frame)
            node.members.append(name)
    return root


def odd_ones(root: StackNode) -> dict[str, str]:
    """Processes that have left the way of most at the first fork, and where they stand; nobody if there is no most."""
    node = root
    while len(node.children) == 1 and len(node.children[0].members) == len(node.members):
        node = node.children[0]
    branches = sorted(node.children, key=lambda branch: -len(branch.members))
    ended = [name for name in node.members if not any(name in branch.members for branch in branches)]
    most = max([len(branch.members) for branch in branches] + [len(ended)], default=0)
    if 2 * most <= len(node.members):
        return {}
    odd = {name: _place(branch) for branch in branches if len(branch.members) < most for name in branch.members}
    if len(ended) < most:
        odd |= dict.fromkeys(ended, place_text(node.frame))
    return odd


def tree_lines(root: StackNode) -> list[str]:
    """The tree as text: outermost frame first, a step to the right where ways part."""
    lines: list[str] = []
    _draw(root, "", "", lines)
    return lines


def _draw(node: StackNode, first: str, indent: str, lines: list[str]) -> None:
    prefix, is_named = first, False
    while True:
        if node.frame is not None:
            whose = "" if is_named else f"  [{members_text(node.members)}]"
            lines.append(f"{prefix}{place_text(node.frame)}{whose}")
            prefix, is_named = indent, True
        if len(node.children) != 1 or len(node.children[0].members) != len(node.members):
            break
        node = node.children[0]
    branches = sorted(node.children, key=lambda branch: -len(branch.members))
    for place, branch in enumerate(branches):
        is_last = place == len(branches) - 1
        _draw(branch, indent + ("└ " if is_last else "├ "), indent + ("  " if is_last else "│ "), lines)


def place_text(frame: StackFrame | None) -> str:
    return "?" if frame is None else f"{frame.func} ({os.path.basename(frame.file)}:{frame.lineno})"


def members_text(members: Sequence[str]) -> str:
    """`ranks 0-3, 5`, or the names themselves."""
    if not all(member.isdigit() for member in members):
        return ", ".join(members)
    numbers = sorted(map(int, members))
    parts: list[str] = []
    start = previous = numbers[0]
    for number in [*numbers[1:], None]:
        if number is not None and number == previous + 1:
            previous = number
            continue
        parts.append(str(start) if start == previous else f"{start}-{previous}")
        if number is not None:
            start = previous = number
    return f"rank{'s' if len(numbers) > 1 else ''} {', '.join(parts)}"


def _place(node: StackNode) -> str:
    """Where a branch ends, as long as it does not fork."""
    while len(node.children) == 1:
        node = node.children[0]
    return place_text(node.frame)
