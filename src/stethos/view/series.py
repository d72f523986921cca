"""SQL that thins long series: a drawing shows some hundred points, however long the run is."""

from __future__ import annotations

SERIES = "coalesce('rank ' || rank, process)"  # the name of a process's line


def span_of(column: str, points: int, source: str) -> str:
    """The subquery `span`: where a column begins (`low`), and how much of it each point stands for (`width`)."""
    return (
        f"span AS (SELECT min({column}) AS low, (max({column}) - min({column})) // {points} + 1 AS width FROM {source})"
    )


def _point_of(column: str) -> str:
    return f"low + ({column} - low) // width * width AS {column}"


# Each row's point, to group by; `span` stands in the FROM clause.
BY_STEP, BY_ROUND, BY_TIME = _point_of("step"), _point_of("round"), _point_of("t_ns")


def over_time(table: str, columns: str, series: str = SERIES) -> str:
    """Aggregates of a table over the time of the run, one series per process."""
    return (
        f"WITH {span_of('t_ns', 600, table)}\n"
        f"SELECT {BY_TIME}, {series} AS series, {columns}\n"
        f"FROM {table}, span GROUP BY 1, 2 ORDER BY 2, 1"
    )
