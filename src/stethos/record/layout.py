"""The bytes of a ring file, shared by the writer in the trainer and the reader in the drainer.

    header   4096 bytes of 64-bit words, see `HeaderWord`
    slots    SLOTS fixed slots: sequence number, then one row of a slot table
    frames   FRAME_BYTES of variable frames: vectors of rows, texts, names

A slot is complete when its first word holds its index + 1; that word is
written last. Frames are complete up to `HeaderWord.FRAMES_HEAD`. Nothing is
overwritten before the reader has moved the tail.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

from stethos.schema import RECORDED, STEPS, Source

MAGIC = 0x31_53_4F_48_54_45_54_53  # "STETHOS1"
HEADER_BYTES = 4096
SLOTS = 32_768
SLOTS_BASE = HEADER_BYTES
FRAME_BYTES = 4 << 20

# Threads race for slots without a lock; the margin keeps late ones off the unread part.
SLOT_MARGIN = 256
LARGEST_FRAME = FRAME_BYTES // 4
LARGEST_TEXT = 64 << 10
LARGEST_NAME = 300
MOST_NAMES = 65_536

TABLE_VOID = 0
TABLE_PAD = 0xFFFF
TABLE_NAME = 0xFFFE
TABLE_END = 0xFFFD
TABLE_FACTS = 0xFFFC


class HeaderWord(IntEnum):
    """64-bit words of the header, by position. The drainer writes those marked *."""

    MAGIC = 0
    PID = 1
    SLOTS_TAIL = 2  # *
    FRAMES_HEAD = 3
    FRAMES_TAIL = 4  # *
    FRAME_ROWS = 5
    STATE = 6
    SPENT_NS = 7
    STEPS = 8
    STARTED_NS = 9
    LAST_STEP_NS = 10
    WRITTEN_ROWS = 11  # *
    RELEASED = 13  # no row comes any more, though the process may live on
    BATCHES = 14  # batches handed out while no step was made: an evaluation goes on
    CLIENT = 15  # name of the federated client whose turn is open; 0 for none
    SLOT_BYTES = 16  # see `SlotLayout`
    STEP_COLUMNS = 17
    DROPPED = 32
    GROUPS = 64  # what the process groups do, see `board`


class DropReason(IntEnum):
    """Why the trainer dropped a row; the counters stand from `HeaderWord.DROPPED` on."""

    RING_FULL = 0
    TOO_LARGE = 1
    REENTRANT = 2
    NOT_A_NUMBER = 3


class State(IntEnum):
    """What a process has said about itself; one that was killed has said `RUNNING`."""

    RUNNING = 0
    ENDED = 1
    FAILED = 2


# bytes, table, texts, rows, client, round, optimizer, rows of all frames so far (low half), step, t_ns
FRAME_HEADER = struct.Struct("<IHHIiiiIqq")
# Packs a row of a slot table, without its sequence number; aligned as a structure in C is.
SLOT_PACKERS = {
    table.number: struct.Struct("@" + "".join(table.slot_fields.values()))
    for table in RECORDED.values()
    if table.source is Source.SLOT
}
SLOT_BYTES = max(144, 8 + (max(packer.size for packer in SLOT_PACKERS.values()) + 7) // 8 * 8)
FRAMES_BASE = SLOTS_BASE + SLOTS * SLOT_BYTES
RING_BYTES = FRAMES_BASE + FRAME_BYTES
_LARGEST_SLOT = 4096


@dataclass(frozen=True)
class SlotLayout:
    """What a ring's header says of its slots: those of version 0.1.0 say nothing."""

    slot_bytes: int
    step_columns: int

    @classmethod
    def by(cls, words: Sequence[int] | memoryview) -> SlotLayout:
        """ValueError if no version can have written them."""
        slot_bytes, step_columns = words[HeaderWord.SLOT_BYTES] or 144, words[HeaderWord.STEP_COLUMNS] or 15
        if not 144 <= slot_bytes <= _LARGEST_SLOT or slot_bytes % 8 or not 1 <= step_columns <= slot_bytes:
            raise ValueError(f"a ring with slots of {slot_bytes} bytes and {step_columns} columns of steps")
        return cls(slot_bytes, step_columns)

    @property
    def frames_base(self) -> int:
        return SLOTS_BASE + SLOTS * self.slot_bytes

    @property
    def ring_bytes(self) -> int:
        return self.frames_base + FRAME_BYTES


WRITTEN = SlotLayout(SLOT_BYTES, len(STEPS.columns))


def aligned(size: int) -> int:
    """The next multiple of 8."""
    return (size + 7) & ~7
