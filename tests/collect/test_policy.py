"""What may leave a site, and that nothing else does."""

from __future__ import annotations

import json
import random
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from made_up import CANARY, made_up, rows_of
from processes import command

from stethos.collect.filter import error_type, filtered, filtered_facts, frames_of
from stethos.collect.policy import DROP, LEVELS, PRESETS, Policy, leaves_page, parse_policy
from stethos.collect.report import filtered_report
from stethos.collect.site import make_site
from stethos.errors import UsageError
from stethos.record.arrow import serialize_batch
from stethos.schema import CLIENT_REPORTS, LAYERS, RECORDED, STEPS

# Names that Stethos itself or the federation's server gives: no text of the site's.
ENUMS = {
    (table, column)
    for table, columns in {
        "client_reports": "client side federation status", "gaps": "what client", "steps": "client model",
        "hangs": "role cause",
        "legs": "client federation side leg work", "modules": "client module stage", "memory": "client class device",
    }.items()
    for column in columns.split()
}  # fmt: skip


@pytest.mark.parametrize("level", ["L0", "L1", "L2", "L3"])
def test_nothing_leaves_that_is_not_listed(level: str) -> None:
    chance, policy = random.Random(level), parse_policy(f'level = "{level}"')
    for table in RECORDED.values():
        for _ in range(20):
            found = filtered(policy, table, made_up(table, 20, chance))
            listed = PRESETS[policy.level].get(table.name, {})
            assert (found is not None) == policy.allows(table.name)
            if found is None:
                continue
            for name in found.schema.names:
                column = found.column(found.schema.get_field_index(name))
                if listed.get(name, DROP).way == "drop":
                    assert column.null_count == len(column), (table.name, name)
                elif (table.name, name) not in ENUMS:
                    assert CANARY not in str(column.to_pylist()), (table.name, name)
            kept_back = [f for f in found.schema.names if (table.name, f) not in ENUMS]
            alone = pa.RecordBatch.from_arrays([found.column(f) for f in kept_back], names=kept_back)
            sent = bytes(serialize_batch(alone))
            assert CANARY.encode() not in sent and CANARY.encode("utf-16-le") not in sent


def test_what_leaves_by_default_does_not_depend_on_the_data() -> None:
    """The rows of two trainings whose labels are permuted differ in losses and confusion alone."""
    chance = np.random.default_rng(0)
    schedule = {
        "side": ["client"] * 8, "client": ["7"] * 8, "round": list(range(8)), "status": ["ok"] * 8,
        "samples": [500] * 8, "steps": [40] * 8, "t_ns": [10**18 + 7 * 10**8 * i for i in range(8)],
        "duration_ms": [float(value) for value in chance.uniform(10, 900, 8)], "raw_bytes": [123_456] * 8,
    }  # fmt: skip

    def told(losses: list[float], confusion: str) -> bytes:
        about = {"loss": losses, "entry_loss": losses, "exit_loss": losses, "accuracy": losses,
                 "confusion": [confusion] * 8, "metrics": [confusion] * 8, "label": [confusion] * 8}  # fmt: skip
        found = filtered(Policy(), CLIENT_REPORTS, rows_of(CLIENT_REPORTS, {**schedule, **about}, 8))
        assert found is not None
        return bytes(serialize_batch(found))

    first = told([0.1 * i for i in range(8)], "[[5, 0], [0, 3]]")
    assert first == told([2.0 - i for i in range(8)], "[[0, 5], [3, 0]]")
    assert filtered(Policy(), STEPS, rows_of(STEPS, {"loss": [1.0]}, 1)) is None


def test_numbers_are_bucketed_rounded_and_left_out_where_samples_are_few() -> None:
    policy = parse_policy('level = "L2"\n[tables.steps]\ngrad_norm = {digits = 1, clip = [0, 10]}')
    rows = {
        "samples": [32, 31, None, 64, 64], "loss": [1.23456, 1.0, 1.0, float("nan"), -0.0012345],
        "grad_norm": [123.0, 1.0, 1.0, 0.047, 0.0], "step_ms": [3.1, 0.0, None, 4.0, 0.3], "t_ns": [1_999_999_999] * 5,
    }  # fmt: skip
    found = filtered(policy, STEPS, rows_of(STEPS, rows, 5))
    assert found is not None
    told = found.to_pydict()
    assert str(told["loss"]) == "[1.2, None, None, nan, -0.0012]"
    assert told["grad_norm"] == [10.0, None, None, 0.05, 0.0]
    assert told["step_ms"] == [4.0, 0.0, None, 4.0, 0.5] and told["samples"] == [32, 32, None, 64, 64]
    assert told["t_ns"] == [1_000_000_000] * 5
    buffers = b"".join(bytes(one) for one in found.column("loss").buffers() if one is not None)
    assert np.float64(1.0).tobytes() not in buffers  # nor does what is NULL leave a trace


