"""Fields of logs and spans as JSON, whatever they are."""

from __future__ import annotations

import json
from collections.abc import Mapping

from stethos.guard import text_of

_LONGEST = 4000


def json_of(fields: Mapping[str, object]) -> str:
    """A JSON object, or "" without fields; what JSON has no word for, NaN included, is put as its `repr`."""
    pairs = [
        f"{json.dumps(name if type(name) is str else text_of(name))}: {_word(value)}" for name, value in fields.items()
    ]
    return "{" + ", ".join(pairs) + "}" if pairs else ""


def _word(value: object) -> str:
    if type(value) is int:
        return str(value)
    if type(value) is str and len(value) < _LONGEST // 8:
        return json.dumps(value)
    try:
        word = json.dumps(value, default=_shown, allow_nan=False)
    except (TypeError, ValueError, RecursionError):  # a key that is no text, NaN, or a circle
        word = ""
    return word if word and len(word) <= _LONGEST else json.dumps(_shown(value))


def _shown(value: object) -> str:
    return text_of(value, repr)[:_LONGEST]
