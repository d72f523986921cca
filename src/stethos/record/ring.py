"""The trainer's end of the ring: rows go into mapped memory and nothing else happens.

Standard library only. `put` and `put_frame` never block on I/O and never
wait for the drainer: when the ring is full the newest row is dropped and
counted. A row that was put survives the death of the process.
"""

from __future__ import annotations

import mmap
import os
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

from stethos.record.layout import (
    FRAME_BYTES,
    FRAME_HEADER,
    FRAMES_BASE,
    LARGEST_FRAME,
    MAGIC,
    RING_BYTES,
    SLOT_MARGIN,
    SLOTS,
    TABLE_PAD,
    Drop,
    State,
    Word,
    aligned,
)
from stethos.record.slots import STORES_ARE_ORDERED, fence, slots_of
from stethos.schema import NULL_I32

Bytes = bytes | memoryview
_BACKLOG = SLOTS // 2


def create_ring_file(path: Path) -> None:
    """Make the file with all its blocks allocated, so that a full disk fails here and not in a store."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
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
        self._words[Word.PID] = os.getpid()
        self._words[Word.MAGIC] = MAGIC
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
        return self.slots.writer(pack_into)

    def step_writer(self) -> Callable[..., bool]:
        """A function that writes one row of `steps`, given as the words of its slot; see `writer`."""
        return self.slots.put_step

    def _look_at_tail(self) -> int:
        """The row at which to look again, or -1 after counting a drop: the ring is full."""
        tail = self._words[Word.SLOTS_TAIL]
        if self.slots.next - tail >= _BACKLOG:
            self.on_backlog()
            if self.slots.next - tail >= SLOTS - SLOT_MARGIN:
                self.drop(Drop.RING_FULL)
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
            self.drop(Drop.TOO_LARGE, rows)
            return False
        with self._lock:  # held for microseconds, and safe against Ctrl-C as `with` is
            if self._is_writing:  # a signal handler or destructor logged inside us
                self.drop(Drop.REENTRANT, rows)
                return False
            self._is_writing = True
            try:
                head = self._frames_head
                room = FRAME_BYTES - (head - self._words[Word.FRAMES_TAIL])
                to_end = FRAME_BYTES - head % FRAME_BYTES
                padding = to_end if size > to_end else 0
                is_fitting = size + padding <= room
                if is_fitting:
                    self._write_frame(head, padding, size, payload, table, len(texts), rows,
                                      client, round, optimizer, step, t_ns)  # fmt: skip
                else:
                    self.drop(Drop.RING_FULL, rows)
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
        self._words[Word.FRAMES_HEAD] = head + size
        self._words[Word.FRAME_ROWS] = rows_so_far

    # Counters ------------------------------------------------------------------------------

    def drop(self, reason: Drop, rows: int = 1) -> None:
        """Count rows that were produced but not written."""
        self._words[Word.DROPPED + reason] += rows

    def set_word(self, word: int, value: int) -> None:
        self._words[word] = value

    def word(self, word: int) -> int:
        return self._words[word]

    def dropped(self) -> dict[str, int]:
        """Rows dropped so far, by reason."""
        return {reason.name.lower(): self._words[Word.DROPPED + reason] for reason in Drop}

    def has_backlog(self) -> bool:
        """Whether half or more of either part waits for the drainer."""
        return (
            self.slots.next - self._words[Word.SLOTS_TAIL] >= _BACKLOG
            or self._frames_head - self._words[Word.FRAMES_TAIL] >= FRAME_BYTES // 2
        )

    def close(self, state: State = State.ENDED) -> None:
        """Tell the drainer that no more rows come; what was put stays for it to collect."""
        self._words[Word.STATE] = state

    def release(self) -> None:
        """Unmap the file, in a forked child that must not write to its parent's ring."""
        self._words.release()
        self.slots.release()
        self._map.close()
