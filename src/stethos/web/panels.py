"""Every panel of the dashboard and of the report, page by page, in the order of the page.

The API, the pages, the SQL and JSON links and the report derive from `PANELS`. What a panel shows is a query of
`stethos.view`; here is how it is drawn.
"""

from __future__ import annotations

from stethos.view import client, layer, machine, metric, round, step
from stethos.web.panel import Panel

# Pages about one run that are made of panels, and their titles.
PAGES: dict[str, str] = {
    "overview": "Overview",
    "metrics": "Metrics",
    "clients": "Clients",
    "layers": "Layers",
    "time": "Time",
    "memory": "Memory and bytes",
    "findings": "Findings",
    "live": "Live",
}

_OVERVIEW = (
    Panel("summary", "overview", "At a glance", "tiles", machine.SUMMARY, is_wide=True, is_optional=False),
    Panel(
        "round-accuracy", "overview", "Accuracy by round", "line", round.by_round("accuracy"),
        "The global model's accuracy on the evaluation data after each round.",
        x="round", y=("accuracy",), by="federation", marks="round", is_comparable=True,
    ),
    Panel(
        "round-loss", "overview", "Loss by round", "line", round.by_round("loss"),
        "The global model's loss on the evaluation data after each round.",
        x="round", y=("loss",), by="federation", marks="round", is_comparable=True,
    ),
    Panel(
        "step-loss", "overview", "Training loss by step", "line", step.by_step("loss"),
        "The mean of each group of steps, and the range within it.",
        x="step", y=("loss",), by="series", band=("low_end", "high_end"), marks="step",
        is_comparable=True,
    ),
    Panel(
        "step-gradient", "overview", "Gradient norm by step", "line", step.by_step("grad_norm"),
        "2-norm of all gradients together; a jump comes before a divergence.",
        x="step", y=("grad_norm",), by="series", band=("low_end", "high_end"), scale="log",
        marks="step", is_comparable=True,
    ),
    Panel(
        "round-clients", "overview", "Clients by round", "stack", round.ROUND_CLIENTS,
        "How many clients sent an update, and how many failed, dropped out or timed out.",
        x="round", y=("reported", "failed"),
    ),
    Panel(
        "global-drift", "overview", "Change of the global model", "line", round.GLOBAL_DRIFT,
        "2-norm of the change of the weights in a round, and since the beginning.",
        x="round", y=("in_round", "since_start"), marks="round", is_comparable=True,
    ),
    Panel(
        "hyperparameters", "overview", "Hyperparameters", "table", machine.HYPERPARAMETERS,
        "What the program was given or set up: arguments, optimizer, scheduler, data, found without logging.",
    ),
    Panel("made", "overview", "Environment", "table", machine.ENVIRONMENT),
)  # fmt: skip


_METRICS = (
    Panel(
        "metrics", "metrics", "Metrics", "metrics", metric.METRICS,
        "Whatever the program logged, with Stethos or another logger, and the numbers of every step.",
        x="x", y=("value",), by="name", is_wide=True,
    ),
    Panel("media", "metrics", "Texts, images and histograms", "media", metric.MEDIA),
    Panel("media-item", "metrics", "One of them", "media", metric.MEDIA_ITEM),
    Panel("media-histograms", "metrics", "Histograms over time", "media", metric.MEDIA_HISTOGRAMS),
)  # fmt: skip


def _beside(name: str, title: str, note: str, measure: str) -> Panel:
    """One client beside the others."""
    return Panel(
        name, "clients", title, "line", client.beside_others(measure), note,
        x="round", y=("client", "others"), band=("low_end", "high_end"), unit=client.MEASURES[measure].unit,
        marks="round",
    )  # fmt: skip


_CLIENTS = (
    Panel(
        "client-map", "clients", "Every client in every round", "heat", client.CLIENT_MAP,
        "A client that differs from its column differs in that round; a row that differs is a client that does in "
        "all. Click a cell to see the client beside the others.",
        x="round", y=("client",), selects={"client": "client"}, marks="round",
        is_wide=True, is_optional=False,
    ),
    _beside("client-norm", "Size of its update", "2-norm; the band holds four fifths of the others.", "norm"),
    _beside(
        "client-cosine", "Direction of its update",
        "Cosine to the robust centre of the others: 1 the same way, 0 unrelated, below 0 against them.", "cosine",
    ),
    _beside(
        "client-entry-loss", "Loss of the incoming model on its data",
        "High where its data or its labels differ from the others'.", "entry_loss",
    ),
    _beside("client-loss", "Loss that it reported", "Of the client's own training, at the end of its turn.", "loss"),
    _beside("client-time", "Duration of its turn", "From download to upload.", "duration"),
    Panel(
        "confusion", "clients", "Confusion matrix", "heat", client.CONFUSION,
        "Each label's samples (row) by the answer that the incoming global model gave (column), as shares, in the last "
        "round that has one. All clients together if none is chosen.",
        x="answer", y=("label",), is_wide=True,
    ),
    Panel(
        "client-table", "clients", "Clients", "table", client.CLIENT_TABLE,
        "Samples, entry loss (of the incoming model on its data), duration, norm ratio and cosine (to the others' "
        "updates) are medians over its rounds; loss is the last one that it reported. At most 1,000 are listed: those "
        "with NaN and the lowest cosine first.",
        selects={"client": "client"}, is_wide=True,
    ),
)  # fmt: skip

