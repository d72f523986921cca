"""What a site's drainer puts into the spool: once, counted, and by the policy that holds when it leaves."""

from __future__ import annotations

import errno
import os
import random
import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from builders import ProcessBuilder, RunBuilder
from collecting import everything

from stethos.collect.batch import LANES, decode_batch, decompress
from stethos.collect.forward import Forwarder
from stethos.collect.policy import NOTHING, Policy, parse_policy
from stethos.collect.site import SiteHome, make_site, own_key
from stethos.collect.spool import Spool, books_of, peek, read_spool
from stethos.errors import UsageError
from stethos.record.arrow import checked_batch, segment_schema
from stethos.record.segment import scan
from stethos.schema import RECORDED


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    path = tmp_path / "disk"
    path.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=6m", "tmpfs", path], check=True)
    yield path
    subprocess.run(["umount", "-l", path], check=True)


def site_in(directory: Path, policy: str = "") -> SiteHome:
    """A site without a collector, so that nothing leaves but by the test."""
    site = make_site(directory / "site", "a")
    own_key(site.path)
    site.policy_path.write_text(policy or everything())
    return site


def rows_in(spool: Spool) -> Counter[tuple[str, int]]:
    """How often each row of steps and logs waits, by table and place."""
    found: Counter[tuple[str, int]] = Counter()
    for lane in LANES:
        for entry in spool.entries(lane, 0):
            for block in scan(decompress(decode_batch(entry.data))):
                if block.is_batch and block.rows and block.table in RECORDED:
                    table = RECORDED[block.table]
                    rows = checked_batch(block.payload, segment_schema(table), block.rows)
                    name = "step" if "step" in rows.schema.names else "t_ns"
                    found.update((table.name, value) for value in rows.column(name).to_pylist())
    return found


def checked(spool: Spool) -> dict[str, int]:
    """The client's end of the equation holds."""
    books = books_of(spool)
    gone = sum(books["drops"].values()) + books["lost"] + sum(books["withheld"].values())
    assert books["produced"] == spool.waiting_rows + gone, books
    return {"produced": books["produced"], "gone": gone}


def work(process: ProcessBuilder, number: int) -> None:
    process.steps(3)
    process.layers(["a", "b"], step=number)
    process.metric("m", number)


def test_on_a_disk_that_is_full_again_and_again_every_row_waits_once(tmp_path: Path, small_disk: Path) -> None:
    """A real one, full at random moments and to random bytes; sometimes the drainer is killed and starts again."""
    chance, failures = random.Random(2), 0
    site = site_in(small_disk)
    with RunBuilder(tmp_path / "run") as run:
        forwarder = Forwarder(run.place, site)
        process = run.process("p0")
        for turn in range(60):
            with (small_disk / "filler").open("wb", buffering=0) as file:
                free = os.statvfs(small_disk).f_bfree * 4096 - chance.choice([0, 4096, 8192, 16384, 300_000])
                os.posix_fallocate(file.fileno(), 0, max(free, 1))
            work(process, turn)
            process.layers([f"layer{place}" for place in range(chance.randrange(1, 400))], step=1000 + turn)
            process.drain()
            for _ in range(2):
                try:
                    forwarder.take(process.collector, is_last=True)
                except OSError as error:
                    failures += error.errno == errno.ENOSPC
            if chance.random() < 0.2:  # killed
                for one in forwarder.processes.values():
                    one.close()
                forwarder = Forwarder(run.place, site)
            (small_disk / "filler").unlink()
        forwarder.take(process.collector, is_last=True)
        spool = read_spool(site.spool / run.place.name / "p0")
        found = rows_in(spool)
        assert failures > 10
        assert {found["steps", step] for step in range(180)} == {1}
        assert checked(spool)["gone"] == 0 and sum(found.values()) == spool.waiting_rows


L2 = 'level = "L2"\n'


@pytest.fixture
def process(tmp_path: Path) -> Iterator[ProcessBuilder]:
    with RunBuilder(tmp_path / "run") as run:
        made = run.process("p0")
        work(made, 0)
        made.drain()
        yield made


def taken(process: ProcessBuilder, site: SiteHome) -> Forwarder:
    forwarder = Forwarder(RunBuilder(process.place.path.parent).place, site)
    forwarder.take(process.collector, is_last=True)
    return forwarder


@pytest.mark.parametrize("policy", ['level = "L1"\n', 'level = "L0"\n', L2 + "min_count = 64\n", "level = 7\n",
                                    L2 + '[tables]\nhost = "drop"\n'])  # fmt: skip
