"""Panels about what the training costs: time, memory, bytes."""

from __future__ import annotations

from stethos.web.panel import Panel, Parameter
from stethos.web.thinning import BY_ROUND, BY_STEP, BY_TIME, over_time, span_of

_ROUNDS = "SELECT DISTINCT round FROM rounds WHERE round IS NOT NULL ORDER BY round DESC LIMIT 2000"
ROUND = Parameter("round", "Round", "number", values=_ROUNDS)
_STEP_SPAN = f"WITH {span_of('step', 100, 'steps')}\n"

TIME_PANELS = (
    Panel(
        "waterfall", "time", "One round across its clients", "waterfall",
        "WITH one AS (SELECT coalesce($round, (SELECT max(round) FROM rounds)) AS round),\n"
        "begin AS (SELECT min(t_ns) AS begin FROM client_rounds WHERE round = (SELECT round FROM one)),\n"
        "turns AS (SELECT turns.*, begin\n"
        "          FROM client_rounds AS turns, begin WHERE round = (SELECT round FROM one) AND client IS NOT NULL),\n"
        "ended AS (SELECT *, (t_ns - begin) / 1e6 AS start_ms, start_ms + duration_ms AS end_ms FROM turns)\n"
        "SELECT client, round, start_ms, download_ms, compute_ms, upload_ms, duration_ms,\n"
        "       max(end_ms) OVER () - end_ms AS wait_ms, status, end_ms = max(end_ms) OVER () AS is_critical\n"
        "FROM ended ORDER BY end_ms DESC NULLS LAST LIMIT 200",
        "When each client downloaded, computed and uploaded. The one that ended last is the critical path: "
        "the round could not end before it. At most 200 are shown, the last ones.",
        x="start_ms", y=("download_ms", "compute_ms", "upload_ms", "wait_ms"), by="client", unit="ms",
        parameters=(ROUND,), selects={"client": "client"}, needs=("client_reports",), is_wide=True,
    ),
    Panel(
        "round-time", "time", "Where the time of a round goes", "stack",
        f"WITH {span_of('round', 300, 'rounds')},\n"
        "slowest AS (SELECT federation, round, max_by(download_ms, duration_ms) AS download_ms,\n"
        "                   max_by(compute_ms, duration_ms) AS compute_ms,\n"
        "                   max_by(upload_ms, duration_ms) AS upload_ms\n"
        "            FROM client_rounds GROUP BY federation, round)\n"
        f"SELECT {BY_ROUND},\n"
        "       avg(coalesce(slowest.download_ms, rounds.download_ms)) AS download_ms,\n"
        "       avg(coalesce(slowest.compute_ms, rounds.compute_ms)) AS compute_ms,\n"
        "       avg(coalesce(slowest.upload_ms, rounds.upload_ms)) AS upload_ms,\n"
        "       avg(aggregate_ms) AS aggregate_ms, avg(evaluate_ms) AS evaluate_ms, avg(observe_ms) AS observe_ms\n"
        "FROM rounds CROSS JOIN span LEFT JOIN slowest USING (federation, round) GROUP BY 1 ORDER BY 1",
        "The slowest client's phases, then the server's. Click a round to see its clients above.",
        x="round", y=("download_ms", "compute_ms", "upload_ms", "aggregate_ms", "evaluate_ms", "observe_ms"),
        unit="ms", selects={"round": "round"}, needs=("rounds",), is_comparable=True,
    ),
    Panel(
        "critical-clients", "time", "Who the rounds wait for", "bars",
        "WITH last AS (SELECT max_by(client, duration_ms) AS client FROM client_rounds GROUP BY federation, round)\n"
        "SELECT client, count(*) AS rounds FROM last WHERE client IS NOT NULL GROUP BY client\n"
        "ORDER BY rounds DESC, client LIMIT 20",
        "In how many rounds each client was the slowest.",
        x="rounds", y=("client",), selects={"client": "client"}, needs=("client_reports",),
    ),
    Panel(
        "step-time", "time", "Where the time of a step goes", "stack",
        f"{_STEP_SPAN}"
        f"SELECT {BY_STEP}, median(data_ms) AS data_ms,\n"
        "       median(forward_ms) AS forward_ms, median(backward_ms) AS backward_ms,\n"
        "       median(optimizer_ms) AS optimizer_ms,\n"
        "       greatest(0, median(step_ms - coalesce(data_ms, 0) - coalesce(forward_ms, 0)\n"
        "                          - coalesce(backward_ms, 0) - coalesce(optimizer_ms, 0))) AS other_ms\n"
        "FROM steps, span GROUP BY 1 ORDER BY 1",
        "Waiting for data, forward, backward, the optimizer, and whatever is between them: medians of groups of steps.",
        x="step", y=("data_ms", "forward_ms", "backward_ms", "optimizer_ms", "other_ms"), unit="ms", needs=("steps",),
        is_comparable=True,
    ),
    Panel(
        "rank-time", "time", "Step time by rank", "line",
        f"{_STEP_SPAN}"
        f"SELECT {BY_STEP}, 'rank ' || rank AS series, avg(step_ms) AS step_ms\n"
        "FROM steps, span WHERE rank IS NOT NULL GROUP BY 1, 2 ORDER BY 2, 1",
        "A rank whose own work is slow holds up all the others.",
        x="step", y=("step_ms",), by="series", unit="ms", needs=("steps",), marks="step",
    ),
    Panel(
        "module-time", "time", "Slowest modules", "bars",
        "SELECT module, stage, avg(step_ms) AS duration_ms\n"
        "FROM (SELECT module, stage, sum(duration_ms) AS step_ms FROM modules GROUP BY process, step, module, stage)\n"
        "GROUP BY module, stage ORDER BY duration_ms DESC LIMIT 20",
        "Mean duration of all its calls in a sampled step, with its children.",
        x="duration_ms", y=("module",), by="stage", unit="ms", needs=("modules",),
    ),
    Panel(
        "spans", "time", "Marked pieces of work", "table",
        "SELECT name, count(*) AS times, sum(duration_ms) AS total_ms, median(duration_ms) AS median_ms,\n"
        "       max(duration_ms) AS max_ms, count(*) FILTER (NOT ok) AS failed\n"
        "FROM spans GROUP BY name ORDER BY total_ms DESC LIMIT 100",
        "Everything timed with stethos.span and by the federation.",
        needs=("spans",),
    ),
)  # fmt: skip

