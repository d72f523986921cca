"""The bytes of a ring file, shared by the writer in the trainer and the reader in the drainer.

    header   4096 bytes of 64-bit words, see `Word`
    slots    SLOTS fixed slots: sequence number, then one row of a slot table
    frames   FRAME_BYTES of variable frames: vectors of rows, texts, names

A slot is complete when its first word holds its index + 1; that word is
written last. Frames are complete up to `Word.FRAMES_HEAD`. Nothing is
overwritten before the reader has moved the tail.
"""

from __future__ import annotations

import struct
from enum import IntEnum

from stethos.schema import RECORDED, Kind, Source, Table

MAGIC = 0x31_53_4F_48_54_45_54_53  # "STETHOS1"
HEADER_BYTES = 4096
SLOT_BYTES = 144
SLOTS = 32_768
SLOTS_BASE = HEADER_BYTES
FRAMES_BASE = SLOTS_BASE + SLOTS * SLOT_BYTES
FRAME_BYTES = 4 << 20
RING_BYTES = FRAMES_BASE + FRAME_BYTES

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


class Word(IntEnum):
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
    HOLES = 12  # no longer written: a hole is a gap in the row numbers of the segment
    RELEASED = 13  # no row comes any more, though the process may live on
    BATCHES = 14  # batches handed out while no step was made: an evaluation goes on
    CLIENT = 15  # name of the federated client whose turn is open; 0 for none
    DROPPED = 32
    GROUPS = 64  # what the process groups do, see `board`


class Drop(IntEnum):
    """Why the trainer dropped a row; the counters stand from `Word.DROPPED` on."""

    RING_FULL = 0
    TOO_LARGE = 1
    REENTRANT = 2
    NOT_A_NUMBER = 3


class State(IntEnum):
    """What a process has said about itself; one that was killed has said `RUNNING`."""

    RUNNING = 0
    ENDED = 1
    FAILED = 2


_STRUCT_CODE = {Kind.I32: "i", Kind.I64: "q", Kind.F64: "d", Kind.NAME: "i", Kind.BOOL: "b"}
SLOT_CONTEXT = "HHiiiqq"  # table, unused, client, round, optimizer, step, t_ns
# bytes, table, texts, rows, client, round, optimizer, rows of all frames so far (low half), step, t_ns
FRAME_HEADER = struct.Struct("<IHHIiiiIqq")


def slot_packer(table: Table) -> struct.Struct:
    """Packs a row of a slot table, without its sequence number.

    Every number lies at a multiple of its size, so that a row can be written as whole words too.
    """
    packer = struct.Struct("@" + SLOT_CONTEXT + "".join(_STRUCT_CODE[column.kind] for column in table.columns))
    assert packer.size <= SLOT_BYTES - 8, f"a row of {table.name} does not fit a slot"
    return packer


SLOT_PACKERS = {table.number: slot_packer(table) for table in RECORDED.values() if table.source is Source.SLOT}


def aligned(size: int) -> int:
    """The next multiple of 8."""
    return (size + 7) & ~7
