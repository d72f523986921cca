"""Results of a query, row by row, without all of them as Python objects at once."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from stethos.store.run import Run

_BATCH_ROWS = 10_000
_TIMEOUT_S = 3600.0


def stream(run: Run, query: str) -> Iterator[tuple[Any, ...]]:
    """The rows of a query as tuples."""
    for batch in run.sql(query, timeout_s=_TIMEOUT_S).to_batches(max_chunksize=_BATCH_ROWS):
        yield from zip(*(column.to_pylist() for column in batch.columns), strict=True)
