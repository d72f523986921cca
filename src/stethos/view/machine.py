"""What a run's processes, machines and GPUs do, what they said, and what could not be recorded."""

from __future__ import annotations

from stethos.view.query import Option, Parameter, Query
from stethos.view.series import BY_TIME, SERIES, over_time, span_of

SUMMARY = Query(
    "WITH last_round AS (SELECT round, loss, accuracy FROM rounds ORDER BY t_ns DESC LIMIT 1)\n"
    "SELECT runs.state, runs.ended_ns - runs.started_ns AS duration_ns,\n"
    "       (SELECT nullif(count(DISTINCT round), 0) FROM rounds) AS rounds,\n"
    "       (SELECT count(DISTINCT client) FROM client_reports) AS clients,\n"
    "       runs.steps, runs.processes,\n"
    "       coalesce((SELECT loss FROM last_round), (SELECT arg_max(loss, t_ns) FROM steps)) AS loss,\n"
    "       (SELECT accuracy FROM last_round) AS accuracy,\n"
    "       (SELECT max(overhead_share) FROM processes) AS overhead_share,\n"
    "       (SELECT max(overhead_budget) FROM processes) AS overhead_budget,\n"
    "       runs.rows_stored, (SELECT sum(rows_dropped + rows_lost) FROM processes) AS rows_missing,\n"
    "       runs.size_bytes, runs.started_ns\n"
    "FROM runs"
)
# How far a run is, where it can be told: of rounds, steps or epochs that its hyperparameters plan.
PROGRESS = Query(
    "WITH told AS (SELECT key, try_cast(trim(value::VARCHAR, '\"') AS DOUBLE) AS number\n"
    "              FROM processes, json_each(CASE WHEN json_valid(config) THEN config ELSE '{}' END)),\n"
    "named AS (SELECT max(number) FILTER (key IN ('rounds', 'num_rounds', 'n_rounds')) AS rounds,\n"
    "       max(number) FILTER (key IN ('max_steps', 'total_steps', 'num_steps', 'iterations')) AS steps,\n"
    "       max(number) FILTER (key IN ('epochs', 'num_epochs', 'num_train_epochs', 'max_epochs')) AS epochs,\n"
    "       max(number) FILTER (key = 'dataset_size') AS size, max(number) FILTER (key = 'batch_size') AS batch\n"
    "          FROM told),\n"
    "done AS (SELECT (SELECT max(round) FROM rounds) AS round, (SELECT max(step) FROM steps) AS step,\n"
    "                greatest((SELECT max(t_ns) FROM steps), (SELECT max(t_ns) FROM rounds)) AS last_ns),\n"
    "planned AS (SELECT CASE WHEN rounds > 0 AND round IS NOT NULL THEN 'round'\n"
    "                     WHEN (steps > 0 OR epochs * size / batch > 0) AND step IS NOT NULL THEN 'step' END AS unit,\n"
    "                CASE WHEN unit = 'round' THEN round ELSE step END AS done,\n"
    "                CASE WHEN unit = 'round' THEN rounds WHEN steps > 0 THEN steps\n"
    "                     ELSE epochs * ceil(size / batch) END AS total, last_ns FROM named, done)\n"
    "SELECT unit, done, total, least(1, done / total) AS share,\n"
    "       CASE WHEN done > 0 THEN (last_ns - started_ns) / 1e6 * greatest(0, total - done) / done END AS left_ms\n"
    "FROM planned, runs WHERE unit IS NOT NULL AND total >= done"
)
ENVIRONMENT = Query(
    "WITH facts AS (\n"
    "  SELECT 0 AS place, ['command', 'commit', 'machine', 'stethos', 'exit code'] AS names,\n"
    "         [regexp_replace(command, '^\\S*/', ''), replace(git_commit, '+', ', with changes'), host,\n"
    "          version, exit_code::VARCHAR] AS texts\n"
    "  FROM runs\n"
    "  UNION ALL\n"
    "  SELECT DISTINCT 1, ['python', 'torch', 'packages', 'preset'],\n"
    "         [python, torch, nullif(regexp_replace(versions, '[{}\"]', '', 'g'), ''), preset] FROM processes),\n"
    "pairs AS (SELECT place, unnest(range(5)) AS number, unnest(names) AS setting, unnest(texts) AS value FROM facts)\n"
    "SELECT setting, value FROM pairs WHERE value IS NOT NULL GROUP BY setting, value\n"
    "ORDER BY min(place), min(number), value LIMIT 100"
)
HYPERPARAMETERS = Query(
    "SELECT DISTINCT key AS hyperparameter, trim(value::VARCHAR, '\"') AS value\n"
    "FROM processes, json_each(CASE WHEN json_valid(config) THEN config ELSE '{}' END) ORDER BY 1, 2 LIMIT 500"
)
FINDINGS = Query(
    "SELECT * FROM findings\n"
    "ORDER BY state DESC, list_position(['error', 'warning', 'info'], severity), cause NULLS FIRST, finding"
)
ACTIONS = Query("SELECT * FROM actions ORDER BY t_ns, action")
PROCESSES = Query(
    "WITH last AS (SELECT process, max(t_ns) AS last_step_ns, max(step) AS last_step,\n"
    "                     arg_max(round, t_ns) AS round, arg_max(client, t_ns) AS client,\n"
    "                     arg_max(loss, t_ns) AS loss\n"
    "              FROM steps GROUP BY process)\n"
    "SELECT process, pid, rank, world_size, host, state, ending, last_step_ns, steps, round, client, loss,\n"
    "       overhead_share, rows_stored, rows_dropped, rows_lost, started_ns, command\n"
    "FROM processes LEFT JOIN last USING (process) ORDER BY rank NULLS LAST, started_ns"
)
ROW_COUNTS = Query(
    "SELECT process, rank, rows_produced, rows_stored, rows_dropped, rows_lost, nullif(drops, '{}') AS drops,\n"
    "       overhead_share, overhead_budget, preset\n"
    "FROM processes ORDER BY rank NULLS LAST, started_ns LIMIT 1000"
)
LOGS = Query("SELECT t_ns, level, logger, message, round, client FROM logs ORDER BY t_ns DESC LIMIT 200")
GAPS = Query("SELECT what, reason, count(*) AS times FROM gaps GROUP BY ALL ORDER BY times DESC LIMIT 100")
CPU = Query(over_time("host", "avg(cpu_share) AS cores"))
HOST_MEMORY = Query(over_time("host", "max(rss_bytes) AS rss_bytes"))
FREE_MEMORY = Query(
    f"WITH {span_of('t_ns', 600, 'host')}\n"
    f"SELECT {BY_TIME}, min(machine_free_bytes) AS free_bytes\n"
    "FROM host, span GROUP BY 1 ORDER BY 1"
)

