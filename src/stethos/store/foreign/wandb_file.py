"""W&B's offline runs: a log in blocks of 32 kB, as LevelDB has it, of protobuf messages."""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from stethos.record.border import map_file
from stethos.store.foreign.protobuf import Fields, fields_of, last, real, text
from stethos.store.foreign.value import Damage, Logged, LoggedMedia, LoggedNumber, LoggedSetting

_BLOCK = 32_768
_HEADER = 7
_FULL, _FIRST, _MIDDLE, _LAST = 1, 2, 3, 4
_MOST_NESTED = 4
_LARGEST_RECORD = 64 << 20
_MOST_EMPTY = 1_000  # blocks one after the other: what follows them was never written


def read_wandb(path: Path, damage: Damage) -> Iterator[Logged]:
    """What a `.wandb` file says, in its order; what is damaged is counted and left out."""
    for record in _records(path, damage):
        try:
            yield from _logged(fields_of(record))
        except (ValueError, TypeError, AttributeError, OverflowError, struct.error, RecursionError):
            damage.records += 1


def _logged(record: Fields) -> Iterator[Logged]:
    for run in record.get(17, []):
        for config in fields_of(run).get(4, []):
            yield from _settings(config)
    for config in record.get(5, []):
        yield from _settings(config)
    for history in record.get(2, []):
        yield from _history(fields_of(history))


def _settings(config: bytes) -> Iterator[LoggedSetting]:
    for item in fields_of(config).get(1, []):
        name, value = _item(fields_of(item))
        if not name.startswith("_"):
            yield LoggedSetting(name, value)


def _history(history: Fields) -> Iterator[Logged]:
    items = dict(_item(fields_of(item)) for item in history.get(1, []))
    step = last(fields_of(history[2][-1]), 1, int, 0) if 2 in history else items.get("_step", 0)
    seconds = items.get("_timestamp", 0)
    t_ns = int(seconds * 1e9) if isinstance(seconds, int | float) and 0 <= seconds < 9e9 else 0
    media = tuple(name.removesuffix("_type") for name in items if name.endswith("._type"))  # whose files lie elsewhere
    for name, value in items.items():
        if not name.startswith(("_", *media)) and "._" not in name:
            yield from _values(name, value, step if isinstance(step, int) else 0, t_ns)


def _values(name: str, value: Any, step: int, t_ns: int, depth: int = 0) -> Iterator[Logged]:
    if isinstance(value, bool | int | float) or value in ("NaN", "Infinity", "-Infinity"):
        yield LoggedNumber(name, step, t_ns, float(value))
    elif isinstance(value, str):
        yield LoggedMedia(name, "text", step, t_ns, value[:8000])
    elif isinstance(value, dict) and "_type" not in value and depth < _MOST_NESTED:
        for key, one in value.items():
            yield from _values(f"{name}.{key}", one, step, t_ns, depth + 1)


def _item(item: Fields) -> tuple[str, Any]:
    """A key with its value: in JSON, or typed as newer versions write it."""
    name = ".".join(part.decode("utf-8", "replace") for part in item.get(2, [])) or text(item, 1)
    if 6 in item:
        return name, real(item, 6)
    if 5 in item or 4 in item:
        return name, last(item, 5 if 5 in item else 4, int)
    if 7 in item:
        return name, text(item, 7)
    coded = text(item, 8) or text(item, 16)
    return name, json.loads(coded) if coded else None


def _records(path: Path, damage: Damage) -> Iterator[bytes]:
    data = map_file(path)
    if bytes(data[:4]) != b":W&B":
        damage.bytes += len(data)
        return
    place, size, parts, empty = _HEADER, len(data), bytearray(), 0
    while place + _HEADER <= size and empty < _MOST_EMPTY:
        left = _BLOCK - place % _BLOCK
        if left < _HEADER:
            place += left
            continue
        crc, length, kind = struct.unpack("<IHB", data[place : place + _HEADER])
        content = bytes(data[place + _HEADER : place + _HEADER + length])
        is_whole = (
            length <= left - _HEADER
            and len(content) == length
            and zlib.crc32(content, zlib.crc32(bytes([kind]))) == crc
        )
        if not is_whole or kind not in (_FULL, _FIRST, _MIDDLE, _LAST):
            if kind == 0 and length == 0 and not any(data[place : place + left]):  # made ready and not written
                place, empty = place + left, empty + 1
                continue
            damage.bytes += min(left, size - place)  # the next block begins anew
            place, parts = place + left, bytearray()
            continue
        place, empty = place + _HEADER + length, 0
        if kind in (_FULL, _FIRST):
            parts = bytearray()
        parts += content
        if len(parts) > _LARGEST_RECORD:
            damage.records, parts = damage.records + 1, bytearray()
        elif kind in (_FULL, _LAST):
            yield bytes(parts)
            parts = bytearray()
    if empty < _MOST_EMPTY:
        damage.bytes += max(0, size - place)  # cut off in the middle, as by a kill
