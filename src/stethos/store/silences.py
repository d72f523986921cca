"""Findings that people have seen to: acknowledged, or silenced for good; a small file beside the run's rows.

An acknowledged finding is not told again while it lasts; a silenced one is not told at all. Neither changes the
verdict.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from stethos.errors import UsageError
from stethos.record.border import read_file
from stethos.record.place import RunPlace, write_json

FILE = "silences.json"
Seen = Literal["acknowledged", "silenced"]
_LARGEST = 1 << 20
_MOST, _LONGEST_KEY, _LONGEST_NOTE = 1000, 2000, 500
_writing = threading.Lock()


@dataclass(frozen=True, slots=True)
class Silence:
    """What somebody has decided about a finding, when, and why."""

    state: Seen
    note: str = ""
    t_ns: int = 0

    def as_dict(self) -> dict[str, Any]:
        return {**asdict(self), "t_ns": str(self.t_ns)}


def read_silences(run: Path) -> dict[str, Silence]:
    """By the key of the finding; none where there is no file, or it is not one of ours."""
    try:
        content = json.loads(read_file(run / FILE, _LARGEST))
        return {key: Silence(_state(one["state"]), str(one["note"]), int(one["t_ns"])) for key, one in content.items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError, UsageError):
        return {}


def change_silence(place: RunPlace, request: Mapping[str, Any]) -> dict[str, Silence]:
    """Acknowledge or silence the finding of a `key`, or with `state` null undo it; UsageError if that cannot be."""
    key, state, note = request.get("key"), request.get("state"), request.get("note", "")
    if not isinstance(key, str) or not 0 < len(key) <= _LONGEST_KEY:
        raise UsageError("the request names no finding", hint='send {"key": "…", "state": "acknowledged"}')
    if not isinstance(note, str) or len(note) > _LONGEST_NOTE:
        raise UsageError("the note is not a text, or too long", hint=f"at most {_LONGEST_NOTE} characters")
    if not place.is_ours():
        raise UsageError(f"{place.name} was not recorded here by you", hint="only your own runs can be changed")
    with _writing:
        known = read_silences(place.path)
        known.pop(key, None)
        if state is not None:
            known[key] = Silence(_state(state), note, time.time_ns())
        if len(known) > _MOST:
            raise UsageError(f"more than {_MOST} findings are silenced", hint="undo some")
        try:
            write_json(place.path / FILE, {name: asdict(one) for name, one in known.items()})
        except OSError as error:
            raise UsageError(f"cannot write into {place.name}: {error.strerror}") from None
    return known


def _state(told: Any) -> Seen:
    for one in get_args(Seen):
        if told == one:
            return one  # type: ignore[no-any-return]
    raise UsageError(f"no such state: {told!r}", hint=f"states: {', '.join(get_args(Seen))}")
