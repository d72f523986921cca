"""Values that any reader takes: as JSON has them, and text that can be printed."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from typing import Any

_UNPRINTABLE = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")


def jsonable(value: Any, *, longest: int | None = None, exact: int | None = None) -> Any:
    """The value as JSON has it: NaN and infinities become the strings "NaN", "Infinity" and "-Infinity".

    Texts above the `longest` are cut, whole numbers above the `exact` become strings.
    """
    match value:
        case None | bool():
            return value
        case str():
            return value if longest is None or len(value) <= longest else value[:longest] + " …"
        case int():
            return value if exact is None or -exact <= value <= exact else str(value)
        case float():
            return (
                value if math.isfinite(value) else "NaN" if math.isnan(value) else f"{'-' if value < 0 else ''}Infinity"
            )
        case bytes():
            return value.hex() if longest is None else value[: longest // 2].hex()
        case Mapping():
            return {str(key): jsonable(item, longest=longest, exact=exact) for key, item in value.items()}
        case list() | tuple():
            return [jsonable(item, longest=longest, exact=exact) for item in value]
    return str(value)


def plain(value: Any) -> Any:
    """A value as JSON has it, text as it can be printed."""
    return printable(value) if isinstance(value, str) else jsonable(value) if isinstance(value, float) else value


def printable(text: str) -> str:
    """Text without characters that readers stumble over: control characters and halves of surrogate pairs."""
    return _UNPRINTABLE.sub("\N{REPLACEMENT CHARACTER}", text)


def known(**values: Any) -> dict[str, Any]:
    """The values that were measured, as JSON has them."""
    return {name: plain(value) for name, value in values.items() if value is not None}


def fields_of(text: str | None) -> dict[str, Any]:
    """What a column with a JSON object holds; text that is none holds nothing."""
    try:
        fields = json.loads(text, parse_constant=str) if text else {}
    except ValueError:
        return {}
    return {printable(str(name)): plain(value) for name, value in fields.items()} if isinstance(fields, dict) else {}
