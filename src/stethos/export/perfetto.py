"""Writes a run as a trace for Perfetto (https://ui.perfetto.dev) and chrome://tracing: gzipped JSON.

Groups are the server, its clients, and each process or rank; pieces that overlap without nesting get tracks of their
own, because viewers drop those. Arrows lead from a round to its clients' turns and from a span to those that other
processes opened inside it.
"""

from __future__ import annotations

import gzip
import io
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from stethos.export.output import DEFAULT_LIMIT, ExportResult, compact_json, no_progress, replacing
from stethos.view.lane import Lanes
from stethos.view.stream import Advance
from stethos.view.timeline import Slice, Timeline

if TYPE_CHECKING:
    from stethos.store.run import Run

_ORDER = ("server", "clients", "rank", "process")


def write(run: Run, path: Path, *, limit: int = DEFAULT_LIMIT, advance: Advance = no_progress) -> ExportResult:
    """Write the trace; with at most about `limit` rows of each table."""
    timeline = Timeline(run, limit)
    start_ns = timeline.start_ns()
    counts: dict[str, int] = {}
    with (
        replacing(path) as temporary,
        gzip.open(temporary, "wb", compresslevel=5) as packed,
        io.TextIOWrapper(packed, encoding="utf-8") as file,
    ):
        file.write('{"displayTimeUnit":"ms","traceEvents":[\n')
        tracks = _Tracks(file)
        for one in timeline.slices(advance):
            tracks.write(one, start_ns)
            counts[one.kind] = counts.get(one.kind, 0) + 1
        facts = {"run": run.name, "exporter": "stethos", "start_unix_ns": str(start_ns),
                 "clock_offsets_ns": timeline.offsets_ns, "notes": timeline.notes}  # fmt: skip
        file.write(f'\n],"otherData":{compact_json(facts)}}}\n')
    return ExportResult(str(path), counts, tuple(timeline.notes), {"clock_offsets_ns": timeline.offsets_ns})


class _Tracks:
    """The events as they are written, and the numbers that groups and tracks have in them."""

    def __init__(self, file: IO[str]) -> None:
        self._file = file
        self._groups: dict[str, int] = {}
        self._lanes: dict[tuple[str, str], Lanes] = {}
        self._threads: dict[tuple[str, str, int], int] = {}
        self.is_empty = True

    def write(self, one: Slice, start_ns: int) -> None:
        lanes = self._lanes.setdefault((one.group, one.track), Lanes())
        thread = (one.group, one.track, lanes.place(one.start_ns, one.end_ns))
        if thread not in self._threads:
            for introduction in self._introduce(*thread):
                self._put(introduction)
        event: dict[str, Any] = {
            "ph": "X", "name": one.name, "cat": one.kind, "pid": self._groups[one.group], "tid": self._threads[thread],
            "ts": _us(one.start_ns - start_ns), "dur": _us(one.duration_ns),
        }  # fmt: skip
        if one.args:
            event["args"] = one.args
        if one.caused_by is not None:
            event |= {"bind_id": _number(one.caused_by), "flow_in": True}
        elif one.cause is not None:
            event |= {"bind_id": _number(one.cause), "flow_out": True}
        self._put(event)

    def _put(self, event: dict[str, Any]) -> None:
        self._file.write(("" if self.is_empty else ",\n") + compact_json(event))
        self.is_empty = False

    def _introduce(self, group: str, track: str, lane: int) -> Iterator[dict[str, Any]]:
        if group not in self._groups:
            number = self._groups[group] = len(self._groups) + 1
            rank = next(place for place, word in enumerate(_ORDER) if group.startswith(word))
            yield _meta("process_name", number, 0, name=group)
            yield _meta("process_sort_index", number, 0, sort_index=rank * 100_000 + number)
        number = self._threads[group, track, lane] = 1000 + len(self._threads)  # no number is a process's, too
        yield _meta("thread_name", self._groups[group], number, name=f"{track} ({lane + 1})" if lane else track)
        yield _meta("thread_sort_index", self._groups[group], number, sort_index=number)


def _meta(name: str, group: int, thread: int, /, **args: Any) -> dict[str, Any]:
    return {"ph": "M", "name": name, "pid": group, "tid": thread, "args": args}


def _us(ns: int) -> float:
    return max(0, ns) / 1000


def _number(key: str) -> str:
    """A key as the hexadecimal number that ties events together."""
    data = key.encode("utf-8", "surrogatepass")
    return f"0x{zlib.crc32(data):08x}{zlib.adler32(data):08x}"
