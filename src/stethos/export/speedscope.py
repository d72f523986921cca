"""Writes spans, steps and modules as a file for speedscope (https://www.speedscope.app): one profile per track."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stethos.export.output import DEFAULT_LIMIT, ExportResult, no_progress, replacing
from stethos.view.lane import Lanes
from stethos.view.stream import Advance
from stethos.view.timeline import Slice, Timeline

if TYPE_CHECKING:
    from stethos.store.run import Run

SCHEMA = "https://www.speedscope.app/file-format-schema.json"


def write(run: Run, path: Path, *, limit: int = DEFAULT_LIMIT, advance: Advance = no_progress) -> ExportResult:
    """Write the file; with at most about `limit` rows of each table."""
    timeline = Timeline(run, limit)
    start_ns = timeline.start_ns()
    frames: dict[str, int] = {}
    lanes: dict[tuple[str, str], Lanes] = {}
    profiles: dict[tuple[str, str, int], _Profile] = {}
    counts: dict[str, int] = {}
    for one in timeline.slices(advance):
        lane = lanes.setdefault((one.group, one.track), Lanes()).place(one.start_ns, one.end_ns)
        profile = profiles.setdefault((one.group, one.track, lane), _Profile())
        profile.add(one, frames.setdefault(one.name, len(frames)), start_ns)
        counts[one.kind] = counts.get(one.kind, 0) + 1
    with replacing(path) as temporary, temporary.open("w", encoding="utf-8") as file:
        names = json.dumps([{"name": name} for name in frames], ensure_ascii=False)
        file.write(f'{{"$schema":"{SCHEMA}","exporter":"stethos","name":{json.dumps(run.name)},\n')
        file.write(f'"shared":{{"frames":{names}}},\n"profiles":[')
        for place, ((group, track, lane), profile) in enumerate(profiles.items()):
            name = f"{group}, {track}" + (f" ({lane + 1})" if lane else "")
            file.write(",\n" if place else "\n")
            json.dump(profile.finished(name), file, ensure_ascii=False, separators=(",", ":"))
        file.write("\n]}\n")
    return ExportResult(str(path), counts, tuple(timeline.notes))


@dataclass(slots=True)
class _Profile:
    """The events of one track, in which every frame that opens closes before the one around it does."""

    events: list[dict[str, Any]] = field(default_factory=list)
    open: list[tuple[int, int]] = field(default_factory=list)  # end in ns, frame

    def add(self, one: Slice, frame: int, start_ns: int) -> None:
        begin_ns = max(0, one.start_ns - start_ns)
        self._close_until(begin_ns)
        self.events.append({"type": "O", "frame": frame, "at": begin_ns / 1e6})
        self.open.append((begin_ns + one.duration_ns, frame))

    def finished(self, name: str) -> dict[str, Any]:
        self._close_until(None)
        first, last = (self.events[0]["at"], self.events[-1]["at"]) if self.events else (0, 0)
        return {
            "type": "evented", "name": name, "unit": "milliseconds", "startValue": first, "endValue": last,
            "events": self.events,
        }  # fmt: skip

    def _close_until(self, moment_ns: int | None) -> None:
        while self.open and (moment_ns is None or self.open[-1][0] <= moment_ns):
            end_ns, frame = self.open.pop()
            self.events.append({"type": "C", "frame": frame, "at": end_ns / 1e6})
