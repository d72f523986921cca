"""Sampled stacks as a flame graph: a page of its own that needs nothing from outside, and a file for speedscope."""

from __future__ import annotations

import html
import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stethos.export.output import replacing
from stethos.export.speedscope import SCHEMA
from stethos.view.plain import printable

_PAGE = Path(__file__).with_name("flame_page.html")
_MOST_NODES = 20_000

# A stack: labels from the outermost to the innermost, each with the place in the source it stands for.
Label = tuple[str, str]
Stacks = Mapping[tuple[Label, ...], int]


@dataclass(slots=True)
class FlameNode:
    """A function below the ones that called it; `count` includes what it called itself."""

    label: Label
    count: int = 0
    children: dict[Label, FlameNode] = field(default_factory=dict)


def tree_of(stacks: Stacks) -> FlameNode:
    """All stacks as one tree."""
    root = FlameNode(("all", ""))
    for stack, count in stacks.items():
        node = root
        node.count += count
        for label in stack:
            node = node.children.setdefault(label, FlameNode(label))
            node.count += count
    return root


def hottest(stacks: Stacks, most: int = 5) -> list[tuple[Label, float]]:
    """The functions in which most samples ended, each with the line of it that had most, and their share."""
    total = sum(stacks.values())
    own: dict[Label, Counter[str]] = {}
    for stack, count in stacks.items():
        if stack:
            func, place = stack[-1]
            own.setdefault((func, place.rpartition(":")[0] or place), Counter())[place] += count
    ranked = sorted(own.items(), key=lambda item: -item[1].total())[:most]
    return [((func, places.most_common(1)[0][0]), places.total() / total) for (func, _), places in ranked]


def by_function(stacks: Stacks) -> Counter[tuple[Label, ...]]:
    """The same stacks with one place for each function, whichever of its lines ran: the first that was seen."""
    first: dict[Label, tuple[int, str]] = {}

    def key_of(label: Label) -> tuple[Label, int]:
        file, _, line = label[1].rpartition(":")
        return ((label[0], file), int(line)) if line.isdecimal() else (label, 0)

    for stack in stacks:
        for label in stack:
            key, line = key_of(label)
            first[key] = min(first.get(key, (line, label[1])), (line, label[1]))
    found: Counter[tuple[Label, ...]] = Counter()
    for stack, count in stacks.items():
        found[tuple((label[0], first[key_of(label)[0]][1]) for label in stack)] += count
    return found


def write_page(stacks: Stacks, path: Path, title: str, subtitle: str) -> None:
    """Write the page. Names from the program are text in it, never markup."""
    data = json.dumps(_packed(tree_of(stacks))).replace("<", "\\u003c").replace("&", "\\u0026")
    page = _PAGE.read_text(encoding="utf-8")
    for mark, text in (("@TITLE@", html.escape(printable(title))), ("@SUBTITLE@", html.escape(printable(subtitle)))):
        page = page.replace(mark, text)
    with replacing(path) as temporary:
        temporary.write_text(page.replace("@DATA@", data), encoding="utf-8")


def write_speedscope(profiles: Iterable[tuple[str, Stacks]], path: Path, rate: int, title: str) -> None:
    """Write a sampled profile per entry."""
    frames: dict[Label, int] = {}
    written: list[dict[str, Any]] = []
    for name, stacks in profiles:
        samples = [[frames.setdefault(label, len(frames)) for label in stack] for stack in stacks]
        weights = [count / rate for count in stacks.values()]
        written.append({
            "type": "sampled", "name": printable(name), "unit": "seconds", "startValue": 0, "endValue": sum(weights),
            "samples": samples, "weights": weights,
        })  # fmt: skip
    shared = [{"name": printable(func), **({"file": printable(place)} if place else {})} for func, place in frames]
    content = {"$schema": SCHEMA, "exporter": "stethos", "name": printable(title), "shared": {"frames": shared},
               "profiles": written}  # fmt: skip
    with replacing(path) as temporary:
        temporary.write_text(json.dumps(content), encoding="utf-8")


def _packed(root: FlameNode) -> dict[str, Any]:
    """The tree for the page: labels once, nodes as [label, count, children]; twigs too thin to see are left out."""
    labels: dict[Label, int] = {}
    least = _least_count(root)

    def pack(node: FlameNode) -> list[Any]:
        number = labels.setdefault(node.label, len(labels))
        children = sorted(node.children.values(), key=lambda child: child.label)
        return [number, node.count, [pack(child) for child in children if child.count >= least]]

    tree = pack(root)
    return {"labels": [[printable(func), printable(place)] for func, place in labels], "tree": tree}


def _least_count(root: FlameNode) -> int:
    counts = sorted(_counts(root), reverse=True)
    return counts[_MOST_NODES] + 1 if len(counts) > _MOST_NODES else 0


def _counts(root: FlameNode) -> Sequence[int]:
    counts, waiting = [], [root]
    while waiting:
        node = waiting.pop()
        counts.append(node.count)
        waiting += node.children.values()
    return counts
