"""Writes rows of the federated tables into the ring."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import numpy as np

from stethos.observe.fields import json_of
from stethos.observe.session import Session
from stethos.schema import NULL_F64, NULL_I32, Kind, Table

_NUMBERS = (Kind.I32, Kind.I64, Kind.F64, Kind.BOOL)
_LARGEST = 2.0**53


def put_row(
    session: Session, table: Table, values: Mapping[str, Any], *, client: str | None, round: int, t_ns: int
) -> bool:
    """One row; what is not among the values is NULL. Return False if it was dropped."""
    names = b"".join(_name(session, values.get(column.name)) for column in table.of_kind(Kind.NAME))
    numbers = np.array([_number(values.get(column.name), column.kind) for column in table.of_kind(*_NUMBERS)])
    texts = [_text(values.get(column.name)) for column in table.of_kind(Kind.TEXT)]
    whose = (session.name_id(client) if client is not None else NULL_I32, round)
    return session.put_frame(table.number, names, numbers.tobytes(), texts, t_ns=t_ns, whose=whose)


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


def _name(session: Session, value: Any) -> bytes:
    number = NULL_I32 if value is None else session.name_id(str(value))
    return number.to_bytes(4, "little", signed=True)


def _number(value: Any, kind: Kind) -> float:
    if value is None:
        return NULL_F64
    number = float(value)
    if kind in (Kind.I32, Kind.I64) and not abs(number) < _LARGEST:
        return NULL_F64
    return number


def _text(value: Any) -> str:
    if value is None:
        return ""
    return json_of(value) if isinstance(value, Mapping) else str(value)
