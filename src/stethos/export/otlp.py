"""A run's spans, rounds and clients' turns among them, as OpenTelemetry traces with the ids that were recorded.

A file holds OTLP/JSON, one export request per line, as the collector's file receiver reads it. For an endpoint the
same requests are encoded as protobuf; that needs the package's extra `otlp`. Sending them is the command's business.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stethos.errors import UsageError
from stethos.export.output import DEFAULT_LIMIT, ExportResult, compact_json, no_progress, replacing
from stethos.view.clock import ns_of, offsets_of, span_rows
from stethos.view.plain import fields_of, printable
from stethos.view.stream import Advance, share_of

if TYPE_CHECKING:
    from stethos.store.run import Run

_BATCH = 1000
_TRACE_ID = re.compile(r"(?!0{32})[0-9a-f]{32}")
_SPAN_ID = re.compile(r"(?!0{16})[0-9a-f]{16}")
_ERROR = 2
_INTERNAL = 1
Request = dict[str, Any]


class Traces:
    """The export requests of a run; `spans`, `skipped` and `notes` are known when all have been taken."""

    def __init__(self, run: Run, limit: int = DEFAULT_LIMIT) -> None:
        self._run = run
        self.rows = run.tables()["spans"]
        self._every = share_of(self.rows, limit)
        self.notes = [f"traces thinned: 1 of {self._every}"] if self._every > 1 else []
        self.spans = self.skipped = 0

    def requests(self, advance: Advance = no_progress) -> Iterator[Request]:
        """One request per thousand spans; where traces are left out, whole ones are."""
        resources = {row["process"]: resource_of(self._run.name, row) for row in self._run.processes()}
        offsets_ns = offsets_of(self._run)
        for process, rows in itertools.groupby(span_rows(self._run, self._every), key=lambda row: row[0]):
            while batch := list(itertools.islice(rows, _BATCH)):
                spans = [span for row in batch if (span := _span(row, offsets_ns.get(process, 0)))]
                self.spans += len(spans)
                self.skipped += len(batch) - len(spans)
                advance(len(batch) * self._every)
                if spans:
                    resource = resources.get(process) or {"attributes": []}
                    yield {
                        "resourceSpans": [{"resource": resource, "scopeSpans": [{"scope": scope(), "spans": spans}]}]
                    }
        if self.skipped:
            self.notes.append(f"{self.skipped} spans without valid ids left out")


def write(run: Run, path: Path, *, limit: int = DEFAULT_LIMIT, advance: Advance = no_progress) -> ExportResult:
    """Write OTLP/JSON lines."""
    traces = Traces(run, limit)
    with replacing(path) as temporary, temporary.open("w", encoding="utf-8") as file:
        for request in traces.requests(advance):
            file.write(compact_json(request) + "\n")
    return ExportResult(str(path), {"spans": traces.spans}, tuple(traces.notes))


def protobuf_of(request: Request) -> bytes:
    """A request as protobuf."""
    try:
        from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
    except ImportError:
        raise UsageError(
            "sending traces needs the package opentelemetry-proto",
            hint='pip install "stethos[otlp]", or write a file with -o FILE',
        ) from None
    message = ExportTraceServiceRequest()
    for whole in request["resourceSpans"]:
        target = message.resource_spans.add()
        _fill_attributes(target.resource.attributes, whole["resource"]["attributes"])
        for scoped in whole["scopeSpans"]:
            made = target.scope_spans.add()
            made.scope.name, made.scope.version = scoped["scope"]["name"], scoped["scope"]["version"]
            for span in scoped["spans"]:
                _fill_span(made.spans.add(), span)
    return bytes(message.SerializeToString())


def _span(row: tuple[Any, ...], offset_ns: int) -> dict[str, Any] | None:
    _, client, number, step, t_ns, name, duration_ms, ok, trace, span, parent, fields, exception = row
    if not _TRACE_ID.fullmatch(trace or "") or not _SPAN_ID.fullmatch(span or ""):
        return None
    start_ns = max(0, int(t_ns) + offset_ns)
    own = {"stethos.client": client, "stethos.round": number, "stethos.step": step}
    found = {
        "traceId": trace, "spanId": span, "name": printable(str(name)), "kind": _INTERNAL,
        "startTimeUnixNano": str(start_ns), "endTimeUnixNano": str(start_ns + ns_of(duration_ms)),
        "attributes": attributes_of({**fields_of(fields), **own}),
    }  # fmt: skip
    if parent and _SPAN_ID.fullmatch(parent):
        found["parentSpanId"] = parent
    if ok is False:
        found["status"] = {"code": _ERROR, "message": printable(exception or "")}
    return found


def resource_of(run: str, process: Mapping[str, Any]) -> dict[str, Any]:
    """A process of a run."""
    return {
        "attributes": attributes_of({
            "service.name": run, "service.instance.id": process["process"], "host.name": process["host"],
            "process.pid": process["pid"], "process.command_line": process["command"], "stethos.rank": process["rank"],
        })
    }  # fmt: skip


def scope() -> dict[str, str]:
    """Who says it."""
    from stethos import __version__

    return {"name": "stethos", "version": __version__}


def attributes_of(values: Mapping[str, Any]) -> list[dict[str, Any]]:
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


def _fill_span(target: Any, span: Mapping[str, Any]) -> None:
    target.trace_id, target.span_id = bytes.fromhex(span["traceId"]), bytes.fromhex(span["spanId"])
    target.parent_span_id = bytes.fromhex(span.get("parentSpanId", ""))
    target.name, target.kind = span["name"], span["kind"]
    target.start_time_unix_nano, target.end_time_unix_nano = (
        int(span["startTimeUnixNano"]),
        int(span["endTimeUnixNano"]),
    )
    _fill_attributes(target.attributes, span["attributes"])
    if "status" in span:
        target.status.code, target.status.message = span["status"]["code"], span["status"]["message"]


def _fill_attributes(target: Any, attributes: list[dict[str, Any]]) -> None:
    for one in attributes:
        attribute = target.add()
        attribute.key = one["key"]
        ((kind, value),) = one["value"].items()
        snake = {"boolValue": "bool_value", "intValue": "int_value", "doubleValue": "double_value"}
        setattr(attribute.value, snake.get(kind, "string_value"), int(value) if kind == "intValue" else value)
