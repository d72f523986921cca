"""Hand-made rounds and turns for tests of the profile."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from stethos.store.frame import Frame

T0_NS = 1_700_000_000_000_000_000


def columns(rows: Sequence[Mapping[str, Any]]) -> Frame:
    """Rows as the columns of a query: numbers as floats, None as NaN."""
    found = {}
    for name in rows[0] if rows else ():
        values = [row[name] for row in rows]
        if any(isinstance(value, str) for value in values):
            found[name] = np.array(values, object)
        else:
            found[name] = np.array([np.nan if value is None else float(value) for value in values])
    return Frame(found)


def turn(
    client: str, number: int, down: float | None, compute: float | None, up: float | None, **more: Any
) -> dict[str, Any]:
    """One client's turn; its duration is the sum of what is known."""
    duration = sum(value for value in (down, compute, up) if value is not None)
    return {
        "client": client, "round": number, "federation": "f", "t_ns": T0_NS + number, "status": "ok", "samples": 100,
        "duration_ms": duration, "download_ms": down, "compute_ms": compute, "upload_ms": up, **more,
    }  # fmt: skip


def round_row(number: int, duration: float | None, **more: Any) -> dict[str, Any]:
    """One round."""
    return {
        "federation": "f", "round": number, "t_ns": T0_NS + number, "duration_ms": duration, "wait_ms": None,
        "select_ms": None, "download_ms": None, "compute_ms": None, "upload_ms": None, "aggregate_ms": None,
        "evaluate_ms": None, **more,
    }  # fmt: skip


def side_by_side(
    rounds: int = 6, clients: int = 5, *, aggregate: float = 10.0, slow: Mapping[str, tuple[str, float]] | None = None
) -> tuple[Frame, Frame]:
    """Rounds whose clients work side by side; `slow` multiplies one phase of a client."""
    turns, rows = [], []
    for number in range(1, rounds + 1):
        lasts = []
        for place in range(clients):
            name = f"c{place}"
            wobble = 1 + 0.01 * ((place * 3 + number) % 4)
            phases = {"download": 20 * wobble, "compute": 100 * wobble, "upload": 30 * wobble}
            if slow and name in slow:
                phase, times = slow[name]
                phases[phase] *= times
            turns.append(turn(name, number, *phases.values()))
            lasts.append(sum(phases.values()))
        rows.append(
            round_row(number, max(lasts) + aggregate, wait_ms=max(lasts) - min(lasts), aggregate_ms=aggregate)
        )  # fmt: skip
    return columns(rows), columns(turns)
