"""The virtual clock."""

from __future__ import annotations

import time

import pytest

from stethos import lab
from stethos.errors import UsageError
from stethos.lab import Fault
from stethos.lab.clock import Slowdown, Timing, VirtualClock

EVEN = Timing(sample_ms=1, latency_ms=10, bytes_per_ms=100, spread=0, jitter=0, aggregate_ms=5)


def federated(*faults: Fault, rounds: int = 2) -> lab.LabResult:
    return lab.federate("digits", clients=5, rounds=rounds, observe=False, engine="stacked", faults=faults)


def test_times_follow_from_samples_bytes_and_speeds() -> None:
    clock = VirtualClock(EVEN, samples=[100, 200], state_bytes=4000, seed=0)
    trip = clock.trip(1, 1, Slowdown(compute=3, link=2))
    assert (trip.download_ms, trip.compute_ms, trip.upload_ms) == (100, 600, 100)
    assert clock.deadline_ms == 20 * (50 + 200 + 50)


def test_a_round_lasts_until_the_last_reply_or_until_the_deadline() -> None:
    clock = VirtualClock(EVEN, samples=[100], state_bytes=0, seed=0)
    assert clock.end_round([30, 70], missed=False) == 75
    assert clock.end_round([30, 70], missed=True) == clock.deadline_ms + 5
    assert clock.now_ms == 75 + clock.deadline_ms + 5


def test_clients_differ_mildly_and_keep_their_speed() -> None:
    history = federated(rounds=6).history
    computes = [[one.compute_ms or 0 for one in rnd.clients] for rnd in history]
    assert all(ms / max(row) > 0.5 for row in computes for ms in row)
    order = [sorted(range(5), key=row.__getitem__) for row in computes]
    assert order[0][0] == order[-1][0] and computes[0] != computes[1]


@pytest.mark.parametrize(("kind", "column"), [("slow-compute", "compute_ms"), ("slow-link", "upload_ms")])
def test_a_slow_client_arrives_last_and_the_others_wait(kind: str, column: str) -> None:
    honest, slow = federated().history, federated(Fault(kind, "c1", start=2)).history
    assert honest[0] == slow[0]
    assert getattr(slow[1].clients[1], column) == pytest.approx(10 * getattr(honest[1].clients[1], column))
    waits = [one.wait_ms for one in slow[1].clients]
    assert waits[1] == 0 and min(wait for wait in waits[:1] + waits[2:] if wait is not None) > 100
    assert slow[1].duration_ms > 2 * honest[1].duration_ms and slow[1].wait_ms == max(wait or 0 for wait in waits)


def test_a_client_past_the_deadline_times_out_and_the_server_waits_for_it() -> None:
    result = federated(Fault("slow-compute", "c1", strength=1000), Fault("timeout", "c2"), rounds=1)
    (rnd,) = result.history
    assert [one.status for one in rnd.clients] == ["ok", "timeout", "timeout", "ok", "ok"]
    assert rnd.duration_ms > 10 * max(one.compute_ms or 0 for one in rnd.clients)


def test_the_learned_model_does_not_depend_on_the_clock() -> None:
    honest, slow = federated(), federated(Fault("slow-compute", 1), Fault("slow-link", 2), Fault("memory-hog", 3))
    assert honest.losses == slow.losses


def test_nothing_sleeps(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    monkeypatch.setattr(time, "sleep", slept.append)
    result = federated(Fault("slow-compute", 1, strength=15), rounds=3)
    assert sum(one.duration_ms for one in result.history) > 1e3 and slept == []


@pytest.mark.parametrize(
    "options", [{"sample_ms": -1}, {"bytes_per_ms": 0}, {"patience": 0.5}, {"jitter": float("nan")}]
)
def test_timing_that_makes_no_sense_is_an_error(options: dict[str, float]) -> None:
    with pytest.raises(UsageError):
        Timing(**options)
