"""What became of the rows of a process whose rows leave the machine: both ends keep the same books.

produced = stored + dropped + lost + withheld + pending. The client knows all but what the collector has stored; what
is then missing is pending: in the client's spool, or on its way. Standard library only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

SPOOL_FULL, TOO_LARGE = "spool_full", "too_large_to_send"
NOT_TAKEN = "refused"  # for good, by the collector or a relay
WITHDRAWN = "withdrawn"  # of those withheld: let through by the policy that held before, and not sent


@dataclass(slots=True)
class Books:
    """The client's side; `taken` rows have been put into batches, of which some may have been dropped since."""

    offered: int = 0  # rows that the drainer has stored on the client's own disk
    lost: int = 0
    taken: int = 0
    drops: dict[str, int] = field(default_factory=dict)
    withheld: dict[str, int] = field(default_factory=dict)

    def as_own(self) -> dict[str, Any]:
        """As it is kept with the spool, to go on from."""
        return {
            "offered": self.offered, "lost": self.lost, "taken": self.taken,
            "drops": dict(self.drops), "withheld": dict(self.withheld),
        }  # fmt: skip

    def as_dict(self, ring_drops: Mapping[str, int]) -> dict[str, Any]:
        """As it travels in a header and is kept with the spool."""
        drops = {reason: rows for reason, rows in ring_drops.items() if rows} | self.drops
        produced = self.offered + sum(ring_drops.values())
        return {"produced": produced, "lost": self.lost, "drops": drops, "withheld": dict(self.withheld)}
