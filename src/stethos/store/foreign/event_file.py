"""TensorBoard's event files: records with a checksum each, of scalars, texts, images and hyperparameters."""

from __future__ import annotations

import base64
import struct
from collections.abc import Iterator
from pathlib import Path

from stethos.record.border import map_file
from stethos.store.foreign.protobuf import Fields, fields_of, last, real, text
from stethos.store.foreign.value import Damage, Logged, LoggedMedia, LoggedNumber, LoggedSetting

_CHECKED_BYTES = 4096  # larger records are taken as they are: a checksum in Python is slow
_LARGEST_RECORD = 64 << 20
_LARGEST_IMAGE = 48_000
_DOUBLE = 2
_CRC: list[int] = []


def read_events(path: Path, damage: Damage) -> Iterator[Logged]:
    """What an event file says, in its order; what is damaged is counted and left out."""
    for record in _records(path, damage):
        try:
            event = fields_of(record)
            t_ns, step = _time_ns(event), last(event, 2, int, 0)
            for summary in event.get(5, []):
                for value in fields_of(summary).get(1, []):
                    yield from _logged(fields_of(value), step, t_ns)
        except (ValueError, TypeError, AttributeError, struct.error):
            damage.records += 1


def _time_ns(event: Fields) -> int:
    seconds = real(event, 1)
    return int(seconds * 1e9) if seconds is not None and 0 <= seconds < 9e9 else 0


def _logged(value: Fields, step: int, t_ns: int) -> Iterator[Logged]:
    name = text(value, 1) or text(value, 7)
    simple = real(value, 2)
    if simple is not None:
        yield LoggedNumber(name, step, t_ns, simple)
    elif 4 in value:
        image = last(fields_of(value[4][-1]), 4, bytes, b"")
        if image.startswith(b"\x89PNG") and len(image) <= _LARGEST_IMAGE:
            yield LoggedMedia(name, "image", step, t_ns, base64.b64encode(image).decode())
    elif 8 in value:
        yield from _tensor(name.removesuffix("/text_summary"), fields_of(value[8][-1]), step, t_ns)
    elif 9 in value:
        plugin = fields_of(last(fields_of(value[9][-1]), 1, bytes, b""))
        if text(plugin, 1) == "hparams":
            yield from _settings(fields_of(last(plugin, 2, bytes, b"")))


def _settings(told: Fields) -> Iterator[LoggedSetting]:
    """What `add_hparams` wrote: a message for the start of a session has the values, by name."""
    for start in told.get(3, []):
        for entry in fields_of(start).get(1, []):
            pair = fields_of(entry)
            value = fields_of(last(pair, 2, bytes, b""))
            number, flag = real(value, 2), last(value, 4, int)
            if number is not None:  # the format has no whole numbers
                yield LoggedSetting(text(pair, 1), int(number) if number.is_integer() else number)
            elif flag is not None:
                yield LoggedSetting(text(pair, 1), bool(flag))
            elif 3 in value:
                yield LoggedSetting(text(pair, 1), text(value, 3)[:8000])


def _tensor(name: str, tensor: Fields, step: int, t_ns: int) -> Iterator[Logged]:
    """A scalar or a text of the newer kind."""
    if 8 in tensor:
        yield LoggedMedia(name, "text", step, t_ns, tensor[8][0].decode("utf-8", "replace")[:8000])
        return
    kind = last(tensor, 1, int, 0)
    content = last(tensor, 4, bytes) or last(tensor, 5, bytes) or last(tensor, 6, bytes) or b""
    size = 8 if kind == _DOUBLE else 4
    if kind in (1, _DOUBLE) and len(content) == size:
        yield LoggedNumber(name, step, t_ns, struct.unpack("<d" if size == 8 else "<f", content)[0])


def _records(path: Path, damage: Damage) -> Iterator[bytes]:
    data = map_file(path)
    place, size = 0, len(data)
    while place < size:
        if size - place < 16:
            damage.bytes += size - place  # cut off in the middle, as by a kill
            return
        head = bytes(data[place : place + 8])
        (length,) = struct.unpack("<Q", head)
        if struct.unpack("<I", data[place + 8 : place + 12])[0] != _masked_crc(head) or length > size - place - 16:
            damage.bytes += size - place  # where the next record begins cannot be known
            return
        if length > _LARGEST_RECORD:
            damage.records, place = damage.records + 1, place + length + 16
            continue
        record = bytes(data[place + 12 : place + 12 + length])
        (told,) = struct.unpack("<I", data[place + 12 + length : place + 16 + length])
        place += length + 16
        if length <= _CHECKED_BYTES and told != _masked_crc(record):
            damage.records += 1
        else:
            yield record


def _masked_crc(data: bytes) -> int:
    """CRC-32C as these files have it."""
    if not _CRC:
        for byte in range(256):
            value = byte
            for _ in range(8):
                value = value >> 1 ^ (0x82F63B78 if value & 1 else 0)
            _CRC.append(value)
    value = 0xFFFFFFFF
    for byte in data:
        value = _CRC[(value ^ byte) & 255] ^ value >> 8
    value ^= 0xFFFFFFFF
    return ((value >> 15 | value << 17) + 0xA282EAD8) & 0xFFFFFFFF
