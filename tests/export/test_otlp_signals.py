"""A run's numbers and log records, sent to an OTLP receiver in a process of its own and read from a file."""

from __future__ import annotations

import json
import math
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from builders import RunBuilder
from google.protobuf import json_format
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from processes import start_program

from stethos.cli.main import main


@pytest.fixture
def receiver() -> Iterator[subprocess.Popen[str]]:
    process = start_program("otlp_receiver.py", stderr=None)
    yield process
    process.terminate()
    process.communicate()


@pytest.fixture
def told(run: RunBuilder) -> RunBuilder:
    process = run.process()
    process.steps(3, losses=[1.0, math.nan, math.inf])
    process.metric("eval/<b>acc\x1b</b>", 0.5)
    process.log("it said \x1b[31mso")
    process.drain()
    process.finish()
    return run


def taken(receiver: subprocess.Popen[str]) -> dict[str, Any]:
    assert receiver.stdout is not None
    found: dict[str, Any] = json.loads(receiver.stdout.readline())
    return found


def test_a_receiver_gets_metrics_and_logs(told: RunBuilder, receiver: subprocess.Popen[str]) -> None:
    assert receiver.stdout is not None
    url = f"http://127.0.0.1:{receiver.stdout.readline().strip()}"
    words = ["export", "-t", str(told.path), "-o", url]
    assert main([*words, "--to", "otlp-metrics"]) == 0
    metrics = taken(receiver)
    assert metrics["path"] == "/v1/metrics"
    (whole,) = metrics["message"]["resourceMetrics"]
    gauges = {one["name"]: one["gauge"]["dataPoints"] for one in whole["scopeMetrics"][0]["metrics"]}
    assert [point["asDouble"] for point in gauges["train/loss"]] == [1.0, "NaN", "Infinity"]
    (name,) = [name for name in gauges if "acc" in name]
    assert "\x1b" not in name and gauges[name][0]["asDouble"] == 0.5
    assert main([*words, "--to", "otlp-logs"]) == 0
    logs = taken(receiver)
    (record,) = logs["message"]["resourceLogs"][0]["scopeLogs"][0]["logRecords"]
    assert logs["path"] == "/v1/logs" and record["body"]["stringValue"].startswith("it said")
    assert record["severityText"] and int(record["timeUnixNano"]) > 0 and "\x1b" not in record["body"]["stringValue"]


def test_a_file_holds_the_same(told: RunBuilder, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "metrics.jsonl"
    assert main(["export", "-t", str(told.path), "--to", "otlp-metrics", "-o", str(file)]) == 0
    assert "values" in capsys.readouterr().out
    (line,) = file.read_text().splitlines()
    message = json_format.Parse(line, ExportMetricsServiceRequest())
    points = [
        point.as_double
        for one in message.resource_metrics[0].scope_metrics[0].metrics
        if one.name == "train/loss"
        for point in one.gauge.data_points
    ]
    assert points[0] == 1.0 and math.isnan(points[1]) and math.isinf(points[2])


def test_of_nothing_nothing_is_sent(run: RunBuilder, tmp_path: Path) -> None:
    run.process().finish()
    for kind in ("otlp-metrics", "otlp-logs"):
        file = tmp_path / kind
        assert main(["export", "-t", str(run.path), "--to", kind, "-o", str(file)]) == 0
        assert file.read_text() == ""
