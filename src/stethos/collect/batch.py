"""A batch of rows on its way: a signed header and the blocks of a segment, compressed.

    magic | bytes of the header | signature of the header | header as JSON | body

The header has the digest of the body, so the signature holds for both, and whoever carries a batch can neither
change nor invent one. (client, epoch, lane, number) names it for good: sent again, it is stored once. What comes from
outside is bounded before memory is taken for it.
"""

from __future__ import annotations

import hashlib
import json
import re
import struct
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, fields
from functools import cache
from itertools import islice
from typing import Any

from stethos.errors import StethosError
from stethos.record.segment import Block, scan
from stethos.schema import RECORDED, Kind

MAGIC = b"STETHBT1"
_HEAD = struct.Struct("<8sI64s")
UNSIGNED = bytes(64)
MOST_HEADER_BYTES = 256 << 10
MOST_BATCH_BYTES = 8 << 20
MOST_RAW_BYTES = 32 << 20
MOST_BLOCKS = 1000  # a client makes two for each table
MOST_UNFOLDED_BYTES = 2 * MOST_RAW_BYTES  # in our own schema: columns that another version lacks become NULL
LANES = (0, 1, 2)  # client_reports and what became of the process; other tables; bulk tables
CLIENT_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_WORD = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_COUNT = range(2**62)
_MOST_NAMES = 200  # characters: they are one directory's name
Key = tuple[str, str, str, str]  # run, client, process, epoch: a stream of batches


class BatchError(StethosError):
    """A batch that is not one, or not of the client that it names."""


@dataclass(frozen=True, slots=True)
class BatchHeader:
    """What a batch says of itself and of the process whose rows it holds.

    `books` says what became of the rows of the process so far, see `collect.books`; `withholds` names the columns that
    the site's policy keeps back, by table. `facts` are of the process, and `ended` how it ended, once it has.
    """

    client: str
    run: str
    process: str
    epoch: str
    lane: int
    number: int
    rows: int = 0
    raw_bytes: int = 0
    digest: str = ""
    t_ns: int = 0
    books: dict[str, Any] = field(default_factory=dict)
    withholds: dict[str, list[str]] = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)
    ended: dict[str, Any] = field(default_factory=dict)

    @property
    def key(self) -> Key:
        """The stream of batches that it belongs to."""
        return self.run, self.client, self.process, self.epoch


@dataclass(frozen=True, slots=True)
class SignedBatch:
    """A batch as it travels; `data` is all of it."""

    header: BatchHeader
    signed: bytes
    signature: bytes
    body: memoryview
    data: bytes

    @property
    def cost_bytes(self) -> int:
        """What it takes from its client's share: to unfold rows costs as much as to carry a fourth of them."""
        return max(len(self.data), self.header.raw_bytes // 4)


def digest_of(body: bytes | memoryview) -> str:
    return hashlib.blake2b(body, digest_size=32).hexdigest()


def encode_batch(header: BatchHeader, body: bytes, sign: Any = None) -> bytes:
    """The batch as bytes; `sign` makes 64 bytes from the header's."""
    content = json.dumps(asdict(header), ensure_ascii=True, separators=(",", ":")).encode()
    return _HEAD.pack(MAGIC, len(content), sign(content) if sign else UNSIGNED) + content + body


def decode_batch(data: bytes) -> SignedBatch:
    """Read what `encode_batch` wrote; BatchError if it is anything else. The digest is checked, the signature not."""
    if not _HEAD.size <= len(data) <= MOST_BATCH_BYTES:
        raise BatchError(f"a batch has {_HEAD.size} to {MOST_BATCH_BYTES:,} bytes, not {len(data):,}")
    magic, size, signature = _HEAD.unpack_from(data)
    if magic != MAGIC or size > MOST_HEADER_BYTES or _HEAD.size + size > len(data):
        raise BatchError("not a batch of rows")
    signed = data[_HEAD.size : _HEAD.size + size]
    header = _header_in(signed)
    body = memoryview(data)[_HEAD.size + size :]
    if digest_of(body) != header.digest:
        raise BatchError("the rows are not those that the header names: their digest differs")
    return SignedBatch(header, signed, signature, body, data)


def _header_in(content: bytes) -> BatchHeader:
    try:
        values = json.loads(content)
    except (ValueError, RecursionError):
        raise BatchError("the header of the batch is not JSON") from None
    if not isinstance(values, dict):
        raise BatchError("the header of the batch is not an object")
    known = {one.name for one in fields(BatchHeader)}
    try:
        header = BatchHeader(**{name: value for name, value in values.items() if name in known})
    except TypeError:
        raise BatchError("the header of the batch lacks a field") from None
    _check(header)
    return header


def _check(header: BatchHeader) -> None:
    words = (header.run, header.process, header.epoch)
    numbers = (header.lane, header.number, header.rows, header.raw_bytes, header.t_ns)
    tables = (header.books, header.withholds, header.facts, header.ended)
    if not isinstance(header.client, str) or CLIENT_NAME.fullmatch(header.client) is None:
        raise BatchError("the client's name is not one")
    if not all(isinstance(word, str) and _WORD.fullmatch(word) for word in words):
        raise BatchError("the names of run, process or epoch are not names")
    if sum(map(len, (header.client, header.process, header.epoch))) > _MOST_NAMES:
        raise BatchError("the names of client, process and epoch are too long together")
    if not all(type(number) is int and number in _COUNT for number in numbers) or header.lane not in LANES:
        raise BatchError("a number in the header is not one")
    if header.rows > header.raw_bytes:
        raise BatchError("more rows than bytes")
    if header.raw_bytes > MOST_RAW_BYTES or not all(isinstance(table, dict) for table in tables):
        raise BatchError(f"the rows are larger than {MOST_RAW_BYTES >> 20} MB, or the header is invalid")


def compress(raw: bytes) -> bytes:
    import pyarrow as pa

    return bytes(pa.Codec("zstd", 3).compress(raw, asbytes=True))


def decompress(batch: SignedBatch) -> memoryview:
    """The blocks of a batch; BatchError if they are not as many bytes as the header says."""
    import pyarrow as pa

    if not batch.header.raw_bytes:
        return memoryview(b"")
    try:
        return memoryview(pa.Codec("zstd").decompress(batch.body, batch.header.raw_bytes))
    except (pa.ArrowException, OSError, ValueError) as error:
        raise BatchError(f"the rows cannot be decompressed: {error}") from None


def blocks_in(batch: SignedBatch) -> Iterator[Block]:
    """The blocks of a batch, up to the first that is none or too much; BatchError as `decompress`."""
    return _bounded(islice(scan(decompress(batch), is_sent=True), MOST_BLOCKS))


def _bounded(blocks: Iterator[Block]) -> Iterator[Block]:
    room = MOST_UNFOLDED_BYTES
    for block in blocks:
        room -= block.rows * _row_bytes(block.table)
        if room < 0:
            return
        yield block


@cache
def _row_bytes(table: int) -> int:
    """What a row takes at least: the bytes of its numbers, and where its texts begin."""
    sizes = {Kind.I64: 8, Kind.F64: 8, Kind.BOOL: 1}
    return sum(sizes.get(column.kind, 4) for column in RECORDED[table].all_columns) if table in RECORDED else 1
