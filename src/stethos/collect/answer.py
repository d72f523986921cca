"""What a collector answers: whether a batch is stored, how long to wait, why not. Nothing else is ever acted upon.

An answer that says more is a try to make a client do something, or a mistake: what it says beyond is handed on, to be
written down at the site.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

MOST_ANSWER_BYTES = 64 << 10
LONGEST_WAIT_S = 300.0
_MOST_BEYOND = 10
_MOST_CHARACTERS = 300
_WORDS = frozenset({"stored", "wait_s", "error", "hint"})
_STATUSES = frozenset({200, 400, 401, 403, 404, 405, 408, 413, 421, 422, 429, 500, 502, 503, 504})
# Of our server, and of what may stand before it.
_HEADERS = frozenset({
    "age", "alt-svc", "cache-control", "connection", "content-length", "content-security-policy", "content-type",
    "cross-origin-opener-policy", "cross-origin-resource-policy", "date", "etag", "expires", "keep-alive",
    "last-modified", "permissions-policy", "referrer-policy", "retry-after", "server", "strict-transport-security",
    "transfer-encoding", "vary", "via", "x-content-type-options", "x-frame-options", "x-request-id",
})  # fmt: skip


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer as it may be used; `beyond` is what else stands in it."""

    status: int
    wait_s: float | None = None
    error: str = ""
    beyond: dict[str, Any] = field(default_factory=dict)


def read_answer(status: int, headers: Sequence[tuple[str, str]], content: bytes) -> Answer:
    """Whatever came as an answer, read."""
    told: Any = None
    if len(content) <= MOST_ANSWER_BYTES:
        try:
            told = json.loads(content) if content else {}
        except (ValueError, RecursionError):
            told = None
    beyond: dict[str, Any] = {}
    if not isinstance(told, dict):
        beyond["body"] = content[:_MOST_CHARACTERS].decode("ascii", "backslashreplace")
        told = {}
    beyond |= {str(name): told[name] for name in sorted(set(told) - _WORDS)}
    wait_s = told.get("wait_s")
    if wait_s is not None and not _is_wait(wait_s):
        beyond["wait_s"], wait_s = wait_s, None
    if told.get("stored", True) is not True:
        beyond["stored"] = told["stored"]
    beyond |= {name: value for name, value in headers if name.lower() not in _HEADERS}
    if status not in _STATUSES:
        beyond["status"] = status
    return Answer(status, wait_s, str(told.get("error") or "")[:_MOST_CHARACTERS], _short(beyond))


def _is_wait(value: Any) -> bool:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return is_number and math.isfinite(value) and 0 <= value <= LONGEST_WAIT_S


def _short(beyond: dict[str, Any]) -> dict[str, Any]:
    return {name[:60]: repr(beyond[name])[:_MOST_CHARACTERS] for name in list(beyond)[:_MOST_BEYOND]}
