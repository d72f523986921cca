"""A relay lets nothing through that its own site's policy keeps back, and all that the policy has made."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from collecting import CollectorProcess, HandMadeClient, blocks_of, everything
from made_up import made_up
from processes import command, drainers_of, environment, finish, start_program, wait_until

from stethos.collect.batch import BatchError, SignedBatch, decode_batch
from stethos.collect.enrolment import Enrolment
from stethos.collect.filter import filtered, filtered_facts
from stethos.collect.gate import check_batch
from stethos.collect.policy import LEVELS, Policy, parse_policy
from stethos.collect.site import SiteHome, open_site
from stethos.schema import CLIENT_REPORTS, METRICS, RECORDED, STEPS, Table
from stethos.store.run import open_run

ROWS = 60
FACTS = {
    "python": "3.11", "rank": 0, "started_ns": 1_700_000_000_123_456_789, "error": "ValueError: patient 7 is ill",
    "traceback": 'Traceback\n  File "/home/anna/train.py", line 3, in fit\n    x = 7\nValueError: patient 7 is ill\n',
}  # fmt: skip


def policy_of(level: str) -> Policy:
    return parse_policy(everything() if level == "L4" else f'level = "{level}"')


@pytest.fixture
def writer(tmp_path: Path) -> HandMadeClient:
    (tmp_path / "keys").mkdir()
    return HandMadeClient(Enrolment(tmp_path / "keys"), "hospital-a")


def holding(writer: HandMadeClient, table: Table, rows: pa.RecordBatch, **header: Any) -> SignedBatch:
    return decode_batch(writer.signed(blocks_of(table, rows), rows.num_rows, 1, **header))


@pytest.mark.parametrize("level", LEVELS)
def test_what_a_policy_has_made_passes_the_same_policy(level: str, writer: HandMadeClient) -> None:
    policy, chance = policy_of(level), random.Random(level)
    passed = 0
    for table in RECORDED.values():
        rows = filtered(policy, table, made_up(table, ROWS, chance))
        if rows is not None:
            check_batch(policy, holding(writer, table, rows, facts=filtered_facts(policy, FACTS)))
            passed += 1
    assert passed >= (0 if level == "L0" else 5)


@pytest.mark.parametrize("level", ["L0", "L1", "L2", "L3"])
def test_what_more_was_let_through_elsewhere_does_not_pass(level: str, writer: HandMadeClient) -> None:
    policy, chance = policy_of(level), random.Random(level)
    for table in RECORDED.values():
        with pytest.raises(BatchError, match="polic"):
            check_batch(policy, holding(writer, table, made_up(table, ROWS, chance)))


@pytest.mark.parametrize(
    ("table", "name", "value"),
    [(CLIENT_REPORTS, "error", "ValueError: patient 7"), (CLIENT_REPORTS, "samples", 100), (CLIENT_REPORTS, "t_ns", 1),
     (CLIENT_REPORTS, "loss", 0.25), (CLIENT_REPORTS, "traceback", "fit (train.py:3)\nand x = 7")],
    ids=lambda value: str(value)[:12],
)  # fmt: skip
def test_one_value_too_many_is_named(table: Table, name: str, value: Any, writer: HandMadeClient) -> None:
    policy = policy_of("L1")
    rows = filtered(policy, table, made_up(table, 1, random.Random(3)))
    assert rows is not None
    check_batch(policy, holding(writer, table, rows))
    place = rows.schema.get_field_index(name)
    more = rows.set_column(place, rows.schema.field(place), pa.array([value], rows.schema.field(place).type))
    with pytest.raises(BatchError, match=f"keeps back {table.name}.{name}"):
        check_batch(policy, holding(writer, table, more))


@pytest.mark.parametrize("name", ["started_ns", "error", "traceback", "host"])
def test_facts_beyond_the_policy_do_not_pass(name: str, writer: HandMadeClient) -> None:
    policy = policy_of("L1")
    facts = {**filtered_facts(policy, FACTS), name: FACTS.get(name, "icu-3")}
    with pytest.raises(BatchError, match=f"the fact '{name}'"):
        check_batch(policy, decode_batch(writer.signed(b"", 0, 1, facts=facts)))


COUNTERS = {"spent_ns": 2**20, "started_ns": 17 * 10**17, "last_step_ns": 17 * 10**17, "state": 3, "steps": 64}


@pytest.mark.parametrize(("level", "name", "value"), [
    ("L1", "steps", 60), ("L3", "steps", 60), ("L2", "spent_ns", 7), ("L1", "last_step_ns", 17 * 10**17 + 1),
    ("L1", "t_ns", 5),
])  # fmt: skip
def test_counters_beyond_the_policy_do_not_pass(level: str, name: str, value: int, writer: HandMadeClient) -> None:
    """They would tell the exact number of steps, and so how much data a site has."""
    ended = {"t_ns": 18 * 10**17, **COUNTERS}
    check_batch(policy_of(level), decode_batch(writer.signed(b"", 0, 1, facts={"counters": COUNTERS}, ended=ended)))
    for more in ({"facts": {"counters": {**COUNTERS, name: value}}}, {"ended": {**ended, name: value}}):
        with pytest.raises(BatchError, match=f"the counter '{name}'"):
            check_batch(policy_of(level), decode_batch(writer.signed(b"", 0, 1, **more)))
        check_batch(policy_of("L4"), decode_batch(writer.signed(b"", 0, 1, **more)))


def test_the_exact_number_of_steps_passes_where_steps_do(writer: HandMadeClient) -> None:
    check_batch(policy_of("L2"), decode_batch(writer.signed(b"", 0, 1, facts={"counters": {**COUNTERS, "steps": 60}})))


def test_what_was_withheld_is_not_told_by_table(writer: HandMadeClient) -> None:
    plain = {"produced": 9, "withheld": {"rows": 7}}
    check_batch(policy_of("L1"), decode_batch(writer.signed(b"", 0, 1, books=plain)))
    with pytest.raises(BatchError, match="of which tables"):
        check_batch(policy_of("L1"), decode_batch(writer.signed(b"", 0, 1, books={"withheld": {"steps": 7}})))


def test_at_l0_not_even_the_books_pass(writer: HandMadeClient) -> None:
    with pytest.raises(BatchError, match="L0"):
        check_batch(policy_of("L0"), decode_batch(writer.signed(b"", 0, 1)))


@pytest.mark.parametrize("odd", ["yesterday", [1], {"a": 1}, float("inf"), float("nan")], ids=str)
def test_odd_facts_are_refused_as_a_batch_is(odd: Any, writer: HandMadeClient) -> None:
    with pytest.raises(BatchError, match="cannot read"):
        check_batch(policy_of("L1"), decode_batch(writer.signed(b"", 0, 1, facts={"started_ns": odd})))


@pytest.mark.parametrize("name", ["samples", "t_ns", "error"])
def test_columns_of_another_type_do_not_pass(name: str, writer: HandMadeClient) -> None:
    rows = made_up(CLIENT_REPORTS, 3, random.Random(5))
    place = rows.schema.get_field_index(name)
    other = pa.array(["7"] * 3) if name != "error" else pa.array([1.0] * 3)
    with pytest.raises(BatchError, match="another type"):
        check_batch(policy_of("L1"), holding(writer, CLIENT_REPORTS, rows.set_column(place, name, other)))


def test_columns_of_another_version(writer: HandMadeClient) -> None:
    """Fewer are no harm; one that is not known here is kept back."""
    policy = policy_of("L4")
    rows = made_up(METRICS, 5, random.Random(1))
    check_batch(policy, holding(writer, METRICS, rows.drop_columns(["value"])))
    with pytest.raises(BatchError, match=r"keeps back metrics\.diagnosis"):
        check_batch(policy, holding(writer, METRICS, rows.append_column("diagnosis", pa.array(["ill"] * 5))))


def test_what_cannot_be_read_does_not_pass(writer: HandMadeClient) -> None:
    raw = blocks_of(STEPS, made_up(STEPS, 5, random.Random(1)))
    damaged = raw[:-30] + bytes(30)
    for batch in (writer.signed(damaged, 5, 1), writer.signed(raw, 4, 1), writer.signed(raw[: len(raw) // 2], 5, 1)):
        with pytest.raises(BatchError, match="cannot be read"):
            check_batch(policy_of("L4"), decode_batch(batch))


# A real relay -----------------------------------------------------------------------------------------------


@pytest.fixture
def chain(tmp_path: Path) -> Iterator[tuple[CollectorProcess, CollectorProcess, SiteHome, SiteHome]]:
    """A collector, a relay with the policy that enrolment gives it, its site, and that of a client behind it."""
    (tmp_path / "relay").mkdir()
    collector = CollectorProcess(tmp_path)
    collector.start()
    upstream = collector.enrol(tmp_path / "upstream", "relay-1")
    relay = CollectorProcess(tmp_path / "relay", upstream.path)
    relay.start()
    given = tmp_path / "hospital-a.token"
    given.write_text(collector.enrolment.invite("hospital-a", collector.keys.fingerprint).line())
    command("enroll", "--through", given, "--keys", relay.keys.directory)
    command("enroll", relay.address, "--token-file", tmp_path / "hospital-a.relay.token", "--site", tmp_path / "site")
    yield collector, relay, upstream, open_site(tmp_path / "site")
    relay.stop()
    collector.stop()


def logged_at(site: SiteHome, run: str) -> None:
    (site.path / "rt").mkdir(mode=0o700, exist_ok=True)
    mine = environment(STETHOS_SITE=str(site.path), XDG_RUNTIME_DIR=str(site.path / "rt"))
    assert finish(start_program("rows_on_demand.py", site.runs, run, env=mine), "100\n").returncode == 0
    wait_until(lambda: not drainers_of(site.runs), "the end of the drainer")
    command("collect", "--send", site.path)


def test_a_relay_holds_its_clients_to_the_policy_of_its_site(
    chain: tuple[CollectorProcess, CollectorProcess, SiteHome, SiteHome],
) -> None:
    collector, _, upstream, site = chain
    logged_at(site, "plain")  # at the default level, as the relay
    wait_until(lambda: (collector.runs / "plain").exists(), "what may leave")
    site.policy_path.write_text(everything())
    logged_at(site, "open")
    audit = [json.loads(line) for line in (upstream.path / "audit.jsonl").read_text().splitlines()]
    refused = [one for one in audit if one["what"] == "policy"]
    assert refused and {one["client"] for one in refused} == {"hospital-a"}
    assert "keeps back" in refused[0]["why"]
    own = [json.loads(line) for line in (site.path / "audit.jsonl").read_text().splitlines()]
    assert any("refused for good" in one.get("outcome", "") and "keeps back" in one["why"] for one in own)
    if (collector.runs / "open").exists():
        with open_run(collector.runs / "open") as run:
            assert run.rows("SELECT count(*) FROM metrics").values == [(0,)]
            assert run.processes()[0]["command"] is None
