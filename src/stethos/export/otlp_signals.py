"""A run's numbers and log records as OpenTelemetry metrics and logs, beside the traces of `otlp`.

A file holds OTLP/JSON, one export request per line. For an endpoint the same requests are encoded as protobuf.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from stethos.errors import UsageError
from stethos.export.otlp import Request, attributes_of, resource_of, scope
from stethos.export.output import DEFAULT_LIMIT, ExportResult, compact_json, no_progress, replacing
from stethos.view.clock import offsets_of
from stethos.view.plain import fields_of, printable
from stethos.view.scalar import Scalar, Scalars
from stethos.view.stream import Advance, share_of, stream

if TYPE_CHECKING:
    from stethos.store.run import Run

Signal = Literal["metrics", "logs"]
PATHS: dict[Signal, str] = {"metrics": "/v1/metrics", "logs": "/v1/logs"}
_BATCH = 1000
_SEVERITIES = {"DEBUG": 5, "INFO": 9, "WARNING": 13, "ERROR": 17, "CRITICAL": 21}


class Signals:
    """The export requests of one signal of a run; `count` and `notes` are known when all have been taken."""

    def __init__(self, run: Run, signal: Signal, limit: int = DEFAULT_LIMIT) -> None:
        self._run = run
        self.signal = signal
        self._limit = limit
        self.count = 0
        self.notes: list[str] = []

    def requests(self, advance: Advance = no_progress) -> Iterator[Request]:
        """One request per thousand values or records."""
        return self._metrics(advance) if self.signal == "metrics" else self._logs(advance)

    def _metrics(self, advance: Advance) -> Iterator[Request]:
        scalars = Scalars(self._run, self._limit)
        values = scalars.values(advance)
        while batch := list(itertools.islice(values, _BATCH)):
            self.count += len(batch)
            yield {"resourceMetrics": [self._of_series(name, list(some)) for name, some in _by_series(batch)]}
        self.notes += scalars.notes

    def _of_series(self, series: str, values: list[Scalar]) -> dict[str, Any]:
        """The values of one process or federation; each tag is a gauge."""
        gauges: dict[str, list[dict[str, Any]]] = {}
        for one in values:
            point = {"timeUnixNano": str(max(0, one.t_ns)), "asDouble": _number(one.value)}
            gauges.setdefault(one.tag, []).append({**point, "attributes": attributes_of({"stethos.step": one.step})})
        metrics = [{"name": tag, "gauge": {"dataPoints": points}} for tag, points in gauges.items()]
        resource = {"attributes": attributes_of({"service.name": self._run.name, "service.instance.id": series})}
        return {"resource": resource, "scopeMetrics": [{"scope": scope(), "metrics": metrics}]}

    def _logs(self, advance: Advance) -> Iterator[Request]:
        resources = {row["process"]: resource_of(self._run.name, row) for row in self._run.processes()}
        offsets_ns = offsets_of(self._run)
        every = share_of(self._run.tables()["logs"], self._limit)
        if every > 1:
            self.notes.append(f"logs thinned: 1 of {every}")
        query = f"""SELECT process, t_ns, level, logger, message, fields, exception, client, round, step
            FROM (SELECT *, row_number() OVER (ORDER BY process, t_ns) AS place FROM logs)
            WHERE (place - 1) % {every} = 0 ORDER BY process, t_ns"""
        for process, rows in itertools.groupby(stream(self._run, query), key=lambda row: row[0]):
            while batch := list(itertools.islice(rows, _BATCH)):
                self.count += len(batch)
                advance(len(batch) * every)
                records = [_record(row, offsets_ns.get(process, 0)) for row in batch]
                resource = resources.get(process) or {"attributes": []}
                logs = [{"scope": scope(), "logRecords": records}]
                yield {"resourceLogs": [{"resource": resource, "scopeLogs": logs}]}


def write_metrics(run: Run, path: Path, *, limit: int = DEFAULT_LIMIT, advance: Advance = no_progress) -> ExportResult:
    """Write metrics as OTLP/JSON lines."""
    return _write(Signals(run, "metrics", limit), path, advance)


def write_logs(run: Run, path: Path, *, limit: int = DEFAULT_LIMIT, advance: Advance = no_progress) -> ExportResult:
    """Write log records as OTLP/JSON lines."""
    return _write(Signals(run, "logs", limit), path, advance)


def protobuf_of(signal: Signal, request: Request) -> bytes:
    """A request as protobuf; UsageError where the package for it is missing."""
    try:
        from google.protobuf.json_format import ParseDict
        from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
        from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
    except ImportError:
        raise UsageError(
            f"sending {signal} needs the package opentelemetry-proto",
            hint='pip install "stethos[otlp]", or write a file with -o FILE',
        ) from None
    message = ExportMetricsServiceRequest() if signal == "metrics" else ExportLogsServiceRequest()
    return bytes(ParseDict(request, message).SerializeToString())


def _write(signals: Signals, path: Path, advance: Advance) -> ExportResult:
    with replacing(path) as temporary, temporary.open("w", encoding="utf-8") as file:
        for request in signals.requests(advance):
            file.write(compact_json(request) + "\n")
    what = "values" if signals.signal == "metrics" else "records"
    return ExportResult(str(path), {what: signals.count}, tuple(signals.notes))


def _by_series(batch: list[Scalar]) -> Iterator[tuple[str, Iterator[Scalar]]]:
    return itertools.groupby(sorted(batch, key=lambda one: one.series), key=lambda one: one.series)


def _number(value: float) -> float | str:
    """A number as JSON has it: those that are none, by name."""
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def _record(row: tuple[Any, ...], offset_ns: int) -> dict[str, Any]:
    _, t_ns, level, logger, message, fields, exception, client, number, step = row
    own = {"logger": logger, "stethos.client": client, "stethos.round": number, "stethos.step": step,
           "exception.stacktrace": exception or None}  # fmt: skip
    word = printable(str(level or ""))
    return {
        "timeUnixNano": str(max(0, int(t_ns) + offset_ns)), "severityText": word,
        "severityNumber": _SEVERITIES.get(word, 0), "body": {"stringValue": printable(str(message or ""))},
        "attributes": attributes_of({**fields_of(fields), **own}),
    }  # fmt: skip
