"""The fixed slots of a ring, as their process writes them; `_hot.c` has the same in C.

Lock-free: taking a number gives every thread a slot of its own, and the slot's sequence number, written last, is the
commit. A row that cannot be packed leaves a void slot, is counted, and raises.
"""

from __future__ import annotations

import itertools
import mmap
import platform
import threading
from collections.abc import Callable, Iterator
from typing import Protocol

from stethos.native import NATIVE
from stethos.record.layout import SLOT_BYTES, SLOTS, SLOTS_BASE, TABLE_VOID, Drop, Word

STORES_ARE_ORDERED = platform.machine().lower() in {"x86_64", "amd64", "i686"}
_VOID = TABLE_VOID.to_bytes(2, "little")
_NOT_A_NUMBER = Word.DROPPED + Drop.NOT_A_NUMBER
_fence_lock = threading.Lock()


def fence() -> None:
    """Order earlier stores before later ones where the processor does not (two lock pairs)."""
    for _ in range(2):
        _fence_lock.acquire()
        _fence_lock.release()


class Slots(Protocol):
    """`next` is the number of the next slot; iterating takes slots that stay empty."""

    next: int
    put_step: Callable[..., bool]

    def __next__(self) -> int: ...
    def writer(self, pack_into: Callable[..., None], /) -> Callable[..., bool]: ...
    def release(self) -> None: ...


def slots_of(mapped: mmap.mmap, look: Callable[[], int]) -> Slots:
    """The slots of a ring. `look` is called when some have been taken: it returns the number up to which to go on
    without asking again, or -1 after counting a drop, because the ring is full."""
    if NATIVE is None:
        return PlainSlots(mapped, look)
    slots: Slots = NATIVE.Slots(look, mapped, SLOTS_BASE, SLOTS, SLOT_BYTES, _NOT_A_NUMBER)
    return slots


class PlainSlots:
    """Slots written by Python; everything that a row needs is bound once, as in a training step memory is cold."""

    def __init__(self, mapped: mmap.mmap, look: Callable[[], int]) -> None:
        self._map = mapped
        self._words = memoryview(mapped).cast("q")
        self._doubles = memoryview(mapped).cast("d")
        self._look = look
        self._enough = 0
        self._allocate = itertools.count()
        self.next = 0
        self.put_step = self._step_writer()

    def __iter__(self) -> Iterator[int]:
        return self

    def __next__(self) -> int:
        return next(self._allocate)

    def release(self) -> None:
        """Let the map go."""
        self._words.release()
        self._doubles.release()

    def writer(self, pack_into: Callable[..., None], /) -> Callable[..., bool]:
        """A function that writes one row with a packer of `SLOT_PACKERS`; it returns False if the row was dropped."""
        mapped, words, allocate = self._map, self._words, self._allocate.__next__

        def put(*values: float) -> bool:
            if self.next >= self._enough and not self._has_room():
                return False
            index = allocate()
            self.next = index + 1
            offset = SLOTS_BASE + index % SLOTS * SLOT_BYTES
            try:
                pack_into(mapped, offset + 8, *values)
            except BaseException:
                self._leave_void(offset, index)
                raise
            if not STORES_ARE_ORDERED:
                fence()
            words[offset >> 3] = index + 1
            return True

        return put

    def _step_writer(self) -> Callable[..., bool]:
        """Writes one row of `steps`, given as the words of its slot.

        Word by word: inside a training step, where everything is cold, this
        takes half as long as `pack_into` does with its twenty arguments.
        """
        words, doubles, allocate = self._words, self._doubles, self._allocate.__next__
        first_word, slots, slot_words, is_ordered = SLOTS_BASE // 8, SLOTS, SLOT_BYTES // 8, STORES_ARE_ORDERED

        def put(
            table_client: int, round_optimizer: int, step: int, t_ns: int, local_step_model: int,
            loss: float, rate: float, norm: float, step_ns: int, data_ns: int, forward_ns: int, backward_ns: int,
            optimizer_ns: int, samples_backwards: int, skipped: int, allocated_bytes: int, peak_bytes: int,
        ) -> bool:  # fmt: skip
            if self.next >= self._enough and not self._has_room():
                return False
            index = allocate()
            self.next = index + 1
            at = first_word + index % slots * slot_words
            try:
                words[at + 1] = table_client
                words[at + 2] = round_optimizer
                words[at + 3] = step
                words[at + 4] = t_ns
                words[at + 5] = local_step_model
                doubles[at + 6] = loss
                doubles[at + 7] = rate
                doubles[at + 8] = norm
                doubles[at + 9] = step_ns
                doubles[at + 10] = data_ns
                doubles[at + 11] = forward_ns
                doubles[at + 12] = backward_ns
                doubles[at + 13] = optimizer_ns
                words[at + 14] = samples_backwards
                words[at + 15] = skipped
                words[at + 16] = allocated_bytes
                words[at + 17] = peak_bytes
            except BaseException:
                self._leave_void(8 * at, index)
                raise
            if not is_ordered:
                fence()
            words[at] = index + 1
            return True

        return put

    def _has_room(self) -> bool:
        self._enough = self._look()
        return self._enough >= 0

    def _leave_void(self, offset: int, index: int) -> None:
        self._map[offset + 8 : offset + 10] = _VOID
        self._words[offset >> 3] = index + 1
        self._words[_NOT_A_NUMBER] += 1
