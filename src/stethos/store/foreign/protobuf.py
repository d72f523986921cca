"""Just enough of protobuf's wire format to read messages whose field numbers are known."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any

_MOST_FIELDS = 500_000  # of one message
Fields = dict[int, list[Any]]  # integers, or bytes; fixed ones as bytes


def fields_of(data: bytes) -> Fields:
    """Every field of a message by its number; ValueError if it is damaged, or has more than anybody means."""
    found: Fields = {}
    for count, (number, value) in enumerate(_fields(data)):
        if count >= _MOST_FIELDS:
            raise ValueError("too many fields")
        found.setdefault(number, []).append(value)
    return found


def _fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    place, size = 0, len(data)
    while place < size:
        key, place = _varint(data, place)
        kind = key & 7
        if kind == 0:
            value, place = _varint(data, place)
            yield key >> 3, value
            continue
        if kind == 2:
            length, place = _varint(data, place)
        elif kind in (1, 5):
            length = 8 if kind == 1 else 4
        else:
            raise ValueError(f"wire type {kind}")
        if length > size - place:
            raise ValueError("a field goes beyond its message")
        yield key >> 3, data[place : place + length]
        place += length


def _varint(data: bytes, place: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        if place >= len(data):
            raise ValueError("a number is cut off")
        byte = data[place]
        place += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, place
    raise ValueError("a number is too long")


def last(fields: Fields, number: int, kind: type[Any], default: Any = None) -> Any:
    """The last value of a field if it is of this type, as protobuf has it; integers are signed."""
    value = fields.get(number, [None])[-1]
    if not isinstance(value, kind):
        return default
    return value - (1 << 64) if kind is int and value >= 1 << 63 else value


def text(fields: Fields, number: int) -> str:
    return str(last(fields, number, bytes, b"").decode("utf-8", "replace"))


def real(fields: Fields, number: int) -> float | None:
    """A float or double."""
    value = last(fields, number, bytes)
    if value is None or len(value) not in (4, 8):
        return None
    return float(struct.unpack("<f" if len(value) == 4 else "<d", value)[0])