# Ranks -------------------------------------------------------------------------------------------------

COLLECTIVE_WAIT = Query(
    f"WITH {span_of('t_ns', 120, 'collectives')}\n"
    f"SELECT {BY_TIME}, {SERIES} AS series,\n"
    "       avg(completed_ns - collectives.t_ns) / 1e6 AS wait_ms\n"
    "FROM collectives, span WHERE completed_ns IS NOT NULL GROUP BY 1, 2 ORDER BY 2, 1"
)
COLLECTIVES = Query(
    'SELECT op, "group", via, rank, count(*) AS calls, sum(bytes) AS bytes, max(seq) AS last_seq,\n'
    "       median(completed_ns - t_ns) / 1e6 AS median_ms, max(completed_ns - t_ns) / 1e6 AS max_ms,\n"
    "       count(*) FILTER (done = 0) AS unfinished\n"
    'FROM collectives GROUP BY op, "group", via, rank ORDER BY unfinished DESC, op, "group", via, rank LIMIT 1000'
)
_DEVICE = f"{SERIES} || ', GPU ' || device"
GPU_BUSY = Query(over_time("gpu", "avg(busy_share) AS busy_share", _DEVICE))
GPU_MEMORY = Query(over_time("gpu", "max(coalesce(process_bytes, used_bytes)) AS used_bytes", _DEVICE))
GPUS = Query(
    "SELECT process, rank, device, avg(busy_share) AS busy_share, avg(memory_busy_share) AS memory_busy_share,\n"
    "       max(process_bytes) AS process_bytes, max(used_bytes) AS used_bytes, max(total_bytes) AS total_bytes,\n"
    "       avg(power_w) AS power_w, max(power_limit_w) AS power_limit_w, max(temperature_c) AS temperature_c,\n"
    "       avg(clock_mhz) AS clock_mhz, count(*) AS samples\n"
    "FROM gpu GROUP BY process, rank, device ORDER BY rank NULLS LAST, process, device LIMIT 1000"
)
HANGS = Query(
    f"SELECT hang, role, {SERIES} AS process, words, cause, silent_s, limit_s, step,\n"
    '       place, op, "group", seq, missing, t_ns\n'
    "FROM hangs ORDER BY hang DESC, list_position(['culprit', 'waiting', 'beside'], role), rank LIMIT 1000"
)
_THREADS = {
    "main": Option("thread = 'MainThread'", "The main thread of each process"),
    "all": Option("true", "Every thread"),
}
HANG = Parameter(
    "hang", "Hang", "number",
    values="SELECT DISTINCT hang FROM hangs WHERE hang IS NOT NULL ORDER BY hang DESC LIMIT 100",
)  # fmt: skip
HANG_STACKS = Query(
    "WITH one AS (SELECT coalesce($hang, (SELECT max(hang) FROM hangs)) AS hang)\n"
    f"SELECT {SERIES} || if(thread = 'MainThread', '', ', ' || thread) AS member, depth, func, file, lineno,\n"
    "       t_ns\n"
    "FROM stacks, one WHERE reason = 'hang ' || one.hang AND $threads\n"
    "ORDER BY rank NULLS LAST, process, thread, depth DESC LIMIT 20000",
    (HANG, Parameter("threads", "Threads", "choice", _THREADS)),
)
