"""The board of process groups in the header of a ring."""

from __future__ import annotations

from pathlib import Path

import pytest

from stethos.record.board import MOST_GROUPS, GroupPost, read_board
from stethos.record.layout import HEADER_BYTES, HeaderWord
from stethos.record.ring import Ring, create_ring_file


@pytest.fixture
def ring(tmp_path: Path) -> Ring:
    create_ring_file(tmp_path / "ring")
    return Ring(tmp_path / "ring")


def test_what_is_posted_is_read(ring: Ring) -> None:
    world = GroupPost(ring.set_word, 0, "world", range(200))
    mesh = GroupPost(ring.set_word, 1, "17 (mesh_dp)", [3, 130])
    world.begin(4, "all_reduce", 1 << 40, 1_700_000_000_000_000_000)
    world.end(3, 5)
    first, second = read_board(ring.word)
    assert (first.name, first.members, first.begun, first.complete) == ("world", tuple(range(200)), 4, 3)
    assert (first.op, first.bytes, first.begun_ns, first.is_waiting) == (
        "all_reduce",
        1 << 40,
        1_700_000_000_000_000_000,
        True,
    )
    assert (second.name, second.members, second.is_waiting) == ("17 (mesh_dp)", (3, 130), False)
    mesh.end(7, 1)
    assert read_board(ring.word)[1].complete == 7


def test_numbers_only_grow(ring: Ring) -> None:
    post = GroupPost(ring.set_word, 0, "world", [0, 1])
    post.begin(4, "barrier", 0, 2)
    post.begin(3, "broadcast", 8, 1)
    post.end(4, 2)
    post.end(2, 3)
    (state,) = read_board(ring.word)
    assert (state.begun, state.op, state.complete, state.complete_ns) == (4, "barrier", 4, 2)


def test_names_of_any_kind_fit(ring: Ring) -> None:
    GroupPost(ring.set_word, 0, "é" * 100, [0])
    GroupPost(ring.set_word, 1, "\udcff", range(5000))
    first, second = read_board(ring.word)
    assert first.name.startswith("ééé")
    assert (second.members, second.size) == ((), 5000)  # too many to list


def test_the_board_lies_in_the_header_behind_the_counters(ring: Ring) -> None:
    before = ring.word(HeaderWord.DROPPED)
    for number in range(MOST_GROUPS):
        GroupPost(ring.set_word, number, "x" * 32, range(600)).begin(2**62, "y" * 40, 2**62, 2**62)
    assert len(read_board(ring.word)) == MOST_GROUPS
    assert ring.word(HeaderWord.DROPPED) == before
    assert ring.word(HEADER_BYTES // 8) == 0  # the first slot
