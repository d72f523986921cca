"""What `stethos profile --trace-steps` shows: torch's profiler over a few steps of a live training."""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

from stethos.cli.screen.jsontext import print_json
from stethos.cli.screen.text import bytes_text, clean, count_text, plural_text
from stethos.cli.task.saved_trace import device_lines, read_trace
from stethos.cli.task.target import live_target
from stethos.errors import LiveError, UsageError
from stethos.live.ask import ask
from stethos.live.profiler_trace import MOST_STEPS
from stethos.live.registry import LiveProcess
from stethos.settings import parse_bytes

_PATIENCE_S = 900.0
_LOOK_S = 0.5
_SHOWN = 15
_WIDTH = 44
_LEAST_BYTES = 1024


def add_trace_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `stethos profile` that look into a live process."""
    parser.add_argument(
        "--trace-steps", type=int, metavar="STEPS", help="run torch's profiler for N steps of a live process"
    )
    parser.add_argument("--trace", type=Path, metavar="FILE", help="where the trace of --trace-steps goes (.json.gz)")
    parser.add_argument(
        "--trace-limit", type=parse_bytes, default=64 << 20, metavar="SIZE", help="cut the trace to this size [64MB]"
    )
    parser.add_argument(
        "--await", action="store_true", dest="is_awaited", help="with --trace-steps: wait for a process that trains"
    )
    parser.add_argument(
        "--when-slow",
        type=float,
        metavar="TIMES",
        help="with --trace-steps: wait until steps take TIMES as long as usual",
    )
    parser.add_argument(
        "--from-trace", type=Path, metavar="FILE", help="show where the time of a GPU goes in a saved trace"
    )
    parser.add_argument("--force", action="store_true", help="with --trace: overwrite the file if it exists")


def trace_steps(arguments: argparse.Namespace) -> int:
    """Ask a live process for a profile of its next steps, and show it."""
    if not 1 <= arguments.trace_steps <= MOST_STEPS:
        raise UsageError(f"--trace-steps {arguments.trace_steps} is out of range", hint=f"give 1 to {MOST_STEPS} steps")
    if arguments.trace_limit < _LEAST_BYTES:
        raise UsageError("--trace-limit is too small for any trace", hint="give 1kB or more, as 64MB")
    process = _awaited(arguments) if arguments.is_awaited else live_target(arguments).one()
    if arguments.when_slow is not None:
        from stethos.cli.task.slow_steps import wait_for_slow_steps

        wait_for_slow_steps(process, arguments.when_slow)
    reply = ask(
        process, "profile", timeout_s=_PATIENCE_S, steps=arguments.trace_steps, limit_bytes=arguments.trace_limit,
        path=str(arguments.trace.absolute()) if arguments.trace else "", force=arguments.force,
    )  # fmt: skip
    if arguments.json:
        print_json({"pid": process.pid, "rank": process.rank, **reply})
    else:
        print("\n".join(trace_lines(process.pid, reply)))
        if arguments.trace and reply["is_gpu"] and arguments.trace.exists():
            print("\n".join(["", *device_lines(read_trace(arguments.trace))]))
    return 0


def class_lines(reply: dict[str, Any]) -> list[str]:
    """The time of kernels, or of operators, by class."""
    total = sum(reply["class_ms"].values())
    title = "kernels by class" if reply["is_gpu"] else "operators by class"
    rows = sorted(reply["class_ms"].items(), key=lambda item: -item[1])
    return [
        "", f"{title:<{_WIDTH}} {'':>8} {'ms':>10}",
        *(f"{clean(name):<{_WIDTH}} {ms / total if total else 0:>8.1%} {ms:>10.3f}" for name, ms in rows),
    ]  # fmt: skip


def _awaited(arguments: argparse.Namespace) -> LiveProcess:
    """The process of a run that has just been started, once it can be asked; LiveError if the run ends before."""
    from stethos.store.find import find_run, is_live

    while True:
        ready = [one for one in live_target(arguments).processes if one.has_agent]
        if ready:
            return ready[0]
        if not is_live(find_run(arguments.target, arguments.dir)):
            raise LiveError("the run ended before anything was trained")
        time.sleep(_LOOK_S)


def trace_lines(pid: int, reply: dict[str, Any]) -> list[str]:
    """The profile as text: the largest operators by time, then by memory."""
    per_step = reply["duration_ms"] / reply["steps"]
    has_device = any(row["device_ms"] for row in reply["by_time"])
    lines = [
        f"process {pid}, {plural_text(reply['steps'], 'step')} from step {count_text(reply['first_step'])}: "
        f"{per_step:,.2f} ms each while profiled, {count_text(reply['operators'])} operators",
        "", f"{'by time':<{_WIDTH}} {'calls':>8} {'self ms':>10}{_device('device ms', has_device)}",
    ]  # fmt: skip
    for row in reply["by_time"][:_SHOWN]:
        device = _device(f"{row['device_ms']:.3f}", has_device)
        lines.append(f"{clean(row['op'])[:_WIDTH]:<{_WIDTH}} {row['calls']:>8,} {row['self_ms']:>10.3f}{device}")
    lines += class_lines(reply)
    lines += ["", f"{'by memory allocated':<{_WIDTH}} {'calls':>8} {'memory':>10}"]
    for row in reply["by_memory"][:_SHOWN]:
        size = bytes_text(row["allocated_bytes"])
        lines.append(f"{clean(row['op'])[:_WIDTH]:<{_WIDTH}} {row['calls']:>8,} {size:>10}")
    if "path" in reply:
        left_out = reply["events_left_out"]
        cut = f"; {count_text(left_out)} short events left out" if left_out else ""
        lines += [
            "",
            f"trace {clean(reply['path'])}: {count_text(reply['events'])} events, {bytes_text(reply['bytes'])}{cut}",
        ]
    return lines


def _device(text: str, has_device: bool) -> str:
    """A cell of the column about a GPU, where there is one."""
    return f" {text:>10}" if has_device else ""
