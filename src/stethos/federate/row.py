"""Writes rows of the federated tables into the ring."""

from __future__ import annotations

import functools
import time
from array import array
from collections.abc import Mapping
from typing import Any

from stethos.observe.fields import json_of
from stethos.observe.session import Session
from stethos.schema import NULL_F64, NULL_I32, RECORDED, Kind, Table

_NUMBERS = (Kind.I32, Kind.I64, Kind.F64, Kind.BOOL)
_LARGEST = 2.0**53


def put_row(
    session: Session, table: Table, values: Mapping[str, Any], *, client: str | None, round: int, t_ns: int
) -> bool:
    """One row; what is not among the values is NULL. Return False if it was dropped."""
    names, numbers, texts = _columns_of(table.number)
    ids = array(
        "i", [NULL_I32 if (value := values.get(name)) is None else session.name_id(str(value)) for name in names]
    )
    doubles = array("d", [_number(values.get(name), is_whole) for name, is_whole in numbers])
    whose = (session.name_id(client) if client is not None else NULL_I32, round)
    return session.put_frame(
        table.number, ids.tobytes(), doubles.tobytes(), [_text(values.get(name)) for name in texts],
        t_ns=t_ns, whose=whose,
    )  # fmt: skip


@functools.cache
def _columns_of(number: int) -> tuple[list[str], list[tuple[str, bool]], list[str]]:
    """The names of a table's own columns as a frame holds them: names, numbers (whether whole ones), texts."""
    (table,) = (table for table in RECORDED.values() if table.number == number)
    return (
        [column.name for column in table.of_kind(Kind.NAME)],
        [(column.name, column.kind in (Kind.I32, Kind.I64)) for column in table.of_kind(*_NUMBERS)],
        [column.name for column in table.of_kind(Kind.TEXT)],
    )


def wait_for_room(session: Session, patience_s: float) -> float:
    """Give the drainer time while the ring is half full, up to `patience_s`; return the seconds that took.

    A round of a thousand clients is more than a ring holds. Called between
    rounds, by the server alone: with a small part of the round's duration as
    patience it is not noticed, and rows that do not fit are dropped and counted.
    """
    began = time.monotonic()
    while session.ring is not None and session.ring.has_backlog() and time.monotonic() - began < patience_s:
        time.sleep(0.002)
    return time.monotonic() - began


def _number(value: Any, is_whole: bool) -> float:
    if value is None:
        return NULL_F64
    number = float(value)
    return NULL_F64 if is_whole and not abs(number) < _LARGEST else number


def _text(value: Any) -> str:
    if value is None:
        return ""
    return json_of(value) if isinstance(value, Mapping) else str(value)
