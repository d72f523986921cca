"""The drainer's end of a ring: reads rows another process wrote, without locks.

Reading moves nothing; `advance` frees the space once the rows are safe in a
segment, so a drainer that dies in between loses nothing.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from stethos.record.border import open_file
from stethos.record.layout import (
    FRAME_BYTES,
    FRAME_HEADER,
    HEADER_BYTES,
    SLOT_PACKERS,
    SLOTS,
    SLOTS_BASE,
    TABLE_PAD,
    WRITTEN,
    DropReason,
    HeaderWord,
    SlotLayout,
    State,
)
from stethos.schema import RECORDED, STEPS, Kind


def slot_dtype(number: int, written: SlotLayout) -> np.dtype[np.void]:
    """A slot as a NumPy record, with the columns that its writer knew."""
    fields = {"sequence": "q"} | RECORDED[number].slot_fields
    newer = len(STEPS.columns) - written.step_columns if number == STEPS.number else 0
    names = list(fields)[: len(fields) - newer]
    aligned = np.dtype([(name, "<" + fields[name]) for name in names], align=True)
    assert aligned.fields is not None
    formats, offsets = [aligned.fields[name][0] for name in names], [aligned.fields[name][1] for name in names]
    return np.dtype({"names": names, "formats": formats, "offsets": offsets, "itemsize": written.slot_bytes})


def slot_dtypes(written: SlotLayout) -> dict[int, np.dtype[np.void]]:
    """The records of a ring's slots, by the number of their table."""
    return {number: slot_dtype(number, written) for number in SLOT_PACKERS}


SLOT_DTYPES = slot_dtypes(WRITTEN)
_NAME_BYTES = {number: 4 * len(table.of_kind(Kind.NAME)) for number, table in RECORDED.items()}
_NUMBER_BYTES = {
    number: 8 * len(table.of_kind(Kind.I32, Kind.I64, Kind.F64, Kind.BOOL)) for number, table in RECORDED.items()
}
_PIECE = 1024
_RAMP = np.arange(_PIECE)
_MOST_SLOTS = 2**62


class RingFrame(NamedTuple):
    """One frame as written by `Ring.put_frame`, texts decoded. Its body lies in the ring: valid until `advance`."""

    table: int
    rows: int
    client: int
    round: int
    optimizer: int
    step: int
    t_ns: int
    body: memoryview
    texts: tuple[str, ...]


class DamagedRingError(ValueError):
    """The ring holds something its process cannot have written."""


