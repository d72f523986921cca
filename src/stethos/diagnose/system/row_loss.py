"""SYS015: rows that the recording itself lost."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from stethos.diagnose.detector import Needs, threshold
from stethos.diagnose.finding import Evidence, Finding, Severity, Subject
from stethos.diagnose.window import Window
from stethos.store.frame import Frame


@dataclass(frozen=True, slots=True)
class RowLoss:
    """Stethos itself has lost rows of this run.

    What it looks at: the books of each process: rows produced, stored, dropped by reason, lost in a crash or in
    damaged files.

    Why it matters: everything else reported about this run is based on the rows that were kept.

    Not a fault when: the run reached the size limit it was given, and its oldest bulk rows were deleted.

    Next step: `stethos doctor --verify`.
    """

    code: ClassVar[str] = "SYS015"
    name: ClassVar[str] = "row-loss"
    severity: ClassVar[Severity] = Severity.WARNING
    needs: ClassVar[Needs] = {"processes": frozenset({"process", "rows_produced", "rows_dropped", "rows_lost"})}
    reads: ClassVar[Needs] = {"processes": frozenset({"drops"})}
    explains: ClassVar[frozenset[str]] = frozenset()

    share: float = threshold(0.01, "share of the rows from which on it is more than info")

    def check(self, window: Window) -> Iterator[Finding]:
        processes = window.frame("processes")
        for process, row in processes.groups("process").items():
            produced, dropped, lost = (
                float(np.nan_to_num(row[name][0])) for name in ("rows_produced", "rows_dropped", "rows_lost")
            )
            drops = _drops(row)
            retired = drops.pop("size_limit", 0.0)
            missing = dropped + lost - retired
            if produced <= 0 or missing + retired <= 0:
                continue
            share = missing / produced
            reasons = [f"{int(rows):,} {reason}" for reason, rows in {**drops, "lost": lost}.items() if rows]
            yield Finding(
                self.code,
                self.name,
                self.name,
                self.severity if share > self.share else Severity.INFO,
                f"{int(missing + retired):,} of {int(produced):,} rows of process {process} are missing",
                Subject(process=str(process)),
                confidence=1.0,
                evidence=(
                    Evidence(
                        ", ".join([*reasons, *([f"{int(retired):,} given up for the size limit"] if retired else [])]),
                        "SELECT process, rows_produced, rows_stored, rows_dropped, rows_lost, drops FROM processes",
                    ),
                ),
                next_step="see what is affected: stethos doctor --verify",
                detail={"share": share},
            )


def _drops(row: Frame) -> dict[str, float]:
    """Dropped rows by reason."""
    text = row["drops"][0] if "drops" in row else None
    if not isinstance(text, str):
        return {}
    try:
        found = json.loads(text)
    except ValueError:
        return {}
    return {str(name): float(rows) for name, rows in found.items()} if isinstance(found, dict) else {}
