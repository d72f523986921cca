"""Many runs: labels that people add, runs that are deleted, and the table that is filtered, sorted and compared."""

from __future__ import annotations

import asyncio
import json
import math
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from builders import RunBuilder
from processes import DEADLINE_S, wait_until

from stethos.diagnose.life import read_diagnosis
from stethos.store.foreign.run_writer import write_run
from stethos.store.foreign.value import LoggedNumber, LoggedSetting
from stethos.store.labels import FILE, read_labels
from stethos.web.app import make_app
from stethos.web.keys import Capability
from stethos.web.page_files import PageFiles
from stethos.web.run_cache import RunCache
from stethos.web.run_table import RunTable

T0_NS = 1_700_000_000_000_000_000


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    for number in range(3):
        told = [LoggedSetting("lr", 10.0**-number), LoggedSetting("net", {"depth": number})]
        write_run(tmp_path / f"run-{number}", Path("logs"), [*told, *logged(number)])
    return tmp_path


def logged(number: int) -> list[LoggedNumber]:
    return [LoggedNumber("eval/<b>acc</b>", step, T0_NS + step, step + number) for step in range(5)]


def ask(directory: Path, capability: Capability, *requests: tuple[str, Any]) -> list[httpx.Response]:
    async def asked() -> list[httpx.Response]:
        app = make_app(directory, {"t": capability}, bundle=PageFiles(Path("/nowhere")))
        headers = {"authorization": "Bearer t", "origin": "http://localhost"}
        async with (
            app.app.router.lifespan_context(app.app),
            httpx.AsyncClient(
                transport=httpx.ASGITransport(app=app), base_url="http://localhost", headers=headers
            ) as client,
        ):
            return [await client.post(path, json=body) for path, body in requests]

    return asyncio.run(asked())


def test_two_tabs_cannot_overwrite_each_other(runs: Path) -> None:
    mine = {"tags": ["best", "best", " "], "note": "<b>", "title": "the good one", "version": 0}
    first, second, third = ask(
        runs, "edit", ("/api/runs/run-1/labels", mine), ("/api/runs/run-1/labels", {"tags": ["other"], "version": 0}),
        ("/api/runs/run-1/labels", {"is_archived": True, "version": 1}),
    )  # fmt: skip
    assert first.json()["tags"] == ["best"] and second.status_code == 400 and "meanwhile" in second.json()["error"]
    labels = read_labels(runs / "run-1")
    assert third.status_code == 200 and labels.is_archived and labels.title == "the good one" and labels.version == 2


@pytest.mark.parametrize(
    "odd", [{"tags": "x"}, {"tags": [1]}, {"note": 3}, {"title": "x" * 101}, {"is_archived": "yes"}, {"version": 7}]
)
def test_labels_that_are_none_are_refused(runs: Path, odd: dict[str, Any]) -> None:
    (answer,) = ask(runs, "edit", ("/api/runs/run-0/labels", {"version": 0, **odd}))
    assert answer.status_code == 400 and not (runs / "run-0" / FILE).exists()


def test_a_label_file_of_anything_is_no_label(runs: Path) -> None:
    for content in (b"", b"[]", b'{"version": "x"}', b'{"version": 1, "tags": 3}', b"\xff" * 100, b"9" * 100_000):
        (runs / "run-0" / FILE).write_bytes(content)
        assert read_labels(runs / "run-0").tags == ()


def test_only_a_token_that_may_edit_labels_and_deletes(runs: Path) -> None:
    refused = ask(
        runs, "read", ("/api/runs/run-0/labels", {"version": 0}), ("/api/runs/run-0/delete", {"name": "run-0"})
    )
    assert [one.status_code for one in refused] == [403, 403] and (runs / "run-0").exists()
    unsure, done, gone = ask(
        runs, "edit", ("/api/runs/run-0/delete", {}), ("/api/runs/run-0/delete", {"name": "run-0"}),
        ("/api/runs/run-0/labels", {"version": 0}),
    )  # fmt: skip
    assert (unsure.status_code, done.status_code, gone.status_code) == (400, 200, 404)
    assert not (runs / "run-0").exists() and (runs / "run-1").exists()


@pytest.mark.timeout(DEADLINE_S)
def test_the_list_says_what_is_wrong_with_runs_that_came_from_another_machine(tmp_path: Path) -> None:
    """Nothing is kept in a copy of somebody else's run; what the server found is shown all the same."""
    with RunBuilder(tmp_path / "theirs" / "lost") as run:
        process = run.process(is_alive=False)
        process.steps(20, losses=[1.0] * 10 + [math.nan] * 10)
        process.drain()
        process.finish()
    shutil.copytree(tmp_path / "theirs", tmp_path / "mine")

    async def listed() -> dict[str, Any]:
        app = make_app(tmp_path / "mine", {"t": "read"}, bundle=PageFiles(Path("/nowhere")))
        headers, inside = {"authorization": "Bearer t"}, httpx.ASGITransport(app=app)
        async with (
            app.app.router.lifespan_context(app.app),
            httpx.AsyncClient(transport=inside, base_url="http://localhost", headers=headers) as client,
        ):
            while True:
                (row,) = (await client.get("/api/runs")).json()["runs"]
                if row["is_known"] and row["health"]["state"] != "not diagnosed":
                    return dict(row["health"])
                await asyncio.sleep(0.2)

    health = asyncio.run(listed())
    assert (health["state"], health["colour"], health["problems"]) == ("problem", "red", 1)
    assert "NaN" in health["first"] and not read_diagnosis(tmp_path / "mine" / "lost")


@pytest.fixture
def table(runs: Path) -> Iterator[RunTable]:
    table = RunTable(RunCache(runs))
    yield table
    table.close()


@pytest.mark.timeout(DEADLINE_S)
def test_rows_have_hyperparameters_at_once_and_metrics_soon(table: RunTable, runs: Path) -> None:
    wait_until(lambda: all(row["is_known"] for row in table.rows()), "every row")
    assert {row["run"]: row["config"] for row in table.rows()}["run-2"] == {"lr": 0.01, "net.depth": 2}
    wait_until(lambda: all(row["is_measured"] for row in table.rows()), "the metrics")
    rows = table.rows()
    assert {row["run"]: row["metrics"]["eval/<b>acc</b>"] for row in rows}["run-1"] == [5.0, 1.0, 5.0]
    version = json.loads(table.answer(rows, ""))["version"]
    assert json.loads(table.answer(rows, version)) == {"version": version}
