"""The spool: bounded, nothing lost, nothing twice."""

from __future__ import annotations

import json
import os
import shutil
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from collecting import HandMadeClient

from stethos.collect import left
from stethos.collect.answer import read_answer
from stethos.collect.enrolment import Enrolment
from stethos.collect.forward import Forwarder
from stethos.collect.policy import NOTHING
from stethos.collect.ride import own_policy
from stethos.collect.sender import Sender
from stethos.collect.site import make_site
from stethos.collect.site_policy import SitePolicy
from stethos.collect.spool import ACKS_FILE, FILE_BYTES, STATE_FILE, Spool, peek, read_spool
from stethos.record.place import RunPlace


def numbers(spool: Spool, lane: int, beyond: int = 0) -> list[int]:
    return [entry.number for entry in spool.entries(lane, beyond)]


def test_a_batch_counts_when_it_is_saved(tmp_path: Path) -> None:
    spool = Spool.load(tmp_path / "r" / "p")
    for number in (1, 2, 3):
        spool.append(1, number, 10, b"x" * number)
    spool.save()
    spool.append(1, 4, 10, b"never saved")
    spool.append(2, 1, 10, b"never saved")
    again = Spool.load(spool.path)  # as after kill -9
    assert numbers(again, 1) == [1, 2, 3] and numbers(again, 2) == [] and again.next_numbers == [1, 4, 1]
    again.append(1, 4, 7, b"the fourth")
    assert [entry.data for entry in again.entries(1, 3)] == [b"the fourth"] and again.epoch == spool.epoch


