"""Long results: row by row, without all of them as Python objects at once, and thinned where they are too long."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from stethos.store.run import Run

_BATCH_ROWS = 10_000
_TIMEOUT_S = 3600.0


def stream(run: Run, query: str) -> Iterator[tuple[Any, ...]]:
    """The rows of a query as tuples."""
    for batch in run.arrow(query, timeout_s=_TIMEOUT_S).to_batches(max_chunksize=_BATCH_ROWS):
        yield from zip(*(column.to_pylist() for column in batch.columns), strict=True)


def logs_of(run: Run, every: int) -> Iterator[tuple[Any, ...]]:
    """One log record of `every`, by process and time."""
    yield from stream(
        run,
        f"""SELECT process, t_ns, level, logger, message, fields, exception, client, round, step
FROM (SELECT *, row_number() OVER (ORDER BY process, t_ns) AS place FROM logs)
WHERE (place - 1) % {every} = 0 ORDER BY process, t_ns""",
    )


class Advance(Protocol):
    """Called with the number of rows done since the last call."""

    def __call__(self, count: int, /) -> None: ...


def share_of(rows: int, limit: int) -> int:
    """Of how many rows one is kept, so that at most `limit` are."""
    return max(1, -(-rows // max(1, limit)))
