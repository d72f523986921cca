"""Batches that a collector must take, and those that it must not."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import struct
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from collecting import STORED, HandMadeClient, blocks_of, metric_rows, rows_after, send
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from processes import wait_until

from stethos.cli.main import main
from stethos.collect.aliases import note_alias
from stethos.collect.batch import BatchError, compress, decode_batch, digest_of
from stethos.collect.enrolment import Enrolment, NotEnrolledError
from stethos.collect.intervals import Intervals
from stethos.collect.journal import Journal
from stethos.collect.receiver import Receiver
from stethos.collect.run_writer import RunWriter
from stethos.collect.shares import BURST_BATCHES, BusyError
from stethos.collect.site import make_site
from stethos.errors import LiveError, RecordingError, UsageError
from stethos.record.place import RunPlace
from stethos.record.segment import FLAG_LAST, encode_block
from stethos.schema import METRICS, ROUNDS
from stethos.store.health import examine
from stethos.store.run import open_run
from stethos.web.keys import open_keys


def test_batches_in_any_order_and_again_are_stored_once(receiver: Receiver, client: HandMadeClient) -> None:
    batches = [client.batch(number, [number]) for number in range(1, 31)]
    shuffled = batches[10:] + batches[:10] + batches[5:25]
    assert send(receiver, *shuffled, *shuffled[:7]) == [STORED] * 57
    assert send(receiver, *batches) == [STORED] * 30
    assert rows_after(receiver) == list(range(1, 31)) and receiver.taken == 30


def test_what_was_acknowledged_is_there_after_a_crash(
    tmp_path: Path, enrolment: Enrolment, receiver: Receiver, client: HandMadeClient
) -> None:
    """The journal alone is left, as after `kill -9` between acknowledgement and writing."""
    journal = Journal(tmp_path / "other" / ".collector")
    journal.commit([client.batch(number, [number]) for number in range(1, 6)])
    journal.commit([client.batch(3, [3])])
    half = client.batch(6, [6])
    journal.close()
    with journal.files()[-1].open("ab") as file:
        file.write(struct.pack("<II", len(half), 0) + half[:-10])  # killed while writing
    second = Receiver(tmp_path / "other", enrolment)
    assert send(second, client.batch(5, [5]), client.batch(6, [6])) == [STORED] * 2
    assert rows_after(second) == [1, 2, 3, 4, 5, 6]


def test_two_collectors_do_not_share_a_directory(
    receiver: Receiver, client: HandMadeClient, enrolment: Enrolment
) -> None:
    """The second would write, and then remove, the journal of the first."""
    assert send(receiver, client.batch(1, [1])) == [STORED]
    with pytest.raises(LiveError, match="another collector collects into"):
        Receiver(receiver.directory, enrolment)
    assert send(receiver, client.batch(2, [2])) == [STORED] and rows_after(receiver) == [1, 2]
    Receiver(receiver.directory, enrolment).close()


def test_a_name_is_taken_with_its_key_alone(receiver: Receiver, client: HandMadeClient, enrolment: Enrolment) -> None:
    other = HandMadeClient(enrolment, "b")
    forged = other.batch(1, [1], client="a")
    unknown = other.batch(1, [1], client="nobody")
    found = send(receiver, forged, unknown, client.batch(1, [1])[:-1])
    assert [type(one) for one in found] == [NotEnrolledError, NotEnrolledError, BatchError]
    enrolment.revoke("a")
    assert isinstance(send(receiver, client.batch(2, [2]))[0], NotEnrolledError)


def test_rows_stand_under_the_clients_own_name(receiver: Receiver, client: HandMadeClient) -> None:
    (receiver.directory / "r").mkdir()
    note_alias(receiver.directory / "r", "17", "a")
    note_alias(receiver.directory / "r", "18", "b")
    rows = metric_rows([1, 2, 3, 4], client=["a", "17", "18", None])
    assert send(receiver, client.signed(blocks_of(METRICS, rows), 4, 1)) == [STORED]
    assert rows_after(receiver, "SELECT client FROM metrics ORDER BY value") == ["a", "17", "a", None]


def test_tables_of_the_server_are_not_taken_from_a_client(receiver: Receiver, client: HandMadeClient) -> None:
    raw = blocks_of(ROUNDS, metric_rows([1]))
    assert send(receiver, client.signed(raw, 1, 1, books={"produced": 1})) == [STORED]
    found = rows_after(receiver, "SELECT rows_stored, rows_dropped, rows_pending, drops FROM processes")
    assert found == [(0, 1, 0, '{"not_allowed": 1}')]


def test_what_a_client_says_of_its_process_cannot_mislead_readers(receiver: Receiver, client: HandMadeClient) -> None:
    facts = {
        "children": [7], "pid": "x", "daemon_of": 1, "rank": "first", "scratch": "/etc", "host": "server",
        "versions": 3, "host_key": "here", "torch": ["2"], "started_ns": -5, "process": "p",
        "counters": {"steps": "many", "state": 99},
    }  # fmt: skip
    told = {"facts": facts, "ended": {"t_ns": "later", "state": 7}, "withholds": {"steps": "all", "layers": [1] * 900}}
    assert send(receiver, client.batch(1, [1], books={"produced": "1", "drops": {"x": -1}}, **told)) == [STORED]
    found = rows_after(receiver, "SELECT process, pid, host, rank, steps, rows_stored, rows_pending FROM processes")
    assert found == [("a@p1", None, "a", None, 0, 1, 0)]
    with open_run(receiver.directory / "r") as run:
        assert not examine(run).has_problem


@pytest.mark.parametrize(("withholds", "share"), [({}, 0.125), ({"steps": ["*"]}, None)])
def test_times_that_a_site_has_rounded_say_nothing_of_the_overhead(
    receiver: Receiver, client: HandMadeClient, withholds: dict[str, list[str]], share: float | None
) -> None:
    counters = {"spent_ns": 2**27, "started_ns": 10**9, "last_step_ns": 10**9 + 2**30, "steps": 4, "state": 0}
    told = {"facts": {"counters": counters}, "withholds": withholds}
    assert send(receiver, client.batch(1, [1], **told)) == [STORED]
    receiver.close()
    with open_run(receiver.directory / "r") as run:
        assert run.processes()[0]["overhead_share"] == run.summary()["overhead_share"] == share
        (said,) = [check.found for check in examine(run).checks if check.what == "overhead"]
    assert ("not known here" in said) == (share is None)


def test_a_client_of_another_version_is_understood(receiver: Receiver, client: HandMadeClient) -> None:
    """It lacks a column, has one that we do not know, and one of another type."""
    schema = pa.schema([("t_ns", pa.int64()), ("name", pa.string()), ("value", pa.int64()), ("new", pa.float64())])
    rows = pa.RecordBatch.from_pydict({"t_ns": [5], "name": ["i"], "value": [7], "new": [0.5]}, schema=schema)
    unknown = b"".join(encode_block(999, FLAG_LAST, 3, 0, 0, 0, b"later"))
    assert send(receiver, client.signed(blocks_of(METRICS, rows) + unknown, 4, 1)) == [STORED]
    assert rows_after(receiver, "SELECT t_ns, value, step FROM metrics") == [(5, 7.0, None)]


def test_a_restarted_epoch_is_not_taken_for_the_one_before(receiver: Receiver, client: HandMadeClient) -> None:
    assert send(receiver, client.batch(1, [1])) == send(receiver, client.batch(1, [2], epoch="e2")) == [STORED]
    assert rows_after(receiver) == [1, 2]


def test_a_clock_that_is_a_day_off_changes_nothing(receiver: Receiver, client: HandMadeClient) -> None:
    day_ns = 86_400 * 10**9
    shifted = [client.batch(number, [number], t_ns=decode_time(client) + way * day_ns)
               for number, way in ((1, -1), (2, 1), (3, 0))]  # fmt: skip
    assert send(receiver, *shifted) == [STORED] * 3 and rows_after(receiver) == [1, 2, 3]


def decode_time(client: HandMadeClient) -> int:
    return decode_batch(client.batch(1, [1])).header.t_ns


def test_bombs_and_giants_are_refused_before_memory_is_taken(receiver: Receiver, client: HandMadeClient) -> None:
    bomb = compress(bytes(31 << 20))
    found = send(
        receiver,
        client.signed(b"", 1, 1, body=bomb, raw_bytes=40 << 20),
        client.signed(b"", 1, 2, body=bomb, raw_bytes=10),  # says less than it holds
        client.signed(b"", 1, 3, body=bytes(9 << 20)),
        client.signed(b"", 1, 4, books={"x": "y" * (300 << 10)}),
        client.signed(b"", 1, 5, run="../../etc"),
        client.signed(b"", 1, 6, process="a/b"),
    )
    assert [type(one) for one in found] == [BatchError, dict, BatchError, BatchError, BatchError, BatchError]
    found = rows_after(receiver, "SELECT rows_stored FROM processes")
    assert found == [0]


def test_a_client_that_sends_too_much_waits_and_others_do_not(
    receiver: Receiver, client: HandMadeClient, enrolment: Enrolment, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stethos.collect.shares.RATE_BATCHES", 1e-3)  # on a slow machine, too
    other = HandMadeClient(enrolment, "b")
    flood = [client.batch(number, [number]) for number in range(1, int(BURST_BATCHES) + 40)]
    found = send(receiver, *flood, other.batch(1, [1]))
    refused = [one for one in found if isinstance(one, BusyError)]
    assert refused and all(one.status == 429 and one.wait_s > 0 for one in refused) and found[-1] == STORED


def test_on_a_full_disk_nothing_is_acknowledged_and_nothing_is_lost(
    receiver: Receiver, client: HandMadeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = os.pwrite

    def full(descriptor: int, data: Any, at: int) -> int:
        if at > 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(descriptor, bytes(data)[:100], at)  # a part of it fits

    monkeypatch.setattr(os, "pwrite", full)
    (found,) = send(receiver, client.batch(1, [1]))
    assert isinstance(found, BusyError) and found.status == 503 and found.wait_s
    monkeypatch.undo()
    assert send(receiver, client.batch(1, [1])) == [STORED] and rows_after(receiver) == [1]


def test_a_client_that_hangs_up_is_not_told_later_that_a_failed_batch_is_stored(
    receiver: Receiver, client: HandMadeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch, may_write = client.batch(1, [1]), threading.Event()

    def full(batches: Any) -> None:
        may_write.wait(60)
        raise OSError(errno.ENOSPC, "No space left on device")

    async def hang_up() -> Any:
        first = asyncio.create_task(receiver.take(batch))
        await asyncio.sleep(0.05)
        first.cancel()
        second = asyncio.create_task(receiver.take(batch))  # while the first is still on its way
        await asyncio.sleep(0.05)
        was_told = second.done()
        may_write.set()
        return was_told, *await asyncio.gather(second, return_exceptions=True)

    with monkeypatch.context() as broken:
        broken.setattr(receiver._journal, "commit", full)
        was_told, found = asyncio.run(hang_up())
    assert not was_told and isinstance(found, BusyError)
    assert send(receiver, batch) == [STORED] and rows_after(receiver) == [1]


def test_a_file_of_the_journal_goes_after_its_last_batch(
    tmp_path: Path, enrolment: Enrolment, client: HandMadeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing writes the runs here, so what is queued stands in the order in which it would be done."""
    monkeypatch.setattr("stethos.collect.journal.ROLL_BYTES", 1)
    monkeypatch.setattr(RunWriter, "start", lambda self: None)
    idle = Receiver(tmp_path / "idle", enrolment)
    assert send(idle, *(client.batch(number, [number]) for number in (1, 2, 3))) == [STORED] * 3
    queued = [idle._runs._queue.get(timeout=1) for _ in range(4)]
    numbers = [item[0].header.number if isinstance(item, tuple) else "journal" for item in queued]
    assert numbers == [1, 2, 3, "journal"]


