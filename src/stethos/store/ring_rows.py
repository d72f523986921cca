"""Rows that only the ring of an ended process holds: read in place, so that nothing is missing and nothing changes."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stethos.record.place import boot_id

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import pyarrow as pa

    from stethos.record.segment import SegmentRows
    from stethos.record.tap import Tap


@dataclass(frozen=True, slots=True)
class RingRows:
    """Rows behind those of the segment, by table; `holes` are rows that were begun and never finished."""

    batches: dict[int, pa.RecordBatch] = field(default_factory=dict)
    holes: int = 0

    @property
    def rows_by_table(self) -> dict[int, int]:
        return {number: batch.num_rows for number, batch in self.batches.items()}

    @property
    def rows(self) -> int:
        return sum(self.rows_by_table.values())


def is_trusted(facts: dict[str, Any]) -> bool:
    """Whether a ring's memory is what its process wrote: after a restart of the machine it may be torn."""
    return facts.get("boot_id") in (None, boot_id())


def read_ring(path: Path, names: list[str], segment: SegmentRows) -> RingRows:
    """What the ring at a path holds behind the segment; `names` are those of the manifest.

    Only for a process that puts nothing more. Raises OSError or ValueError if the ring is gone or damaged.
    """
    from stethos.record.arrow import Names, frame_batches, slot_batches
    from stethos.record.layout import MOST_NAMES, TABLE_NAME
    from stethos.record.tap import Tap
    from stethos.redact import redact

    tap = Tap(path, is_writable=False)
    try:
        tap.slots_tail = max(tap.slots_tail, segment.slots_read)
        tap.frames_tail = max(tap.frames_tail, segment.frames_read)
        frames, _ = tap.read_frames()
        known = dict(enumerate(names)) | segment.names()
        known |= {frame.step: redact(frame.texts[0]) for frame in frames if frame.table == TABLE_NAME}
        listed = Names([known.get(number, "?") for number in range(min(max(known, default=0), MOST_NAMES + 1) + 1)])
        slots, holes = _slots_of(tap)
        return RingRows(frame_batches(frames, listed) | slot_batches(slots, listed, tap.slot_dtypes), holes)
    finally:
        tap.close()


def _slots_of(tap: Tap) -> tuple[npt.NDArray[np.uint8], int]:
    """Every complete slot from the tail on, and how many unfinished ones lie between them."""
    import numpy as np

    pieces, holes = [tap.read_slots()], 0
    while len(pieces[-1]) or tap.has_hole():
        tap.slots_tail += len(pieces[-1])
        if not len(pieces[-1]):
            tap.skip_hole()
            holes += 1
        pieces.append(tap.read_slots())
    return np.concatenate(pieces), holes
