"""JSON for a browser: no number that JSON or JavaScript does not have."""

from __future__ import annotations

import json
from typing import Any

from stethos.view.plain import jsonable

_EXACT = 2**53
_LONGEST = 20_000


def encode(content: Any) -> bytes:
    """One document; whole numbers that JavaScript would round, NaN and infinities become strings."""
    plain = jsonable(content, longest=_LONGEST, exact=_EXACT)
    return json.dumps(plain, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode("utf-8", "replace")
