"""What the process groups of a rank do, on a board in the ring's header that is readable from outside.

A few words per group: the last collective that was begun and the last one that is complete, with the name, size
and time of the former. A process that hangs, also with the GIL held, can be read as well as a living one.
Standard library only.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from stethos.record.layout import HeaderWord

MOST_GROUPS = 16
GROUP_WORDS = 24
_NAME, _OP, _BEGUN, _COMPLETE, _BYTES, _BEGUN_NS, _COMPLETE_NS, _SIZE, _MEMBERS = 0, 4, 7, 8, 9, 10, 11, 12, 13
_NAME_BYTES, _OP_BYTES = 32, 24
_LARGEST_GROUP = 1 << 20
_MOST_RANKS = 62 * (GROUP_WORDS - _MEMBERS)


class GroupState(NamedTuple):
    """One process group as its rank sees it; `members` are global ranks, empty where they are not known."""

    name: str
    members: tuple[int, ...]
    size: int
    begun: int
    complete: int
    op: str
    bytes: int
    begun_ns: int
    complete_ns: int

    @property
    def is_waiting(self) -> bool:
        return self.begun > self.complete


class GroupPost:
    """Where one group's words are; written by its process only."""

    def __init__(self, set_word: Callable[[int, int], None], number: int, name: str, members: Sequence[int]) -> None:
        self._set = set_word
        self._at = HeaderWord.GROUPS + number * GROUP_WORDS
        self.begun = self.complete = 0
        self._op = ""
        self._text(_OP, _OP_BYTES, "")
        for word in range(_BEGUN, GROUP_WORDS):
            set_word(self._at + word, 0)
        set_word(self._at + _SIZE, len(members))
        masks: dict[int, int] = {}
        for rank in members:
            if rank < _MOST_RANKS:
                masks[rank // 62] = masks.get(rank // 62, 0) | 1 << rank % 62
        for place, mask in masks.items():
            set_word(self._at + _MEMBERS + place, mask)
        self._text(_NAME, _NAME_BYTES, name)  # last: a post without a name is not there yet

    def begin(self, sequence: int, op: str, size: int, t_ns: int) -> None:
        if sequence >= self.begun:
            self.begun = sequence
            if op != self._op:  # mostly it is the same again
                self._op = op
                self._text(_OP, _OP_BYTES, op)
            self._set(self._at + _BYTES, size)
            self._set(self._at + _BEGUN_NS, t_ns)
            self._set(self._at + _BEGUN, sequence)

    def end(self, sequence: int, t_ns: int) -> None:
        if sequence > self.complete:
            self.complete = sequence
            self._set(self._at + _COMPLETE_NS, t_ns)
            self._set(self._at + _COMPLETE, sequence)

    def _text(self, word: int, size: int, text: str) -> None:
        encoded = text.encode("utf-8", "replace")[:size].ljust(size, b"\0")
        for place in range(size // 8):
            value = int.from_bytes(encoded[8 * place : 8 * place + 8], "little", signed=True)
            self._set(self._at + word + place, value)


def read_board(word: Callable[[int], int]) -> list[GroupState]:
    """All groups on the board, by a function that reads a word of the header."""
    found = []
    for number in range(MOST_GROUPS):
        at = HeaderWord.GROUPS + number * GROUP_WORDS
        name = _text_at(word, at + _NAME, _NAME_BYTES)
        if not name:
            break
        members = tuple(
            62 * place + bit
            for place in range(GROUP_WORDS - _MEMBERS)
            for bit in range(62)
            if word(at + _MEMBERS + place) >> bit & 1
        )
        size = max(0, min(word(at + _SIZE), _LARGEST_GROUP))  # whatever a stranger has put there
        found.append(
            GroupState(
                name, members if len(members) == size else (), size, word(at + _BEGUN), word(at + _COMPLETE),
                _text_at(word, at + _OP, _OP_BYTES), word(at + _BYTES), word(at + _BEGUN_NS), word(at + _COMPLETE_NS),
            )
        )  # fmt: skip
    return found


def groups_in(word: Callable[[int], int]) -> list[dict[str, object]]:
    """The last collective of each group on the board, as JSON holds it."""
    return [
        {"name": one.name, "begun": one.begun, "complete": one.complete, "op": one.op, "bytes": one.bytes}
        for one in read_board(word)
    ]


def _text_at(word: Callable[[int], int], at: int, size: int) -> str:
    content = b"".join(word(at + place).to_bytes(8, "little", signed=True) for place in range(size // 8))
    return content.rstrip(b"\0").decode("utf-8", "replace")