def test_what_waits_stays_when_the_site_lowers_its_level(tmp_path: Path, process: ProcessBuilder, policy: str) -> None:
    site = site_in(tmp_path, L2)
    forwarder, path = taken(process, site), site.spool / "run" / "p0"
    before = read_spool(path)
    assert rows_in(before)["steps", 0] == 1
    site.policy_path.write_text(policy)
    assert not peek(site.spool, 1 << 20, parse_policy_of(site).stamp)  # a reply, before the drainer has looked
    forwarder.visit(0.0)
    spool = read_spool(path)
    assert not rows_in(spool) and checked(spool) == {"produced": 6, "gone": 6}
    assert books_of(spool)["withheld"] == {"rows": 6 - before.waiting_rows, "withdrawn": before.waiting_rows}
    assert "rows that waited stay" in (site.path / "audit.jsonl").read_text()
    work(process, 1)
    process.drain()
    forwarder.take(process.collector, is_last=True)
    assert checked(read_spool(path))["produced"] == 12


def parse_policy_of(site: SiteHome) -> Policy:
    try:
        return parse_policy(site.policy_path.read_text())
    except UsageError:
        return NOTHING


@pytest.mark.parametrize("policy", [L2 + "# as before\n", ""])
def test_what_waits_goes_on_when_the_site_lets_as_much_or_more_through(
    tmp_path: Path, process: ProcessBuilder, policy: str
) -> None:
    site = site_in(tmp_path, L2)
    forwarder, path = taken(process, site), site.spool / "run" / "p0"
    rows = rows_in(read_spool(path))
    site.policy_path.write_text(policy or everything())
    forwarder.visit(0.0)
    assert rows_in(read_spool(path)) == rows


def test_what_an_ended_process_left_is_withdrawn_before_anything_is_sent(
    tmp_path: Path, process: ProcessBuilder
) -> None:
    site = site_in(tmp_path)  # L4, until it ends
    taken(process, site).leave()
    site.policy_path.write_text("")
    forwarder = Forwarder(RunBuilder(tmp_path / "next").place, site)
    forwarder.visit(0.0)
    spool = read_spool(site.spool / "run" / "p0")
    assert not rows_in(spool) and checked(spool) == {"produced": 6, "gone": 6}
    last = [decode_batch(entry.data).header for entry in spool.entries(0, 0)][-1]
    assert last.process == "p0" and last.run == "run" and sum(last.books["withheld"].values()) == 6
    forwarder.leave()


def test_of_all_processes_bulk_tables_go_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An ended process's steps are worth more than the layers of the one that goes on; what went is told."""
    site = site_in(tmp_path)
    with RunBuilder(tmp_path / "run") as run:
        old, new = run.process("p0"), run.process("p1")
        forwarder = Forwarder(run.place, site)
        for one in (old, new):
            one.steps(5)
            one.drain()
            forwarder.take(one.collector, is_last=True)
        forwarder.leave()
        forwarder = Forwarder(run.place, site)
        forwarder.visit(0.0)
        monkeypatch.setattr("stethos.collect.forward.SPOOL_BYTES", 8000)
        for place in range(20):
            new.layers([f"{place} {layer}" for layer in range(500)], step=place)
            new.drain()
            forwarder.take(new.collector, is_last=True)
        first, second = (read_spool(site.spool / "run" / name) for name in ("p0", "p1"))
        assert books_of(second)["drops"]["spool_full"] >= 9000 and rows_in(first)["steps", 4] == 1
        monkeypatch.setattr("stethos.collect.forward.SPOOL_BYTES", 0)
        new.steps(1)
        new.drain()
        forwarder.take(new.collector, is_last=True)
        forwarder._next_adoption = 0.0
        forwarder.visit(0.0)
        first = read_spool(site.spool / "run" / "p0")
        assert checked(first)["gone"] == 5
        last = [decode_batch(entry.data).header for entry in first.entries(0, 0)][-1]
        assert last.books["drops"] == {"spool_full": 5}
        assert checked(read_spool(site.spool / "run" / "p1"))
        forwarder.leave()


@pytest.mark.parametrize("policy", ["level = 'L1'", ""])
def test_a_turn_of_hours_does_not_fill_its_reply_with_bookkeeping(
    tmp_path: Path, process: ProcessBuilder, policy: str
) -> None:
    """Rows come all the time and nothing is acknowledged: reports must find room in the next reply."""
    site = site_in(tmp_path, policy)
    forwarder = taken(process, site)
    for turn in range(40):
        work(process, turn)
        process.drain()
        forwarder.take(process.collector, is_last=True)
    spool = read_spool(site.spool / "run" / "p0")
    assert len(list(spool.entries(0, 0))) == 1
    assert checked(spool)["produced"] == 6 * 41
    spool = forwarder.processes["p0"].spool
    spool.acknowledge({0: 1})
    forwarder.end(process.collector)
    told = [decode_batch(entry.data).header for entry in spool.entries(0, 1)]
    assert told[-1].books["produced"] == 6 * 41 and told[-1].ended and len(told) == 2
