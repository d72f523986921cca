"""Panels about the run as a whole: how it goes, what was found, what its processes do."""

from __future__ import annotations

from stethos.web.panel import Panel
from stethos.web.thinning import BY_ROUND, BY_STEP, BY_TIME, SERIES, over_time, span_of

_STEP_SPAN = f"WITH {span_of('step', 400, 'steps')}\n"
_ROUND_SPAN = f"WITH {span_of('round', 600, 'rounds')}\n"


def _by_step(value: str) -> str:
    return (
        f"{_STEP_SPAN}"
        f"SELECT {BY_STEP}, {SERIES} AS series,\n"
        f"       avg({value}) AS {value}, min({value}) AS low_end, max({value}) AS high_end\n"
        f"FROM steps, span WHERE {value} IS NOT NULL GROUP BY 1, 2 ORDER BY 2, 1"
    )


def _by_round(value: str) -> str:
    return (
        f"{_ROUND_SPAN}"
        f"SELECT {BY_ROUND}, federation, avg({value}) AS {value}\n"
        f"FROM rounds, span WHERE {value} IS NOT NULL GROUP BY 1, 2 ORDER BY 2, 1"
    )


OVERVIEW_PANELS = (
    Panel(
        "summary", "overview", "At a glance", "tiles",
        "WITH last_round AS (SELECT round, loss, accuracy FROM rounds ORDER BY t_ns DESC LIMIT 1)\n"
        "SELECT runs.state, runs.ended_ns - runs.started_ns AS duration_ns,\n"
        "       (SELECT max(round) FROM rounds) AS rounds,\n"
        "       (SELECT count(DISTINCT client) FROM client_reports) AS clients,\n"
        "       runs.steps, runs.processes,\n"
        "       coalesce((SELECT loss FROM last_round), (SELECT arg_max(loss, t_ns) FROM steps)) AS loss,\n"
        "       (SELECT accuracy FROM last_round) AS accuracy,\n"
        "       (SELECT max(overhead_share) FROM processes) AS overhead_share,\n"
        "       runs.rows_stored, (SELECT sum(rows_dropped + rows_lost) FROM processes) AS rows_missing,\n"
        "       runs.size_bytes, runs.started_ns\n"
        "FROM runs",
        is_wide=True, is_optional=False,
    ),
    Panel(
        "round-accuracy", "overview", "Accuracy by round", "line", _by_round("accuracy"),
        "The global model's accuracy on the evaluation data after each round.",
        x="round", y=("accuracy",), by="federation", needs=("rounds",), marks="round", is_comparable=True,
    ),
    Panel(
        "round-loss", "overview", "Loss by round", "line", _by_round("loss"),
        "The global model's loss on the evaluation data after each round.",
        x="round", y=("loss",), by="federation", needs=("rounds",), marks="round", is_comparable=True,
    ),
    Panel(
        "step-loss", "overview", "Training loss by step", "line", _by_step("loss"),
        "The mean of each group of steps, and the range within it.",
        x="step", y=("loss",), by="series", band=("low_end", "high_end"), needs=("steps",), marks="step",
        is_comparable=True,
    ),
    Panel(
        "step-gradient", "overview", "Gradient norm by step", "line", _by_step("grad_norm"),
        "2-norm of all gradients together; a jump comes before a divergence.",
        x="step", y=("grad_norm",), by="series", band=("low_end", "high_end"), scale="log", needs=("steps",),
        marks="step", is_comparable=True,
    ),
    Panel(
        "round-clients", "overview", "Clients by round", "stack",
        f"{_ROUND_SPAN}"
        f"SELECT {BY_ROUND}, avg(reported) AS reported, avg(failed) AS failed\n"
        "FROM rounds, span WHERE selected IS NOT NULL GROUP BY 1 ORDER BY 1",
        "How many clients sent an update, and how many failed, dropped out or timed out.",
        x="round", y=("reported", "failed"), needs=("rounds",),
    ),
    Panel(
        "global-drift", "overview", "Change of the global model", "line",
        f"{_ROUND_SPAN}"
        f"SELECT {BY_ROUND},\n"
        "       if(max(global_nan + global_inf) > 0, 'nan'::DOUBLE, avg(drift)) AS in_round,\n"
        "       if(max(global_nan + global_inf) > 0, 'nan'::DOUBLE, avg(start_drift)) AS since_start\n"
        "FROM rounds, span WHERE drift IS NOT NULL GROUP BY 1 ORDER BY 1",
        "2-norm of the change of the weights in a round, and since the beginning.",
        x="round", y=("in_round", "since_start"), needs=("rounds",), marks="round", is_comparable=True,
    ),
    Panel(
        "metrics", "overview", "Logged values", "line",
        "WITH ranked AS (\n"
        "  SELECT name, value, row_number() OVER (PARTITION BY name ORDER BY t_ns) - 1 AS index,\n"
        "         count(*) OVER (PARTITION BY name) AS total\n"
        "  FROM metrics)\n"
        "SELECT index // (total // 600 + 1) * (total // 600 + 1) AS index, name, avg(value) AS value\n"
        "FROM ranked GROUP BY 1, 2 ORDER BY 2, 1",
        "Whatever the program gave to stethos.log, in its order.",
        x="index", y=("value",), by="name", needs=("metrics",),
    ),
    Panel(
        "made", "overview", "How it was made", "table",
        "WITH facts AS (\n"
        "  SELECT 0 AS place, ['command', 'commit', 'machine', 'stethos', 'exit code'] AS names,\n"
        "         [regexp_replace(command, '^\\S*/', ''), git_commit, host, version, exit_code::VARCHAR] AS texts\n"
        "  FROM runs\n"
        "  UNION ALL\n"
        "  SELECT DISTINCT 1, ['python', 'torch', 'packages', 'preset', 'configuration'],\n"
        "         [python, torch, nullif(versions, '{}'), preset, nullif(config, '{}')] FROM processes),\n"
        "pairs AS (SELECT place, unnest(range(5)) AS number, unnest(names) AS what, unnest(texts) AS text FROM facts)\n"
        "SELECT what, text FROM pairs WHERE text IS NOT NULL GROUP BY what, text\n"
        "ORDER BY min(place), min(number), text LIMIT 100",
        "A + behind the commit: the working directory had changes.",
        is_wide=True,
    ),
)  # fmt: skip

