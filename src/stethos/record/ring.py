"""The trainer's end of the ring: rows go into mapped memory and nothing else happens.

Standard library only. `put` and `put_frame` never block on I/O and never
wait for the drainer: when the ring is full the newest row is dropped and
counted. A row that was put survives the death of the process.

Slots are lock-free; `_hot.c` has the same in C. Taking a number gives every
thread a slot of its own, and the slot's sequence number, written last, is the
commit. A row that cannot be packed leaves a void slot, is counted, and raises.
"""

from __future__ import annotations

import itertools
import mmap
import os
import platform
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

from stethos.native import NATIVE
from stethos.record.layout import (
    FRAME_BYTES,
    FRAME_HEADER,
    FRAMES_BASE,
    LARGEST_FRAME,
    MAGIC,
    RING_BYTES,
    SLOT_BYTES,
    SLOT_MARGIN,
    SLOTS,
    SLOTS_BASE,
    TABLE_PAD,
    TABLE_VOID,
    WRITTEN,
    DropReason,
    HeaderWord,
    State,
    aligned,
)
from stethos.schema import NULL_I32

Bytes = bytes | memoryview
_BACKLOG = SLOTS // 2
STORES_ARE_ORDERED = platform.machine().lower() in {"x86_64", "amd64", "i686"}
_VOID = TABLE_VOID.to_bytes(2, "little")
_NOT_A_NUMBER = HeaderWord.DROPPED + DropReason.NOT_A_NUMBER
_fence_lock = threading.Lock()


def fence() -> None:
    """Order earlier stores before later ones where the processor does not (two lock pairs)."""
    for _ in range(2):
        _fence_lock.acquire()
        _fence_lock.release()


class Slots(Protocol):
    """`next` is the number of the next slot. A slot that was taken is committed, or left void."""

    next: int

    def take(self) -> int: ...
    def commit(self, index: int, /) -> None: ...
    def leave_void(self, index: int, /) -> None: ...
    def release(self) -> None: ...


def slots_of(mapped: mmap.mmap, look: Callable[[], int]) -> Slots:
    """The slots of a ring. `look` is called when some have been taken: it returns the number up to which to go on
    without asking again, or -1 after counting a drop, because the ring is full."""
    if NATIVE is None:
        return PlainSlots(mapped, look)
    slots: Slots = NATIVE.Slots(look, mapped, SLOTS_BASE, SLOTS, SLOT_BYTES, _NOT_A_NUMBER)
    return slots


def writer_to(slots: Slots, mapped: mmap.mmap, pack_into: Callable[..., None]) -> Callable[..., bool]:
    """A function that writes one row with a packer of `SLOT_PACKERS`; it returns False if the row was dropped."""
    take, commit = slots.take, slots.commit

    def put(*values: float) -> bool:
        index = take()
        if index < 0:
            return False
        try:
            pack_into(mapped, SLOTS_BASE + index % SLOTS * SLOT_BYTES + 8, *values)
        except BaseException:
            slots.leave_void(index)
            raise
        commit(index)
        return True

    return put


class PlainSlots:
    """Slots written by Python."""

    def __init__(self, mapped: mmap.mmap, look: Callable[[], int]) -> None:
        self._map = mapped
        self._words = memoryview(mapped).cast("q")
        self._look = look
        self._enough = 0
        self._allocate = itertools.count().__next__
        self.next = 0

    def take(self) -> int:
        """A slot for this thread alone; -1 if the ring is full, which `look` has counted."""
        if self.next >= self._enough:
            self._enough = self._look()
            if self._enough < 0:
                return -1
        index = self._allocate()
        self.next = index + 1
        return index

    def commit(self, index: int, /) -> None:
        """The row is whole."""
        if not STORES_ARE_ORDERED:
            fence()
        self._words[(SLOTS_BASE + index % SLOTS * SLOT_BYTES) >> 3] = index + 1

    def leave_void(self, index: int, /) -> None:
        """A slot without a row, because there was something in it that is not a number."""
        offset = SLOTS_BASE + index % SLOTS * SLOT_BYTES + 8
        self._map[offset : offset + 2] = _VOID
        self._words[_NOT_A_NUMBER] += 1
        self.commit(index)

    def release(self) -> None:
        """Let the map go."""
        self._words.release()


