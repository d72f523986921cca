"""Metrics by name, and the texts, images and histograms that were logged; thinned so that a page can take them."""

from __future__ import annotations

from stethos.view.query import Option, Parameter, Query
from stethos.view.series import SERIES

PER_PAGE = 60  # names in one answer
_OURS = "regexp_matches(name, '^(steps|rounds)/')"  # what the program logged comes first
_SERIES = "coalesce(client, 'rank ' || rank, process)"
_SAMPLES = """seen AS x FROM points ASOF LEFT JOIN (
  SELECT process AS of_process, t_ns AS at_ns, sum(samples) OVER (PARTITION BY process ORDER BY t_ns) AS seen
  FROM steps)
  ON process = of_process AND t_ns >= at_ns"""
_X = Parameter(
    "x", "x axis", "choice",
    {
        "step": Option("step AS x FROM points", "the step it was logged with"),
        "round": Option("round AS x FROM points", "federated round"),
        "time": Option("(t_ns - (SELECT min(started_ns) FROM runs)) / 1e9 AS x FROM points", "seconds since the start"),
        "clock": Option("t_ns AS x FROM points", "time of day"),
        "samples": Option(_SAMPLES, "samples seen by the optimizer until then"),
    },
)  # fmt: skip
# Up to 60 names from `from` on, the one that is `like` first, with the numbers of the steps under `steps/`; at most
# 2,000 points of a line. Of a longer line each point stands for a stretch of rows in the order in which they were
# recorded: nothing is sorted, and nothing but what is shown is kept, so that millions of values fit into a panel's
# memory.
METRICS = Query(
    f"""\
WITH told AS NOT MATERIALIZED (
  SELECT name, {_SERIES} AS series, process, step, round, t_ns, value, NULL AS of_steps FROM metrics
  WHERE name IS NOT NULL
  UNION ALL BY NAME
  SELECT 'steps/' || name AS name, series, process, step, round, t_ns, value, of_steps FROM (
    SELECT {SERIES} AS series, process, step, round, t_ns, loss, lr, grad_norm, step_ms,
           (SELECT count(*) FROM steps) AS of_steps
    FROM steps) UNPIVOT (value FOR name IN (loss, lr, grad_norm, step_ms))
  UNION ALL BY NAME
  SELECT 'rounds/' || name AS name, series, process, step, round, t_ns, value FROM (
    SELECT coalesce(federation, process) AS series, process, step, round, t_ns, loss, accuracy FROM rounds)
  UNPIVOT (value FOR name IN (loss, accuracy))),
wanted AS (SELECT DISTINCT name FROM told WHERE $like IS NULL OR contains(lower(name), lower($like))),
ranked AS (
  SELECT name, row_number() OVER (ORDER BY name IS DISTINCT FROM $like, {_OURS}, name) - 1 AS place,
         count(*) OVER () AS names
  FROM wanted),
page AS (FROM ranked WHERE place >= coalesce($from, 0) AND place < coalesce($from, 0) + {PER_PAGE}),
numbered AS NOT MATERIALIZED (SELECT *, row_number() OVER () AS row FROM told),
lines AS (SELECT name, series, names, count(*) AS total, min(row) AS first, max(row) AS last
          FROM numbered JOIN page USING (name) GROUP BY name, series, names),
room AS (SELECT least(2000, greatest(100, 40000 // greatest(1, count(*)))) AS points FROM lines),
points AS (
  SELECT name, series, any_value(process) AS process, max(step) AS step, max(round) AS round, max(t_ns) AS t_ns,
         coalesce(avg(value) FILTER (isfinite(value)), any_value(value)) AS value,
         min(value) FILTER (isfinite(value)) AS low_end, max(value) FILTER (isfinite(value)) AS high_end,
         count(*) FILTER (NOT isfinite(value)) AS broken, count(*) AS points, any_value(of_steps) AS of_steps,
         any_value(names) AS names
  FROM numbered JOIN lines USING (name, series), room
  GROUP BY name, series, if(total <= room.points, row, (row - first) * room.points // (last - first + 1)))
SELECT name, series, value, low_end, high_end, broken, points, of_steps, names,
       (SELECT max(overhead_budget) FROM processes) AS budget, $x
ORDER BY {_OURS}, name, series, x, t_ns""",
    (_X, Parameter("like", "Name contains"), Parameter("from", "From", "number")),
)
MEDIA = Query(
    "SELECT name, kind, list(DISTINCT step ORDER BY step) AS steps FROM media\n"
    "WHERE name IS NOT NULL GROUP BY name, kind ORDER BY kind, name LIMIT 500"
)
MEDIA_ITEM = Query(
    "SELECT step, content FROM media WHERE name = $name AND kind = $kind AND step = $step ORDER BY t_ns DESC LIMIT 1",
    (Parameter("name", "Name"), Parameter("kind", "Kind"), Parameter("step", "Step", "number")),
)
MEDIA_HISTOGRAMS = Query(
    "SELECT step, content FROM (SELECT step, content, row_number() OVER (ORDER BY step) - 1 AS place,\n"
    "  count(*) OVER () AS total FROM media WHERE name = $name AND kind = 'histogram')\n"
    "WHERE place % (total // 200 + 1) = 0 ORDER BY step",
    (Parameter("name", "Name"),),
)