_LAYERS = (
    Panel(
        "gradient-flow", "layers", "Flow through the layers", "heat", layer.LAYER_MAP,
        "From the first layer above to the last below, step by step. Gradients that fade towards the top vanish; "
        "a bright stripe to the right is an explosion. Click a layer to follow it.",
        x="step", y=("layer",), selects={"layer": "layer"}, marks="step", is_wide=True,
        is_optional=False,
    ),
    Panel(
        "layer-series", "layers", "One layer over time", "line", layer.LAYER_SERIES,
        "The statistic chosen above, for the layer's gradient and its weight; the largest layer if none is chosen.",
        x="step", y=("value",), by="kind", scale="log", marks="step",
    ),
    Panel(
        "update-ratio", "layers", "Update-to-weight ratio", "line", layer.UPDATE_RATIO,
        "How far the weights move in a step, on average since the sample before, relative to their norm: about 0.001 "
        "is usual. The middle of all layers; where every step was sampled, the band has four fifths of them.",
        x="step", y=("middle", "layer"), band=("low_end", "high_end"), scale="log", marks="step",
    ),
    Panel(
        "layer-histograms", "layers", "How its elements are spread", "heat", layer.LAYER_HISTOGRAMS,
        "Histograms of the layer's gradient or weight, step by step; the largest layer if none is chosen. Rows are "
        "narrow around 0 and wide far from it; the outermost hold all beyond. Taken with some of the samples.",
        x="step", y=("bucket",), marks="step", is_wide=True,
    ),
    Panel(
        "layer-updates", "layers", "How much each round moves each layer", "heat", layer.LAYER_UPDATES,
        "Norm of the median client's update relative to the layer's own norm.",
        x="round", y=("layer",), scale="log", marks="round", is_wide=True,
    ),
    Panel(
        "layer-table", "layers", "Layers at the last sampled step", "table", layer.LAYER_TABLE,
        "Gradients and weights of every layer as they were sampled last.",
        selects={"layer": "layer"}, is_wide=True,
    ),
)  # fmt: skip

_TIME = (
    Panel(
        "waterfall", "time", "One round across its clients", "waterfall", round.TURNS,
        "When each client downloaded, computed and uploaded. The one whose update came last is the critical path: "
        "the round could not end before it. At most 200 are shown, the last ones.",
        x="start_ms", y=("download_ms", "compute_ms", "upload_ms", "wait_ms"), by="client", unit="ms",
        selects={"client": "client"}, is_wide=True,
    ),
    Panel(
        "round-time", "time", "Where the time of a round goes", "stack", round.ROUND_TIME,
        "The phases of the client on the critical path, then the server's. Click a round to see its clients above.",
        x="round", y=("download_ms", "compute_ms", "upload_ms", "aggregate_ms", "evaluate_ms", "observe_ms"),
        unit="ms", selects={"round": "round"}, is_comparable=True,
    ),
    Panel(
        "critical-clients", "time", "Who the rounds wait for", "bars", round.CRITICAL_CLIENTS,
        "In how many rounds each client was on the critical path.",
        x="rounds", y=("client",), selects={"client": "client"},
    ),
    Panel(
        "step-time", "time", "Where the time of a step goes", "stack", step.STEP_TIME,
        "Waiting for data, forward, backward, the optimizer, and whatever is between them: medians of groups of steps.",
        x="step", y=("data_ms", "forward_ms", "backward_ms", "optimizer_ms", "other_ms"), unit="ms",
        is_comparable=True,
    ),
    Panel(
        "rank-time", "time", "Step time by rank", "line", step.RANK_TIME,
        "A rank whose own work is slow holds up all the others.",
        x="step", y=("step_ms",), by="series", unit="ms", marks="step",
    ),
    Panel(
        "module-time", "time", "Slowest modules", "bars", step.MODULE_TIME,
        "Mean duration of all its calls in a sampled step, with its children.",
        x="duration_ms", y=("module",), by="stage", unit="ms",
    ),
    Panel(
        "spans", "time", "Spans", "table", step.SPANS,
        "Everything timed with stethos.span and by the federation.",
    ),
    Panel(
        "collective-wait", "time", "Time of a collective, by rank", "line", machine.COLLECTIVE_WAIT,
        "From the call to its completion, on average. The lowest line arrives last: all others wait for "
        "that rank.",
        x="t_ns", y=("wait_ms",), by="series", unit="ms",
    ),
    Panel(
        "collectives", "time", "Collectives", "table", machine.COLLECTIVES,
        "Calls of torch.distributed by operation and rank; ranks whose last number is behind are missing in the group.",
        is_wide=True,
    ),
)  # fmt: skip

