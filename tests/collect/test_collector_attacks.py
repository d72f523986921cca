"""What one client, one run or one bad moment could do to a collector and everybody else."""

from __future__ import annotations

import errno
import shutil
import time
from pathlib import Path

import pytest
from builders import RunBuilder
from collecting import STORED, HandMadeClient, blocks_of, leave_behind, metric_rows, rows_after, send
from processes import wait_until

from stethos.collect.aliases import aliases_in
from stethos.collect.batch import BatchError
from stethos.collect.enrolment import Enrolment
from stethos.collect.receiver import Receiver
from stethos.collect.ride import InboxWriter
from stethos.record.drainer import Drainer
from stethos.record.place import INBOX_DIR
from stethos.schema import METRICS
from stethos.store.run import open_run


def test_a_run_that_is_deleted_beneath_the_collector_costs_nobody_else_anything(
    receiver: Receiver, client: HandMadeClient, enrolment: Enrolment
) -> None:
    other = HandMadeClient(enrolment, "b")
    assert send(receiver, client.batch(1, [1]), other.batch(1, [2], run="s")) == [STORED] * 2
    wait_until(lambda: (receiver.directory / "r").exists() and not receiver._runs.waiting_bytes, "both runs")
    shutil.rmtree(receiver.directory / "r")
    for number in range(2, 5):
        assert send(receiver, client.batch(number, [number]), other.batch(number, [number], run="s")) == [STORED] * 2
        time.sleep(0.1)
    wait_until(lambda: not receiver._runs.waiting_bytes, "what came since")
    receiver.close()
    assert not list((receiver.directory / ".collector").glob("*.journal"))
    with open_run(receiver.directory / "s") as run:
        assert [row[0] for row in run.rows("SELECT value FROM metrics ORDER BY value").values] == [2, 2, 3, 4]
    with open_run(receiver.directory / "r") as run:  # begun anew by what came after
        assert {row[0] for row in run.rows("SELECT value FROM metrics").values} >= {4}


def test_thousands_of_names_cost_a_client_its_own_rows_names_alone(receiver: Receiver, client: HandMadeClient) -> None:
    """A federation gives its clients long random numbers as names; who makes up thousands gets a few."""
    names = [str(10**17 + place) for place in range(20_000)]
    raw = blocks_of(METRICS, metric_rows(list(range(20_000)), client=names))
    began = time.process_time()
    assert send(receiver, client.signed(raw, 20_000, 1)) == [STORED]
    found = rows_after(receiver, "SELECT count(*), count(DISTINCT client) FROM metrics")
    assert found[0][0] == 20_000 and found[0][1] <= 33
    assert len(aliases_in(receiver.directory / "r")) <= 32 and time.process_time() - began < 20


@pytest.mark.parametrize("content", [b"", b"{", b"[]", None])
def test_what_was_acknowledged_is_stored_even_if_nobody_is_enrolled_any_more(
    tmp_path: Path, enrolment: Enrolment, client: HandMadeClient, monkeypatch: pytest.MonkeyPatch,
    content: bytes | None,
) -> None:  # fmt: skip
    """The collector is killed before it writes the runs, and the list of its clients is lost."""
    with monkeypatch.context() as killed:
        killed.setattr("stethos.collect.run_writer.RunWriter.start", lambda self: None)
        first = Receiver(tmp_path / "runs", enrolment)
        assert send(first, client.batch(1, [1]), client.batch(2, [2])) == [STORED] * 2
        leave_behind(first)
    path = enrolment.directory / "clients.json"
    path.unlink() if content is None else path.write_bytes(content)
    assert rows_after(Receiver(tmp_path / "runs", Enrolment(enrolment.directory))) == [1, 2]


def test_what_rides_along_is_stored_after_a_disk_that_was_full_for_long(
    tmp_path: Path, client: HandMadeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    with RunBuilder(tmp_path / "r") as run:
        run.process("server")
        InboxWriter(run.place.path).put("17", [client.batch(1, [7])])
        drainer, is_full = Drainer(run.place), [True]
        monkeypatch.setattr("stethos.collect.inbox.Inbox._store", _failing(is_full))
        for second in range(30):
            drainer._next_sync = 0.0
            drainer.visit(time.monotonic() + second)
        is_full[0] = False
        drainer._next_sync = 0.0
        drainer.visit(time.monotonic() + 60)
        with open_run(run.place.path) as found:
            assert found.rows("SELECT value FROM metrics").values == [(7.0,)]
        assert (run.place.path / INBOX_DIR).exists()


def _failing(is_full: list[bool]) -> object:
    from stethos.collect.inbox import Inbox

    store = Inbox._store

    def stored(self: Inbox, client: str, data: bytes) -> None:
        if is_full[0]:
            raise OSError(errno.ENOSPC, "No space left on device")
        store(self, client, data)

    return stored


def test_names_that_cannot_be_written_hold_up_nobody(
    receiver: Receiver, client: HandMadeClient, enrolment: Enrolment
) -> None:
    """A run that is a file here, names beyond what a directory's can be, and a place that is a file."""
    other, longest = HandMadeClient(enrolment, "b"), HandMadeClient(enrolment, "c" * 64)
    (receiver.directory / "file").write_text("mine")
    first = [client.batch(1, [1]), client.batch(1, [1], process="blocked"), client.batch(1, [5], run="file")]
    (receiver.directory / "r").mkdir()
    (receiver.directory / "r" / "a@blocked").write_text("in the way")
    for epoch in ("e" * 100, "f" * 100):
        first.append(longest.batch(1, [6], process="p" * 100, epoch=epoch))
    found = send(receiver, *first)
    assert found[:2] == [STORED] * 2 and all(isinstance(one, BatchError) for one in found[2:]), found
    assert send(receiver, other.batch(1, [2])) == [STORED]
    wait_until(lambda: not receiver._runs.waiting_bytes, "all that was taken")
    assert rows_after(receiver) == [1, 2] and (receiver.directory / "file").read_text() == "mine"
    (receiver.directory / "r" / "a@blocked").unlink()
    assert rows_after(Receiver(receiver.directory, enrolment)) == [1, 1, 2]  # what was set aside
