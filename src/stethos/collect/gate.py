"""Whether a batch says more than a policy lets through: what a relay asks of the policy of its own site.

The relay cannot make a batch smaller, as its client has signed it: it refuses the whole. Noise that a client has added
cannot be told from none.
"""

from __future__ import annotations

import re

import numpy as np
import pyarrow as pa

from stethos.collect.batch import BatchError, BatchHeader, SignedBatch, blocks_in
from stethos.collect.filter import filtered, filtered_counters, filtered_facts, numbers_of
from stethos.collect.policy import Policy
from stethos.record.arrow import checked_batch, checked_schema, segment_schema
from stethos.record.border import checked_books, checked_counters
from stethos.record.segment import FLAG_SCHEMA
from stethos.schema import RECORDED, Table

_COUNTERS = "counters"
_FRAME = re.compile(r"[\w.<>-]+ \([\w.<>-]{1,80}:\d{1,9}\)")


def check_batch(policy: Policy, batch: SignedBatch) -> None:
    """BatchError, with the name of what would be kept back, if the policy lets less through than the batch holds."""
    header = batch.header
    _check_header(policy, header)
    rows = 0
    schemas: dict[int, pa.Schema] = {}  # a client of another version has other columns
    for block in blocks_in(batch):
        table = RECORDED.get(block.table)
        try:
            if block.flags & FLAG_SCHEMA:
                schemas[block.table] = checked_schema(block.payload)
            elif block.is_batch and block.rows and table is not None:
                schema = schemas.get(block.table, segment_schema(table))
                _check_rows(policy, table, checked_batch(block.payload, schema, block.rows))
                rows += block.rows
        except (pa.ArrowException, OSError, ValueError):
            break
    if rows != header.rows:
        raise BatchError("some of the rows cannot be read by this relay, so its site's policy cannot be applied")


def _check_header(policy: Policy, header: BatchHeader) -> None:
    if policy.level == "L0":
        raise BatchError("nothing leaves this site: its relay's policy says L0")
    facts = {name: value for name, value in header.facts.items() if name != _COUNTERS}
    try:
        told = filtered_facts(policy, facts)
    except (TypeError, ValueError, OverflowError):  # a time that is not a number
        raise BatchError("facts that this relay cannot read, so its site's policy cannot be applied") from None
    for name, value in facts.items():
        if told.get(name) != value and not (name == "traceback" and name in told and _has_frames_only(str(value))):
            raise _kept_back(f"the fact {name!r}")
    for counters in map(checked_counters, (header.facts.get(_COUNTERS), header.ended)):
        for name, count in filtered_counters(policy, counters).items():
            if counters[name] != count:
                raise _kept_back(f"the counter {name!r}")
    if policy.level != "L4" and set(checked_books(header.books)["withheld"]) - {"rows"}:
        raise _kept_back("of which tables rows were withheld")


def _check_rows(policy: Policy, table: Table, rows: pa.RecordBatch) -> None:
    own = segment_schema(table)
    odd = [
        name for name in rows.schema.names if name in own.names and rows.schema.field(name).type != own.field(name).type
    ]
    if odd:
        raise BatchError(
            f"{table.name}.{odd[0]} has another type here, so this relay's site's policy cannot be applied"
        )
    left = filtered(policy, table, rows)
    if left is None:
        raise _kept_back(f"the table {table.name}")
    for name in rows.schema.names:
        before, way = rows.column(name), policy.rule(table.name, name).way
        if before.null_count == len(before) or way == "noise":
            continue
        after = left.column(name) if name in left.schema.names else None
        texts = before.to_pylist() if way == "frames" else []
        if way == "frames" and all(text is None or _has_frames_only(text) for text in texts):
            continue
        if after is None or not _are_same(before, after):
            raise _kept_back(f"{table.name}.{name}")


def _are_same(before: pa.Array, after: pa.Array) -> bool:
    if before.type not in (pa.int32(), pa.int64(), pa.float64()):
        return bool(before.to_pylist() == after.to_pylist())
    (old, no_old), (new, no_new) = numbers_of(before), numbers_of(after)
    return bool(np.array_equal(no_old, no_new) and np.allclose(old, new, rtol=1e-9, atol=0.0, equal_nan=True))


def _has_frames_only(text: str) -> bool:
    return all(_FRAME.fullmatch(line) for line in text.splitlines())


def _kept_back(what: str) -> BatchError:
    return BatchError(f"the policy of this relay's site keeps back {what}")