def create_ring_file(path: Path) -> None:
    """Make the file with all its blocks allocated, so that a full disk fails here and not in a store."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        os.fchmod(descriptor, 0o600)
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(descriptor, 0, RING_BYTES)
        else:
            os.ftruncate(descriptor, RING_BYTES)
    finally:
        os.close(descriptor)


class Ring:
    """Writes rows for one process; any thread may call `put` and `put_frame`."""

    def __init__(self, path: Path) -> None:
        with path.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), RING_BYTES)
        self._words = memoryview(self._map).cast("q")
        self._words[HeaderWord.PID] = os.getpid()
        self._words[HeaderWord.SLOT_BYTES], self._words[HeaderWord.STEP_COLUMNS] = (
            WRITTEN.slot_bytes,
            WRITTEN.step_columns,
        )
        self._words[HeaderWord.MAGIC] = MAGIC
        self.slots = slots_of(self._map, self._look_at_tail)
        self._writers: dict[Callable[..., None], Callable[..., bool]] = {}
        self._frames_head = 0
        self._frame_rows = 0
        self._lock = threading.RLock()
        self._is_writing = False
        self.on_backlog: Callable[[], object] = lambda: None  # called while half of the ring or more waits

    # Rows of slot tables -----------------------------------------------------------------

    def writer(self, pack_into: Callable[..., None]) -> Callable[..., bool]:
        """A function that writes one row with a packer of `SLOT_PACKERS`; it returns False if the row was dropped."""
        return writer_to(self.slots, self._map, pack_into)

    def _look_at_tail(self) -> int:
        """The row at which to look again, or -1 after counting a drop: the ring is full."""
        tail = self._words[HeaderWord.SLOTS_TAIL]
        if self.slots.next - tail >= _BACKLOG:
            self.on_backlog()
            if self.slots.next - tail >= SLOTS - SLOT_MARGIN:
                self.drop(DropReason.RING_FULL)
                return -1
        return tail + _BACKLOG

    def put(self, pack_into: Callable[..., None], *values: float) -> bool:
        """Write one row; see `writer`, which is faster when called often."""
        put = self._writers.get(pack_into)
        if put is None:
            put = self._writers[pack_into] = self.writer(pack_into)
        return put(*values)

    # Vectors and texts ---------------------------------------------------------------------

    def put_frame(
        self,
        table: int,
        rows: int,
        body: bytes,
        texts: Sequence[bytes] = (),
        *,
        more: Bytes = b"",
        client: int = NULL_I32,
        round: int = NULL_I32,
        optimizer: int = NULL_I32,
        step: int = 0,
        t_ns: int = 0,
    ) -> bool:
        """Write `rows` rows at once; return False if they were dropped.

        `body`, or `body` and `more`, hold the table's name ids (32-bit) and numbers
        (doubles) column by column; `texts` follow with their lengths.
        """
        payload: list[Bytes] = [body, more] if more else [body]
        for text in texts:
            payload.append(len(text).to_bytes(4, "little"))
            payload.append(text)
        size = aligned(FRAME_HEADER.size + sum(map(len, payload)))
        if size > LARGEST_FRAME:
            self.drop(DropReason.TOO_LARGE, rows)
            return False
        with self._lock:  # held for microseconds, and safe against Ctrl-C as `with` is
            if self._is_writing:  # a signal handler or destructor logged inside us
                self.drop(DropReason.REENTRANT, rows)
                return False
            self._is_writing = True
            try:
                head = self._frames_head
                room = FRAME_BYTES - (head - self._words[HeaderWord.FRAMES_TAIL])
                to_end = FRAME_BYTES - head % FRAME_BYTES
                padding = to_end if size > to_end else 0
                is_fitting = size + padding <= room
                if is_fitting:
                    self._write_frame(head, padding, size, payload, table, len(texts), rows,
                                      client, round, optimizer, step, t_ns)  # fmt: skip
                else:
                    self.drop(DropReason.RING_FULL, rows)
            finally:
                self._is_writing = False
        if room < FRAME_BYTES // 2:
            self.on_backlog()
        return is_fitting

    def _write_frame(
        self, head: int, padding: int, size: int, payload: Sequence[Bytes], table: int, texts: int, rows: int,
        client: int, round: int, optimizer: int, step: int, t_ns: int,
    ) -> None:  # fmt: skip
        if padding:
            at = FRAMES_BASE + head % FRAME_BYTES
            self._map[at : at + 6] = padding.to_bytes(4, "little") + TABLE_PAD.to_bytes(2, "little")
            head += padding
        at = FRAMES_BASE + head % FRAME_BYTES
        rows_so_far = self._frame_rows + rows
        FRAME_HEADER.pack_into(self._map, at, size, table, texts, rows, client, round, optimizer,
                               rows_so_far & 0xFFFF_FFFF, step, t_ns)  # fmt: skip
        at += FRAME_HEADER.size
        for piece in payload:
            self._map[at : at + len(piece)] = piece
            at += len(piece)
        if not STORES_ARE_ORDERED:
            fence()
        self._frames_head, self._frame_rows = head + size, rows_so_far
        self._words[HeaderWord.FRAMES_HEAD] = head + size
        self._words[HeaderWord.FRAME_ROWS] = rows_so_far

    # Counters ------------------------------------------------------------------------------

    def drop(self, reason: DropReason, rows: int = 1) -> None:
        """Count rows that were produced but not written."""
        self._words[HeaderWord.DROPPED + reason] += rows

    def set_word(self, word: int, value: int) -> None:
        self._words[word] = value

    def word(self, word: int) -> int:
        return self._words[word]

    def dropped(self) -> dict[str, int]:
        """Rows dropped so far, by reason."""
        return {reason.name.lower(): self._words[HeaderWord.DROPPED + reason] for reason in DropReason}

    def has_backlog(self) -> bool:
        """Whether half or more of either part waits for the drainer."""
        return (
            self.slots.next - self._words[HeaderWord.SLOTS_TAIL] >= _BACKLOG
            or self._frames_head - self._words[HeaderWord.FRAMES_TAIL] >= FRAME_BYTES // 2
        )

    def close(self, state: State = State.ENDED) -> None:
        """Tell the drainer that no more rows come; what was put stays for it to collect."""
        self._words[HeaderWord.STATE] = state

    def release(self) -> None:
        """Unmap the file, in a forked child that must not write to its parent's ring."""
        self._words.release()
        self.slots.release()
        self._map.close()
