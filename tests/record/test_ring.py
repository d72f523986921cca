"""The ring between a training and its drainer: nothing torn, nothing twice, and what does not fit is counted."""

from __future__ import annotations

import math
import struct
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from processes import finish, start

from stethos.record.arrow import Names, slot_batches
from stethos.record.layout import (
    FRAME_BYTES,
    FRAME_HEADER,
    FRAMES_BASE,
    LARGEST_FRAME,
    RING_BYTES,
    SLOT_MARGIN,
    SLOT_PACKERS,
    SLOTS,
    TABLE_VOID,
    HeaderWord,
    SlotLayout,
    State,
)
from stethos.record.ring import Ring, create_ring_file
from stethos.record.tap import SLOT_DTYPES, DamagedRingError, Tap
from stethos.schema import LOGS, METRICS, NULL_F64_BITS, NULL_I32, STEPS

PACK = SLOT_PACKERS[METRICS.number].pack_into


class Pipe:
    """Both ends of one ring."""

    def __init__(self, path: Path) -> None:
        create_ring_file(path)
        self.path = path
        self.ring = Ring(path)
        self.tap = Tap(path)

    def put(self, value: float, name: int = 1) -> bool:
        return self.ring.put(PACK, METRICS.number, 0, NULL_I32, NULL_I32, NULL_I32, 0, 0, name, value)

    def put_text(self, text: bytes, rows: int = 1, step: int = 0) -> bool:
        return self.ring.put_frame(LOGS.number, rows, bytes(8 * rows), (text,), step=step)

    def take(self) -> list[tuple[int, float]]:
        """Read all slots and free them: name ids and values."""
        slots = self.tap.read_slots()
        rows = np.ascontiguousarray(slots).view(SLOT_DTYPES[METRICS.number]).ravel()
        self.tap.advance(self.tap.slots_tail + len(slots), self.tap.frames_tail, 0)
        return [(int(row["name"]), float(row["value"])) for row in rows if row["table"] != TABLE_VOID]

    def take_texts(self) -> list[tuple[int, bytes]]:
        frames, at = self.tap.read_frames()
        self.tap.advance(self.tap.slots_tail, at, 0)
        return [(frame.step, frame.texts[0].encode()) for frame in frames]


@pytest.fixture
def pipe(tmp_path: Path) -> Iterator[Pipe]:
    made = Pipe(tmp_path / "ring")
    yield made
    made.tap.close()


def test_a_ring_file_has_its_final_size_and_belongs_to_its_user_alone(tmp_path: Path) -> None:
    create_ring_file(tmp_path / "ring")
    status = (tmp_path / "ring").stat()
    assert (status.st_size, status.st_mode & 0o777) == (RING_BYTES, 0o600)
    assert status.st_blocks * 512 >= RING_BYTES  # allocated: a store cannot meet a full disk
    with pytest.raises(FileExistsError):
        create_ring_file(tmp_path / "ring")


def test_rows_come_out_as_they_went_in(pipe: Pipe) -> None:
    values = [
        0.0,
        -0.0,
        1.5,
        math.inf,
        -math.inf,
        math.nan,
        5e-324,
        struct.unpack("<d", NULL_F64_BITS.to_bytes(8, "little"))[0],
    ]
    for value in values:
        assert pipe.put(value)
    taken = [value for _, value in pipe.take()]
    assert [struct.pack("<d", value) for value in taken] == [struct.pack("<d", value) for value in values]
    assert pipe.take() == [] and not pipe.tap.has_rows()


def test_a_full_ring_drops_the_newest_rows_and_counts_them(pipe: Pipe) -> None:
    room = SLOTS - SLOT_MARGIN
    assert [pipe.put(i) for i in range(room + 5)] == [True] * room + [False] * 5
    assert pipe.ring.dropped()["ring_full"] == 5
    assert [value for _, value in pipe.take()] == list(range(room))
    assert pipe.put(7) and pipe.take() == [(1, 7.0)]


