"""Every format that a run can be exported to, and the module that writes it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, NamedTuple

Place = Literal["file", "directory", "uri"]
_TIMELINE = ("rounds", "client_rounds", "spans", "steps", "modules", "collectives")
_SERIES = ("rounds", "client_rounds", "steps", "metrics")


class Format(NamedTuple):
    """`place` is what -o names. Without a module the tables themselves are written. `reads`: those it goes through.
    `options` are given to the module's `write`.
    """

    module: str | None
    place: Place
    what: str
    reads: tuple[str, ...] = ()
    options: Mapping[str, str] = {}


FORMATS: dict[str, Format] = {
    "parquet": Format(None, "directory", "one file per table"),
    "csv": Format(None, "directory", "one file per table"),
    "perfetto": Format(
        "stethos.export.perfetto", "file", "time line for ui.perfetto.dev and chrome://tracing, gzip", _TIMELINE
    ),
    "speedscope": Format("stethos.export.speedscope", "file", "time line for speedscope.app", _TIMELINE),
    "prometheus": Format("stethos.export.prometheus", "file", "the present state, text format"),
    "otlp": Format(
        "stethos.export.otlp", "file", "OpenTelemetry traces as OTLP/JSON, or to an endpoint: -o http://...", ("spans",)
    ),
    "otlp-metrics": Format(
        "stethos.export.otlp", "file", "OpenTelemetry metrics, as otlp", _SERIES, {"signal": "metrics"}
    ),
    "otlp-logs": Format("stethos.export.otlp", "file", "OpenTelemetry logs, as otlp", ("logs",), {"signal": "logs"}),
    "tensorboard": Format("stethos.export.tensorboard", "directory", "event files", _SERIES),
    "mlflow": Format("stethos.export.mlflow", "uri", "a run at a tracking URI: sqlite:///FILE, http://...", _SERIES),
}
