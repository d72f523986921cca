"""Panels about what only some runs have: collectives between ranks, GPUs, hangs."""

from __future__ import annotations

from stethos.web.panel import Option, Panel, Parameter
from stethos.web.thinning import BY_TIME, SERIES, over_time, span_of

_DEVICE = f"{SERIES} || ', GPU ' || device"
_HANGS = "SELECT DISTINCT hang FROM hangs WHERE hang IS NOT NULL ORDER BY hang DESC LIMIT 100"
_THREADS = {
    "main": Option("thread = 'MainThread'", "The main thread of each process"),
    "all": Option("true", "Every thread"),
}
HANG = Parameter("hang", "Hang", "number", values=_HANGS)
THREADS = Parameter("threads", "Threads", "choice", _THREADS)

COLLECTIVE_PANELS = (
    Panel(
        "collective-wait", "time", "Time of a collective, by rank", "line",
        f"WITH {span_of('t_ns', 120, 'collectives')}\n"
        f"SELECT {BY_TIME}, {SERIES} AS series,\n"
        "       avg(completed_ns - collectives.t_ns) / 1e6 AS wait_ms\n"
        "FROM collectives, span WHERE completed_ns IS NOT NULL GROUP BY 1, 2 ORDER BY 2, 1",
        "From the call to its completion, on average. Who comes last waits least: the lowest line is the rank that all "
        "others wait for.",
        x="t_ns", y=("wait_ms",), by="series", unit="ms", needs=("collectives",),
    ),
    Panel(
        "collectives", "time", "Collectives", "table",
        'SELECT op, "group", via, rank, count(*) AS calls, sum(bytes) AS bytes, max(seq) AS last_seq,\n'
        "       median(completed_ns - t_ns) / 1e6 AS median_ms, max(completed_ns - t_ns) / 1e6 AS max_ms,\n"
        "       count(*) FILTER (done = 0) AS unfinished\n"
        'FROM collectives GROUP BY op, "group", via, rank ORDER BY unfinished DESC, op, "group", via, rank LIMIT 1000',
        "Calls of torch.distributed by operation and rank; ranks whose last number is behind are missing in the group.",
        needs=("collectives",), is_wide=True,
    ),
)  # fmt: skip

GPU_PANELS = (
    Panel(
        "gpu-busy", "memory", "How busy the GPUs are", "line",
        over_time("gpu", "avg(busy_share) AS busy_share", _DEVICE),
        "Share of the time in which a kernel ran; one that waits for data, or for the CPU, has gaps.",
        x="t_ns", y=("busy_share",), by="series", needs=("gpu",),
    ),
    Panel(
        "gpu-memory", "memory", "Memory of the GPUs", "line",
        over_time("gpu", "max(coalesce(process_bytes, used_bytes)) AS used_bytes", _DEVICE),
        "Memory of the training process on its GPU, or of everybody where the driver does not tell.",
        x="t_ns", y=("used_bytes",), by="series", unit="bytes", needs=("gpu",),
    ),
    Panel(
        "gpus", "memory", "GPUs", "table",
        "SELECT process, rank, device, avg(busy_share) AS busy_share, avg(memory_busy_share) AS memory_busy_share,\n"
        "       max(process_bytes) AS process_bytes, max(used_bytes) AS used_bytes, max(total_bytes) AS total_bytes,\n"
        "       avg(power_w) AS power_w, max(power_limit_w) AS power_limit_w, max(temperature_c) AS temperature_c,\n"
        "       avg(clock_mhz) AS clock_mhz, count(*) AS samples\n"
        "FROM gpu GROUP BY process, rank, device ORDER BY rank NULLS LAST, process, device LIMIT 1000",
        "Means and largest values over the whole run, of every GPU that a process used.",
        needs=("gpu",), is_wide=True,
    ),
)  # fmt: skip

HANG_PANELS = (
    Panel(
        "hangs", "live", "Hangs", "table",
        f"SELECT hang, role, {SERIES} AS process, words, cause, silent_s, limit_s, step,\n"
        '       place, op, "group", seq, missing, t_ns\n'
        "FROM hangs ORDER BY hang DESC, list_position(['culprit', 'waiting', 'beside'], role), rank LIMIT 1000",
        "What the watchdog saw when nothing moved any more: who stands still, and who waits for whom.",
        selects={"hang": "hang"}, needs=("hangs",), is_wide=True,
    ),
    Panel(
        "hang-stacks", "live", "Where everybody stood in a hang", "tree",
        "WITH one AS (SELECT coalesce($hang, (SELECT max(hang) FROM hangs)) AS hang)\n"
        f"SELECT {SERIES} || if(thread = 'MainThread', '', ', ' || thread) AS member, depth, func, file, lineno,\n"
        "       t_ns\n"
        "FROM stacks, one WHERE reason = 'hang ' || one.hang AND $threads\n"
        "ORDER BY rank NULLS LAST, process, thread, depth DESC LIMIT 20000",
        "The stacks of all processes, merged; the outermost call first. The last hang if none is chosen above.",
        x="depth", y=("func", "file", "lineno"), by="member", parameters=(HANG, THREADS), needs=("stacks",),
        is_wide=True,
    ),
)  # fmt: skip