def test_only_what_is_acknowledged_goes(tmp_path: Path) -> None:
    spool = Spool.load(tmp_path / "r" / "p")
    for number in range(1, 6):
        spool.append(0, number, 1, bytes(FILE_BYTES // 2))
    assert spool.acknowledge({0: 2, 7: 1}) and not spool.acknowledge({0: 2}) and not spool.acknowledge({0: 99})
    assert numbers(spool, 0, 2) == [3, 4, 5] and len(list(spool.path.glob("*.spool"))) == 2
    spool.acknowledge({0: 5})
    assert spool.is_empty and not list(spool.path.glob("*.spool"))


@pytest.mark.parametrize(
    "change", [{"version": 2}, {"next": [1]}, {"acked": ["x", 0, 0]}, {"files": [[[1]], [], []]}, {"kept": [1]}]
)
def test_a_damaged_state_begins_a_new_epoch(tmp_path: Path, change: dict[str, object]) -> None:
    spool = Spool.load(tmp_path)
    spool.append(1, 1, 5, b"x")
    spool.save()
    state = json.loads((tmp_path / STATE_FILE).read_text())
    assert Spool.load(tmp_path).epoch == spool.epoch
    (tmp_path / STATE_FILE).write_text(json.dumps({**state, **change}))
    again = Spool.load(tmp_path)
    assert again.epoch != spool.epoch and again.is_empty and Spool.load(tmp_path).epoch == again.epoch
    assert not list(tmp_path.glob("*.spool"))


def test_bulk_tables_go_first_and_reports_never(tmp_path: Path) -> None:
    """Eighty-eight hours without a collector, a batch of each lane every 30 s."""
    spool, limit = Spool.load(tmp_path / "r" / "p"), 3 << 20
    for number in range(1, 88 * 120 + 1):
        for lane, size in ((0, 60), (1, 300), (2, 900)):
            spool.append(lane, number, 1, bytes(size))
        over = spool.size_bytes - limit
        if over > 0:
            over -= spool.make_room(over, 2)
            spool.make_room(over, 1)
    assert spool.size_bytes <= limit and numbers(spool, 0) == list(range(1, 10_561)) and not numbers(spool, 2)[:-1000]
    assert numbers(spool, 1)[-1] == numbers(spool, 2)[-1] == 10_560
    kept = len(numbers(spool, 1)) + len(numbers(spool, 2))
    assert spool.dropped_rows == 2 * 10_560 - kept and spool.waiting_rows == 10_560 + kept


def test_what_may_have_been_sent_is_not_dropped(tmp_path: Path) -> None:
    spool = Spool.load(tmp_path / "r" / "p")
    for number in range(1, 9):
        spool.append(2, number, 1, bytes(FILE_BYTES // 2))
    spool.attempted[2] = 1
    spool.make_room(1 << 40, 2)
    assert numbers(spool, 2) == [1, 2] and spool.dropped_rows == 6


def test_a_damaged_batch_costs_itself_alone(tmp_path: Path) -> None:
    spool = Spool.load(tmp_path / "r" / "p")
    for number in (1, 2, 3):
        spool.append(1, number, 1, b"abcdefgh")
    (path,) = spool.path.glob("1-*.spool")
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 255
    path.write_bytes(content)
    assert numbers(spool, 1) in ([1, 3], [1, 2, 3], [1])


def test_a_reply_carries_the_most_important_and_not_what_was_acknowledged(tmp_path: Path) -> None:
    spool = Spool.load(tmp_path / "r" / "p")
    for number in (1, 2, 3):
        spool.append(0, number, 1, b"report%d" % number)
        spool.append(2, number, 1, b"layers%d" % number)
    spool.save()
    assert peek(tmp_path, 23) == [b"report1", b"report2", b"report3"]
    (spool.path / ACKS_FILE).write_text(json.dumps({spool.epoch: {"0": 2, "1": "x", "9": 4}}))
    assert peek(tmp_path, 1000) == [b"report3", b"layers1", b"layers2", b"layers3"]
    assert spool.take_told_acks() and numbers(spool, 0, spool.acked[0]) == [3]
    (spool.path / "state.json").write_text("{")
    assert peek(tmp_path, 1000) == [] and read_spool(spool.path).is_empty


ORDERS = [
    {"level": "L4"}, {"policy": 'level = "L4"'}, {"set": {"level": "L4"}}, {"command": "eval"}, {"exec": "rm -rf /"},
    {"url": "http://x"}, {"address": "1.2.3.4:5"}, {"fingerprint": "0" * 64}, {"tables": {"logs": "keep"}},
    {"until": 9e9},
]  # fmt: skip


def test_no_answer_of_a_collector_raises_a_level_or_makes_a_client_act(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thousand answers that ask for more: each is written down, and nothing else changes."""
    site = make_site(tmp_path / "site", "a")
    site.policy_path.write_text('level = "L1"\n')
    forwarder = Forwarder(RunPlace(tmp_path / "run"), site)
    before = {path.name: path.read_bytes() for path in site.path.iterdir() if path.is_file()}
    monkeypatch.setattr("threading.Thread.start", lambda self: None)
    sender = Sender(site, forwarder)
    enrolment = Enrolment(tmp_path)
    batch = HandMadeClient(enrolment, "a").batch(1, [1])
    answers = [{"stored": True, "wait_s": -5, **ORDERS[number % len(ORDERS)]} for number in range(1000)]
    spool = Spool.load(site.spool / "r" / "p")
    monkeypatch.setattr(forwarder, "spools", lambda: [spool])
    for number, answer in enumerate(answers, 1):
        spool.append(1, number, 1, batch)
        monkeypatch.setattr(
            sender, "_post", lambda data, answer=answer: read_answer(200, [], json.dumps(answer).encode())
        )
        assert sender._send_next() == 0.0
    lines = (site.path / "audit.jsonl").read_text().splitlines()
    assert len(lines) == 1000 and all("refused" in line for line in lines)
    assert forwarder.policy().level == "L1" and not forwarder.policy().allows("logs")
    after = {path.name: path.read_bytes() for path in site.path.iterdir() if path.is_file()}
    assert {**before, "audit.jsonl": after["audit.jsonl"]} == after


def test_nothing_leaves_while_the_policy_cannot_be_read(tmp_path: Path) -> None:
    site = make_site(tmp_path / "site", "a")
    site.policy_path.write_text("level = L1\n")
    forwarder = Forwarder(RunPlace(tmp_path / "run"), site)
    assert forwarder.policy() == NOTHING and "nothing leaves" in (site.path / "audit.jsonl").read_text()
    site.policy_path.write_text('level = "L1"\n')
    os.utime(site.policy_path, ns=(1, 1))
    assert forwarder.policy().level == "L1" == own_policy(site).level
    site.policy_path.unlink()  # it may have said L0
    assert forwarder.policy() == NOTHING == own_policy(site)


def test_a_clock_that_is_put_back_makes_no_grant_longer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    site = make_site(tmp_path / "site", "a")
    now, passed_s = [time.time()], [1000.0]
    until = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(now[0] + 3600))
    site.policy_path.write_text(f"grant_until = {until}\n")
    monkeypatch.setattr("time.time", lambda: now[0])
    monkeypatch.setattr("stethos.collect.site_policy.time", SimpleNamespace(monotonic=lambda: passed_s[0]))
    policy = SitePolicy(site)
    assert policy.current().level == "L4"
    now[0] -= 30 * 3600
    passed_s[0] += 61
    assert policy.current() == NOTHING  # 31 hours are more than any grant


def test_the_account_of_what_left_is_bounded_and_survives_a_torn_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def let_go(number: int) -> None:
        spool = Spool.load(tmp_path / "spool" / f"run-{number}" / "p")
        spool.kept["books"] = {"produced": 10, "lost": 1, "drops": {"ring_full": 2}, "withheld": {"rows": 3}}
        spool.refused_rows = 1
        left.note_left(tmp_path, spool.path, spool)
        shutil.rmtree(spool.path)

    let_go(1)
    with (tmp_path / left.LEFT_FILE).open("ab") as file:
        file.write(b'{"run": "torn", "bo\n')
    let_go(2)
    sums = {"produced": 10, "left": 3, "withheld": 3, "dropped": 3, "lost": 1, "waiting": 0}
    assert left.left_by_run(tmp_path, tmp_path / "spool") == {"run-1": sums, "run-2": sums}
    monkeypatch.setattr(left, "MOST_BYTES", 1500)
    for number in range(3, 40):
        let_go(number)
    assert (tmp_path / left.LEFT_FILE).stat().st_size < 2000
    assert list(left.left_by_run(tmp_path, tmp_path / "spool"))[-2:] == ["run-38", "run-39"]