@pytest.mark.parametrize("level", ["L1", "L2", "L3"])
def test_what_stands_beneath_a_null_does_not_leave(level: str) -> None:
    rows = rows_of(CLIENT_REPORTS, {"samples": [64, 64], "loss": [1.0, 2.0]}, 2)
    hidden = pa.Array.from_buffers(pa.int32(), 2, [pa.py_buffer(b"\x02"), pa.py_buffer(b"\x11\x22\x33\x44" * 2)])
    columns = [hidden if name == "base_round" else rows.column(name) for name in rows.schema.names]
    found = filtered(
        parse_policy(f'level = "{level}"'), CLIENT_REPORTS, pa.RecordBatch.from_arrays(columns, rows.schema.names)
    )
    assert found is not None and found.column("base_round").to_pylist() == [None, 0x44332211]
    assert bytes(found.column("base_round").buffers()[1]).count(b"\x11\x22\x33\x44") == 1


def test_of_an_error_the_type_and_of_a_traceback_the_frames_leave() -> None:
    trace = (
        f'Traceback (most recent call last):\n  File "/home/{CANARY}/a.py", line 7, in fit\n    raise X("{CANARY}")\n'
    )
    assert frames_of(trace) == "fit (a.py:7)"
    assert [error_type(text) for text in ("ValueError: x", "a.b.Odd: y", "what is this", "")] == [
        "ValueError", "Odd", "error", "error",
    ]  # fmt: skip
    facts = {"host": CANARY, "cwd": CANARY, "command": [CANARY], "config": {"x": CANARY}, "error": f"E: {CANARY}",
             "traceback": trace, "torch": "2.9", "started_ns": 1_999_999_999, "rank": 0}  # fmt: skip
    told = filtered_facts(Policy(), facts)
    assert CANARY not in str(told) and told["started_ns"] == 10**9 and told["torch"] == "2.9" and told["error"] == "E"


def test_everything_leaves_for_a_day_at_most() -> None:
    now = time.time()
    until = [time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(now + hours * 3600)) for hours in (8, -1, 25)]
    assert parse_policy(f'level = "L4"\nuntil = {until[0]}').allows("logs")
    assert parse_policy(f'level = "L4"\nuntil = {until[1]}').level == "L1"
    for text in ('level = "L4"', f'level = "L4"\nuntil = {until[2]}'):
        with pytest.raises(UsageError):
            parse_policy(text)


def test_after_a_grant_the_sites_own_level_holds_again() -> None:
    now = time.time()
    until = [time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(now + hours * 3600)) for hours in (8, 25)]
    text = f"grant_until = {until[0]}\nlevel = 'L0'\n[tables]\nhost = 'drop'\n"
    granted = parse_policy(text, now)
    assert granted.level == "L4" and granted.allows("logs") and not granted.allows("host")
    after = parse_policy(text, now + 9 * 3600)
    assert after.level == "L0" and not after.allows("client_reports") and not after.covers(granted.stamp)
    for wrong in (f"grant_until = {until[1]}", "grant_until = 7", "grant_until = 0001-01-01T00:00:00"):
        with pytest.raises(UsageError):
            parse_policy(wrong, now)


def test_the_command_grants_and_ends_without_touching_the_rest_of_the_file(tmp_path: Path) -> None:
    site = make_site(tmp_path / "site", "hospital-a")
    own = "# ours\nlevel = 'L0'\n[tables]\nhost = 'drop'\n"
    site.policy_path.write_text(own)
    assert json.loads(command("policy", "--site", site.path, "--grant-hours", "8", "--json").stdout)["level"] == "L4"
    command("policy", "--site", site.path, "--grant-hours", "2")
    assert site.policy_path.read_text().endswith("Z\n" + own) and site.policy_path.read_text().count("grant_until") == 1
    assert "; then L0 again" in command("policy", "--site", site.path).stdout
    command("policy", "--site", site.path, "--grant-hours", "0")
    assert site.policy_path.read_text() == own


