"""What must hold of everything that leaves a site, with a real client's turns; `LONG_TESTS=1` for the whole sizes."""

from __future__ import annotations

import base64
import json
import os
import random
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from collecting import everything
from made_up import made_up
from processes import PROGRAMS, drainers_of, environment, wait_until

import stethos
from benchmarks.faults.design import cases
from benchmarks.membership import trial, world
from benchmarks.privacy import figures, played
from stethos.collect.batch import decode_batch, decompress
from stethos.collect.filter import filtered, filtered_facts
from stethos.collect.policy import FACTS, PRESETS, Policy, parse_policy
from stethos.collect.site import SiteHome, make_site, own_key
from stethos.collect.spool import LANES, books_of, read_spool, spools_in
from stethos.lab.data import load
from stethos.record.arrow import segment_schema, serialize_batch
from stethos.schema import RECORDED, Kind, Table
from stethos.store.run import open_run

IS_LONG = bool(os.environ.get("LONG_TESTS"))
SECRET = "Ward7391-XQ"
SOURCES = Path(stethos.__file__).parent
FACTS_OF_HEADER = {"counters", *FACTS}


@dataclass(frozen=True)
class Visit:
    """A client's turns at a site of which nothing was taken yet: what waits is what would leave."""

    site: SiteHome
    sent: bytes  # all headers and all rows, as they would leave
    headers: list[dict[str, Any]]


def visit(path: Path, policy: str, labels: int = 1) -> Visit:
    """Run `hospital.py` at a new site whose collector is not there."""
    path.mkdir(exist_ok=True)
    site = make_site(path / "site", "a", "127.0.0.1:1", "0" * 64)
    own_key(site.path)
    site.policy_path.write_text(policy)
    here = path / SECRET
    for directory in (here, site.path / "rt"):
        directory.mkdir(mode=0o700)
    program = here / "hospital.py"
    program.write_text((PROGRAMS / "hospital.py").read_text())
    words = [sys.executable, str(program), str(site.runs), "r", SECRET, str(labels)]
    own = environment(STETHOS_SITE=str(site.path), XDG_RUNTIME_DIR=str(site.path / "rt"), WARD=SECRET)
    ended = subprocess.run(words, cwd=here, env=own, capture_output=True, text=True, check=False, timeout=300)
    assert ended.returncode == 1 and SECRET in ended.stderr, ended.stderr
    wait_until(lambda: not drainers_of(site.runs), "the end of the drainer")
    pieces, headers = [], []
    for spool in map(read_spool, spools_in(site.spool)):
        for lane in LANES:
            for entry in spool.entries(lane, 0):
                batch = decode_batch(entry.data)
                pieces += [batch.signed, bytes(decompress(batch))]
                headers.append(json.loads(batch.signed))
    return Visit(site, b"".join(pieces), headers)


@pytest.fixture(scope="module")
def by_default(tmp_path_factory: pytest.TempPathFactory) -> Visit:
    return visit(tmp_path_factory.mktemp("default"), "")


def forms_of(text: str) -> list[bytes]:
    """A text as it could be hidden: in other encodings, as hexadecimal, and inside of base64 at any place."""
    plain = text.encode()
    found = [plain, plain.lower(), plain.upper(), text.encode("utf-16-le"), text.encode("utf-16-be"),
             plain.hex().encode(), plain.hex().upper().encode(), plain[::-1]]  # fmt: skip
    for before in (b"", b"x", b"xy"):  # the characters in the middle depend on nothing around them
        inside = base64.b64encode(before + plain + b"zz")[4:-8]
        found += [inside, inside.replace(b"+", b"-").replace(b"/", b"_")]
    return found


def test_g1_no_column_leaves_that_is_not_listed() -> None:
    """Generated rows of every table, with something in every column, at every level."""
    rows_of_each = 100_000 // (len(RECORDED) * 4) + 1 if IS_LONG else 60
    for level in ("L0", "L1", "L2", "L3"):
        policy, chance = parse_policy(f'level = "{level}"'), random.Random(level)
        for table in RECORDED.values():
            found = filtered(policy, table, made_up(table, rows_of_each, chance))
            listed = PRESETS[policy.level].get(table.name, {})
            told = {name for name in (found.schema.names if found is not None else ())
                    if found is not None and found.column(name).null_count < rows_of_each}  # fmt: skip
            assert told <= set(listed), (level, table.name, told - set(listed))


def test_g1_there_is_one_way_out() -> None:
    """Rows become batches in one module, which filters them, and replies are made in another; a relay compares."""
    made = {"encode_batch(": {"forward.py"}, "filtered_report(policy": {"ride.py"},
            "filtered(policy": {"forward.py", "gate.py"}}  # fmt: skip
    for call, modules in made.items():
        found = {path.name for path in SOURCES.rglob("*.py") for line in path.read_text().splitlines()
                 if call in line and not line.startswith("def ")}  # fmt: skip
        assert found == modules, (call, found)
    assert (SOURCES / "collect/forward.py").read_text().count("return filtered(policy, table, batch") == 2


def test_g1_headers_tell_only_what_is_listed(by_default: Visit) -> None:
    known = {"client", "run", "process", "epoch", "lane", "number", "rows", "raw_bytes", "digest", "t_ns", "books",
             "withholds", "facts", "ended"}  # fmt: skip
    assert all(set(one) == known for one in by_default.headers)
    facts = {name for one in by_default.headers for name in one["facts"]}
    assert "counters" in facts and facts <= FACTS_OF_HEADER, facts - FACTS_OF_HEADER
    for one in by_default.headers:
        counters = {**one["facts"].get("counters", {}), **one["ended"]}
        assert all(counters.get(name, 0) % 10**9 == 0 for name in ("t_ns", "started_ns", "last_step_ns"))
        assert all(bin(counters.get(name, 0)).count("1") <= 1 for name in ("steps", "spent_ns"))
        assert set(one["books"]["withheld"]) == {"rows"}


