"""88 hours without a collector, on a clock of the test's own: bounded, no report lost, and the books balance."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from stethos.collect.answer import Answer
from stethos.collect.forward import Forwarder
from stethos.collect.forwarded import ForwardedProcess
from stethos.collect.sender import LONGEST_WAIT_S, Sender
from stethos.collect.site import make_site
from stethos.collect.spool import LANES
from stethos.record.place import RunPlace
from stethos.record.spawn import take_lock

OUTAGE_S, EVERY_S = 88 * 3600.0, 1800.0
MOST_BYTES = 2 << 20
SIZES = {0: 200, 1: 3000, 2: 12_000}  # bytes of a batch of each lane; a row each


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now


def test_88_hours_without_a_collector(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock, taken, tries = Clock(), Counter[tuple[int, int]](), [0]
    monkeypatch.setattr("stethos.collect.sender.time", clock)
    monkeypatch.setattr("stethos.collect.forward.SPOOL_BYTES", MOST_BYTES)
    monkeypatch.setattr("stethos.collect.spool.FILE_BYTES", 64 << 10)
    monkeypatch.setattr("threading.Thread.start", lambda self: None)
    site = make_site(tmp_path / "site", "a")
    forwarder = Forwarder(RunPlace(tmp_path / "run"), site)
    path = site.spool / "r" / "p"
    path.mkdir(parents=True)
    lock = take_lock(path / "lock")
    assert lock is not None
    one = forwarder.processes["p"] = ForwardedProcess(path, lock)
    sender = Sender(site, forwarder)
    end = clock.now + OUTAGE_S

    def post(data: bytes) -> Answer:
        tries[0] += 1
        if clock.now < end:
            raise OSError("nobody there")
        lane, number = map(int, data.split(b" ")[:2])
        taken[lane, number] += 1
        return Answer(200)

    monkeypatch.setattr(sender, "_post", post)
    next_rows, largest, made = clock.now, 0, Counter[int]()
    while clock.now < end:
        while next_rows <= clock.now:
            for lane, size in SIZES.items():
                number = one.spool.next_numbers[lane]
                one.spool.append(lane, number, 1, f"{lane} {number} ".encode() + bytes(size))
                made[lane] += 1
            forwarder._keep_bound(one)
            one.spool.save()
            largest = max(largest, one.spool.size_bytes)
            next_rows += EVERY_S
        clock.now += max(sender._send_next(), 0.01)
    during, dropped = tries[0], one.spool.dropped_rows
    while not one.spool.is_empty:
        clock.now += max(sender._send_next(), 0.01)
    one.close()
    assert largest <= MOST_BYTES + sum(SIZES.values()) + 1000 and dropped > 0
    assert OUTAGE_S / LONGEST_WAIT_S <= during <= 3 * OUTAGE_S / LONGEST_WAIT_S
    assert set(taken.values()) == {1}
    assert sorted(number for lane, number in taken if lane == 0) == list(range(1, made[0] + 1))
    assert sum(made.values()) == len(taken) + dropped and set(made) == set(LANES)