def test_the_owner_of_a_ring_is_told_when_half_of_it_waits(pipe: Pipe) -> None:
    calls = []
    pipe.ring.on_backlog = lambda: calls.append(pipe.ring.has_backlog())
    for i in range(SLOTS // 2):
        pipe.put(i)
    assert calls == []
    pipe.put(0)
    assert calls == [True]
    pipe.take()
    pipe.put(0)
    assert calls == [True] and not pipe.ring.has_backlog()
    while not calls[1:]:
        pipe.put_text(bytes(100_000))
    assert calls == [True, True]


def test_rows_wrap_around_many_times(pipe: Pipe) -> None:
    given_rows, taken = 0, []
    while given_rows < 3 * SLOTS + 17:
        for _ in range(5_000):
            assert pipe.put(given_rows)
            given_rows += 1
        taken += [value for _, value in pipe.take()]
    assert taken == list(range(given_rows))


SIZES = st.one_of(
    st.integers(0, 300), st.integers(0, LARGEST_FRAME), st.sampled_from([LARGEST_FRAME - 48, LARGEST_FRAME + 100])
)


@settings(max_examples=25, deadline=None)
@given(operations=st.lists(st.one_of(SIZES, st.sampled_from(["take", "look"])), max_size=60))
def test_frames_of_any_size_wrap_around_whole_and_in_order(
    tmp_path_factory: pytest.TempPathFactory, operations: list[int | str]
) -> None:
    pipe = Pipe(tmp_path_factory.mktemp("ring") / "ring")
    waiting: deque[tuple[int, bytes]] = deque()
    rows = lost = 0
    for number, operation in enumerate(operations):
        if isinstance(operation, int):
            text = bytes([97 + number % 26]) * operation
            if pipe.put_text(text, rows=number % 3, step=number):
                waiting.append((number, text))
                rows += number % 3
            else:
                lost += number % 3
        elif operation == "look":  # and crash before freeing anything
            frames, _ = pipe.tap.read_frames()
            assert [(frame.step, frame.texts[0].encode()) for frame in frames] == list(waiting)
        else:
            assert pipe.take_texts() == list(waiting)
            waiting.clear()
    assert pipe.take_texts() == list(waiting)
    assert pipe.tap.frame_rows == pipe.ring.word(HeaderWord.FRAME_ROWS) == rows
    assert sum(pipe.ring.dropped().values()) == lost
    pipe.tap.close()
    pipe.path.unlink()


def test_a_frame_too_large_for_the_ring_is_counted(pipe: Pipe) -> None:
    assert not pipe.put_text(bytes(LARGEST_FRAME), rows=3)
    assert pipe.ring.dropped()["too_large"] == 3 and not pipe.tap.has_rows()


def test_rows_in_frames_are_counted_exactly_when_the_process_dies_before_counting(pipe: Pipe) -> None:
    pipe.put_text(b"one", rows=2)
    pipe.put_text(b"two", rows=3)
    pipe.ring.set_word(HeaderWord.FRAME_ROWS, 2)  # killed between the frame and its counter
    assert len(pipe.take_texts()) == 2 and pipe.tap.frame_rows == 5


def test_many_threads_put_rows_and_each_row_comes_out_once(pipe: Pipe) -> None:
    threads, rows = 12, 4_000
    refused: dict[int, list[int]] = defaultdict(list)

    def write(number: int) -> None:
        for i in range(rows):
            if not pipe.put(i, name=number):
                refused[number].append(i)

    taken = _taken_while(write, threads, pipe.take)
    for number in range(threads):
        mine = [int(value) for name, value in taken if name == number]
        assert mine == sorted(set(mine))  # each once, in its thread's order
        assert sorted(mine + refused[number]) == list(range(rows))
    assert pipe.ring.dropped()["ring_full"] == sum(map(len, refused.values()))


def test_many_threads_put_frames_and_each_frame_comes_out_whole(pipe: Pipe) -> None:
    threads, frames = 24, 60
    refused: dict[int, set[int]] = defaultdict(set)

    def write(number: int) -> None:
        for i in range(frames):
            text = f"{number}:{i}:".encode() + b"x" * (37 * (i % 50))
            if not pipe.put_text(text, step=number):
                refused[number].add(i)
            sum(range(20_000))  # others are at it meanwhile, for longer than any lock should be waited for

    taken = _taken_while(write, threads, pipe.take_texts)
    seen: dict[int, list[int]] = defaultdict(list)
    for step, text in taken:
        number, i, rest = text.split(b":")
        assert int(number) == step and rest == b"x" * (37 * (int(i) % 50))
        seen[step].append(int(i))
    for number in range(threads):
        assert seen[number] == [i for i in range(frames) if i not in refused[number]]


def test_a_thread_held_up_in_the_middle_of_a_frame_is_waited_for(pipe: Pipe, monkeypatch: pytest.MonkeyPatch) -> None:
    """As by a busy machine, or by SIGSTOP; its frame must not be written over."""
    is_inside = threading.Event()
    write = Ring._write_frame

    def hold_up(*args: Any, **kwargs: Any) -> Any:
        if not is_inside.is_set():
            is_inside.set()
            time.sleep(0.3)
        return write(*args, **kwargs)

    monkeypatch.setattr(Ring, "_write_frame", hold_up)
    slow = threading.Thread(target=lambda: pipe.put_text(b"slow" * 100))
    slow.start()
    assert is_inside.wait(60)
    assert pipe.put_text(b"fast")
    slow.join()
    assert pipe.take_texts() == [(0, b"slow" * 100), (0, b"fast")]


def _taken_while(write: Callable[[int], None], threads: int, take: Callable[[], list[Any]]) -> list[Any]:
    """Everything read while that many threads write, and after."""
    writers = [threading.Thread(target=write, args=(number,)) for number in range(threads)]
    for writer in writers:
        writer.start()
    taken: list[Any] = []
    while any(writer.is_alive() for writer in writers):
        taken += take()
        time.sleep(0.001)
    return taken + take()


def test_a_value_that_cannot_be_packed_leaves_a_void_and_is_counted(pipe: Pipe) -> None:
    assert pipe.put(1)
    with pytest.raises(struct.error):
        pipe.put("text")  # type: ignore[arg-type]
    assert pipe.put(2)
    assert pipe.ring.dropped()["not_a_number"] == 1
    assert not pipe.tap.has_hole()
    assert pipe.take() == [(1, 1.0), (1, 2.0)]


def test_a_slot_taken_and_not_finished_is_a_hole_until_it_is_stepped_over(pipe: Pipe) -> None:
    pipe.put(0)
    pipe.ring.slots.take()
    assert pipe.take() == [(1, 0.0)] and not pipe.tap.has_hole()  # nothing behind it: perhaps in the making
    pipe.put(2)
    assert pipe.take() == [] and pipe.tap.has_hole()
    pipe.tap.skip_hole()
    assert not pipe.tap.has_hole() and pipe.tap.holes == 1
    assert pipe.take() == [(1, 2.0)] and pipe.tap.holes == 0


def test_no_hole_is_seen_behind_a_writer_that_is_just_faster_than_the_reader(tmp_path: Path) -> None:
    """A hole that is not one would be stepped over, and a completed row lost."""
    code = """
import sys
from pathlib import Path
from stethos.record.layout import SLOT_PACKERS, SLOTS, HeaderWord
from stethos.record.ring import Ring
ring = Ring(Path(sys.argv[1]))
put = ring.writer(SLOT_PACKERS[2].pack_into)
print("ready", flush=True)
for i in range(300_000):
    put(2, 0, 0, 0, 0, 0, 0, 1, float(i))
ring.close()
"""
    path = tmp_path / "ring"
    create_ring_file(path)
    writer = start("-c", code, path)
    tap = Tap(path)
    looks = 0
    while tap.state is State.RUNNING:
        assert writer.poll() in (None, 0)
        tap.advance(tap.slots_tail + len(tap.read_slots()), 0, 0)
        for _ in range(3):
            assert not tap.has_hole()
            looks += 1
    assert looks > 50
    tap.close()
    finish(writer)


def test_a_signal_handler_that_logs_inside_a_write_neither_hangs_nor_tears_anything(tmp_path: Path) -> None:
    code = """
import signal, sys, threading
from pathlib import Path
from stethos.record.layout import SLOT_PACKERS
from stethos.record.arrow import slot_batches
from stethos.record.arrow import Names
from stethos.record.ring import Ring, create_ring_file
from stethos.record.tap import Tap
from stethos.schema import LOGS

path = Path(sys.argv[1])
create_ring_file(path)
ring, tap = Ring(path), Tap(path)
put = ring.writer(SLOT_PACKERS[2].pack_into)
frames_put, rows_put, seen, slots = [], [], 0, 0

def log(text):
    frames_put.append(ring.put_frame(LOGS.number, 1, bytes(8), (text,)))
    rows_put.append(put(2, 0, 0, 0, 0, 0, 0, 1, 1.0))

def handler(number, frame):
    log(b"handler")

signal.signal(signal.SIGALRM, handler)
signal.setitimer(signal.ITIMER_REAL, 0.0002, 0.0002)
for i in range(30_000):
    log(b"main" * (i % 9))
    if i % 500 == 0:
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGALRM})
        frames, at = tap.read_frames()
        assert all(f.texts[0] == "handler" or f.texts[0] == "main" * (len(f.texts[0]) // 4) for f in frames)
        seen += len(frames)
        count = len(tap.read_slots())
        slots += count
        tap.advance(tap.slots_tail + count, at, 0)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGALRM})
signal.setitimer(signal.ITIMER_REAL, 0)
seen += len(tap.read_frames()[0])
slots += len(tap.read_slots())
assert not tap.has_hole()
dropped = ring.dropped()
print(seen == sum(frames_put), slots == sum(rows_put) == len(rows_put), len(frames_put) > 30_000)
print(len(frames_put) - seen == dropped.pop("reentrant"), any(dropped.values()))
"""
    ended = finish(start("-c", code, tmp_path / "ring"))
    assert (ended.stdout, ended.stderr) == ("True True True\nTrue False\n", "")


def test_a_forked_child_leaves_its_parents_ring_alone(tmp_path: Path) -> None:
    """Through a session, which gives the child a ring of its own."""
    code = """
import os, sys
from pathlib import Path
from stethos.observe.session import Session
from stethos.settings import Settings
session = Session(Settings(run_dir=Path(sys.argv[1]) / "run"))
session.put_metric("i", 1.0)
before = bytes(session.ring._map)
pid = os.fork()
if not pid:
    assert session.ring is None
    session.put_metric("i", 2.0)
    session.put_metric("other", 3.0)
    session.close()
    os._exit(0)
os.waitpid(pid, 0)
print(bytes(session.ring._map)[4096:] == before[4096:], session.place.ring().exists())
session.put_metric("i", 4.0)
session.close()
"""
    ended = finish(start("-c", code, tmp_path))
    assert (ended.stdout, ended.stderr) == ("True True\n", "")


@pytest.mark.parametrize("damage", ["size 0", "size not aligned", "size too large", "text too long"])
def test_what_no_process_can_have_written_is_refused_and_can_be_stepped_over(pipe: Pipe, damage: str) -> None:
    pipe.put(5)
    pipe.put_text(b"fine")
    pipe.put_text(b"hit", rows=4)
    place = FRAMES_BASE + FRAME_HEADER.size + 8 + 4 + 4  # behind the first frame
    place += -place % 8
    size = struct.unpack_from("<I", pipe.tap._map, place)[0]
    match damage:
        case "size 0":
            struct.pack_into("<I", pipe.tap._map, place, 0)
        case "size not aligned":
            struct.pack_into("<I", pipe.tap._map, place, size - 1)
        case "size too large":
            struct.pack_into("<I", pipe.tap._map, place, size + 8)
        case _:
            struct.pack_into("<I", pipe.tap._map, place + FRAME_HEADER.size + 4 * 8, 1 << 20)
    with pytest.raises(DamagedRingError):
        pipe.tap.read_frames()
    pipe.tap.discard()
    assert not pipe.tap.has_rows() and not pipe.tap.has_hole()
    assert pipe.tap.slots_tail == 1 and pipe.tap.frame_rows == 5
    pipe.tap.advance(pipe.tap.slots_tail, pipe.tap.frames_tail, 0)
    assert pipe.put(6) and pipe.take() == [(1, 6.0)]
    assert pipe.put_text(b"after") and pipe.take_texts() == [(0, b"after")]


@pytest.mark.parametrize("tail", [FRAME_BYTES - 1, FRAME_BYTES - 8, 3])
def test_a_frame_that_would_lie_behind_the_ring_is_damage(tmp_path: Path, tail: int) -> None:
    create_ring_file(tmp_path / "ring")
    with (tmp_path / "ring").open("r+b") as file:
        for word, value in ((HeaderWord.FRAMES_TAIL, tail), (HeaderWord.FRAMES_HEAD, tail + 4096)):
            file.seek(8 * word)
            file.write(struct.pack("<q", value))
        file.seek(FRAMES_BASE + FRAME_BYTES - 8)  # a header that does not fit
        file.write(struct.pack("<IHH", 8, LOGS.number, 0))
    tap = Tap(tmp_path / "ring", is_writable=False)
    with pytest.raises(DamagedRingError):
        tap.read_frames()
    tap.close()


def test_importing_the_ring_needs_the_standard_library_only() -> None:
    code = "import sys; import stethos.record.ring; print({'numpy', 'pyarrow', 'torch'} & set(sys.modules))"
    assert finish(start("-c", code)).stdout == "set()\n"


def test_a_step_that_is_no_number_leaves_a_void_slot_and_is_counted(tmp_path: Path) -> None:
    create_ring_file(tmp_path / "ring")
    ring, tap = Ring(tmp_path / "ring"), Tap(tmp_path / "ring")
    pack_into = SLOT_PACKERS[STEPS.number].pack_into
    with pytest.raises(struct.error):
        ring.put(pack_into, STEPS.number, 1j, *[0] * 20)  # type: ignore[arg-type]
    assert tap.read_slots().view(SLOT_DTYPES[STEPS.number])["table"].ravel().tolist() == [TABLE_VOID]
    assert ring.dropped()["not_a_number"] == 1
    tap.close()


def test_columns_that_the_writer_of_a_ring_did_not_know_are_null(tmp_path: Path) -> None:
    create_ring_file(tmp_path / "ring")
    ring = Ring(tmp_path / "ring")
    packer = SLOT_PACKERS[STEPS.number]
    ring.put(packer.pack_into, STEPS.number, *range(1, len(STEPS.slot_fields)))
    ring.set_word(HeaderWord.STEP_COLUMNS, len(STEPS.columns) - 2)
    tap = Tap(tmp_path / "ring")
    batch = slot_batches(tap.read_slots(), Names([""] * 10), tap.slot_dtypes)[STEPS.number]
    (row,) = batch.to_pylist()
    newest = [column.name for column in STEPS.columns[-2:]]
    assert [name for name, value in row.items() if value is None] == newest
    assert (row["step"], row["lr"], row["optimizer_ms"]) == (5, 10, 16e-6)
    tap.close()


def test_a_ring_that_says_nothing_of_its_slots_is_of_version_0_1_0(tmp_path: Path) -> None:
    create_ring_file(tmp_path / "ring")
    ring = Ring(tmp_path / "ring")
    ring.set_word(HeaderWord.SLOT_BYTES, 0)
    ring.set_word(HeaderWord.STEP_COLUMNS, 0)
    tap = Tap(tmp_path / "ring")
    assert tap.written == SlotLayout(144, 15)
    assert len(tap.slot_dtypes[STEPS.number].names or ()) == 1 + 7 + 15  # its number, the context, its columns
    tap.close()
