"""What was said of the programs that somebody judges by reading, beside what is wrong with them."""

from __future__ import annotations

from pathlib import Path

from benchmarks.report import say
from benchmarks.wildtraining.blind import BlindCase
from benchmarks.wildtraining.play import play
from stethos.cli.screen.verdict import report_lines
from stethos.diagnose.api import diagnose


def write_said(jobs: list[tuple[BlindCase, str]], directory: Path, path: Path) -> None:
    """Run programs one after the other as their users would, and write a section for each as soon as it is there."""
    path.write_text("", encoding="utf-8")
    for case, variant in jobs:
        outcome = play(case, variant, directory)
        name = f"{case.name}-{variant}"
        lines = [line.text.rstrip() for line in report_lines(diagnose(directory / name), name)]
        with path.open("a", encoding="utf-8") as file:
            file.write("\n".join([*heading(case, variant), "", *lines, "", ""]))
        say(f"{name}: {' '.join(outcome.said) or 'nothing'} ({' '.join(outcome.mentioned)})")


def heading(case: BlindCase, variant: str) -> list[str]:
    """What a judge has to know."""
    if variant == "bug":
        return [f"## {case.name}: has a bug", f"Cause: {case.cause}", *case.judged_by, case.source]
    word = "healthy" if case.family == "healthy" else "corrected twin"
    return [f"## {case.name}: {word}, nothing is to be accused", *([case.cause] if word == "healthy" else [])]
