"""Where a run is now: its last steps, rounds, turns, loads and logged values, for monitors and lists."""

from __future__ import annotations

from stethos.view.query import Query

RECENT_STEPS = 100

RUN = Query("SELECT state, host, version, git_commit, started_ns, ended_ns, size_bytes FROM runs")
LOADS = Query(
    "SELECT process, arg_max(cpu_share, t_ns) AS cpu_share, arg_max(rss_bytes, t_ns) AS rss_bytes\n"
    "FROM host GROUP BY process"
)
LAST_STEPS = Query(f"""\
SELECT process, any_value(rank) AS rank, arg_max(loss, t_ns) AS loss, arg_max(lr, t_ns) AS lr,
       arg_max(grad_norm, t_ns) AS grad_norm, max(t_ns) AS last_ns, avg(step_ms) AS step_ms, avg(data_ms) AS data_ms,
       avg(forward_ms) AS forward_ms, avg(backward_ms) AS backward_ms, avg(optimizer_ms) AS optimizer_ms
FROM (SELECT * FROM steps QUALIFY row_number() OVER (PARTITION BY process ORDER BY t_ns DESC) <= {RECENT_STEPS})
GROUP BY process ORDER BY last_ns DESC""")
LAST_ROUNDS = Query("""\
SELECT coalesce(federation, '') AS federation, max(round) AS round, arg_max(duration_ms, t_ns) AS duration_ms,
       arg_max(loss, t_ns) AS loss, arg_max(accuracy, t_ns) AS accuracy, arg_max(selected, t_ns) AS selected,
       arg_max(reported, t_ns) AS reported, arg_max(failed, t_ns) AS failed, count(*) AS rounds
FROM rounds GROUP BY 1 ORDER BY 1""")
LAST_TURNS = Query("""\
SELECT coalesce(federation, '') AS federation, client, coalesce(status, 'unknown') AS status, count(*) AS turns,
       arg_max(duration_ms, t_ns) AS duration_ms, arg_max(loss, t_ns) AS loss
FROM client_rounds WHERE client IS NOT NULL GROUP BY 1, 2, 3 ORDER BY max(t_ns) DESC""")
OPEN_FINDINGS = Query(
    "SELECT severity, code, name, count(*) AS findings FROM findings WHERE state = 'open' GROUP BY ALL ORDER BY ALL"
)
LAST_METRICS = Query(
    "SELECT name, arg_max(value, t_ns) AS value FROM metrics WHERE name IS NOT NULL GROUP BY name\n"
    "ORDER BY max(t_ns) DESC, name"
)
# The last, smallest and largest value of every metric, of the losses of steps, and of what rounds were evaluated to.
METRIC_RANGES = Query("""\
WITH told AS (
  SELECT name, value, t_ns FROM metrics WHERE name IS NOT NULL
  UNION ALL SELECT 'steps/loss', loss, t_ns FROM steps
  UNION ALL SELECT 'rounds/loss', loss, t_ns FROM rounds
  UNION ALL SELECT 'rounds/accuracy', accuracy, t_ns FROM rounds
  UNION ALL SELECT 'rounds/round', round, t_ns FROM rounds)
SELECT name, arg_max(value, t_ns), min(value) FILTER (isfinite(value)), max(value) FILTER (isfinite(value))
FROM told WHERE value IS NOT NULL GROUP BY name ORDER BY name LIMIT 200""")
