"""Where pieces of work go: clocks, lanes, modules."""

from __future__ import annotations

import random

from stethos.view.clock import NestedWork, offsets
from stethos.view.lane import Lanes
from stethos.view.module_layout import ModuleCall, lay_out


def enclosure(inner: str, outer: str, start: int, end: int, outer_start: int = 0, outer_end: int = 100) -> NestedWork:
    return NestedWork(inner, outer, start, end, outer_start, outer_end)


def test_a_clock_that_makes_sense_is_left_alone() -> None:
    assert offsets([enclosure("a", "server", 0, 100), enclosure("b", "server", 20, 40)]) == {}
    assert offsets([]) == {}


def test_a_wrong_clock_is_moved_by_the_least_that_fits_all_its_work() -> None:
    early = [enclosure("a", "server", -50, -10), enclosure("a", "server", 160, 190, 200, 300)]
    assert offsets(early) == {"a": 50}
    assert offsets([enclosure("a", "server", 500, 520)]) == {"a": -420}


def test_processes_inside_moved_processes_move_with_them() -> None:
    nested = [enclosure("a", "server", 500, 520), enclosure("b", "a", 480, 490, 500, 520)]
    moved = offsets(nested)
    assert moved["a"] == -420 and 500 + moved["a"] <= 480 + moved["b"] <= 490 + moved["b"] <= 520 + moved["a"]


def test_a_clock_that_drifts_is_moved_to_the_middle_and_circles_are_left_alone() -> None:
    drifting = [enclosure("a", "server", 1000 + drift, 1090 + drift) for drift in (0, 20, 400)]
    assert offsets(drifting) == {"a": -1015}
    assert offsets([enclosure("a", "b", 500, 510), enclosure("b", "a", 900, 910)]) == {}


def test_pieces_of_a_lane_nest_or_follow_each_other() -> None:
    chance = random.Random(0)
    lanes, placed = Lanes(), {}
    for _ in range(500):
        start = chance.randrange(1000)
        piece = (start, start + chance.randrange(50))
        placed.setdefault(lanes.place(*piece), []).append(piece)
    for pieces in placed.values():
        for place, (start, end) in enumerate(pieces):
            for later_start, later_end in pieces[place + 1 :]:
                assert later_start >= start and (later_start >= end or later_end <= end)


def test_a_lane_is_used_again_when_it_is_free() -> None:
    lanes = Lanes()
    assert [lanes.place(*piece) for piece in ((0, 10), (2, 5), (4, 12), (10, 20), (13, 14))] == [0, 0, 1, 0, 0]


def test_modules_nest_by_their_names_in_the_order_of_their_calls() -> None:
    forward = [("block.a", 3), ("block.b", 4), ("block", 9), ("head", 2), ("Net", 14)]
    backward = [("head", 1), ("Net", 12), ("block", 8), ("block.b", 3), ("block.a", 4)]
    calls = [ModuleCall(name, "forward", ns) for name, ns in forward] + [
        ModuleCall(name, "backward", ns) for name, ns in backward
    ]
    placed = [(one.call.module, one.call.stage[0], one.start_ns, one.length_ns) for one in lay_out(calls, "Net")]
    assert placed == [
        ("Net", "f", 0, 14), ("block", "f", 0, 9), ("block.a", "f", 0, 3), ("block.b", "f", 3, 4), ("head", "f", 9, 2),
        ("Net", "b", 14, 12), ("head", "b", 14, 1), ("block", "b", 15, 8), ("block.b", "b", 15, 3),
        ("block.a", "b", 18, 4),
    ]  # fmt: skip


def test_a_parent_is_drawn_at_least_as_long_as_what_it_called() -> None:
    placed = lay_out(
        [ModuleCall("a.b", "forward", 5), ModuleCall("a.c", "forward", 5), ModuleCall("a", "forward", 8)], None
    )
    assert [(one.call.module, one.start_ns, one.length_ns) for one in placed] == [
        ("a", 0, 10),
        ("a.b", 0, 5),
        ("a.c", 5, 5),
    ]
