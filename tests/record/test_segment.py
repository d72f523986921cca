"""Segments: what was written comes back, and damage costs no more than it hits."""

from __future__ import annotations

import json
import random
import resource
import signal
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from builders import RunBuilder
from hypothesis import given, settings
from hypothesis import strategies as st
from processes import checked_books

from stethos.record.arrow import full_schema, in_schema
from stethos.record.layout import HeaderWord
from stethos.record.segment import (
    FLAG_LAST,
    HEADER_BYTES,
    MAGIC,
    Block,
    SegmentRows,
    SegmentWriter,
    encode_block,
    scan,
    write_parquet,
)
from stethos.schema import LAYERS, LOGS, METRICS, STEPS
from stethos.store.run import Run

PAGE = 4096
BLOCK = st.tuples(
    st.integers(0, 8),
    st.integers(0, 7),
    st.integers(0, 2**32 - 1),
    st.integers(0, 2**64 - 1),
    st.integers(0, 2**64 - 1),
    st.integers(0, 2**64 - 1),
    st.one_of(st.binary(max_size=200), st.just(MAGIC * 3), st.binary(max_size=40).map(lambda data: data + MAGIC)),
)


def fields_of(block: Block) -> tuple[int, int, int, int, int, int, bytes]:
    return (block.table, block.flags, block.rows, block.rows_before, block.slots_read, block.frames_read,
            bytes(block.payload))  # fmt: skip


@settings(max_examples=200, deadline=None)
@given(blocks=st.lists(BLOCK, max_size=8))
def test_blocks_come_back_as_they_were_written(blocks: list[tuple[int, int, int, int, int, int, bytes]]) -> None:
    data = b"".join(piece for block in blocks for piece in encode_block(*block))
    found = list(scan(memoryview(data)))
    assert [fields_of(block) for block in found] == blocks
    assert all(block.end % 8 == 0 for block in found)


def small_segment() -> tuple[bytes, list[tuple[int, int]]]:
    """Four blocks, one without a payload, and where each begins and ends."""
    payloads = [b"schema", b"", bytes(range(40)), b"last one"]
    blocks = [
        b"".join(encode_block(2, index, index, 10 * index, 7, 8, payload)) for index, payload in enumerate(payloads)
    ]
    ends = [sum(map(len, blocks[: index + 1])) for index in range(len(blocks))]
    return b"".join(blocks), list(zip([0, *ends], ends, strict=False))


def test_a_segment_cut_at_any_byte_keeps_every_block_before_the_cut() -> None:
    data, places = small_segment()
    whole = [fields_of(block) for block in scan(memoryview(data))]
    payload_ends = [begin + HEADER_BYTES + len(fields[-1]) for (begin, _), fields in zip(places, whole, strict=True)]
    for cut in range(len(data)):
        found = [fields_of(block) for block in scan(memoryview(data[:cut]))]
        assert found == [fields for fields, end in zip(whole, payload_ends, strict=True) if end <= cut]


def test_any_flipped_bit_costs_at_most_the_block_it_hits() -> None:
    data, places = small_segment()
    whole = [fields_of(block) for block in scan(memoryview(data))]
    hit_blocks = 0
    for bit in range(8 * len(data)):
        damaged = bytearray(data)
        damaged[bit // 8] ^= 1 << bit % 8
        found = [fields_of(block) for block in scan(memoryview(bytes(damaged)))]
        others = [fields for fields, (begin, end) in zip(whole, places, strict=True) if not begin <= bit // 8 < end]
        assert found in (whole, others)  # padding is nobody's
        hit_blocks += found == others
    assert hit_blocks > 7 * len(data) // 2


def test_garbage_between_blocks_is_skipped() -> None:
    data, places = small_segment()
    whole = [fields_of(block) for block in scan(memoryview(data))]
    for size in (8, 64, 4096, (1 << 20) + 8, 2 << 20):
        for at in (begin for begin, _ in places):
            torn = data[:at] + MAGIC[:8] + random.Random(size).randbytes(size - 8) + data[at:]
            assert [fields_of(block) for block in scan(memoryview(torn))] == whole


def test_a_group_that_does_not_fit_the_disk_leaves_the_segment_as_it_was(tmp_path: Path) -> None:
    writer = SegmentWriter(tmp_path / "000001.seg")
    writer.write_group([b"a" * 1000])
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1500, hard))
    try:
        with pytest.raises(OSError, match="File too large"):
            writer.write_group([b"b" * 400, b"c" * 400])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, handler)
    assert writer.path.read_bytes() == b"a" * 1000 and writer.size == 1000
    writer.write_group([b"b" * 400])
    writer.close()
    assert writer.path.read_bytes() == b"a" * 1000 + b"b" * 400


