"""What-ifs against a plain recomputation of every round."""

from __future__ import annotations

import statistics

import pytest
from made import columns, round_row, side_by_side, turn

from stethos.profile.bottleneck import bottlenecks_of
from stethos.profile.round_time import round_times
from stethos.profile.what_if import slow_clients, slowness_of
from stethos.store.frame import Frame


def plain_saving(rounds: Frame, turns: Frame, client: str, phases: tuple[str, ...]) -> float:
    """The same by hand: replace the client's phases by the others' median, and take the longest turn again."""
    saved = total = 0.0
    for place, number in enumerate(rounds["round"].tolist()):
        rows = [at for at in range(len(turns)) if turns["round"][at] == number]
        before = {turns["client"][at]: float(turns["duration_ms"][at]) for at in rows}
        after = dict(before)
        for phase in phases:
            column = turns[f"{phase}_ms"]
            own = next(float(column[at]) for at in rows if turns["client"][at] == client)
            usual = statistics.median(float(column[at]) for at in rows if turns["client"][at] != client)
            after[client] -= max(0.0, own - usual)
        saved += max(before.values()) - max(after.values())
        total += float(rounds["duration_ms"][place])
    return saved / total


@pytest.mark.parametrize(("phase", "times"), [("upload", 8.0), ("download", 12.0), ("compute", 3.0)])
def test_the_saving_is_that_of_a_plain_recomputation(phase: str, times: float) -> None:
    rounds, turns = side_by_side(rounds=7, clients=6, slow={"c4": (phase, times)})
    (one,) = round_times(rounds, turns)
    slow = slow_clients(one)
    assert slow is not None and (slow.what, slow.clients) == (phase, ("c4",))
    assert slow.share == pytest.approx(plain_saving(rounds, turns, "c4", (phase,)))
    assert slow.times == pytest.approx(times, rel=0.1)
    again = slowness_of(one, "c4")
    assert again is not None and again.share == pytest.approx(slow.share)


def test_a_slow_link_is_one_thing() -> None:
    rounds, turns = side_by_side()
    for at in range(len(turns)):
        if turns["client"][at] == "c2":
            turns["duration_ms"][at] += 9 * (turns["download_ms"][at] + turns["upload_ms"][at])
            turns["download_ms"][at] *= 10
            turns["upload_ms"][at] *= 10
    for at, number in enumerate(rounds["round"].tolist()):
        rounds["duration_ms"][at] = turns["duration_ms"][turns["round"] == number].max() + 10
    (one,) = round_times(rounds, turns)
    slow = slow_clients(one)
    assert slow is not None and slow.what == "link"
    assert slow.share == pytest.approx(plain_saving(rounds, turns, "c2", ("download", "upload")))


def test_nobody_is_named_where_all_are_alike() -> None:
    (one,) = round_times(*side_by_side())
    assert slow_clients(one) is None and bottlenecks_of([one], []) == []


def test_a_client_that_is_slow_in_one_round_only_is_not_named() -> None:
    rounds, turns = side_by_side(rounds=12)
    turns["upload_ms"][3] *= 20
    assert slow_clients(round_times(rounds, turns)[0]) is None


def test_half_of_the_clients_are_no_exception() -> None:
    slow = {f"c{place}": ("upload", 8.0) for place in range(3)}
    assert bottlenecks_of(round_times(*side_by_side(clients=6, slow=slow)), []) == []


def test_two_slow_clients_are_named_together() -> None:
    slow = {"c1": ("compute", 5.0), "c6": ("compute", 5.0)}
    (one,) = round_times(*side_by_side(clients=8, slow=slow))
    found = slow_clients(one)
    assert found is not None and found.clients == ("c1", "c6") and found.share > 0.5


def test_more_samples_are_said_to_be_the_reason() -> None:
    rounds, turns = side_by_side(slow={"c0": ("compute", 6.0)})
    turns["samples"][turns["client"] == "c0"] = 600
    (named, *_) = bottlenecks_of(round_times(rounds, turns), [])
    assert named.kind == "more-data" and "6.0 times as many samples" in named.evidence


def test_where_clients_take_turns_the_excess_itself_is_saved() -> None:
    turns = [turn(f"c{place}", number, 10.0, 500.0 if place == 1 else 100.0, 10.0)
             for number in range(1, 5) for place in range(4)]  # fmt: skip
    rounds = [round_row(number, 900.0) for number in range(1, 5)]
    (one,) = round_times(columns(rounds), columns(turns))
    slow = slow_clients(one)
    assert slow is not None and slow.share == pytest.approx(400 / 900)
