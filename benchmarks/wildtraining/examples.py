"""Run a buggy program for each detector that names its bug, and keep what the diagnosis says of it for the docs.

python -m benchmarks.wildtraining.examples [--only CODE ...]

The programs are those of the half used for development, the first that names the detector as its cause. What was said
is kept in tools/examples.json; `make docs` puts it on the detectors' pages.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from typing import NamedTuple

from benchmarks.child import ROOT
from benchmarks.report import say
from benchmarks.wildtraining.play import play
from benchmarks.wildtraining.table import CASES, Case
from stethos.cli.screen.verdict import report_lines
from stethos.diagnose.api import diagnose
from stethos.diagnose.detectors import DETECTORS

KEPT = ROOT / "tools" / "examples.json"


class Example(NamedTuple):
    """What was said of one program."""

    program: str
    source: str
    lines: list[str]


def chosen() -> dict[str, list[Case]]:
    """The programs of each detector, by its code."""
    found: dict[str, list[Case]] = {}
    codes = {detector.name: code for code, detector in DETECTORS.items()}
    for case in CASES.values():
        code = codes.get(case.causes[0].partition(":")[0])
        if code is not None and case.half == "dev":
            found.setdefault(code, []).append(case)
    return found


def example_of(code: str, cases: list[Case], place: Path) -> Example | None:
    """The report of the first program that the detector names."""
    for case in cases[:3]:
        play(case, "bug", place)
        found = diagnose(place / f"{case.name}-bug", silence=[other for other in DETECTORS if other != code])
        if found.findings:
            lines = [line.text.rstrip() for line in report_lines(found, case.name)]
            return Example(case.name, case.source, lines)
    return None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--only", nargs="+", metavar="CODE")
    only = parser.parse_args().only
    kept = json.loads(KEPT.read_text(encoding="utf-8")) if KEPT.exists() else {}
    with tempfile.TemporaryDirectory(prefix="stethos-examples-", ignore_cleanup_errors=True) as scratch:
        for code, cases in sorted(chosen().items()):
            if only and code not in only:
                continue
            example = example_of(code, cases, Path(scratch))
            say(f"{code}: {example.program if example else 'nothing'}")
            if example is not None:
                kept[code] = example._asdict()
    KEPT.write_text(json.dumps(dict(sorted(kept.items())), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
