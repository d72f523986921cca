"""Measure what Stethos costs and print the tables; about a quarter of an hour on two idle cores, `--quick` about two.

python -m benchmarks [--quick] [--only NAME] [--write docs/benchmarks.md]
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

from benchmarks import (
    archive,
    capture,
    collecting,
    commands,
    federated,
    footprint,
    gpu,
    live,
    overhead,
    profiling,
    store,
    web,
    workspace,
)  # fmt: skip
from benchmarks.report import Grid, machine, say, section_text, write_section
from benchmarks.scale import FULL, QUICK, Scale
from benchmarks.variant import VARIANTS

SECTIONS: dict[str, Callable[[Scale, Path], list[Grid]]] = {
    "overhead": overhead.measure,
    "footprint": footprint.measure,
    "store": store.measure,
    "commands": commands.measure,
    "live": live.measure,
    "federated": federated.measure,
    "capture": capture.measure,
    "gpu": gpu.measure,
    "profile": profiling.measure,
    "web": web.measure,
    "workspace": workspace.measure,
    "archive": archive.measure,
    "collect": collecting.measure,
}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__.partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="few rounds: shows that it works, not what it costs")
    parser.add_argument("--only", choices=SECTIONS, action="append", metavar="NAME", help=", ".join(SECTIONS))
    parser.add_argument("--write", type=Path, metavar="PAGE", help="put the tables into this page, between markers")
    parser.add_argument(
        "--without",
        choices=[*VARIANTS],
        action="append",
        default=[],
        metavar="VARIANT",
        help=f"of the overhead's: {', '.join(VARIANTS)}",
    )
    arguments = parser.parse_args()
    scale = replace(QUICK if arguments.quick else FULL, without=frozenset(arguments.without))
    command = " ".join(["python -m benchmarks", *sys.argv[1:]]).partition(" --write")[0]
    print(machine(), flush=True)
    start = time.monotonic()
    for name in arguments.only or SECTIONS:
        with tempfile.TemporaryDirectory(prefix="stethos-bench-", ignore_cleanup_errors=True) as scratch:
            grids = SECTIONS[name](scale, Path(scratch))
        print("", *grids, sep="\n", flush=True)
        if arguments.write:
            write_section(arguments.write, name, section_text(grids, command))
        say(f"{name}: done after {time.monotonic() - start:.0f} s")


if __name__ == "__main__":
    main()
