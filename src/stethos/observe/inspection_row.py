"""Writes rows of `inspections`."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np

from stethos.schema import INSPECTIONS, NULL_F64, NULL_I32, Kind

if TYPE_CHECKING:
    from stethos.observe.session import Session

_NAMES = [column.name for column in INSPECTIONS.of_kind(Kind.NAME)]
_NUMBERS = [column.name for column in INSPECTIONS.of_kind(Kind.I32, Kind.I64, Kind.F64)]


def put_inspection(session: Session, facts: dict[str, Any], remarks: list[tuple[str, str]]) -> None:
    """A row for what was seen, and one more for each further remark."""
    for kind, text in remarks or [("", "")]:
        row = {**facts, "remark": kind}
        detail = {**facts.get("detail", {}), **({"seen": text} if kind else {})}
        ids = [session.name_id(str(row[name])) if row.get(name) else NULL_I32 for name in _NAMES]
        numbers = [_number(row.get(name)) for name in _NUMBERS]
        session.put_frame(
            INSPECTIONS.number, np.array(ids, np.int32).tobytes(), np.array(numbers, np.float64).data.cast("B"),
            (json.dumps(detail, ensure_ascii=False) if detail else "",),
        )  # fmt: skip


def _number(value: float | str | None) -> float:
    return value if isinstance(value, float) else NULL_F64