class Tap:
    """Reads one ring.

    `holes` counts slots stepped over since the last `advance`.
    """

    def __init__(self, path: Path, *, is_writable: bool = True) -> None:
        descriptor = open_file(path, os.O_RDWR if is_writable else os.O_RDONLY, parts=2)
        try:
            header = os.pread(descriptor, HEADER_BYTES, 0)
            if len(header) < HEADER_BYTES:
                raise DamagedRingError(f"a ring of {len(header)} bytes")
            self.written = SlotLayout.by(memoryview(header).cast("q"))
            access = mmap.ACCESS_WRITE if is_writable else mmap.ACCESS_READ
            self._map = mmap.mmap(descriptor, self.written.ring_bytes, access=access)
        finally:
            os.close(descriptor)
        slot_bytes = self.written.slot_bytes
        self.slot_dtypes = SLOT_DTYPES if self.written == WRITTEN else slot_dtypes(self.written)
        self._view = memoryview(self._map)
        self._words = self._view.cast("q")
        self._sequences = np.ndarray(
            (SLOTS,), dtype=np.int64, buffer=self._map, offset=SLOTS_BASE, strides=(slot_bytes,)
        )
        self._slots = np.ndarray((SLOTS, slot_bytes), dtype=np.uint8, buffer=self._map, offset=SLOTS_BASE)
        self.slots_tail = self._words[HeaderWord.SLOTS_TAIL]
        self.frames_tail = self._words[HeaderWord.FRAMES_TAIL]
        self.holes = 0
        self._rows_so_far: int | None = None

    @property
    def state(self) -> State:
        return State(self._words[HeaderWord.STATE])

    def word(self, word: int) -> int:
        return self._words[word]

    def dropped(self) -> dict[str, int]:
        return {
            r.name.lower(): self._words[HeaderWord.DROPPED + r]
            for r in DropReason
            if self._words[HeaderWord.DROPPED + r]
        }

    @property
    def frame_rows(self) -> int:
        """Rows its process has put into frames, exact also if it was killed between a frame and its counter."""
        counted = self._words[HeaderWord.FRAME_ROWS]
        if self._rows_so_far is None:
            return counted
        return counted + (self._rows_so_far - counted + 2**31) % 2**32 - 2**31

    def has_rows(self) -> bool:
        return self._is_written(self.slots_tail) or self._words[HeaderWord.FRAMES_HEAD] > self.frames_tail

    def is_filling(self) -> bool:
        """Whether a quarter of either part waits."""
        return (
            self._is_written(self.slots_tail + SLOTS // 4)
            or self._words[HeaderWord.FRAMES_HEAD] - self.frames_tail > FRAME_BYTES // 4
        )

    def has_hole(self) -> bool:
        """Whether the next slot was taken but never finished, with finished ones behind it."""
        if self._is_written(self.slots_tail):
            return False
        has_later = any(are_complete.any() for are_complete in self._look_from(self.slots_tail + 1))
        return has_later and not self._is_written(self.slots_tail)  # it may have been finished while we looked

    def _is_written(self, index: int) -> bool:
        return bool(self._sequences[index % SLOTS] == index + 1)

    def read_slots(self) -> npt.NDArray[np.uint8]:
        """All complete slots from the tail on, copied."""
        count = 0
        for are_complete in self._look_from(self.slots_tail):
            if not are_complete.all():
                count += int(are_complete.argmin())
                break
            count += len(are_complete)
        first = self.slots_tail % SLOTS
        if first + count <= SLOTS:
            return self._slots[first : first + count].copy()
        return np.concatenate((self._slots[first:], self._slots[: first + count - SLOTS]))

    def read_rest(self) -> tuple[npt.NDArray[np.uint8], int]:
        """All complete slots of the lap from the tail on, copied, and how many never finished ones lie before them.

        Only of a process that puts nothing more: in one look, however many holes somebody made.
        """
        complete = np.flatnonzero(np.concatenate(list(self._look_from(self.slots_tail))))
        holes = int(complete[-1]) + 1 - len(complete) if len(complete) else 0
        return self._slots[(self.slots_tail + complete) % SLOTS], holes

    def _look_from(self, index: int) -> Iterator[npt.NDArray[np.bool_]]:
        """Whether each slot is complete, up to a whole lap after the tail, in pieces: mostly few slots wait."""
        if not 0 <= index < _MOST_SLOTS:
            raise DamagedRingError(f"a slot of number {index}")
        end = self.slots_tail + SLOTS
        while index < end:
            at = index % SLOTS
            sequences = self._sequences[at : min(at + _PIECE, at + end - index)]
            yield sequences == _RAMP[: len(sequences)] + (index + 1)
            index += len(sequences)

    def skip_hole(self) -> None:
        """Step over a slot whose writer was interrupted for good; it counts once the next group is written."""
        self.slots_tail += 1
        self.holes += 1

    def read_frames(self, share: float = 1.0) -> tuple[list[RingFrame], int]:
        """All frames from the tail on, or those in the first `share` of the bytes, and the position after them."""
        frames: list[RingFrame] = []
        at, head = self.frames_tail, self._words[HeaderWord.FRAMES_HEAD]
        stop = at + (head - at) * share
        rows_so_far = self._rows_so_far
        while at < head and at <= stop:
            place = self.written.frames_base + at % FRAME_BYTES
            if at % 8:
                raise DamagedRingError(f"a frame at {at}")
            size, table = struct.unpack_from("<IH", self._map, place)
            if not 8 <= size <= head - at or place + size > self.written.ring_bytes or size % 8:
                raise DamagedRingError(f"a frame of {size} bytes at {at}, with {head - at} bytes left")
            if table != TABLE_PAD:
                if size < FRAME_HEADER.size:
                    raise DamagedRingError(f"a frame of {size} bytes at {at}")
                frame, rows_so_far = self._frame_at(place)
                frames.append(frame)
            at += size
        self._rows_so_far = rows_so_far
        return frames, at

    def _frame_at(self, place: int) -> tuple[RingFrame, int]:
        """The frame at a place, and the number of rows in all frames up to it (its low half)."""
        size, table, text_count, rows, client, round_, optimizer, rows_so_far, step, t_ns = FRAME_HEADER.unpack_from(
            self._map, place
        )
        payload = self._view[place + FRAME_HEADER.size : place + size]
        body_end = at = _body_bytes(table, rows, len(payload) if not text_count else None)
        texts: list[str] = []
        for _ in range(text_count):
            length = int.from_bytes(payload[at : at + 4], "little")
            texts.append(str(payload[at + 4 : at + 4 + length], "utf-8", "replace"))
            at += 4 + length
        if at > len(payload):
            raise DamagedRingError(f"the rows or texts of a frame end {at - len(payload)} bytes behind it")
        frame = RingFrame(table, rows, client, round_, optimizer, step, t_ns, payload[:body_end], tuple(texts))
        return frame, rows_so_far

    def discard(self) -> None:
        """Step over everything that waits, unread."""
        sequences = self._sequences.copy()
        is_own = (sequences - 1) % SLOTS == np.arange(SLOTS)
        is_waiting = (sequences > self.slots_tail) & (sequences <= self.slots_tail + SLOTS)
        self.slots_tail = int(sequences[is_own & is_waiting].max(initial=self.slots_tail))
        self.frames_tail = max(self.frames_tail, self._words[HeaderWord.FRAMES_HEAD])
        self._rows_so_far = None

    def advance(self, slots_tail: int, frames_tail: int, written_rows: int) -> None:
        """Free what has been stored."""
        self.slots_tail, self.frames_tail, self.holes = slots_tail, frames_tail, 0
        self._words[HeaderWord.WRITTEN_ROWS] = written_rows
        self._words[HeaderWord.FRAMES_TAIL] = frames_tail
        self._words[HeaderWord.SLOTS_TAIL] = slots_tail

    def close(self) -> None:
        del self._sequences, self._slots
        self._words.release()
        self._view.release()
        with contextlib.suppress(BufferError):  # a frame is still held, and with it the map
            self._map.close()


def _body_bytes(table: int, rows: int, most: int | None) -> int:
    """How long the numeric part of a frame is; of one without texts at most so many bytes.

    There its writer may have been of an older version, which knew fewer numbers.
    """
    names, numbers = _NAME_BYTES.get(table, 0) * rows, _NUMBER_BYTES.get(table, 0) * rows
    if most is None or not rows or names + numbers <= most:
        return names + numbers
    return names + (most - names) // (8 * rows) * (8 * rows)
