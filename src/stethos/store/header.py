"""A ring's counters, read without mapping it and without disturbing its process."""

from __future__ import annotations

import os
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stethos.record.board import groups_in
from stethos.record.border import open_file
from stethos.record.layout import HEADER_BYTES, MAGIC, SLOTS, SLOTS_BASE, DropReason, HeaderWord, SlotLayout, State

_SLOTS_AT_ONCE = 256


@dataclass(frozen=True, slots=True)
class Counters:
    """What a process and its drainer have counted; from the ring, or from the manifest after the end."""

    drops: dict[str, int]
    slots: int
    frame_rows: int
    holes: int
    spent_ns: int
    steps: int
    started_ns: int
    last_step_ns: int
    state: State

    @property
    def unpackable(self) -> int:
        """Void slots: read like rows, but already among the drops."""
        return self.drops.get(DropReason.NOT_A_NUMBER.name.lower(), 0)


@dataclass(frozen=True, slots=True)
class RingHeader:
    """A ring as it is now: its counters, what its drainer has stored, and complete slots not yet read."""

    counters: Counters
    written_rows: int
    waiting_slots: int
    waiting_frame_bytes: int
    frames_tail: int
    groups: list[dict[str, object]]

    @property
    def has_waiting(self) -> bool:
        return bool(self.waiting_slots or self.waiting_frame_bytes)


def counters_from(content: dict[str, Any]) -> Counters:
    """The counters as a manifest holds them."""
    numbers = {
        name: content.get(name, 0)
        for name in ("slots", "frame_rows", "holes", "spent_ns", "steps", "started_ns", "last_step_ns")
    }
    return Counters(drops=dict(content.get("drops", {})), state=_state(content.get("state", 0)), **numbers)


def header_words(path: Path) -> memoryview | None:
    """The words of the header of the ring at a path; None if there is none, or its process has not begun."""
    try:
        descriptor = open_file(path, parts=2)
    except OSError:
        return None
    try:
        return _words(descriptor)
    finally:
        os.close(descriptor)


def _words(descriptor: int) -> memoryview | None:
    page = os.pread(descriptor, HEADER_BYTES, 0)
    words = memoryview(page).cast("q") if len(page) == HEADER_BYTES else None
    return words if words is not None and words[HeaderWord.MAGIC] == MAGIC else None


def read_header(path: Path) -> RingHeader | None:
    """The header of the ring at a path; None if there is none, or its process has not begun."""
    try:
        descriptor = open_file(path, parts=2)
    except OSError:
        return None
    try:
        words = _words(descriptor)
        written = _written(words) if words is not None else None
        if words is None or written is None:
            return None
        counters = Counters(
            drops={r.name.lower(): words[HeaderWord.DROPPED + r] for r in DropReason if words[HeaderWord.DROPPED + r]},
            slots=words[HeaderWord.SLOTS_TAIL],
            frame_rows=words[HeaderWord.FRAME_ROWS],
            holes=0,
            spent_ns=words[HeaderWord.SPENT_NS],
            steps=words[HeaderWord.STEPS],
            started_ns=words[HeaderWord.STARTED_NS],
            last_step_ns=words[HeaderWord.LAST_STEP_NS],
            state=_state(words[HeaderWord.STATE]),
        )
        return RingHeader(
            counters=counters,
            written_rows=words[HeaderWord.WRITTEN_ROWS],
            waiting_slots=_complete_slots(descriptor, words[HeaderWord.SLOTS_TAIL], written.slot_bytes),
            waiting_frame_bytes=max(0, words[HeaderWord.FRAMES_HEAD] - words[HeaderWord.FRAMES_TAIL]),
            frames_tail=words[HeaderWord.FRAMES_TAIL],
            groups=groups_in(words.__getitem__),
        )
    finally:
        os.close(descriptor)


def _written(words: memoryview) -> SlotLayout | None:
    try:
        return SlotLayout.by(words)
    except ValueError:
        return None


def _state(value: int) -> State:
    return State(value) if value in State.__members__.values() else State.RUNNING


def _complete_slots(descriptor: int, tail: int, slot_bytes: int) -> int:
    """How many complete slots follow the tail."""
    count = 0
    while count < SLOTS:
        first = (tail + count) % SLOTS
        size = min(_SLOTS_AT_ONCE, SLOTS - first, SLOTS - count)
        data = os.pread(descriptor, size * slot_bytes, SLOTS_BASE + first * slot_bytes)
        for at in range(0, len(data) - slot_bytes + 1, slot_bytes):
            if struct.unpack_from("<q", data, at)[0] != tail + count + 1:
                return count
            count += 1
        if len(data) < size * slot_bytes:
            return count
    return count