# Power loss ----------------------------------------------------------------------------------------------


class Recorded:
    """A process in the making, with what its segment held after every group and after every sync."""

    def __init__(self, run: RunBuilder) -> None:
        self.process = run.process("p")
        self.ends = [0]

    def group(self, chance: random.Random) -> None:
        for _ in range(chance.randrange(1, 30)):
            self.process.metric(f"name{chance.randrange(4)}", chance.random())
        if chance.random() < 0.5:
            self.process.steps(chance.randrange(1, 20))
        if chance.random() < 0.5:
            self.process.layers([f"layer{index}" for index in range(chance.randrange(1, 30))], norm=chance.random())
        if chance.random() < 0.3:
            self.process.log(chance.randbytes(chance.randrange(3000)).hex())
        if chance.random() < 0.3:
            self.process.host_sample()
        self.process.drain()
        self.ends.append(self.process.segment.stat().st_size)


@pytest.fixture
def run(tmp_path: Path) -> Iterator[RunBuilder]:
    with RunBuilder(tmp_path / "runs" / "run") as made:
        yield made


def lose_power(data: bytes, synced: int, chance: random.Random) -> bytes:
    """The file after a power cut: what was not synced is there, missing, zero or garbage, page by page."""
    length = chance.choice([synced, len(data), chance.randrange(synced, len(data) + 1)])
    after = bytearray(data[:length])
    for begin in range(0, length, PAGE):
        first, last = max(begin, synced), min(begin + PAGE, length)
        if last > first:
            match chance.choice(["written", "written", "zero", "garbage"]):
                case "zero":
                    after[first:last] = bytes(last - first)
                case "garbage":
                    after[first:last] = chance.randbytes(last - first)
    return bytes(after)


def rows_in(rows: SegmentRows) -> dict[str, list[tuple[object, ...]]]:
    tables = {}
    for table in (METRICS, STEPS, LAYERS, LOGS):
        content = rows.arrow(table, "p", None)
        tables[table.name] = [tuple(map(repr, row.values())) for row in content.to_pylist()]
    return tables


def is_part(part: list[tuple[object, ...]], whole: list[tuple[object, ...]]) -> bool:
    """Whether the rows are some of the others, in their order."""
    rest = iter(whole)
    return all(row in rest for row in part)


def test_a_power_cut_costs_nothing_that_was_synced_and_yields_nothing_wrong(run: RunBuilder, tmp_path: Path) -> None:
    chance = random.Random(0)
    recorded = Recorded(run)
    for _ in range(30):
        recorded.group(chance)
    data = recorded.process.segment.read_bytes()
    total = recorded.process.collector.written
    whole = rows_in(SegmentRows(0, recorded.process.segment.read_bytes()))
    path = tmp_path / "after.seg"
    losses = set()
    for _ in range(150):
        synced = chance.choice(recorded.ends)
        path.write_bytes(data[:synced])
        safe = rows_in(SegmentRows(0, path.read_bytes()))
        path.write_bytes(lose_power(data, synced, chance))
        found = SegmentRows(0, path.read_bytes())
        for name, rows in rows_in(found).items():
            assert is_part(rows, whole[name])
            assert rows[: len(safe[name])] == safe[name]
        assert found.rows + found.lost + total - found.end_rows == total
        losses.add(total - found.rows)
    assert len(losses) > 20


