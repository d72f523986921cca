"""What a site's sender makes of lines as they are: ended while they are kept, and slow."""

from __future__ import annotations

import os
import threading
from pathlib import Path

from builders import RunBuilder
from collecting import CollectorProcess, HandMadeClient, everything
from processes import wait_until

from stethos.collect.forward import SPLIT_BYTES, Forwarder
from stethos.collect.sender import Sender
from stethos.collect.site import make_site, own_key
from stethos.collect.spool import Spool, read_spool


class OneSpool:
    """The owner of one spool."""

    def __init__(self, path: Path) -> None:
        self.mutex = threading.Lock()
        self.spool = Spool.load(path)

    def spools(self) -> list[Spool]:
        return [self.spool]

    def add(self, number: int, batch: bytes) -> None:
        with self.mutex:
            self.spool.append(1, number, 1, batch)
            self.spool.save()


def test_a_kept_connection_that_was_ended_is_no_failure(tmp_path: Path) -> None:
    """A server ends connections that rest, and starts anew: the audit is for what matters."""
    collector = CollectorProcess(tmp_path)
    collector.start()
    try:
        client = HandMadeClient(collector.enrolment, "a")
        site = make_site(tmp_path / "site", "a", collector.address, collector.keys.fingerprint)
        owner = OneSpool(tmp_path / "spool")
        sender = Sender(site, owner)
        for number in (1, 2, 3):
            owner.add(number, client.batch(number, [number]))
            wait_until(lambda number=number: owner.spool.acked[1] == number, f"batch {number}")
            assert not sender.is_failing
            collector.kill()
            collector.start()
        sender.leave(1.0, 1.0)
        sender._thread.join()
        assert not (site.path / "audit.jsonl").exists()
    finally:
        collector.stop()


def test_rows_that_are_refused_for_good_are_no_lack_of_room_and_the_site_reads_why(tmp_path: Path) -> None:
    collector = CollectorProcess(tmp_path)
    collector.start()
    try:
        client = HandMadeClient(collector.enrolment, "a")
        site = make_site(tmp_path / "site", "a", collector.address, collector.keys.fingerprint)
        owner = OneSpool(tmp_path / "spool")
        sender = Sender(site, owner)
        for number in (1, 2):
            owner.add(number, b"not a batch")
        owner.add(3, client.batch(3, [3]))
        wait_until(lambda: owner.spool.acked[1] == 3, "the last batch")
        sender.leave(1.0, 1.0)
        sender._thread.join()
        assert owner.spool.drops == {"refused": 2} == Spool.load(tmp_path / "spool").drops
        (line,) = (site.path / "audit.jsonl").read_text().splitlines()
        assert "refused for good" in line and "a batch has" in line
    finally:
        collector.stop()


def test_a_collector_with_other_keys_gets_nothing_and_the_site_reads_what_to_do(tmp_path: Path) -> None:
    collector = CollectorProcess(tmp_path)
    collector.start()
    try:
        site = make_site(tmp_path / "site", "a", collector.address, "0" * 64)
        owner = OneSpool(tmp_path / "spool")
        sender = Sender(site, owner)
        owner.add(1, HandMadeClient(collector.enrolment, "a").batch(1, [1]))
        wait_until(site.last_failure, "a line in the audit")
        sender.leave(0.1, 0.1)
        assert "enrol again with a new token" in site.last_failure() and "hint" not in site.last_failure()
        assert not owner.spool.acked[1] and not collector.runs.joinpath("r").exists()
    finally:
        collector.stop()


def test_a_batch_is_small_enough_for_a_slow_line(tmp_path: Path) -> None:
    """The collector waits ten seconds for the whole of a request, so that nobody holds it up by dripping."""
    site = make_site(tmp_path / "site", "a", "127.0.0.1:9", "0" * 64)
    own_key(site.path)
    site.policy_path.write_text(everything())
    with RunBuilder(tmp_path / "run") as run:
        process = run.process("p0")
        for _ in range(1500):
            process.log(os.urandom(500).hex())
        process.drain()
        forwarder = Forwarder(run.place, site)
        forwarder.take(process.collector, is_last=True)
        spool = read_spool(site.spool / "run" / "p0")
        batches = list(spool.entries(1, 0))
        assert sum(one.rows for one in batches) == 1500 and len(batches) > 1
        assert all(len(one.data) < SPLIT_BYTES + 10_000 for one in batches)
        forwarder.leave()
