"""A run's spans, numbers and log records as OpenTelemetry traces, metrics and logs.

Traces have rounds and clients' turns among their spans, with the ids that were recorded. A file holds OTLP/JSON, one
export request per line, as the collector's file receiver reads it. For an endpoint the same requests are encoded as
protobuf; that needs the package's extra `otlp`. Sending them is the command's business.
"""

from __future__ import annotations

import base64
import itertools
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from stethos.errors import UsageError
from stethos.export.output import DEFAULT_LIMIT, ExportResult, compact_json, no_progress, replacing
from stethos.view.clock import ns_of, offsets_of, span_rows
from stethos.view.plain import fields_of, jsonable, printable
from stethos.view.scalar import Scalar, Scalars
from stethos.view.stream import Advance, logs_of, share_of

if TYPE_CHECKING:
    from stethos.store.run import Run

Signal = Literal["traces", "metrics", "logs"]
Request = dict[str, Any]
_COUNTED: dict[Signal, str] = {"traces": "spans", "metrics": "values", "logs": "records"}
_BATCH = 1000
_TRACE_ID = re.compile(r"(?!0{32})[0-9a-f]{32}")
_SPAN_ID = re.compile(r"(?!0{16})[0-9a-f]{16}")
_IDS = ("traceId", "spanId", "parentSpanId")
_ERROR = 2
_INTERNAL = 1
_SEVERITIES = {"DEBUG": 5, "INFO": 9, "WARNING": 13, "ERROR": 17, "CRITICAL": 21}


class Otlp:
    """The export requests of one signal of a run; `count` and `notes` are known when all have been taken."""

    def __init__(self, run: Run, signal: Signal, limit: int = DEFAULT_LIMIT) -> None:
        self._run = run
        self.signal = signal
        self._limit = limit
        self.count = 0
        self.notes: list[str] = []

    def requests(self, advance: Advance = no_progress) -> Iterator[Request]:
        """One request per thousand spans, values or records."""
        return {"traces": self._traces, "metrics": self._metrics, "logs": self._logs}[self.signal](advance)

    def result(self, place: str) -> ExportResult:
        """What was written or sent, once all requests have been taken."""
        return ExportResult(place, {_COUNTED[self.signal]: self.count}, tuple(self.notes))

    def _traces(self, advance: Advance) -> Iterator[Request]:
        """Where spans are left out, it is whole traces."""
        every = self._share("spans", "traces")
        skipped = 0
        for resource, offset_ns, batch in self._batches(span_rows(self._run, every)):
            spans = [span for row in batch if (span := _span(row, offset_ns))]
            self.count += len(spans)
            skipped += len(batch) - len(spans)
            advance(len(batch) * every)
            if spans:
                yield {"resourceSpans": [{"resource": resource, "scopeSpans": [{"scope": _scope(), "spans": spans}]}]}
        if skipped:
            self.notes.append(f"{skipped} spans without valid ids left out")

    def _metrics(self, advance: Advance) -> Iterator[Request]:
        scalars = Scalars(self._run, self._limit)
        values = scalars.values(advance)
        while batch := list(itertools.islice(values, _BATCH)):
            self.count += len(batch)
            series = itertools.groupby(sorted(batch, key=lambda one: one.series), key=lambda one: one.series)
            yield {"resourceMetrics": [self._of_series(name, some) for name, some in series]}
        self.notes += scalars.notes

    def _of_series(self, series: str, values: Iterable[Scalar]) -> dict[str, Any]:
        """The values of one process or federation; each tag is a gauge."""
        gauges: dict[str, list[dict[str, Any]]] = {}
        for one in values:
            point = {"timeUnixNano": str(max(0, one.t_ns)), "asDouble": jsonable(one.value)}
            gauges.setdefault(one.tag, []).append({**point, "attributes": _attributes({"stethos.step": one.step})})
        metrics = [{"name": tag, "gauge": {"dataPoints": points}} for tag, points in gauges.items()]
        resource = {"attributes": _attributes({"service.name": self._run.name, "service.instance.id": series})}
        return {"resource": resource, "scopeMetrics": [{"scope": _scope(), "metrics": metrics}]}

    def _logs(self, advance: Advance) -> Iterator[Request]:
        every = self._share("logs", "logs")
        for resource, offset_ns, batch in self._batches(logs_of(self._run, every)):
            self.count += len(batch)
            advance(len(batch) * every)
            logs = [{"scope": _scope(), "logRecords": [_record(row, offset_ns) for row in batch]}]
            yield {"resourceLogs": [{"resource": resource, "scopeLogs": logs}]}

    def _share(self, table: str, what: str) -> int:
        """Of how many rows one is exported."""
        every = share_of(self._run.tables()[table], self._limit)
        self.notes += [f"{what} thinned: 1 of {every}"] * (every > 1)
        return every

    def _batches(self, rows: Iterator[tuple[Any, ...]]) -> Iterator[tuple[dict[str, Any], int, list[tuple[Any, ...]]]]:
        """Rows that begin with their process: it as a resource, how far its clock is off, and a thousand rows."""
        resources = {row["process"]: _resource(self._run.name, row) for row in self._run.processes()}
        offsets_ns = offsets_of(self._run)
        for process, some in itertools.groupby(rows, key=lambda row: row[0]):
            while batch := list(itertools.islice(some, _BATCH)):
                yield resources.get(process) or {"attributes": []}, offsets_ns.get(process, 0), batch


