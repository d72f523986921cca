"""Writes a run's numbers as TensorBoard event files: a directory per federation and process."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stethos.errors import UsageError
from stethos.export.output import DEFAULT_LIMIT, ExportResult, no_progress
from stethos.view.scalar import Scalars
from stethos.view.stream import Advance

if TYPE_CHECKING:
    from stethos.store.run import Run

_UNSAFE = re.compile(r"[^\w.-]")


def write(run: Run, path: Path, *, limit: int = DEFAULT_LIMIT, advance: Advance = no_progress) -> ExportResult:
    """Write a log directory for `tensorboard --logdir`; needs the package's extra `tensorboard`."""
    try:
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary
        from tensorboard.summary.writer.record_writer import RecordWriter
    except ImportError:
        raise UsageError(
            "this export needs the package tensorboard", hint='pip install "stethos[tensorboard]"'
        ) from None
    scalars = Scalars(run, limit)
    counts = {"values": 0, "series": 0}
    writers: dict[str, Any] = {}
    with _arriving(path) as arriving:
        try:
            for one in scalars.values(advance):
                writer = writers.get(one.series)
                if writer is None:
                    directory = arriving / (_UNSAFE.sub("_", one.series).strip(".")[:100] or "_")
                    directory.mkdir(exist_ok=True)
                    file = directory / f"events.out.tfevents.{one.t_ns // 10**9:010d}.stethos.{len(writers)}"
                    writer = writers[one.series] = RecordWriter(file.open("wb"))
                    writer.write(Event(wall_time=one.t_ns / 1e9, file_version="brain.Event:2").SerializeToString())
                value = Summary(value=[Summary.Value(tag=one.tag, simple_value=one.value)])
                event = Event(wall_time=one.t_ns / 1e9, step=one.step, summary=value)
                writer.write(event.SerializeToString())
                counts["values"] += 1
        finally:
            for writer in writers.values():
                writer.close()
    counts["series"] = len(writers)
    return ExportResult(str(path), counts, tuple(scalars.notes))


@contextmanager
def _arriving(path: Path) -> Iterator[Path]:
    """A temporary directory whose files move into `path` at the end of a good block.

    Of what is there already only event files of an earlier export go.
    """
    is_new = not path.exists()
    temporary = path / f".stethos.{os.getpid()}.part"
    temporary.mkdir(parents=True)
    try:
        yield temporary
        for directory in temporary.iterdir():
            target = path / directory.name
            target.mkdir(exist_ok=True)
            for old in target.glob("events.out.tfevents.*.stethos.*"):
                old.unlink()
            for file in directory.iterdir():
                os.replace(file, target / file.name)
    finally:
        shutil.rmtree(temporary)
        if is_new and not any(path.iterdir()):
            path.rmdir()