_MEMORY = (
    Panel(
        "gpu-busy", "memory", "How busy the GPUs are", "line", machine.GPU_BUSY,
        "Share of the time in which a kernel ran; one that waits for data, or for the CPU, has gaps.",
        x="t_ns", y=("busy_share",), by="series",
    ),
    Panel(
        "gpu-memory", "memory", "Memory of the GPUs", "line", machine.GPU_MEMORY,
        "Memory of the training process on its GPU, or of all processes where the driver does not report it.",
        x="t_ns", y=("used_bytes",), by="series", unit="bytes",
    ),
    Panel(
        "gpus", "memory", "GPUs", "table", machine.GPUS,
        "Means and largest values over the whole run, of every GPU that a process used.",
        is_wide=True,
    ),
    Panel(
        "host-memory", "memory", "Memory of the processes", "line", machine.HOST_MEMORY,
        "Resident memory, sampled once a second from outside.",
        x="t_ns", y=("rss_bytes",), by="series", unit="bytes",
    ),
    Panel(
        "tensor-memory", "memory", "Memory of the tensors", "line", step.TENSOR_MEMORY,
        "Parameters, gradients and optimizer state on a CPU; everything allocated on a GPU.",
        x="step", y=("allocated_bytes", "peak_bytes"), unit="bytes", marks="step",
        is_comparable=True,
    ),
    Panel(
        "round-bytes", "memory", "Bytes sent and received by round", "stack", round.ROUND_BYTES,
        "All clients of a round together.",
        x="round", y=("sent_bytes", "received_bytes"), unit="bytes", is_comparable=True,
    ),
    Panel(
        "client-memory", "memory", "Peak memory of the clients", "bars", client.CLIENT_MEMORY,
        "The twenty with the highest peak.",
        x="peak_bytes", y=("client",), unit="bytes", selects={"client": "client"},
    ),
    Panel(
        "module-memory", "memory", "Modules that allocate most", "bars", step.MODULE_MEMORY,
        "Tensor memory newly alive in a module's outputs, on sampled steps.",
        x="allocated_bytes", y=("module",), by="stage", unit="bytes",
    ),
    Panel(
        "machine", "memory", "Memory left on the machine", "line", machine.FREE_MEMORY, "Available to all programs.",
        x="t_ns", y=("free_bytes",), unit="bytes",
    ),
    Panel(
        "books", "memory", "Data loss", "table", machine.ROW_COUNTS,
        "Produced = stored + dropped + lost, for each process, always.",
        is_wide=True, is_optional=False,
    ),
)  # fmt: skip

_LIVE = (
    Panel(
        "progress", "live", "Progress", "tiles", machine.PROGRESS,
        "Of the rounds, steps or epochs that the hyperparameters plan, and for how long it goes on.", is_wide=True,
    ),
    Panel(
        "findings", "findings", "What was found", "findings", machine.FINDINGS,
        "Every problem with its evidence, since when, how sure, and what to do next.",
        is_wide=True, is_optional=False,
    ),
    Panel(
        "hangs", "live", "Hangs", "table", machine.HANGS,
        "What the watchdog saw when nothing moved: which process is stuck, and which ones wait for it.",
        selects={"hang": "hang"}, is_wide=True,
    ),
    Panel(
        "hang-stacks", "live", "Stacks in a hang", "tree", machine.HANG_STACKS,
        "The stacks of all processes, merged; the outermost call first. The last hang if none is chosen above.",
        x="depth", y=("func", "file", "lineno"), by="member", is_wide=True,
    ),
    Panel(
        "processes", "live", "Processes", "table", machine.PROCESSES,
        "Every observed process, and how long ago its last step ended.",
        is_wide=True, is_optional=False,
    ),
    Panel(
        "step-rate", "live", "Steps per second", "line", step.STEP_RATE,
        "Optimizer steps by the clock; a gap is a wait, a pause or a hang.",
        x="t_ns", y=("steps_per_s",), by="series",
    ),
    Panel(
        "cpu", "live", "Cores in use", "line", machine.CPU, "1.0 is one core busy all the time.",
        x="t_ns", y=("cores",), by="series",
    ),
    Panel(
        "logs", "live", "Recent log messages", "table", machine.LOGS,
        "The last 200 records of Python's logging; secrets are redacted.",
        is_wide=True,
    ),
    Panel(
        "gaps", "live", "What could not be recorded", "table", machine.GAPS,
        "Refusals and failures of the recorder itself.",
        is_wide=True,
    ),
)  # fmt: skip

PANELS: dict[str, Panel] = {
    panel.name: panel for panel in (*_OVERVIEW, *_METRICS, *_CLIENTS, *_LAYERS, *_TIME, *_MEMORY, *_LIVE)
}
