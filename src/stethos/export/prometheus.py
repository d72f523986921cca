"""A run's present state in Prometheus' text format, for a file collector or the dashboard.

Labels stay few: of more than fifty clients (or processes) those that came last are named, and the rest are one
`other`, counts added up and other values averaged.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stethos.export.output import DEFAULT_LIMIT, ExportResult, no_progress, replacing
from stethos.view.plain import printable
from stethos.view.state import (
    LAST_METRICS,
    LAST_ROUNDS,
    LAST_STEPS,
    LAST_TURNS,
    LOADS,
    OPEN_FINDINGS,
    RECENT_STEPS,
    RUN,
)
from stethos.view.stream import Advance

if TYPE_CHECKING:
    from stethos.store.run import Run

LABELLED = 50
OTHER = "other"
Labels = tuple[tuple[str, str], ...]


class _Exposition:
    """Metrics of one run by name. Samples with the same labels are added up (counters) or averaged (gauges)."""

    def __init__(self, run: str) -> None:
        self._run = run
        self._metrics: dict[tuple[str, str, str], dict[Labels, list[float]]] = {}

    def gauge(self, name: str, help: str, value: float | None, /, **labels: Any) -> None:
        self._add("gauge", name, help, value, labels)

    def counter(self, name: str, help: str, value: float | None, /, **labels: Any) -> None:
        self._add("counter", name, help, value, labels)

    def _add(self, kind: str, name: str, help: str, value: float | None, labels: dict[str, Any]) -> None:
        if value is not None:
            every = {"run": self._run, **labels}
            key = tuple((label, printable(str(text))) for label, text in every.items() if text is not None)
            self._metrics.setdefault((kind, f"stethos_{name}", help), {}).setdefault(key, []).append(float(value))

    def lines(self) -> Iterator[str]:
        for (kind, name, help), samples in self._metrics.items():
            yield f"# HELP {name} {_escaped(help)}"
            yield f"# TYPE {name} {kind}"
            for labels, values in samples.items():
                value = sum(values) if kind == "counter" else sum(values) / len(values)
                inside = ",".join(f'{label}="{_escaped(text, quoted=True)}"' for label, text in labels)
                yield f"{name}{{{inside}}} {_number(value)}"


def text(run: Run, *, labelled: int = LABELLED) -> str:
    """The whole exposition of a run; at most `labelled` clients and processes have labels of their own."""
    rows = run.tables()
    found = _Exposition(run.name)
    _add_run(found, run)
    _add_processes(found, run, labelled, has_loads=bool(rows["host"]))
    if rows["steps"]:
        _add_steps(found, run, labelled)
    if rows["rounds"]:
        _add_rounds(found, run)
    if rows["client_rounds"]:
        _add_clients(found, run, labelled)
    for row in OPEN_FINDINGS.records(run) if rows["findings"] else ():
        labels = {label: row[label] for label in ("severity", "code", "name")}
        found.gauge("findings", "Open findings of the last diagnosis", row["findings"], **labels)
    for row in LAST_METRICS.ask(run, limit_rows=labelled).records() if rows["metrics"] else ():
        found.gauge("metric", "Last value of a metric that the program logged", row["value"], name=row["name"])
    return "".join(f"{line}\n" for line in found.lines())


def merged(texts: Iterable[str]) -> str:
    """The expositions of several runs as one: the samples of a metric stand together, as the format wants."""
    families: dict[str, list[str]] = {}
    for one in texts:
        for block in filter(None, one.split("# HELP ")):
            help_line, type_line, samples = block.split("\n", 2)
            families.setdefault(f"# HELP {help_line}\n{type_line}\n", []).append(samples)
    return "".join(head + "".join(samples) for head, samples in families.items())


def write(run: Run, path: Path, *, limit: int = DEFAULT_LIMIT, advance: Advance = no_progress) -> ExportResult:
    """Write the exposition into a file, whole or not at all: a collector may read at any moment."""
    del limit  # the state now: there is nothing to thin
    content = text(run)
    with replacing(path) as temporary:
        temporary.write_text(content, encoding="utf-8")
    advance(1)
    samples = sum(not line.startswith("#") for line in content.splitlines())
    return ExportResult(str(path), {"samples": samples})


def _add_run(found: _Exposition, run: Run) -> None:
    (row,) = RUN.records(run)
    facts = {name: row[name] for name in ("state", "host", "version", "git_commit")}
    found.gauge("run_info", "The run: always 1, its facts are labels", 1, **facts)
    found.gauge("run_up", "1 while a process of the run is alive", row["state"] == "running")
    found.gauge("run_start_timestamp_seconds", "Start of the run", _scaled(row["started_ns"], 1e9))
    found.gauge("run_end_timestamp_seconds", "End of the run, once it is over", _scaled(row["ended_ns"], 1e9))
    found.gauge("run_size_bytes", "Size of the run directory", row["size_bytes"])


def _add_processes(found: _Exposition, run: Run, labelled: int, *, has_loads: bool) -> None:
    processes = sorted(run.processes(), key=lambda row: (row["state"] == "running", row["started_ns"] or 0))
    shown = _capped([row["process"] for row in reversed(processes)], labelled)
    for row in processes:
        process = shown(row["process"])
        labels = {"process": process, "rank": row["rank"] if process != OTHER else None}
        found.counter("steps_total", "Optimizer steps seen", row["steps"], **labels)
        found.gauge("overhead_ratio", "Share of the training time spent on observing", row["overhead_share"], **labels)
        for fate in ("stored", "dropped", "lost"):
            value = row[f"rows_{fate}"]
            found.counter("rows_total", "Rows by what became of them", value, process=process, fate=fate)
    for state, count in Counter(row["state"] for row in processes).items():
        found.gauge("processes", "Processes by state", count, state=state)
    for row in LOADS.records(run) if has_loads else ():
        process = shown(row["process"])
        found.gauge("process_cpu_cores", "Cores in use by the process", row["cpu_share"], process=process)
        found.gauge("process_resident_bytes", "Resident memory of the process", row["rss_bytes"], process=process)


def _add_steps(found: _Exposition, run: Run, labelled: int) -> None:
    words = f"Mean duration over the last {RECENT_STEPS} steps, by phase"
    for row in LAST_STEPS.records(run)[:labelled]:
        labels = {"process": row["process"], "rank": row["rank"]}
        found.gauge("loss", "Loss of the last step that had one", row["loss"], **labels)
        found.gauge("learning_rate", "Learning rate of the last step", row["lr"], **labels)
        found.gauge("gradient_norm", "2-norm of the last gradients measured", row["grad_norm"], **labels)
        found.gauge("last_step_timestamp_seconds", "Time of the last step", _scaled(row["last_ns"], 1e9), **labels)
        for phase in ("step", "data", "forward", "backward", "optimizer"):
            found.gauge("step_seconds", words, _scaled(row[f"{phase}_ms"], 1e3), **labels, phase=phase)


def _add_rounds(found: _Exposition, run: Run) -> None:
    words = "Clients of the last round, by what became of them"
    for row in LAST_ROUNDS.records(run):
        labels = {"federation": row["federation"]}
        found.counter("rounds_total", "Federated rounds that ended", row["rounds"], **labels)
        found.gauge("round", "Number of the last round", row["round"], **labels)
        found.gauge("round_seconds", "Duration of the last round", _scaled(row["duration_ms"], 1e3), **labels)
        found.gauge("round_loss", "Evaluated loss of the last global model", row["loss"], **labels)
        found.gauge("round_accuracy", "Evaluated accuracy of the last global model", row["accuracy"], **labels)
        for fate in ("selected", "reported", "failed"):
            found.gauge("round_clients", words, row[fate], **labels, fate=fate)


def _add_clients(found: _Exposition, run: Run, labelled: int) -> None:
    rows = LAST_TURNS.records(run)
    shown = _capped(list(dict.fromkeys(row["client"] for row in rows)), labelled)
    for row in rows:
        labels = {"federation": row["federation"], "client": shown(row["client"])}
        found.counter(
            "client_turns_total", "Turns of a client, by status", row["turns"], **labels, status=row["status"]
        )
        if row["status"] == "ok":
            seconds = _scaled(row["duration_ms"], 1e3)
            found.gauge("client_turn_seconds", "Duration of the client's last turn", seconds, **labels)
            found.gauge("client_loss", "Loss that the client reported last", row["loss"], **labels)


def _capped(names: Sequence[str], labelled: int) -> Callable[[str], str]:
    """Which label each name gets: its own if it is among the first, else `other`."""
    if len(names) <= labelled:
        return lambda name: name
    own = frozenset(names[:labelled]) - {OTHER}
    return lambda name: name if name in own else OTHER


def _escaped(text: str, *, quoted: bool = False) -> str:
    text = text.replace("\\", r"\\").replace("\n", r"\n")
    return text.replace('"', r"\"") if quoted else text


def _number(value: float) -> str:
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    return repr(int(value)) if value == int(value) and abs(value) < 1e15 else repr(value)


def _scaled(value: float | None, by: float) -> float | None:
    return None if value is None else value / by
