"""What `stethos profile --from-trace` shows: where the time of the GPUs goes in a saved trace of torch's profiler."""

from __future__ import annotations

import argparse
import gzip
import json
import os
import zlib
from pathlib import Path
from typing import Any

from stethos.cli.screen.jsontext import print_json
from stethos.cli.screen.text import clean, count_text, cut
from stethos.errors import UsageError
from stethos.live.device_time import IdleCause, device_times
from stethos.record.border import open_named

_LARGEST_TRACE = 2 << 30
_MOST_TIMES = 100
_IDLE: dict[IdleCause, str] = {
    "data": "waits for a batch", "communication": "waits for other ranks", "host": "waits for the program",
}  # fmt: skip


def show_trace(arguments: argparse.Namespace) -> int:
    """Where the time of the GPUs goes in a trace that was saved before."""
    trace = read_trace(arguments.from_trace)
    if arguments.json:
        print_json({"devices": [one.as_dict() for one in device_times(trace["traceEvents"])],
                    "events_left_out": left_out_of(trace)})  # fmt: skip
    else:
        print("\n".join(device_lines(trace)))
    return 0


def read_trace(path: Path) -> dict[str, Any]:
    """A trace of torch's profiler, packed or plain; UsageError if it is not one."""
    try:
        with open_named(path) as file:
            start = file.read(2)
            file.seek(0)
            most = min(_LARGEST_TRACE, _MOST_TIMES * os.fstat(file.fileno()).st_size)  # JSON packs to a tenth or so
            with gzip.open(file) if start == b"\x1f\x8b" else file as unpacked:
                text = unpacked.read(most + 1)
        trace = json.loads(text) if len(text) <= most else None
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror or error}") from None
    except (ValueError, EOFError, zlib.error, RecursionError):
        trace = None
    events = trace.get("traceEvents") if isinstance(trace, dict) else None
    if not isinstance(trace, dict) or not isinstance(events, list) or not all(isinstance(one, dict) for one in events):
        raise UsageError(f"{path} is not a trace of torch's profiler", hint="`stethos profile --trace FILE` saves one")
    return trace


def left_out_of(trace: dict[str, Any]) -> int:
    """How many events were cut off when the trace was saved."""
    count = trace.get("stethosEventsLeftOut", 0)
    return count if isinstance(count, int) else 0


def device_lines(trace: dict[str, Any]) -> list[str]:
    """Where the time of each GPU goes, as text."""
    lines: list[str] = []
    for one in device_times(trace["traceEvents"]):
        lines.append(f"GPU {one.device}: {one.whole_ms:,.2f} ms, {one.kernels:,} kernels and copies")
        parts: dict[str, float] = {str(found): ms for found, ms in one.class_ms.items()}
        parts |= {f"idle: {_IDLE[cause]}": ms for cause, ms in one.idle_ms.items()}
        for name, ms in sorted(parts.items(), key=lambda part: -part[1]):
            if ms > 0:
                slowest = next((kernel for found, kernel in one.slowest.items() if found == name), "")
                share = ms / one.whole_ms if one.whole_ms else 0.0
                lines.append(f"  {name:<28} {ms:>10.3f} ms {share:>6.1%}  {cut(clean(slowest), 50)}".rstrip())
        if one.hidden_communication_ms > 0:
            lines.append(f"  communication behind computing: {one.hidden_communication_ms:.3f} ms more")
    if not lines:
        lines = ["no GPU worked in this trace"]
    if left_out_of(trace):
        lines.append(
            f"{count_text(left_out_of(trace))} short events were cut off: idle time is too high, shares are estimates"
        )
    return lines
