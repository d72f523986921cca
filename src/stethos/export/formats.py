"""Every format that a run can be exported to, and the module that writes it."""

from __future__ import annotations

from typing import Literal, NamedTuple

Place = Literal["file", "directory", "uri"]


class Format(NamedTuple):
    """`place` is what -o names; None as module: the tables themselves."""

    module: str | None
    place: Place
    what: str


FORMATS: dict[str, Format] = {
    "parquet": Format(None, "directory", "one file per table"),
    "csv": Format(None, "directory", "one file per table"),
    "perfetto": Format("stethos.export.perfetto", "file", "time line for ui.perfetto.dev and chrome://tracing, gzip"),
    "speedscope": Format("stethos.export.speedscope", "file", "time line for speedscope.app"),
    "prometheus": Format("stethos.export.prometheus", "file", "the present state, text format"),
    "otlp": Format(
        "stethos.export.otlp", "file", "OpenTelemetry traces: OTLP/JSON, or to an endpoint with -o http://..."
    ),
    "tensorboard": Format("stethos.export.tensorboard", "directory", "event files"),
    "mlflow": Format(
        "stethos.export.mlflow", "uri", "a run at a tracking URI: a directory, sqlite:///FILE or http://..."
    ),
}
