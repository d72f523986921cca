"""Whose turn it is: the federated client and round that rows of this thread or task belong to."""

from __future__ import annotations

from contextvars import ContextVar

from stethos.schema import NULL_I32

_TURN: ContextVar[tuple[int, int]] = ContextVar("stethos_turn", default=(NULL_I32, NULL_I32))
turn = _TURN.get
