"""Measure what Stethos costs and print the tables; about a quarter of an hour on two idle cores, `--quick` about two.

python -m benchmarks [--quick] [--only NAME] [--write docs/benchmarks]
"""

from __future__ import annotations

import argparse
import importlib
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

from benchmarks.report import Grid, machine, say, section_text, write_section
from benchmarks.scale import FULL, QUICK, Scale
from benchmarks.variant import VARIANTS

# Each is a module with `measure`, imported when it is asked for: a machine needs only what its sections need.
SECTIONS = {
    "overhead": "overhead", "footprint": "footprint", "store": "store", "commands": "commands", "live": "live",
    "federated": "federated", "capture": "capture", "gpu": "gpu", "profile": "profiling", "web": "web",
    "workspace": "workspace", "archive": "archive", "collect": "collecting", "flood": "flooding", "site": "at_site",
}  # fmt: skip


def measured(section: str, scale: Scale, scratch: Path) -> list[Grid]:
    grids: list[Grid] = importlib.import_module(f"benchmarks.{SECTIONS[section]}").measure(scale, scratch)
    return grids


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__.partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="few rounds: shows that it works, not what it costs")
    parser.add_argument("--only", choices=SECTIONS, action="append", metavar="NAME", help=", ".join(SECTIONS))
    parser.add_argument("--write", type=Path, metavar="PLACE", help="put the tables onto this page, or a page of these")
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
            grids = measured(name, scale, Path(scratch))
        print("", *grids, sep="\n", flush=True)
        if arguments.write:
            write_section(arguments.write, name, section_text(grids, command))
        say(f"{name}: done after {time.monotonic() - start:.0f} s")


if __name__ == "__main__":
    main()