def write(
    run: Run, path: Path, *, signal: Signal = "traces", limit: int = DEFAULT_LIMIT, advance: Advance = no_progress
) -> ExportResult:
    """Write OTLP/JSON lines."""
    found = Otlp(run, signal, limit)
    with replacing(path) as temporary, temporary.open("w", encoding="utf-8") as file:
        for request in found.requests(advance):
            file.write(compact_json(request) + "\n")
    return found.result(str(path))


def protobuf_of(signal: Signal, request: Request) -> bytes:
    """A request as protobuf; UsageError where the package for it is missing."""
    try:
        from google.protobuf.json_format import ParseDict
        from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
        from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
        from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
    except ImportError:
        raise UsageError(
            f"sending {signal} needs the package opentelemetry-proto",
            hint='pip install "stethos[otlp]", or write a file with -o FILE',
        ) from None
    kinds: dict[Signal, Any] = {
        "traces": ExportTraceServiceRequest, "metrics": ExportMetricsServiceRequest, "logs": ExportLogsServiceRequest,
    }  # fmt: skip
    return bytes(ParseDict(_in_base64(request), kinds[signal]()).SerializeToString())


def _in_base64(value: Any) -> Any:
    """A request with its ids as protobuf's JSON has bytes; OTLP's has them in hexadecimal."""
    if isinstance(value, list):
        return [_in_base64(one) for one in value]
    if not isinstance(value, dict):
        return value
    return {
        name: base64.b64encode(bytes.fromhex(one)).decode() if name in _IDS else _in_base64(one)
        for name, one in value.items()
    }


def _span(row: tuple[Any, ...], offset_ns: int) -> dict[str, Any] | None:
    _, client, number, step, t_ns, name, duration_ms, ok, trace, span, parent, fields, exception = row
    if not _TRACE_ID.fullmatch(trace or "") or not _SPAN_ID.fullmatch(span or ""):
        return None
    start_ns = max(0, int(t_ns) + offset_ns)
    own = {"stethos.client": client, "stethos.round": number, "stethos.step": step}
    found = {
        "traceId": trace, "spanId": span, "name": printable(str(name)), "kind": _INTERNAL,
        "startTimeUnixNano": str(start_ns), "endTimeUnixNano": str(start_ns + ns_of(duration_ms)),
        "attributes": _attributes({**fields_of(fields), **own}),
    }  # fmt: skip
    if parent and _SPAN_ID.fullmatch(parent):
        found["parentSpanId"] = parent
    if ok is False:
        found["status"] = {"code": _ERROR, "message": printable(exception or "")}
    return found


def _record(row: tuple[Any, ...], offset_ns: int) -> dict[str, Any]:
    _, t_ns, level, logger, message, fields, exception, client, number, step = row
    own = {"logger": logger, "stethos.client": client, "stethos.round": number, "stethos.step": step,
           "exception.stacktrace": exception or None}  # fmt: skip
    word = printable(str(level or ""))
    return {
        "timeUnixNano": str(max(0, int(t_ns) + offset_ns)), "severityText": word,
        "severityNumber": _SEVERITIES.get(word, 0), "body": {"stringValue": printable(str(message or ""))},
        "attributes": _attributes({**fields_of(fields), **own}),
    }  # fmt: skip


def _resource(run: str, process: Mapping[str, Any]) -> dict[str, Any]:
    """A process of a run."""
    return {
        "attributes": _attributes({
            "service.name": run, "service.instance.id": process["process"], "host.name": process["host"],
            "process.pid": process["pid"], "process.command_line": process["command"], "stethos.rank": process["rank"],
        })
    }  # fmt: skip


def _scope() -> dict[str, str]:
    from stethos import __version__

    return {"name": "stethos", "version": __version__}


def _attributes(values: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Attributes as OTLP has them; None is left out."""
    return [{"key": printable(name), "value": _value(value)} for name, value in values.items() if value is not None]


def _value(value: Any) -> dict[str, Any]:
    match value:
        case bool():
            return {"boolValue": value}
        case int() if -(2**63) <= value < 2**63:
            return {"intValue": str(value)}
        case float():
            return {"doubleValue": value}
        case str():
            return {"stringValue": printable(value)}
    return {"stringValue": printable(json.dumps(value, default=str))}
