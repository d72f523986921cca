"""What smaller updates would save and cost, as measured on real ones."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from stethos.profile.column import records

if TYPE_CHECKING:
    from stethos.store.run import Run

COMPRESSION_SQL = """\
SELECT federation, layer, method, count(*) AS updates, sum(raw_bytes)::BIGINT AS raw_bytes, sum(bytes)::BIGINT AS bytes,
       median(error) AS error, max(error) AS worst_error
FROM compression GROUP BY federation, layer, method
ORDER BY federation, layer NULLS FIRST, sum(bytes) DESC"""


@dataclass(frozen=True, slots=True)
class Compression:
    """One way to make updates smaller: `error` is the median of |update - restored| / |update|."""

    federation: str | None
    layer: str | None
    method: str
    updates: int
    raw_bytes: int
    bytes: int
    error: float | None
    worst_error: float | None

    @property
    def ratio(self) -> float:
        return self.raw_bytes / self.bytes if self.bytes else 1.0

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {**asdict(self), "ratio": self.ratio}


def read_compression(run: Run) -> list[Compression]:
    """What was measured: of whole updates first (layer None), then layer by layer."""
    return [Compression(**row) for row in records(run, COMPRESSION_SQL)]