@pytest.mark.parametrize("is_rebooted", [False, True])
def test_a_drainer_goes_on_after_a_power_cut_with_exact_books(tmp_path: Path, is_rebooted: bool) -> None:
    """The ring survives, if the machine did; else what waits in it is not trusted, and counts as lost."""
    for number in range(12):
        chance = random.Random(number)
        with RunBuilder(tmp_path / f"run-{number}") as run:
            facts = {"boot_id": "before"} if is_rebooted else {}
            recorded = Recorded(run)
            process = recorded.process
            process.place.path.joinpath("process.json").write_text(
                _with(process.place.path.joinpath("process.json").read_text(), facts)
            )
            for _ in range(6):
                recorded.group(chance)
            if chance.random() < 0.5:
                process.seal()
                recorded.ends = [0]
                recorded.group(chance)
            for _ in range(8):
                process.metric("waiting", 1.0)
            data = process.segment.read_bytes()
            process.segment.write_bytes(lose_power(data, chance.choice(recorded.ends), chance))
            if is_rebooted and chance.random() < 0.5:  # the ring's pages are older than the segment
                process.ring.set_word(HeaderWord.SLOTS_TAIL, 0)
                process.ring.set_word(HeaderWord.FRAMES_TAIL, 0)
            process.close()
            process.steps(0 if is_rebooted else 5)
            process.finish()
            opened = Run(run.place)
            summary = checked_books(opened)
            waiting = opened.rows("SELECT count(*) FROM metrics WHERE name = 'waiting'").values[0][0]
            assert waiting == (0 if is_rebooted else 8)
            assert summary["rows_lost"] >= (8 if is_rebooted else 0)
            steps = [step for (step,) in opened.rows("SELECT step FROM steps ORDER BY step").values]
            assert len(steps) == len(set(steps))


def _with(text: str, facts: dict[str, str]) -> str:
    return json.dumps({**json.loads(text), **facts})


def test_a_damaged_end_of_a_segment_costs_only_the_hit_block_when_the_drainer_starts_again(run: RunBuilder) -> None:
    """The ring has let go of the group, so what is whole of it stays."""
    process = run.process("p")
    process.steps(5)
    process.drain()
    process.metric("m", 1.0)
    process.steps(7)
    process.drain()
    *_, before, hit = scan(memoryview(process.segment.read_bytes()))
    assert before.rows and hit.rows and hit.flags & FLAG_LAST
    with process.segment.open("r+b") as file:
        file.seek(hit.end - 16)
        file.write(b"damage")
    process.close()
    process.finish()
    summary = checked_books(Run(run.place))
    assert (summary["rows_lost"], summary["rows_stored"]) == (hit.rows, 13 - hit.rows)


def test_a_torn_group_is_written_again_from_the_ring(run: RunBuilder) -> None:
    """Killed between two blocks of a group: the ring still has all of it."""
    process = run.process("p")
    process.steps(5)
    process.drain()
    size = process.segment.stat().st_size
    tails = {
        word: process.ring.word(word)
        for word in (HeaderWord.SLOTS_TAIL, HeaderWord.FRAMES_TAIL, HeaderWord.WRITTEN_ROWS)
    }
    process.metric("m", 1.0)
    process.steps(7)
    process.layers(["a", "b"])
    process.drain()
    data = process.segment.read_bytes()
    path = process.segment
    for cut in range(size, len(data) + 1, 40):
        process.close()
        path.write_bytes(data[:cut])
        for word, value in tails.items():
            process.ring.set_word(word, value)
        process.drain()
        rows = SegmentRows(0, path.read_bytes())
        assert (rows.rows, rows.lost) == (15, 0)
    process.close()


def test_a_column_of_a_sealed_file_lies_in_one_piece(tmp_path: Path) -> None:
    """Columns cut into small groups lie between each other, and a disk reads the neighbours, too."""
    rows = pa.table({"process": ["p0"] * 40_000, "step": range(40_000)})
    write_parquet(in_schema(rows, full_schema(STEPS)), tmp_path / "000001.steps.parquet", STEPS)
    assert pq.ParquetFile(tmp_path / "000001.steps.parquet").metadata.num_row_groups == 1
