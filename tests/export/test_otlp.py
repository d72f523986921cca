"""A run's spans as OpenTelemetry's own messages, received over HTTP and read from a file."""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
from federated_rows import hexadecimal
from google.protobuf import json_format
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from stethos.cli.main import main
from stethos.export import otlp
from stethos.store.run import Run


class Receiver(BaseHTTPRequestHandler):
    """What stands in for a collector: it keeps the messages."""

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.taken.append((self.path, dict(self.headers), body))  # type: ignore[attr-defined]
        self.send_response(self.server.status)  # type: ignore[attr-defined]
        self.end_headers()
        self.wfile.write(b"no room" if self.server.status != 200 else b"")  # type: ignore[attr-defined]

    def log_message(self, *words: Any) -> None:
        pass


@pytest.fixture
def collector() -> Iterator[Any]:
    server = HTTPServer(("127.0.0.1", 0), Receiver)
    server.taken, server.status = [], 200  # type: ignore[attr-defined]
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def spans_of(requests: list[ExportTraceServiceRequest]) -> list[tuple[Any, Any]]:
    """Every span with the attributes of its resource."""
    return [
        ({one.key: one.value for one in whole.resource.attributes}, span)
        for request in requests
        for whole in request.resource_spans
        for scope in whole.scope_spans
        for span in scope.spans
    ]


def check(requests: list[ExportTraceServiceRequest]) -> None:
    found = spans_of(requests)
    assert len(found) == 15 and len({span.span_id for _, span in found}) == 15
    assert {span.trace_id.hex() for _, span in found} == {hexadecimal(1, number, 32) for number in (1, 2, 3)}
    rounds = {span.span_id: span for _, span in found if span.name == "round"}
    turns = [(resource, span) for resource, span in found if span.name == "client"]
    assert len(rounds) == 3 and len(turns) == 9
    for resource, span in turns:
        whole = rounds[span.parent_span_id]
        assert whole.start_time_unix_nano <= span.start_time_unix_nano
        assert span.start_time_unix_nano <= span.end_time_unix_nano <= whole.end_time_unix_nano
        assert resource["service.name"].string_value == "wards-1" and resource["host.name"].string_value
    failed = [span for _, span in found if span.status.code == 2]
    assert [span.status.message for span in failed] == ["ValueError: no"]


def test_a_collector_receives_the_traces(
    federation_path: Path, collector: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    url = f"http://127.0.0.1:{collector.server_port}"
    words = ["export", "-t", str(federation_path), "--to", "otlp", "-o", url, "--header", "X-Token=secret"]
    assert main(words) == 0
    assert capsys.readouterr().out == f"15 spans: {url}/v1/traces\n"
    assert {(path, headers["Content-Type"], headers["X-Token"]) for path, headers, _ in collector.taken} == {
        ("/v1/traces", "application/x-protobuf", "secret")
    }
    check([ExportTraceServiceRequest.FromString(body) for _, _, body in collector.taken])


def test_a_collector_that_refuses_is_an_error_with_its_words(
    federation_path: Path, collector: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    collector.status = 503
    url = f"http://127.0.0.1:{collector.server_port}/v1/traces"
    assert main(["export", "-t", str(federation_path), "--to", "otlp", "-o", url]) == 2
    assert "answered 503" in (said := capsys.readouterr().err) and "no room" in said and "hint: " in said


@pytest.mark.parametrize("place", ["http://127.0.0.1:1", "ftp://127.0.0.1", "http://"])
def test_a_place_that_is_no_collector_is_an_error(
    federation_path: Path, place: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["export", "-t", str(federation_path), "--to", "otlp", "-o", place]) == 2
    assert "hint: " in capsys.readouterr().err


def test_a_file_holds_a_request_per_line(federation: Run, tmp_path: Path) -> None:
    written = otlp.write(federation, tmp_path / "traces.jsonl")
    assert written.counts == {"spans": 15}
    requests = []
    for line in (tmp_path / "traces.jsonl").read_text(encoding="utf-8").splitlines():
        content = json.loads(line)
        for whole in content["resourceSpans"]:
            for span in whole["scopeSpans"][0]["spans"]:
                for name in ("traceId", "spanId", "parentSpanId"):  # hexadecimal in OTLP, base64 in protobuf's JSON
                    if name in span:
                        span[name] = base64.b64encode(bytes.fromhex(span[name])).decode()
        requests.append(json_format.ParseDict(content, ExportTraceServiceRequest()))
    check(requests)


def test_spans_without_valid_ids_are_left_out_and_counted(run: Any, tmp_path: Path) -> None:
    from builders import T0_NS
    from federated_rows import put_row

    from stethos.schema import SPANS
    from stethos.store.run import open_run

    process = run.process()
    for trace, span in (("0" * 32, "1" * 16), ("xyz", "1" * 16), ("1" * 32, ""), ("1" * 32, "2" * 16)):
        put_row(process, SPANS, T0_NS, name="work", duration_ms=-1.0, ok=True, trace=trace, span=span)
    process.drain()
    with open_run(run.path) as opened:
        written = otlp.write(opened, tmp_path / "traces.jsonl")
    assert written.counts == {"spans": 1} and written.notes == ("3 spans without valid ids left out",)
