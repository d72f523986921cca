"""What became of every row of a process: produced = stored + dropped + lost.

Rows of a client elsewhere are also withheld, by its site's policy, or pending: in its spool, or on their way.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from stethos.record.border import checked_books
from stethos.record.segment import SegmentRows
from stethos.store.header import Counters, RingHeader

if TYPE_CHECKING:
    from stethos.store.process import RingRows

SIZE_LIMIT = "size_limit"


@dataclass(frozen=True, slots=True)
class Ledger:
    """Rows of one process, or of several added up.

    `waiting` rows are in the ring and nowhere else yet; they are not part of
    `produced`. `drops` gives `dropped` by reason.
    """

    produced: int = 0
    stored: int = 0
    lost: int = 0
    waiting: int = 0
    drops: Mapping[str, int] = field(default_factory=dict)
    withheld: int = 0
    pending: int = 0

    @property
    def dropped(self) -> int:
        return sum(self.drops.values())

    @property
    def unaccounted(self) -> int:
        """Rows the books do not explain: 0 unless something is wrong with Stethos itself."""
        return self.produced - self.stored - self.dropped - self.lost - self.withheld - self.pending

    def as_row(self) -> dict[str, Any]:
        """As part of a summary."""
        return {
            "rows_produced": self.produced,
            "rows_stored": self.stored,
            "rows_dropped": self.dropped,
            "rows_lost": self.lost,
            "rows_waiting": self.waiting,
            "rows_withheld": self.withheld,
            "rows_pending": self.pending,
            "drops": dict(self.drops),
        }


def total(ledgers: Iterable[Ledger]) -> Ledger:
    """The books of several processes added up."""
    drops: dict[str, int] = {}
    produced = stored = lost = waiting = withheld = pending = 0
    for ledger in ledgers:
        produced += ledger.produced
        stored += ledger.stored
        lost += ledger.lost
        waiting += ledger.waiting
        withheld += ledger.withheld
        pending += ledger.pending
        for reason, rows in ledger.drops.items():
            drops[reason] = drops.get(reason, 0) + rows
    return Ledger(produced, stored, lost, waiting, drops, withheld, pending)


def ledger_after_end(manifest: dict[str, Any], counters: Counters, damaged: int) -> Ledger:
    """The books of a process whose drainer has finished: what it counted against what is on disk.

    `damaged` is the number of sealed rows that cannot be read.
    """
    retired = sum(manifest.get("retired", {}).values())
    own_drops = sum(counters.drops.values())
    return Ledger(
        produced=counters.slots - counters.unpackable + counters.frame_rows + manifest.get("host_rows", 0) + own_drops,
        stored=_sealed(manifest) - damaged,
        lost=manifest.get("lost", 0) + damaged,
        drops=_drops(counters.drops, retired),
    )


def ledger_before_end(
    manifest: dict[str, Any], ring: RingHeader | None, segment: SegmentRows, damaged: int, unread: RingRows
) -> Ledger:
    """The books while a segment is open: what the drainer has read against what is on disk, in files or in the ring."""
    retired = sum(manifest.get("retired", {}).values())
    drops = ring.counters.drops if ring else {}
    holes = ring.counters.holes if ring else 0
    written = max(ring.written_rows if ring else 0, segment.end_rows)
    waiting = _waiting(manifest, ring, segment, written) if ring else 0
    return Ledger(
        produced=written + holes + sum(drops.values()) + unread.rows + unread.holes,
        stored=_sealed(manifest) + segment.rows - damaged + unread.rows,
        lost=manifest.get("lost", 0) + holes + segment.lost + written - segment.end_rows + damaged + unread.holes,
        waiting=max(0, waiting - unread.rows - unread.holes),
        drops=_drops(drops, retired),
    )


def ledger_of_collected(manifest: dict[str, Any], segment: SegmentRows, damaged: int) -> Ledger:
    """The books of a client's process elsewhere: what it says of itself against what has come."""
    told = manifest["collected"]
    books, own = checked_books(told.get("books")), checked_books({"drops": told.get("own_drops")})["drops"]
    stored = _sealed(manifest) + segment.rows - damaged
    lost = books["lost"] + manifest.get("lost", 0) + segment.lost + damaged
    drops = _drops({**books["drops"], **own}, sum(manifest.get("retired", {}).values()))
    withheld = sum(books["withheld"].values())
    known = stored + lost + sum(drops.values()) + withheld
    produced = max(books["produced"], known)  # its books may be older than its last rows
    return Ledger(produced, stored, lost, 0, drops, withheld, produced - known)


def _waiting(manifest: dict[str, Any], ring: RingHeader, segment: SegmentRows, written: int) -> int:
    if not ring.has_waiting:
        return 0
    counters = ring.counters
    host_rows: int = manifest.get("host_rows", 0) + segment.sampled_rows
    slots = counters.slots + ring.waiting_slots - counters.unpackable
    return max(0, slots + counters.frame_rows + host_rows - counters.holes - written)


def _sealed(manifest: dict[str, Any]) -> int:
    return sum(int(file["rows"]) for file in manifest.get("sealed", []))


def _drops(drops: Mapping[str, int], retired: int) -> dict[str, int]:
    named = {reason: rows for reason, rows in drops.items() if rows}
    return {**named, SIZE_LIMIT: retired} if retired else named
