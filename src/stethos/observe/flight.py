"""Reads torch's flight recorder, which also knows the collectives that C++ begins."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, NamedTuple

_BYTES = {
    "Byte": 1, "Char": 1, "Bool": 1, "Short": 2, "Half": 2, "BFloat16": 2, "Int": 4, "Float": 4, "Long": 8,
    "Double": 8, "ComplexFloat": 8, "ComplexDouble": 16,
}  # fmt: skip


class Flight(NamedTuple):
    """One collective in the recorder; `complete_ns` only where the backend tells (NCCL)."""

    record: int
    group_id: str
    group: str
    description: str
    sequence: int
    op: str
    bytes: int
    begun_ns: int
    complete_ns: int | None


def last_flights() -> dict[str, tuple[int, int]]:
    """Per group (by its local number) the last collective begun and the last one complete; 3 us."""
    status = json.loads(_recorder()(includeCollectives=False)).get("pg_status") or {}
    return {
        str(group): (int(one["last_enqueued_collective"]), int(one["last_completed_collective"]))
        for group, one in status.items()
    }


def flights() -> Iterator[Flight]:
    """All that is in the recorder, oldest first. Holds the GIL for about 20 us per entry: not for every step."""
    for entry in json.loads(_recorder()(includeCollectives=True, onlyActive=False)).get("entries") or ():
        if not entry.get("is_p2p"):
            yield _flight(entry)


def _flight(entry: dict[str, Any]) -> Flight:
    name, description = entry["process_group"]
    done = entry.get("time_discovered_completed_ns")
    return Flight(
        int(entry["record_id"]), str(entry["pg_id"]), str(name), str(description), int(entry["collective_seq_id"]),
        str(entry["profiling_name"]).rpartition(":")[2], _size_of(entry), int(entry["time_created_ns"]),
        int(done) if done else None,
    )  # fmt: skip


def _size_of(entry: dict[str, Any]) -> int:
    total = 0
    for shape, dtype in zip(entry.get("input_sizes") or (), entry.get("input_dtypes") or (), strict=False):
        count = 1
        for side in shape:
            count *= int(side)
        total += count * _BYTES.get(str(dtype), 1)
    return total


def _recorder() -> Any:
    from torch._C import _distributed_c10d

    return getattr(_distributed_c10d, "_dump_fr_trace_json")  # noqa: B009  # torch's stubs do not know it
