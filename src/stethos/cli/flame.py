"""Sample where a live process spends its time, and draw it as a flame graph.

    stethos flame -t TARGET --seconds 10 -o flame.html

py-spy samples it from outside: any Python process will do, and it keeps running. The page works offline; a file for
speedscope (flame.speedscope.json) is written beside it. With RUN/all, each rank has a bar of its own.
Press Ctrl-C to stop early and draw what was sampled.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

from stethos.cli.screen.jsontext import print_json
from stethos.cli.screen.progress import progress_bar
from stethos.cli.screen.text import bytes_text, clean, count_text, share_text, time_text
from stethos.cli.task.target import add_anywhere, add_live_target, live_target
from stethos.errors import LiveError, UsageError

if TYPE_CHECKING:
    from stethos.export.flame import Label
    from stethos.live.sampling import Sampled

_LONGEST_S = 3600.0
_HIGHEST_RATE = 1000


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_live_target(parser)
    add_anywhere(parser)
    parser.add_argument("--seconds", type=float, default=10.0, metavar="S", help="how long (default: 10)")
    parser.add_argument("--rate", type=int, default=100, metavar="N", help="samples per second (default: 100)")
    parser.add_argument("--native", action="store_true", help="with frames of C and C++; pauses the process longer")
    parser.add_argument("--idle", action="store_true", help="also threads that wait")
    parser.add_argument(
        "-o", "--output", type=Path, default=Path("flame.html"), metavar="FILE", help="the page (default: flame.html)"
    )
    parser.add_argument("--force", action="store_true", help="replace files that exist")
    parser.add_argument("--json", action="store_true", help="print what was seen as JSON")


def run(arguments: argparse.Namespace) -> int:
    from stethos.export.flame import by_function, hottest, write_page, write_speedscope
    from stethos.live.sampling import sample

    if not 1 <= arguments.seconds <= _LONGEST_S:
        raise UsageError(f"--seconds {arguments.seconds:g} is out of range", hint=f"give 1 to {_LONGEST_S:g}")
    if not 1 <= arguments.rate <= _HIGHEST_RATE:
        raise UsageError(f"--rate {arguments.rate} is out of range", hint=f"give 1 to {_HIGHEST_RATE}")
    page: Path = arguments.output
    scope = page.with_name(f"{page.name.removesuffix(page.suffix)}.speedscope.json")
    existing = [path for path in (page, scope) if path.exists()]
    if existing and not arguments.force:
        raise UsageError(f"{existing[0]} exists", hint="choose another file with -o FILE, or replace it with --force")
    names = _wanted(arguments)
    with progress_bar("sampling", arguments.seconds) as advance:
        found = sample(list(names), arguments.seconds, rate=arguments.rate, native=arguments.native,
                       idle=arguments.idle, advance=advance)  # fmt: skip
    if not any(one.samples for one in found):
        raise LiveError(
            "no thread was running while it was sampled", hint="see what waits with --idle, or `stethos backtrace`"
        )
    stacks: Counter[tuple[Label, ...]] = Counter()
    for one in found:
        stacks.update(_labelled(one, names[one.pid] if len(found) > 1 else None))
    title = ", ".join(names.values()) if len(names) <= 3 else f"{len(names)} processes"
    subtitle = f"{count_text(sum(stacks.values()))} samples, {time_text(time.time_ns())}"
    try:
        write_page(by_function(stacks), page, f"Flame graph of {title}", subtitle)
        profiles = ((names[one.pid], by_function(_labelled(one, None))) for one in found)
        write_speedscope(profiles, scope, arguments.rate, title)
    except OSError as error:
        raise UsageError(
            f"cannot write {page}: {error.strerror or error}", hint="choose another file with -o FILE"
        ) from None
    _say(arguments, found, hottest(stacks), (page, scope))
    return 0


def _wanted(arguments: argparse.Namespace) -> dict[int, str]:
    """The processes to sample, each with what it is called."""
    target = live_target(arguments)
    if target.pid is not None:
        return {target.pid: f"process {target.pid}"}
    chosen = list(target.processes) if target.wanted.is_all and target.processes else [target.one()]
    chosen.sort(key=lambda process: (process.rank is None, process.rank, process.pid))
    return {process.pid: f"{clean(process.run)}, {process.title}" for process in chosen}


def _labelled(one: Sampled, process: str | None) -> Counter[tuple[Label, ...]]:
    """Stacks with the process, and where it has several threads the thread, as outermost frames."""
    threads = {thread for thread, _ in one.stacks}
    stacks: Counter[tuple[Label, ...]] = Counter()
    for (thread, sites), count in one.stacks.items():
        above: list[Label] = [(process, "")] if process is not None else []
        if len(threads) > 1:
            above.append((f"thread {thread}", ""))
        stacks[*above, *((site.func, f"{site.file}:{site.line}" if site.line else site.file) for site in sites)] += (
            count
        )
    return stacks


def _say(
    arguments: argparse.Namespace, found: list[Sampled], hot: list[tuple[Label, float]], files: tuple[Path, Path]
) -> None:
    if arguments.json:
        print_json({
            "processes": [{"pid": one.pid, "samples": one.samples, "seconds": one.seconds} for one in found],
            "hottest": [{"function": func, "place": place, "share": share} for (func, place), share in hot],
            "page": str(files[0]), "speedscope": str(files[1]),
        })  # fmt: skip
        return
    for (func, place), share in hot:
        sys.stdout.write(f"{share_text(share):>7}  {clean(func)}  {clean(place)}\n")
    listed = ", ".join(f"{clean(str(path))} ({bytes_text(path.stat().st_size)})" for path in files)
    sys.stdout.write(f"{count_text(sum(one.samples for one in found))} samples: {listed}\n")
