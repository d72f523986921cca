"""Batches in the federation's own messages, from a spool to a run, and what a reply may say."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from builders import RunBuilder
from collecting import HandMadeClient, blocks_of, metric_rows
from processes import drainers_of, wait_until

from stethos.collect.batch import decode_batch
from stethos.collect.enrolment import Enrolment
from stethos.collect.inbox import Inbox
from stethos.collect.policy import Policy, parse_policy
from stethos.collect.report import filtered_report
from stethos.collect.ride import BATCHES, InboxWriter, entries_in, reply_of, take_acks
from stethos.collect.site import make_site
from stethos.collect.spool import Spool
from stethos.diagnose.api import diagnose
from stethos.record.place import INBOX_DIR, RunPlace
from stethos.schema import METRICS
from stethos.store.health import examine
from stethos.store.run import open_run

REPORT = {
    "status": "failed", "loss": 0.25, "entry_loss": 0.5, "samples": 100, "steps": 17, "duration_ms": 33.0,
    "label": "ward 7", "confusion": "[[1, 2]]", "error": "KeyError: 'patient 7'", "start_ns": 5, "host": "boot",
}  # fmt: skip


@pytest.fixture
def spool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Spool:
    """A site without a collector, with batches of a hand-made client in its spool."""
    site = make_site(tmp_path / "site", "hospital")
    monkeypatch.setenv("STETHOS_SITE", str(site.path))
    client = HandMadeClient(Enrolment(tmp_path), "hospital")
    spool = Spool.load(site.spool / "fed" / "p1")
    told = {"lane": 0, "epoch": spool.epoch, "withholds": {"client_reports": ["entry_loss"], "metrics": ["*"]}}
    spool.append(0, 1, 0, client.signed(b"", 0, 1, **{**told, "books": {"produced": 20, "withheld": {"steps": 15}}}))
    for number in range(1, 6):
        data = client.signed(blocks_of(METRICS, metric_rows([number], client=["other"])), 1, number, epoch=spool.epoch)
        spool.append(1, number, 1, data)
    spool.save()
    return spool


def test_batches_ride_along_once_and_stand_under_the_federations_name(tmp_path: Path, spool: Spool) -> None:
    run = RunPlace(tmp_path / "fed")
    run.create({"run": "fed"})
    writer, inbox = InboxWriter(run.path), Inbox(run)
    told = reply_of(REPORT)
    assert told["site"] == "hospital" and len(told[BATCHES]) == 6
    writer.put("17", told[BATCHES])
    writer.put("17", [b"no batch", 7, told[BATCHES][1]])  # sent again, and nonsense
    writer.put("../x", told[BATCHES])
    inbox.visit()
    take_acks(writer.acks("17"))
    assert BATCHES not in reply_of(REPORT) and spool.take_told_acks() and spool.is_empty
    again = Inbox(run)  # a drainer that was killed reads everything again
    again.end()
    with open_run(run.path) as found:
        assert found.rows("SELECT value, client FROM metrics ORDER BY value").values == [
            (float(number), "17") for number in range(1, 6)
        ]
        books = found.rows("SELECT rows_produced, rows_stored, rows_withheld, rows_pending FROM processes").values
        assert books == [(20, 5, 15, 0)]


def test_a_diagnosis_says_what_a_site_keeps_back(tmp_path: Path, spool: Spool) -> None:
    run = RunPlace(tmp_path / "fed")
    run.create({"run": "fed"})
    InboxWriter(run.path).put("17", reply_of(REPORT)[BATCHES])
    Inbox(run).end()
    with open_run(run.path) as found:
        reasons = {one.reason for one in diagnose(found).not_checked}
    assert "the site of client 17 withholds `client_rounds.entry_loss`" in reasons, reasons


def test_an_inbox_is_removed_when_its_server_is_gone(tmp_path: Path, spool: Spool) -> None:
    run = RunPlace(tmp_path / "fed")
    run.create({"run": "fed"})
    InboxWriter(run.path).put("17", reply_of(REPORT)[BATCHES])
    (path,) = (run.path / INBOX_DIR).iterdir()
    ended = subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, check=True)
    os.rename(path, path.with_name(f"{int(ended.stdout)}-000001.in"))
    Inbox(run).end()
    assert not (run.path / INBOX_DIR).exists()


def test_what_a_killed_drainer_left_in_the_inbox_is_stored_when_somebody_looks(tmp_path: Path, spool: Spool) -> None:
    with RunBuilder(tmp_path / "fed") as run:
        process = run.process()
        process.steps(1)
        process.drain()
        process.finish()
    InboxWriter(run.path).put("17", reply_of(REPORT)[BATCHES])

    def stored() -> int:
        with open_run(run.path) as found:
            return int(found.rows("SELECT count(*) FROM metrics WHERE process LIKE '17@%'").values[0][0])

    wait_until(lambda: stored() == 5, "the rows of the client")  # which come one batch after the other
    wait_until(lambda: not drainers_of(tmp_path), "the end of the drainer")


def test_a_site_of_which_nothing_more_was_heard_was_not_killed(tmp_path: Path, spool: Spool) -> None:
    """What a site has after its last reply stays there, so the end of its last process is never told."""

    def states() -> list[Any]:
        with open_run(tmp_path / "fed") as found:
            rows = found.rows("SELECT state, ending FROM processes ORDER BY process LIKE '17@%'").values
            return [found.state, [tuple(row) for row in rows]]

    with RunBuilder(tmp_path / "fed") as run:
        server = run.process()
        server.steps(1)
        server.drain()
        InboxWriter(run.path).put("17", reply_of(REPORT)[BATCHES])
        Inbox(RunPlace(run.path)).end()
        for file in run.path.glob("17@*/*"):
            os.utime(file, (1e9, 1e9))  # long ago
        assert states() == ["running", [("running", None), ("running", None)]]
        server.finish()
    state, (_, (own, ending)) = states()
    assert (state, own) == ("ended", "ended") and ending.startswith("not heard of any more")
    with open_run(tmp_path / "fed") as found:
        assert not [one for one in diagnose(found).findings if one.name == "process-failure"]
        assert not [check for check in examine(found).checks if check.what == "losses"]


def test_a_reply_says_what_the_policy_lets_through(spool: Spool) -> None:
    by_default = filtered_report(Policy(), REPORT)
    assert by_default == {"status": "failed", "samples": 128, "steps": 32, "duration_ms": 64.0, "error": "KeyError"}
    with_losses = filtered_report(parse_policy('level = "L2"'), {**REPORT, "loss": 0.12345})
    assert with_losses == {**by_default, "loss": 0.12, "entry_loss": 0.5}
    assert filtered_report(parse_policy('level = "L2"'), {"loss": 0.1, "samples": 3}) == {"samples": 4}
    site = spool.path.parents[2]
    (site / "policy.toml").write_text("level = 9")
    assert reply_of(REPORT) == {}
    (site / "site.json").write_text("{}")
    assert reply_of(REPORT) == {}


@pytest.mark.parametrize(("given", "most"), [(None, 64 << 10), ("200kB", 200 << 10), ("1", 32 << 10), ("?", 64 << 10)])
def test_no_reply_is_larger_than_its_bound(
    tmp_path: Path, spool: Spool, monkeypatch: pytest.MonkeyPatch, given: str | None, most: int
) -> None:
    for number in range(6, 200):
        spool.append(2, number, 1, bytes(3000))
    spool.save()
    if given is not None:
        monkeypatch.setenv("STETHOS_RIDE_BYTES", given)
    assert most - 4000 < sum(map(len, reply_of({})[BATCHES])) <= most


def test_a_server_takes_no_more_from_a_reply_than_any_client_may_send(tmp_path: Path) -> None:
    client, inbox = HandMadeClient(Enrolment(tmp_path), "hospital"), InboxWriter(tmp_path / "fed")
    raw = os.urandom(100_000)
    inbox.put("node", [client.signed(raw, 0, number, raw) for number in range(1, 30)])
    stored = sum(path.stat().st_size for path in (tmp_path / "fed" / INBOX_DIR).glob("*.in"))
    assert 900_000 < stored < 1_100_000 and json.loads(inbox.acks("node"))["e1"] == {"1": 10}


@pytest.mark.parametrize("text", ["", "[]", "{", "7", None, 3, json.dumps({"x": 1}), "[" * 5000])
def test_acknowledgements_that_are_none_change_nothing(spool: Spool, text: object) -> None:
    take_acks(text)
    assert len(reply_of({})[BATCHES]) == 6 and decode_batch(reply_of({})[BATCHES][0]).header.client == "hospital"
    audit = spool.path.parents[2] / "audit.jsonl"
    assert audit.exists() == (text not in ("", None, json.dumps({"x": 1})))


def test_nobody_is_told_of_a_batch_that_the_disk_has_not(
    tmp_path: Path, spool: Spool, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[int] = []
    monkeypatch.setattr(os, "fdatasync", lambda descriptor: synced.append(os.fstat(descriptor).st_size))
    inbox = InboxWriter(tmp_path / "fed")
    inbox.put("17", reply_of(REPORT)[BATCHES])
    (path,) = inbox.directory.iterdir()
    assert not synced and inbox.acks("17") and synced == [path.stat().st_size]
    assert inbox.acks("17") and len(synced) == 1
    inbox.put("17", reply_of(REPORT)[BATCHES])
    path.unlink()  # its drainer was faster
    assert inbox.acks("17")


def test_a_batch_that_the_disk_takes_in_part_is_not_there(
    tmp_path: Path, spool: Spool, monkeypatch: pytest.MonkeyPatch
) -> None:
    inbox, waiting, write = InboxWriter(tmp_path / "fed"), reply_of(REPORT)[BATCHES], os.write
    inbox.put("17", waiting[:1])
    told = inbox.acks("17")
    with monkeypatch.context() as full:
        full.setattr(os, "write", lambda descriptor, data: write(descriptor, data[:20]))
        with pytest.raises(OSError, match="No space"):
            inbox.put("17", waiting[1:2])
    assert inbox.acks("17") == told
    inbox.put("17", waiting[1:])
    (path,) = inbox.directory.iterdir()
    assert [data for _, data, _ in entries_in(path.read_bytes(), 0)] == waiting


def test_a_server_cannot_raise_what_a_sites_recording_costs(
    tmp_path: Path, spool: Spool, monkeypatch: pytest.MonkeyPatch
) -> None:
    from stethos.federate.invitation import Invitation
    from stethos.observe import boot

    begun: list[Any] = []
    monkeypatch.setattr(boot, "begin", begun.append)
    asked = Invitation("f", "7", 1, run_dir=str(tmp_path / "fed"), preset="deep", overhead=0.9)
    asked.record()
    monkeypatch.delenv("STETHOS_SITE")
    RunPlace(tmp_path / "fed").create({"run": "fed"})
    asked.record()
    assert [(one.preset, one.overhead) for one in begun] == [("standard", 0.01), ("deep", 0.9)]