def test_the_journal_is_kept_until_all_that_came_before_is_saved(
    receiver: Receiver, client: HandMadeClient, enrolment: Enrolment, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stethos.collect.journal.ROLL_BYTES", 1)
    monkeypatch.setattr("stethos.collect.run_writer.SAVE_S", 0.05)
    monkeypatch.setattr("stethos.collect.run_writer.SAVE_SHARE", 0.0)  # no time for manifests
    journal = receiver.directory / ".collector"
    assert send(receiver, client.batch(1, [1]), HandMadeClient(enrolment, "b").batch(1, [2])) == [STORED] * 2
    time.sleep(0.3)
    assert (journal / "000000001.journal").stat().st_size > 0
    monkeypatch.setattr("stethos.collect.run_writer.SAVE_SHARE", 1.0)
    wait_until(lambda: not (journal / "000000001.journal").exists(), "a journal that is no longer needed")
    assert rows_after(receiver) == [1, 2]


def test_a_run_that_cannot_be_made_yet_gets_its_rows_later(
    receiver: Receiver, client: HandMadeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stethos.collect.run_writer._RETRY_S", 0.01)
    tries: list[str] = []
    create = RunPlace.create

    def full(self: RunPlace, facts: dict[str, Any]) -> None:
        tries.append(self.name)
        if len(tries) < 3:
            raise RecordingError("cannot record: No space left on device")
        create(self, facts)

    monkeypatch.setattr(RunPlace, "create", full)
    assert send(receiver, client.batch(1, [1])) == [STORED]
    wait_until(lambda: len(tries) == 3, "a third try")
    assert rows_after(receiver) == [1]


@pytest.mark.parametrize("limit", ["FEWEST_OPEN", "MOST_KNOWN"])
def test_more_processes_than_are_kept_open_or_known_are_written(
    tmp_path: Path, enrolment: Enrolment, monkeypatch: pytest.MonkeyPatch, limit: str
) -> None:
    monkeypatch.setattr("stethos.collect.run_writer._allowed_files", lambda wanted: 0)
    monkeypatch.setattr(f"stethos.collect.run_writer.{limit}", 2)
    clients = [HandMadeClient(enrolment, f"c{place}") for place in range(6)]
    few = Receiver(tmp_path / "few", enrolment)
    for number in (1, 2, 3):
        values = [(client, 10 * place + number) for place, client in enumerate(clients)]
        assert send(few, *(client.batch(number, [value]) for client, value in values)) == [STORED] * 6
    assert rows_after(few) == sorted(10 * place + number for place in range(6) for number in (1, 2, 3))


@given(data=st.data())
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_changed_bytes_are_never_taken(client: HandMadeClient, receiver: Receiver, data: st.DataObject) -> None:
    whole = client.batch(data.draw(st.integers(1, 10**6)), [1, 2])
    at = data.draw(st.integers(0, len(whole) - 1))
    changed = bytearray(whole)
    changed[at] ^= data.draw(st.integers(1, 255))
    (found,) = send(receiver, bytes(changed[: data.draw(st.integers(1, len(whole)))]))
    assert isinstance(found, BatchError | BusyError)


@given(numbers=st.lists(st.integers(1, 60), max_size=80), gone=st.lists(st.integers(1, 60), max_size=20))
@settings(max_examples=60, deadline=None)
def test_intervals_are_sets_of_numbers(numbers: list[int], gone: list[int]) -> None:
    found, plain = Intervals(), set()
    for number in numbers:
        found.add(number)
        plain.add(number)
    for number in gone:
        found.discard(number)
        plain.discard(number)
    assert [one for one in range(70) if one in found] == sorted(plain)
    assert found.runs == sorted(found.runs) == json.loads(json.dumps(Intervals(found.runs).runs))


@pytest.mark.parametrize("spoil", [
    lambda header: replace(header, lane=7),
    lambda header: replace(header, number=-1),
    lambda header: replace(header, number=1.5),
    lambda header: replace(header, facts=[]),
    lambda header: replace(header, client="a/../b"),
    lambda header: replace(header, client=["a"]),
])  # fmt: skip
def test_headers_are_checked(client: HandMadeClient, spoil: Callable[[Any], Any]) -> None:
    from stethos.collect.batch import encode_batch

    header = decode_batch(client.batch(1, [1])).header
    with pytest.raises(BatchError):
        decode_batch(encode_batch(spoil(replace(header, digest=digest_of(b""), raw_bytes=0)), b"", client.key.sign))


def test_who_gives_a_name_away_again_is_told_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    words = ("enroll", "--new", "a", "--keys", str(tmp_path / "keys"))
    assert main([*words]) == 0 and "already" not in capsys.readouterr().out
    HandMadeClient(Enrolment(tmp_path / "keys"), "a")
    assert main([*words]) == 0 and "a is enrolled already" in capsys.readouterr().out


def test_a_relay_is_not_its_own_upstream(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    keys = open_keys(tmp_path / "keys")
    site = make_site(tmp_path / "site", "relay", "127.0.0.1:7468", keys.fingerprint)
    words = ("collect", "--upstream", str(site.path), "--keys", str(keys.directory), "--listen", "127.0.0.1:0")
    assert main([*words]) == 2 and "--keys DIR" in capsys.readouterr().err


def test_a_token_works_once(enrolment: Enrolment) -> None:
    token = enrolment.invite("a", "0" * 64)
    assert enrolment.enrol(token.secret, "1" * 64) == "a"
    for secret in (token.secret, "2" * 64):
        with pytest.raises(NotEnrolledError, match="was used"):
            enrolment.enrol(secret, "3" * 64)
    assert enrolment.clients()["a"].key == "1" * 64


def test_a_revoked_name_has_no_token_left(enrolment: Enrolment) -> None:
    lost, other = (enrolment.invite(name, "0" * 64) for name in ("b", "c"))
    assert set(enrolment.invited()) == {"b", "c"}
    enrolment.revoke("b")
    with pytest.raises(NotEnrolledError):
        enrolment.enrol(lost.secret, "1" * 64)
    assert enrolment.enrol(other.secret, "1" * 64) == "c" and not enrolment.invited()
    with pytest.raises(UsageError):
        enrolment.revoke("nobody")