def test_the_books_that_leave_are_those_that_stay(by_default: Visit) -> None:
    (spool,) = map(read_spool, spools_in(by_default.site.spool))
    books = books_of(spool)
    sent = max(one["books"]["produced"] for one in by_default.headers)
    last = next(one for one in reversed(by_default.headers) if one["books"]["produced"] == sent)
    rows = sum(one["rows"] for one in by_default.headers)
    assert books["produced"] == sent == rows + sum(books["drops"].values()) + sum(last["books"]["withheld"].values())


@pytest.mark.parametrize("level", ["L1", "L3"] if IS_LONG else ["L1"])
def test_g2_no_secret_leaves_in_any_form(level: str, by_default: Visit, tmp_path: Path) -> None:
    found = by_default if level == "L1" else visit(tmp_path, 'level = "L3"\n')
    assert b"compute" in found.sent  # of the legs: the search looks at rows
    for form in forms_of(SECRET):
        assert form not in found.sent, form


if IS_LONG:

    def test_g2_what_a_site_grants_does_leave(tmp_path: Path) -> None:
        """So the search would find a secret, if one left."""
        assert SECRET.encode() in visit(tmp_path, everything()).sent


def test_g2_the_search_finds_what_is_hidden() -> None:
    for hidden in (base64.b64encode(b"1" * place + SECRET.encode() + b"2" * 9) for place in range(7)):
        assert any(form in hidden for form in forms_of(SECRET)), hidden


# G3 -----------------------------------------------------------------------------------------------------

# On a slow machine a leg takes longer and tells so more often, or at all.
_LAST_HEARTBEATS = """WHERE leg <> 'computing'
    QUALIFY row_number() OVER (PARTITION BY round, leg ORDER BY t_ns DESC) = 1 ORDER BY round, leg"""
_MEASURED = ("_ns", "_ms", "_s", "_bytes", "_share", "threads", "age_s")  # by the clock or the machine


def told_under_a_stopped_clock(site: SiteHome) -> dict[str, bytes]:
    """What L1 lets through of a site's own recording, once all that clock and machine measured is made alike."""
    told: dict[str, bytes] = {}
    with open_run(site.runs / "r") as run:
        for table in RECORDED.values():
            if table.name in ("host", "gpu") or not Policy().allows(table.name):
                continue
            rows = run.rows(f"SELECT * FROM {table.name} {_LAST_HEARTBEATS if table.name == 'legs' else ''}")
            columns = dict(zip(rows.columns, zip(*rows.values, strict=True), strict=True)) if rows.values else {}
            left = filtered(Policy(), table, rebuilt(table, columns, len(rows.values)))
            assert left is not None
            told[table.name] = bytes(serialize_batch(left))
        facts = {**run.processes()[0], "started_ns": 5 * 10**9}
    told["facts"] = json.dumps(filtered_facts(Policy(), facts), default=str, sort_keys=True).encode()
    return told


def rebuilt(table: Table, columns: dict[str, Any], count: int) -> pa.RecordBatch:
    kinds = {column.name: column.kind for column in table.all_columns}
    schema, made = segment_schema(table), {}
    for field in schema:
        values = list(columns.get(field.name, [None] * count))
        if field.name.endswith(_MEASURED) and kinds[field.name] in (Kind.I32, Kind.I64, Kind.F64):
            values = [None if value is None else place for place, value in enumerate(values)]
        made[field.name] = values
    return pa.RecordBatch.from_pydict(made, schema=schema)


def test_g3_what_leaves_by_default_does_not_depend_on_labels(by_default: Visit, tmp_path: Path) -> None:
    other = visit(tmp_path, "", labels=2)
    mine, theirs = told_under_a_stopped_clock(by_default.site), told_under_a_stopped_clock(other.site)
    assert mine == theirs and len(mine) > 3
    with open_run(by_default.site.runs / "r") as one, open_run(other.site.runs / "r") as two:
        query = "SELECT entry_loss, confusion FROM client_reports ORDER BY round"
        assert one.rows(query).values != two.rows(query).values  # the trainings were different ones


def test_g4_the_commonest_label_is_not_learnt_from_what_leaves() -> None:
    """An attacker with the global models and data of the same kind; from all rows he learns it."""
    rows: list[dict[str, Any]] = []
    listed = [one for one in cases(is_full=False) if one.data == "digits"]
    for case in random.Random(4).sample(listed, len(listed)):
        rows.append(played(case))
        if sum(len(one["attack"]["guess"]) for one in rows) >= (300 if IS_LONG else 20):
            break
    beyond = 0.05 if IS_LONG else 0.25  # of few clients chance alone makes more
    for level in ("L0", "L1", "L2"):
        told = figures(rows, level)
        assert told["top"] <= told["guess_top"] + beyond, (level, told)
    assert figures(rows, "L4")["top"] > 0.8


def test_membership_is_told_by_all_rows_and_not_by_those_of_the_default_level() -> None:
    found = trial(3)
    assert all(one["right"] for one in found if one["level"] == "L4" and "all rounds" in one["who"])
    federations = [world(load("digits", seed=3), 3) for _ in range(2)]
    assert federations[0].left["L1"] == federations[1].left["L1"]  # so that what differs is the sample
    assert {name for one in federations[0].left["L1"] for row in one.values() for name in row} <= {"samples"}