MEMORY_PANELS = (
    Panel(
        "host-memory", "memory", "Memory of the processes", "line",
        over_time("host", "max(rss_bytes) AS rss_bytes"),
        "Resident memory, sampled once a second from outside.",
        x="t_ns", y=("rss_bytes",), by="series", unit="bytes", needs=("host",),
    ),
    Panel(
        "tensor-memory", "memory", "Memory of the tensors", "line",
        f"{_STEP_SPAN}"
        f"SELECT {BY_STEP}, max(allocated_bytes) AS allocated_bytes,\n"
        "       max(peak_bytes) AS peak_bytes\n"
        "FROM steps, span WHERE allocated_bytes IS NOT NULL GROUP BY 1 ORDER BY 1",
        "Parameters, gradients and optimizer state on a CPU; everything allocated on a GPU.",
        x="step", y=("allocated_bytes", "peak_bytes"), unit="bytes", needs=("steps",), marks="step",
        is_comparable=True,
    ),
    Panel(
        "round-bytes", "memory", "Bytes sent and received by round", "stack",
        f"WITH {span_of('round', 300, 'client_reports')},\n"
        "totals AS (SELECT round, sum(sent_bytes) AS sent, sum(received_bytes) AS received\n"
        "           FROM client_rounds WHERE sent_bytes IS NOT NULL OR received_bytes IS NOT NULL GROUP BY round)\n"
        f"SELECT {BY_ROUND}, avg(sent) AS sent_bytes,\n"
        "       avg(received) AS received_bytes\n"
        "FROM totals, span GROUP BY 1 ORDER BY 1",
        "All clients of a round together.",
        x="round", y=("sent_bytes", "received_bytes"), unit="bytes", needs=("client_reports",),
        is_comparable=True,
    ),
    Panel(
        "client-memory", "memory", "Peak memory of the clients", "bars",
        "SELECT client, max(peak_bytes) AS peak_bytes FROM client_rounds WHERE peak_bytes IS NOT NULL\n"
        "GROUP BY client ORDER BY peak_bytes DESC, client LIMIT 20",
        "The twenty that need most.",
        x="peak_bytes", y=("client",), unit="bytes", selects={"client": "client"}, needs=("client_reports",),
    ),
    Panel(
        "module-memory", "memory", "Modules that allocate most", "bars",
        "SELECT module, stage, avg(allocated_bytes) AS allocated_bytes FROM modules WHERE allocated_bytes > 0\n"
        "GROUP BY module, stage ORDER BY allocated_bytes DESC LIMIT 20",
        "Tensor memory newly alive in a module's outputs, on sampled steps.",
        x="allocated_bytes", y=("module",), by="stage", unit="bytes", needs=("modules",),
    ),
    Panel(
        "machine", "memory", "Memory left on the machine", "line",
        f"WITH {span_of('t_ns', 600, 'host')}\n"
        f"SELECT {BY_TIME}, min(machine_free_bytes) AS free_bytes\n"
        "FROM host, span GROUP BY 1 ORDER BY 1",
        "Available to all programs.",
        x="t_ns", y=("free_bytes",), unit="bytes", needs=("host",),
    ),
    Panel(
        "books", "memory", "What became of every row", "table",
        "SELECT process, rank, rows_produced, rows_stored, rows_dropped, rows_lost, drops, overhead_share,\n"
        "       overhead_budget, preset\n"
        "FROM processes ORDER BY rank NULLS LAST, started_ns LIMIT 1000",
        "Produced = stored + dropped + lost, for each process, always.",
        is_wide=True, is_optional=False,
    ),
)  # fmt: skip
