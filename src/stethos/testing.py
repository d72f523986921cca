"""For tests of detectors, ours and those of other packages: hand-made windows, and what detectors find in them.

from stethos.testing import client_rounds, diagnosed, window_of

def slow(client, number, row):
    return {"duration_ms": 9000.0} if client == "c3" else {}

diagnosis = diagnosed(MyDetector(), window_of(client_rounds=client_rounds(slow)))
assert [finding.subject.clients for finding in diagnosis.findings] == [("c3",)]
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from stethos.diagnose.detector import Detector
from stethos.diagnose.diagnosis import Diagnosis
from stethos.diagnose.engine import examine
from stethos.diagnose.window import Window
from stethos.store.frame import Frame

CLIENTS = tuple(f"c{number}" for number in range(6))
ROUNDS = tuple(range(1, 11))
T0_NS = 1_700_000_000_000_000_000
S_NS = 1_000_000_000
Row = Mapping[str, Any]
Change = Callable[[str, int, dict[str, Any]], Row]


def diagnosed(detector: Detector, window: Window) -> Diagnosis:
    """What one detector says about a window, as `stethos diagnose` would let it: `findings`, or why `not_checked`."""
    return examine(window, [detector])


def window_of(*, is_live: bool = False, **tables: Sequence[Row]) -> Window:
    """A window with these rows, by table; see docs/tables.md for the columns."""
    return Window({name: frame_of(rows) for name, rows in tables.items()}, is_live=is_live)


def frame_of(rows: Sequence[Row]) -> Frame:
    """Rows as a frame; all have the columns of the first."""
    return Frame({name: [row[name] for row in rows] for name in rows[0]} if rows else {})


def client_rounds(
    change: Change | None = None, *, clients: Sequence[str] = CLIENTS, rounds: Sequence[int] = ROUNDS
) -> list[dict[str, Any]]:
    """Rows of `client_rounds` of a healthy federation; `change(client, round, row)` gives what differs."""
    rows = []
    for number in rounds:
        for place, client in enumerate(clients):
            wobble = 1 + 0.02 * ((place * 7 + number * 3) % 5 - 2)
            loss = 2.0 * 0.85 ** (number - 1)
            row: dict[str, Any] = {
                "client": client, "round": number, "status": "ok", "error": None, "samples": 100 + place,
                "federation": None, "t_ns": T0_NS + number * S_NS, "duration_ms": 1000 * wobble, "download_ms": 100.0,
                "compute_ms": 1000 * wobble - 200, "upload_ms": 100.0, "peak_bytes": 5e8 * wobble, "raw_bytes": 4e6,
                "sent_bytes": 4e6, "entry_loss": loss * wobble, "exit_loss": 0.9 * loss * wobble,
                "confusion": json.dumps([[20, 5], [5, 20]]),
            }  # fmt: skip
            rows.append({**row, **(change(client, number, row) if change else {})})
    return rows
