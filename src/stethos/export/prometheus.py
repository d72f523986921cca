"""A run's present state in Prometheus' text format, for a file collector or the dashboard.

Labels stay few: of more than fifty clients (or processes) those that came last are named, and the rest are one
`other`, counts added up and other values averaged.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from stethos.export.output import DEFAULT_LIMIT, Advance, Written, no_progress, printable, replacing

if TYPE_CHECKING:
    from stethos.store.run import Run

LABELLED = 50
OTHER = "other"
_RECENT_STEPS = 100
Labels = tuple[tuple[str, str], ...]


@dataclass(slots=True)
class _Family:
    """One metric: its samples by their labels. Samples with the same labels are added up or averaged."""

    name: str
    kind: Literal["counter", "gauge"]
    help: str
    samples: dict[Labels, list[float]] = field(default_factory=dict)

    def add(self, value: float | None, **labels: Any) -> None:
        if value is not None:
            key = tuple((name, printable(str(label))) for name, label in labels.items() if label is not None)
            self.samples.setdefault(key, []).append(float(value))

    def lines(self) -> Iterator[str]:
        if not self.samples:
            return
        yield f"# HELP {self.name} {_escaped(self.help)}"
        yield f"# TYPE {self.name} {self.kind}"
        for labels, values in self.samples.items():
            value = sum(values) if self.kind == "counter" else sum(values) / len(values)
            inside = ",".join(f'{name}="{_escaped(label, quoted=True)}"' for name, label in labels)
            yield f"{self.name}{{{inside}}} {_number(value)}" if inside else f"{self.name} {_number(value)}"


def text(run: Run, *, labelled: int = LABELLED) -> str:
    """The whole exposition of a run; at most `labelled` clients and processes have labels of their own."""
    name = run.name
    rows = run.tables()
    families: list[_Family] = []
    for part in (_run_part, _process_part, _step_part, _round_part, _client_part, _finding_part, _metric_part):
        families += part(run, rows, name, labelled)
    return "".join(f"{line}\n" for family in families for line in family.lines())


def write(run: Run, path: Path, *, limit: int = DEFAULT_LIMIT, advance: Advance = no_progress) -> Written:
    """Write the exposition into a file, whole or not at all: a collector may read at any moment."""
    del limit  # the state now: there is nothing to thin
    content = text(run)
    with replacing(path) as temporary:
        temporary.write_text(content, encoding="utf-8")
    advance(1)
    samples = sum(not line.startswith("#") for line in content.splitlines())
    return Written(str(path), {"samples": samples})


def _run_part(run: Run, rows: dict[str, int], name: str, labelled: int) -> list[_Family]:
    columns = "state, host, version, git_commit, started_ns, ended_ns, size_bytes"
    ((state, host, version, commit, started_ns, ended_ns, size),) = run.rows(f"SELECT {columns} FROM runs").values
    facts = _Family("stethos_run_info", "gauge", "The run: always 1, its facts are labels")
    facts.add(1, run=name, state=state, host=host, version=version, git_commit=commit)
    up = _Family("stethos_run_up", "gauge", "1 while a process of the run is alive")
    up.add(state == "running", run=name)
    started = _Family("stethos_run_start_timestamp_seconds", "gauge", "Start of the run")
    started.add(_seconds(started_ns), run=name)
    ended = _Family("stethos_run_end_timestamp_seconds", "gauge", "End of the run, once it is over")
    ended.add(_seconds(ended_ns), run=name)
    stored = _Family("stethos_run_size_bytes", "gauge", "Size of the run directory")
    stored.add(size, run=name)
    return [facts, up, started, ended, stored]


def _process_part(run: Run, rows: dict[str, int], name: str, labelled: int) -> list[_Family]:
    processes = sorted(run.processes(), key=lambda row: (row["state"] == "running", row["started_ns"] or 0))
    shown = _capped([row["process"] for row in reversed(processes)], labelled)
    steps = _Family("stethos_steps_total", "counter", "Optimizer steps seen")
    overhead = _Family("stethos_overhead_ratio", "gauge", "Share of the training time spent on observing")
    fates = _Family("stethos_rows_total", "counter", "Rows by what became of them")
    alive = _Family("stethos_processes", "gauge", "Processes by state")
    counts: dict[str, int] = {}
    for row in processes:
        process = shown(row["process"])
        rank = row["rank"] if process != OTHER else None
        steps.add(row["steps"], run=name, process=process, rank=rank)
        overhead.add(row["overhead_share"], run=name, process=process, rank=rank)
        for fate in ("stored", "dropped", "lost"):
            fates.add(row[f"rows_{fate}"], run=name, process=process, fate=fate)
        counts[row["state"]] = counts.get(row["state"], 0) + 1
    for state, count in counts.items():
        alive.add(count, run=name, state=state)
    families = [steps, overhead, fates, alive]
    if rows["host"]:
        cpu = _Family("stethos_process_cpu_cores", "gauge", "Cores in use by the process")
        rss = _Family("stethos_process_resident_bytes", "gauge", "Resident memory of the process")
        query = "SELECT process, arg_max(cpu_share, t_ns), arg_max(rss_bytes, t_ns) FROM host GROUP BY process"
        for process, cores, resident in run.rows(query).values:
            cpu.add(cores, run=name, process=shown(process))
            rss.add(resident, run=name, process=shown(process))
        families += [cpu, rss]
    return families


def _step_part(run: Run, rows: dict[str, int], name: str, labelled: int) -> list[_Family]:
    if not rows["steps"]:
        return []
    place = "row_number() OVER (PARTITION BY process ORDER BY t_ns DESC)"
    last = f"SELECT * FROM steps QUALIFY {place} <= {_RECENT_STEPS}"
    query = f"""SELECT process, any_value(rank), arg_max(loss, t_ns), arg_max(lr, t_ns), arg_max(grad_norm, t_ns),
        max(t_ns), avg(step_ms), avg(data_ms), avg(forward_ms), avg(backward_ms), avg(optimizer_ms)
        FROM ({last}) GROUP BY process ORDER BY max(t_ns) DESC"""
    loss = _Family("stethos_loss", "gauge", "Loss of the last step that had one")
    rate = _Family("stethos_learning_rate", "gauge", "Learning rate of the last step")
    norm = _Family("stethos_gradient_norm", "gauge", "2-norm of the last gradients measured")
    when = _Family("stethos_last_step_timestamp_seconds", "gauge", "Time of the last step")
    spent = _Family("stethos_step_seconds", "gauge", f"Mean duration over the last {_RECENT_STEPS} steps, by phase")
    found = run.rows(query).values
    shown = _capped([row[0] for row in found], labelled)
    for process, rank, last_loss, lr, grad_norm, t_ns, *phases in found:
        if shown(process) == OTHER:
            continue
        labels = {"run": name, "process": process, "rank": rank}
        loss.add(last_loss, **labels)
        rate.add(lr, **labels)
        norm.add(grad_norm, **labels)
        when.add(_seconds(t_ns), **labels)
        for phase, value in zip(("step", "data", "forward", "backward", "optimizer"), phases, strict=True):
            spent.add(None if value is None else value / 1000, **labels, phase=phase)
    return [loss, rate, norm, when, spent]


def _round_part(run: Run, rows: dict[str, int], name: str, labelled: int) -> list[_Family]:
    if not rows["rounds"]:
        return []
    query = """SELECT coalesce(federation, ''), max(round), arg_max(duration_ms, t_ns), arg_max(loss, t_ns),
        arg_max(accuracy, t_ns), arg_max(selected, t_ns), arg_max(reported, t_ns), arg_max(failed, t_ns), count(*)
        FROM rounds GROUP BY 1 ORDER BY 1"""
    done = _Family("stethos_rounds_total", "counter", "Federated rounds that ended")
    number = _Family("stethos_round", "gauge", "Number of the last round")
    spent = _Family("stethos_round_seconds", "gauge", "Duration of the last round")
    loss = _Family("stethos_round_loss", "gauge", "Evaluated loss of the last global model")
    accuracy = _Family("stethos_round_accuracy", "gauge", "Evaluated accuracy of the last global model")
    clients = _Family("stethos_round_clients", "gauge", "Clients of the last round, by what became of them")
    for federation, last, duration_ms, its_loss, its_accuracy, selected, reported, failed, count in run.rows(
        query
    ).values:
        labels = {"run": name, "federation": federation}
        done.add(count, **labels)
        number.add(last, **labels)
        spent.add(None if duration_ms is None else duration_ms / 1000, **labels)
        loss.add(its_loss, **labels)
        accuracy.add(its_accuracy, **labels)
        for fate, value in (("selected", selected), ("reported", reported), ("failed", failed)):
            clients.add(value, **labels, fate=fate)
    return [done, number, spent, loss, accuracy, clients]


def _client_part(run: Run, rows: dict[str, int], name: str, labelled: int) -> list[_Family]:
    if not rows["client_rounds"]:
        return []
    query = """SELECT coalesce(federation, ''), client, coalesce(status, 'unknown'), count(*),
        arg_max(duration_ms, t_ns), arg_max(loss, t_ns), max(t_ns) FROM client_rounds WHERE client IS NOT NULL
        GROUP BY ALL ORDER BY max(t_ns) DESC"""
    found = run.rows(query).values
    shown = _capped(list(dict.fromkeys(row[1] for row in found)), labelled)
    turns = _Family("stethos_client_turns_total", "counter", "Turns of a client, by status")
    spent = _Family("stethos_client_turn_seconds", "gauge", "Duration of the client's last turn")
    loss = _Family("stethos_client_loss", "gauge", "Loss that the client reported last")
    for federation, client, status, count, duration_ms, its_loss, _ in found:
        labels = {"run": name, "federation": federation, "client": shown(client)}
        turns.add(count, **labels, status=status)
        if status == "ok":
            spent.add(None if duration_ms is None else duration_ms / 1000, **labels)
            loss.add(its_loss, **labels)
    return [turns, spent, loss]


def _finding_part(run: Run, rows: dict[str, int], name: str, labelled: int) -> list[_Family]:
    found = _Family("stethos_findings", "gauge", "Open findings of the last diagnosis")
    if rows["findings"]:
        query = "SELECT severity, code, name, count(*) FROM findings WHERE state = 'open' GROUP BY ALL ORDER BY ALL"
        for severity, code, what, count in run.rows(query).values:
            found.add(count, run=name, severity=severity, code=code, name=what)
    return [found]


def _metric_part(run: Run, rows: dict[str, int], name: str, labelled: int) -> list[_Family]:
    values = _Family("stethos_metric", "gauge", "Last value of a metric that the program logged")
    if rows["metrics"]:
        query = f"""SELECT name, arg_max(value, t_ns) FROM metrics WHERE name IS NOT NULL GROUP BY name
            ORDER BY max(t_ns) DESC, name LIMIT {labelled}"""
        for what, value in run.rows(query).values:
            values.add(value, run=name, name=what)
    return [values]


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


def _seconds(t_ns: int | None) -> float | None:
    return None if t_ns is None else t_ns / 1e9
