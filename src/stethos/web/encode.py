"""JSON for a browser: no number that JSON or JavaScript does not have."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

_EXACT = 2**53
_LONGEST = 20_000


def encode(content: Any) -> bytes:
    """One document; whole numbers that JavaScript would round, NaN and infinities become strings."""
    return json.dumps(_plain(content), ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode(
        "utf-8", "replace"
    )


def _plain(value: Any) -> Any:
    match value:
        case None | bool():
            return value
        case str():
            return value if len(value) <= _LONGEST else value[:_LONGEST] + " …"
        case int():
            return value if -_EXACT <= value <= _EXACT else str(value)
        case float():
            if math.isfinite(value):
                return value
            return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
        case bytes():
            return value[: _LONGEST // 2].hex()
        case list() | tuple():
            return [_plain(item) for item in value]
        case Mapping():
            return {str(key): _plain(item) for key, item in value.items()}
    return str(value)
