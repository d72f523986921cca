"""Train small models, healthy ones and ones with a fault, and count what the diagnosis finds; about 20 minutes.

python -m benchmarks.trainbench [--quick] [--json] [--seeds 100 101] [--preset standard] [--write docs/benchmarks]
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "src"))

from benchmarks.report import machine, section_text, write_section
from benchmarks.trainbench.bench import REPORTED, TUNED, grids_of, run_all

_QUICK_CASES = 3  # every third


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.trainbench", description=__doc__.partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="one seed and every third training")
    parser.add_argument("--json", action="store_true", help="one JSON object instead of tables")
    parser.add_argument("--seeds", type=int, nargs="+", help=f"default: {REPORTED}; tuned on {TUNED}")
    parser.add_argument("--preset", default="deep", choices=("standard", "deep"), help="how the trainings are recorded")
    parser.add_argument("--write", type=Path, metavar="PLACE", help="put the tables onto this page, or a page of these")
    arguments = parser.parse_args()
    command = " ".join(["python -m benchmarks.trainbench", *sys.argv[1:]]).partition(" --write")[0]
    seeds = arguments.seeds or list(REPORTED[:1] if arguments.quick else REPORTED)
    if not arguments.json:
        print(machine(), flush=True)
    with tempfile.TemporaryDirectory(prefix="stethos-trainbench-", ignore_cleanup_errors=True) as scratch:
        results = run_all(Path(scratch), seeds, arguments.preset, every=_QUICK_CASES if arguments.quick else 1)
    if arguments.json:
        print(json.dumps([result.as_dict() for result in results], indent=1))
        return
    grids = grids_of(results, seeds, arguments.preset)
    print("", *grids, sep="\n", flush=True)
    if arguments.write:
        write_section(arguments.write, "trainbench", section_text(grids, command))


if __name__ == "__main__":
    main()