@pytest.mark.parametrize("text", [
    "level = 7", 'level = "L9"', 'level = "L3"\n[noise]\nepsilon = 99', 'level = "L3"\n[noise]\nsigma = 1',
    'level = "L3"\n[tables.steps]\nloss = "noise"', "levle = 1", "level", "min_count = 0", "tables = 3",
    "[tables.nothing]\na = 'keep'", "[tables.steps]\nnothing = 'keep'", "[tables.steps]\nloss = 'maybe'",
    "[tables.steps]\nmodel = 'bucket'", "[tables.steps]\nloss = {digits = 99}", "[tables]\nsteps = 'keep'",
    f"min_count = {'1' * 5000}", 'level = "L4"\nuntil = 0001-01-01T00:00:00', f"{'a.' * 30_000}a = 1",
    f"[tables.steps]\nloss = {{digits = 2, clip = [1{'0' * 400}, 1]}}",
    "[tables.steps]\nloss = {digits = 2, min_count = -1}", "[tables.steps]\nloss = {digits = 2, min_count = false}",
    "[tables.steps]\nloss = {digits = 2, clip = [nan, 1]}",
])  # fmt: skip
def test_a_policy_that_cannot_be_understood_is_refused(text: str) -> None:
    with pytest.raises(UsageError):
        parse_policy(text)


def test_a_site_may_keep_back_or_add_tables_and_columns() -> None:
    policy = parse_policy(
        "[tables]\nhost = 'drop'\n[tables.logs]\nlevel = 'keep'\n[tables.client_reports]\nsteps = 'drop'"
    )
    assert not policy.allows("host") and policy.allows("logs") and "message" in policy.withholds()["logs"]
    assert "steps" in policy.withholds()["client_reports"] and policy.withholds()["host"] == ["*"]


def test_a_column_may_need_more_samples_than_others() -> None:
    """In rows and in the report of a reply alike."""
    policy = parse_policy("level = 'L2'\n[tables.client_reports]\nloss = {digits = 2, min_count = 64}")
    rows = rows_of(CLIENT_REPORTS, {"samples": [32, 63, 64], "loss": [0.25] * 3, "accuracy": [0.5] * 3}, 3)
    found = filtered(policy, CLIENT_REPORTS, rows)
    assert found is not None
    assert found.column("loss").to_pylist() == [None, None, 0.25] and found.column("accuracy").to_pylist() == [0.5] * 3
    told = [filtered_report(policy, {"samples": n, "loss": 0.25, "accuracy": 0.5}) for n in (32, 63, 64)]
    assert [("loss" in one, one.get("accuracy")) for one in told] == [(False, 0.5), (False, 0.5), (True, 0.5)]
    assert policy.stamp != parse_policy("level = 'L2'\n[tables.client_reports]\nloss = {digits = 2}").stamp


def test_a_number_of_which_no_row_says_the_samples_leaves_where_none_are_asked_for() -> None:
    """Rows of `layers` have no samples: with a least number of them the column would be empty for ever."""
    with pytest.raises(UsageError, match="no row of `layers` says how many samples are behind norm") as caught:
        parse_policy("level = 'L2'\n[tables.layers]\nnorm = {digits = 2}")
    assert "min_count = 0" in str(caught.value.hint)
    policy = parse_policy("level = 'L2'\n[tables.layers]\nnorm = {digits = 2, min_count = 0}")
    rows = rows_of(LAYERS, {"norm": [0.123456, None]}, 2)
    found = filtered(policy, LAYERS, rows)
    assert found is not None and found.column("norm").to_pylist() == [0.12, None]
    reports = parse_policy("level = 'L2'\n[tables.client_reports]\nloss = {digits = 2, min_count = 0}")
    assert filtered_report(reports, {"loss": 0.123456, "accuracy": 0.5}) == {"loss": 0.12}


def test_every_level_has_a_preset_and_stands_on_the_page() -> None:
    assert set(PRESETS) == set(LEVELS) and all(f" {level} |" in leaves_page() for level in LEVELS)