FINDING_PANELS = (
    Panel(
        "findings", "findings", "What was found", "findings",
        "SELECT * FROM findings\n"
        "ORDER BY state DESC, list_position(['error', 'warning', 'info'], severity), cause NULLS FIRST, finding",
        "Every problem with its evidence, since when, how sure that is, and what to do next.",
        is_wide=True, is_optional=False,
    ),
)  # fmt: skip

LIVE_PANELS = (
    Panel(
        "processes", "live", "Processes", "table",
        "WITH last AS (SELECT process, max(t_ns) AS last_step_ns, max(step) AS last_step,\n"
        "                     arg_max(round, t_ns) AS round, arg_max(client, t_ns) AS client,\n"
        "                     arg_max(loss, t_ns) AS loss\n"
        "              FROM steps GROUP BY process)\n"
        "SELECT process, pid, rank, world_size, host, state, ending, last_step_ns, steps, round, client, loss,\n"
        "       overhead_share, rows_stored, rows_dropped, rows_lost, started_ns, command\n"
        "FROM processes LEFT JOIN last USING (process) ORDER BY rank NULLS LAST, started_ns",
        "Every observed process, and how long ago its last step ended.",
        is_wide=True, is_optional=False,
    ),
    Panel(
        "step-rate", "live", "Steps per second", "line",
        f"WITH {span_of('t_ns', 60, 'steps')}\n"
        f"SELECT {BY_TIME}, {SERIES} AS series,\n"
        "       count(*) * 1e9 / any_value(width) AS steps_per_s\n"
        "FROM steps, span GROUP BY 1, 2 ORDER BY 2, 1",
        "Optimizer steps by the clock; a gap is a wait, a pause or a hang.",
        x="t_ns", y=("steps_per_s",), by="series", needs=("steps",),
    ),
    Panel(
        "cpu", "live", "Cores in use", "line",
        over_time("host", "avg(cpu_share) AS cores"),
        "1.0 is one core busy all the time.",
        x="t_ns", y=("cores",), by="series", needs=("host",),
    ),
    Panel(
        "logs", "live", "What the program said last", "table",
        "SELECT t_ns, level, logger, message, round, client FROM logs ORDER BY t_ns DESC LIMIT 200",
        "The last 200 records of Python's logging; secrets are redacted.",
        needs=("logs",), is_wide=True,
    ),
    Panel(
        "gaps", "live", "What could not be recorded", "table",
        "SELECT what, reason, count(*) AS times FROM gaps GROUP BY ALL ORDER BY times DESC LIMIT 100",
        "Refusals and failures of the recorder itself.",
        needs=("gaps",), is_wide=True,
    ),
)  # fmt: skip
