"""A ring's counters, read without mapping it and without disturbing its process."""

from __future__ import annotations

import os
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stethos.record.layout import HEADER_BYTES, MAGIC, SLOT_BYTES, SLOTS, SLOTS_BASE, Drop, State, Word

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
        return self.drops.get(Drop.NOT_A_NUMBER.name.lower(), 0)


@dataclass(frozen=True, slots=True)
class RingHeader:
    """A ring as it is now: its counters, what its drainer has stored, and complete slots not yet read."""

    counters: Counters
    written_rows: int
    waiting_slots: int
    waiting_frame_bytes: int

    @property
    def has_waiting(self) -> bool:
        return bool(self.waiting_slots or self.waiting_frame_bytes)


def counters_from(content: dict[str, Any]) -> Counters:
    """The counters as a manifest holds them."""
    numbers = {
        name: int(content.get(name, 0))
        for name in ("slots", "frame_rows", "holes", "spent_ns", "steps", "started_ns", "last_step_ns")
    }
    return Counters(drops=dict(content.get("drops", {})), state=State(int(content.get("state", 0))), **numbers)


def read_header(path: Path) -> RingHeader | None:
    """The header of the ring at a path; None if there is none, or its process has not begun."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        page = os.pread(descriptor, HEADER_BYTES, 0)
        if len(page) < HEADER_BYTES:
            return None
        words = memoryview(page).cast("q")
        if words[Word.MAGIC] != MAGIC:
            return None
        counters = Counters(
            drops={r.name.lower(): words[Word.DROPPED + r] for r in Drop if words[Word.DROPPED + r]},
            slots=words[Word.SLOTS_TAIL],
            frame_rows=words[Word.FRAME_ROWS],
            holes=words[Word.HOLES],
            spent_ns=words[Word.SPENT_NS],
            steps=words[Word.STEPS],
            started_ns=words[Word.STARTED_NS],
            last_step_ns=words[Word.LAST_STEP_NS],
            state=_state(words[Word.STATE]),
        )
        return RingHeader(
            counters=counters,
            written_rows=words[Word.WRITTEN_ROWS],
            waiting_slots=_complete_slots(descriptor, words[Word.SLOTS_TAIL]),
            waiting_frame_bytes=max(0, words[Word.FRAMES_HEAD] - words[Word.FRAMES_TAIL]),
        )
    finally:
        os.close(descriptor)


def _state(value: int) -> State:
    return State(value) if value in State.__members__.values() else State.RUNNING


def _complete_slots(descriptor: int, tail: int) -> int:
    """How many complete slots follow the tail."""
    count = 0
    while count < SLOTS:
        first = (tail + count) % SLOTS
        size = min(_SLOTS_AT_ONCE, SLOTS - first, SLOTS - count)
        data = os.pread(descriptor, size * SLOT_BYTES, SLOTS_BASE + first * SLOT_BYTES)
        for at in range(0, len(data) - SLOT_BYTES + 1, SLOT_BYTES):
            if struct.unpack_from("<q", data, at)[0] != tail + count + 1:
                return count
            count += 1
        if len(data) < size * SLOT_BYTES:
            return count
    return count
