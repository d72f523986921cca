"""An OTLP/HTTP receiver: decodes what comes with OpenTelemetry's own messages and prints it as JSON, one per line."""

from __future__ import annotations

import json
import sys
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

from google.protobuf.json_format import MessageToDict
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

KINDS = {
    "/v1/traces": ExportTraceServiceRequest,
    "/v1/metrics": ExportMetricsServiceRequest,
    "/v1/logs": ExportLogsServiceRequest,
}


class Receiver(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        kind = KINDS.get(self.path)
        is_known = kind is not None and self.headers["Content-Type"] == "application/x-protobuf"
        if kind is not None and is_known:
            message = MessageToDict(kind.FromString(body))
            sys.stdout.write(json.dumps({"path": self.path, "message": message}) + "\n")
            sys.stdout.flush()
        self.send_response(200 if is_known else 404)
        self.end_headers()

    def log_message(self, *words: Any) -> None:
        pass


if __name__ == "__main__":
    server = HTTPServer(("127.0.0.1", 0), Receiver)
    sys.stdout.write(f"{server.server_port}\n")
    sys.stdout.flush()
    server.serve_forever()
