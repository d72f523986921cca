"""How the facts of a client's turn are written: names of one letter, and only what a reader cannot tell by itself.

A turn whose data do not change takes less than 200 bytes. Rows of before, with whole names, are read as well.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

LETTERS = {
    "sent_sent": "s", "way_sent": "w", "rest": "r", "way": "y", "begin": "b", "kept": "k", "unlike": "u",
    "outwards": "o", "shared": "h", "trained": "T", "odd_sent": "O", "odd_way": "W", "lr": "l", "setup": "S",
    "steps": "t", "uncleared": "U", "gradient": "g", "stretch": "x", "downhill": "d", "given": "v", "turned": "n",
    "between": "e", "loss": "L", "graph": "G", "device": "D", "rows": "m", "new": "N", "batch": "B",
    "relabelled": "R", "odd_batches": "F", "distinct": "i", "by_chance": "c", "answers": "a", "log_p": "p",
    "log_p_last": "q", "residual": "z", "samples": "j", "negative": "M", "tags": "A",
    "in_order": "I",
}  # fmt: skip
_NAMES = {letter: name for name, letter in LETTERS.items()}
_CLASSES = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
# What is meant where it is not said, and the fact that must be there.
_UNSAID = {"new": (0, "rows"), "distinct": (1.0, "rows"), "begin": (0.0, "way_sent")}


def packed(facts: Mapping[str, Any]) -> dict[str, Any]:
    """As it is written; `unpacked` gives the same facts back."""
    left: dict[str, Any] = dict(facts)
    if isinstance(cells := left.get("answers"), list):
        left["answers"] = _cells_as_text(cells)
    for name, (usual, beside) in _UNSAID.items():
        if beside in left:
            if name not in left:
                left[name] = None
            elif left[name] == usual:
                del left[name]
    if left.get("way_sent") is not None and left.get("way_sent") == left.get("sent_sent"):
        left["way_sent"] = "s"
    return {LETTERS.get(name, name): _plain(value) for name, value in left.items()}


def unpacked(facts: Mapping[str, Any]) -> dict[str, Any]:
    """The facts by their whole names, whether they were packed or not."""
    found = {_NAMES.get(name, name): value for name, value in facts.items()}
    if not found.keys() - facts.keys():
        return found
    if isinstance(text := found.get("answers"), str):
        found["answers"] = _cells_of(text)
    if found.get("way_sent") == "s":
        found["way_sent"] = found.get("sent_sent")
    for name, (usual, beside) in _UNSAID.items():
        if beside in found and found.setdefault(name, usual) is None:
            del found[name]
    return found


def _plain(value: Any) -> Any:
    return int(value) if isinstance(value, float) and value.is_integer() and abs(value) < 1e6 else value


def _cells_as_text(cells: list[int]) -> str | list[int]:
    """Label, answer and count in turn as a part per label: a letter per answer, its count behind it unless it is 1."""
    parts: dict[int, str] = {}
    for label, said, count in zip(cells[::3], cells[1::3], cells[2::3], strict=False):
        if not 0 <= label < len(_CLASSES) or not 0 <= said < len(_CLASSES):
            return cells
        parts[label] = parts.get(label, "") + _CLASSES[said] + (str(count) if count != 1 else "")
    return ",".join(parts.get(label, "") for label in range(max(parts, default=-1) + 1))


def _cells_of(text: str) -> list[int]:
    found: list[int] = []
    for label, part in enumerate(text.split(",")):
        for said, count in re.findall(r"([a-zA-Z])(\d*)", part):
            found += [label, _CLASSES.index(said), int(count or 1)]
    return found
