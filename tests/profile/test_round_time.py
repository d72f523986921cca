"""Where the time of rounds goes: parts that add up, and never below zero."""

from __future__ import annotations

import math

import numpy as np
import pytest
from made import columns, round_row, side_by_side, turn

from stethos.profile.round_time import ROUND_PARTS, RoundTime, round_times


def taken_apart(rounds: object, turns: object) -> RoundTime:
    (one,) = round_times(rounds, turns)  # type: ignore[arg-type]
    return one


def test_parts_of_rounds_side_by_side_add_up_to_the_round() -> None:
    one = taken_apart(*side_by_side(slow={"c3": ("upload", 5.0)}))
    for place, duration in enumerate(one.duration_ms.tolist()):
        parts = [one.parts[name][place] for name in ROUND_PARTS]
        assert math.isclose(float(np.nansum(parts)), duration)
    assert one.is_side_by_side.all() and one.as_dict()["clients"] == "side by side"


def test_the_wait_is_what_the_last_client_takes_beyond_the_median_one() -> None:
    rounds, turns = side_by_side(rounds=3, clients=5, slow={"c3": ("upload", 5.0)})
    one = taken_apart(rounds, turns)
    for place, number in enumerate((1, 2, 3)):
        lasts = sorted(turns["duration_ms"][turns["round"] == number].tolist())
        assert math.isclose(one.parts["wait"][place], lasts[-1] - lasts[2])
    assert one.waited_for.most_common(1) == [(("c3", "upload"), 3)]


def test_turns_one_after_the_other_are_added_up_and_nobody_waits() -> None:
    turns = [turn(f"c{place}", 1, 10.0, 100.0, 20.0) for place in range(3)]
    one = taken_apart(columns([round_row(1, 500.0, aggregate_ms=30.0)]), columns(turns))
    found = {name: one.mean_ms(name) for name in ROUND_PARTS}
    assert found == {"select": None, "download": 30.0, "compute": 300.0, "upload": 60.0, "wait": None,
                     "aggregate": 30.0, "evaluate": None, "other": pytest.approx(80.0)}  # fmt: skip
    assert one.as_dict()["clients"] == "in turn" and one.waited_for.total() == 0


def test_what_was_not_recorded_is_none_and_not_zero() -> None:
    turns = [turn(f"c{place}", 1, None, None, None, duration_ms=50.0) for place in range(3)]
    one = taken_apart(columns([round_row(1, 200.0)]), columns(turns))
    assert [one.mean_ms(name) for name in ("download", "upload", "aggregate", "wait")] == [None] * 4
    assert one.mean_ms("compute") == 150.0 and "not split into phases" in one.notes[0]


def test_rounds_without_clients_have_what_the_server_marked() -> None:
    one = taken_apart(columns([round_row(1, 100.0, aggregate_ms=40.0, evaluate_ms=10.0)]), columns([]))
    assert (one.mean_ms("aggregate"), one.mean_ms("evaluate"), one.mean_ms("other")) == (40.0, 10.0, 50.0)


def test_clients_without_a_round_that_ended_give_no_rounds() -> None:
    assert round_times(columns([]), columns([turn("c0", 1, 1.0, 2.0, 3.0)])) == []


def test_impossible_times_are_left_out_and_counted() -> None:
    rounds, turns = side_by_side()
    turns["upload_ms"][3] = -5e6
    turns["duration_ms"][3] = -5e6 + 120
    turns["compute_ms"][7] = math.inf
    one = taken_apart(rounds, turns)
    assert all((part[np.isfinite(part)] >= 0).all() for part in one.parts.values())
    assert "3 impossible times of clients" in one.notes[0]


def test_clocks_that_are_hours_apart_change_nothing() -> None:
    rounds, turns = side_by_side(slow={"c1": ("compute", 3.0)})
    before = taken_apart(rounds, turns)
    turns["t_ns"][::2] += 7200e9
    rounds["t_ns"][2:] -= 86400e9
    after = taken_apart(rounds, turns)
    assert all(np.array_equal(before.parts[name], after.parts[name], equal_nan=True) for name in ROUND_PARTS)
    assert before.critical == after.critical


def test_parts_longer_than_the_round_are_scaled_down_and_that_is_said() -> None:
    one = taken_apart(columns([round_row(1, 100.0, aggregate_ms=90.0, evaluate_ms=90.0)]), columns([]))
    assert one.mean_ms("aggregate") == pytest.approx(50.0) and one.mean_ms("other") == 0.0
    assert "scaled down" in one.notes[0]


def test_a_round_that_waited_in_vain_has_waited() -> None:
    turns = [turn("c0", 1, 10.0, 50.0, 10.0), turn("c1", 1, 10.0, 50.0, 10.0),
             turn("c2", 1, None, None, None, status="timeout", duration_ms=None)]  # fmt: skip
    one = taken_apart(columns([round_row(1, 1000.0, wait_ms=0.0, aggregate_ms=5.0)]), columns(turns))
    assert one.mean_ms("wait") == pytest.approx(925.0)


def test_a_marked_phase_of_the_server_contains_the_wait_for_the_last() -> None:
    turns = [turn(f"c{place}", 1, None, 100.0 * (1 + place), None) for place in range(3)]
    one = taken_apart(columns([round_row(1, 320.0, compute_ms=300.0, aggregate_ms=20.0)]), columns(turns))
    assert (one.mean_ms("compute"), one.mean_ms("wait")) == (200.0, 100.0)


def test_two_federations_are_kept_apart() -> None:
    rounds = columns([round_row(1, 100.0), round_row(1, 900.0, federation="g")])
    turns = columns([turn("c0", 1, 1.0, 80.0, 1.0), turn("c0", 1, 1.0, 800.0, 1.0, federation="g")])
    found = {one.federation: one.mean_ms("compute") for one in round_times(rounds, turns)}
    assert found == {"f": 80.0, "g": 800.0}


def test_a_first_round_that_warms_up_is_left_out_and_that_is_said() -> None:
    rows = [round_row(number, 5000.0 if number == 1 else 100.0, aggregate_ms=10.0) for number in range(1, 7)]
    one = taken_apart(columns(rows), columns([]))
    assert one.numbers == [2, 3, 4, 5, 6] and one.mean_ms("aggregate") == 10.0 and "warms up" in one.notes[0]
    assert len(taken_apart(columns(rows[1:]), columns([])).numbers) == 5
