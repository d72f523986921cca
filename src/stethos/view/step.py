"""Steps over the run: loss, gradients, time, memory."""

from __future__ import annotations

from stethos.view.query import Parameter, Query
from stethos.view.series import BY_STEP, BY_TIME, SERIES, span_of

_SPAN = f"WITH {span_of('step', 400, 'steps')}\n"
_COARSE_SPAN = f"WITH {span_of('step', 100, 'steps')}\n"


def by_step(value: str) -> Query:
    """A column of `steps`: the mean of each group of steps and the range within it, one line per process."""
    return Query(
        f"{_SPAN}SELECT {BY_STEP}, {SERIES} AS series,\n"
        f"       avg({value}) AS {value}, min({value}) AS low_end, max({value}) AS high_end,\n"
        "       count(*) AS sampled, (SELECT count(*) FROM steps) AS of_steps,\n"
        "       (SELECT max(overhead_budget) FROM processes) AS budget\n"
        f"FROM steps, span WHERE {value} IS NOT NULL GROUP BY 1, 2 ORDER BY 2, 1"
    )


STEP_TIME = Query(
    f"{_COARSE_SPAN}"
    f"SELECT {BY_STEP}, median(data_ms) AS data_ms,\n"
    "       median(forward_ms) AS forward_ms, median(backward_ms) AS backward_ms,\n"
    "       median(optimizer_ms) AS optimizer_ms,\n"
    "       greatest(0, median(step_ms - coalesce(data_ms, 0) - coalesce(forward_ms, 0)\n"
    "                          - coalesce(backward_ms, 0) - coalesce(optimizer_ms, 0))) AS other_ms\n"
    "FROM steps, span GROUP BY 1 ORDER BY 1"
)
RANK_TIME = Query(
    f"{_COARSE_SPAN}"
    f"SELECT {BY_STEP}, 'rank ' || rank AS series, avg(step_ms) AS step_ms\n"
    "FROM steps, span WHERE rank IS NOT NULL GROUP BY 1, 2 ORDER BY 2, 1"
)
TENSOR_MEMORY = Query(
    f"{_COARSE_SPAN}"
    f"SELECT {BY_STEP}, max(allocated_bytes) AS allocated_bytes,\n"
    "       max(peak_bytes) AS peak_bytes\n"
    "FROM steps, span WHERE allocated_bytes IS NOT NULL GROUP BY 1 ORDER BY 1"
)
STEP_RATE = Query(
    f"WITH {span_of('t_ns', 60, 'steps')}\n"
    f"SELECT {BY_TIME}, {SERIES} AS series,\n"
    "       count(*) * 1e9 / any_value(width) AS steps_per_s\n"
    "FROM steps, span GROUP BY 1, 2 ORDER BY 2, 1"
)
METRICS = Query(
    "WITH ranked AS (\n"
    "  SELECT name, value, row_number() OVER (PARTITION BY name ORDER BY t_ns) - 1 AS index,\n"
    "         count(*) OVER (PARTITION BY name) AS total\n"
    "  FROM metrics)\n"
    "SELECT index // (total // 600 + 1) * (total // 600 + 1) AS index, name, avg(value) AS value\n"
    "FROM ranked GROUP BY 1, 2 ORDER BY 2, 1"
)
MODULE_TIME = Query(
    "SELECT module, stage, avg(step_ms) AS duration_ms\n"
    "FROM (SELECT module, stage, sum(duration_ms) AS step_ms FROM modules GROUP BY process, step, module, stage)\n"
    "GROUP BY module, stage ORDER BY duration_ms DESC LIMIT 20"
)
MODULE_MEMORY = Query(
    "SELECT module, stage, avg(allocated_bytes) AS allocated_bytes FROM modules WHERE allocated_bytes > 0\n"
    "GROUP BY module, stage ORDER BY allocated_bytes DESC LIMIT 20"
)
SPANS = Query(
    "SELECT name, count(*) AS times, sum(duration_ms) AS total_ms, median(duration_ms) AS median_ms,\n"
    "       max(duration_ms) AS max_ms, count(*) FILTER (NOT ok) AS failed\n"
    "FROM spans GROUP BY name ORDER BY total_ms DESC LIMIT 100"
)
# How long the last five steps of a process took, how long those before, and how many those are.
PACE = Query(
    """\
WITH recent AS (SELECT step, step_ms FROM steps WHERE process = $process ORDER BY step DESC LIMIT 1000),
     ranked AS (SELECT step_ms, row_number() OVER (ORDER BY step DESC) AS age FROM recent)
SELECT median(step_ms) FILTER (age <= 5) AS now_ms, median(step_ms) FILTER (age > 5) AS usual_ms,
       count(step_ms) FILTER (age > 5) AS count
FROM ranked""",
    (Parameter("process", "Process"),),
)
