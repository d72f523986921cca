"""The JSON under /api/: what it tells, and what it refuses."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from builders import RunBuilder
from processes import DEADLINE_S, command, wait_until
from prometheus_client.parser import text_string_to_metric_families
from served import Served

from stethos.errors import QueryError, RunNotFoundError
from stethos.store.find import list_runs
from stethos.store.run import open_run
from stethos.web.app import make_app
from stethos.web.encode import encode
from stethos.web.page_files import PageFiles
from stethos.web.panel import evaluate
from stethos.web.panels import PAGES, PANELS
from stethos.web.query_process import SQL_ROWS, QueryProcess
from stethos.web.run_cache import RunCache
from stethos.web.run_table import RunTable

TOKEN = "t"
Request = str | tuple[str, str, Any] | tuple[str, str, Any, dict[str, str]]  # method, path, body, headers


class Caller:
    """Asks an application over a directory of runs."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def __call__(self, *requests: Request) -> list[httpx.Response]:
        async def ask() -> list[httpx.Response]:
            app = make_app(self._directory, {TOKEN: "read"}, bundle=PageFiles(Path("/nowhere")))
            headers = {"authorization": f"Bearer {TOKEN}", "origin": "http://localhost"}
            transport = httpx.ASGITransport(app=app)
            async with (
                app.app.router.lifespan_context(app.app),
                httpx.AsyncClient(transport=transport, base_url="http://localhost", headers=headers) as client,
            ):
                return [
                    await (
                        client.get(one)
                        if isinstance(one, str)
                        else client.request(one[0], one[1], json=one[2], headers=one[3] if len(one) > 3 else {})
                    )
                    for one in requests
                ]

        return asyncio.run(ask())

    def one(self, request: Request) -> httpx.Response:
        return self(request)[0]

    def sql(self, text: str, run: str = "odd") -> httpx.Response:
        return self.one(("POST", f"/api/runs/{run}/sql", {"sql": text}))


@pytest.fixture
def call(shown_runs: Path) -> Caller:
    return Caller(shown_runs)


@pytest.fixture(scope="module")
def queries() -> Iterator[QueryProcess]:
    queries = QueryProcess()
    yield queries
    queries.close()


def test_every_panel_has_what_its_chart_needs(shown_runs: Path) -> None:
    with open_run(shown_runs / "odd") as run:
        for panel in PANELS.values():
            assert panel.page in PAGES
            choices = [{one.name: key} for one in panel.parameters for key in one.options]
            for given in ({}, *choices):
                columns = evaluate(run, panel, **given)
                needed = {panel.x, *panel.y, panel.by, *panel.band, *panel.selects} - {""}
                if panel.chart == "heat":
                    needed = {panel.x, *panel.y, "value"}
                assert needed - set(panel.selects.values()) <= set(columns.columns), panel.name


def test_every_panel_can_be_asked_for_and_shows_its_sql(call: Caller) -> None:
    names = list(PANELS)
    for name, answer in zip(names, call(*(f"/api/runs/odd/panels/{name}" for name in names)), strict=True):
        assert answer.status_code == 200, name
        assert answer.json()["sql"] == PANELS[name].query()


def test_what_the_asker_has_already_is_not_sent_again(call: Caller) -> None:
    paths = ("/api/panels", "/api/own", "/api/runs/odd/panels/client-map", "/api/runs/odd/findings")
    for path in paths:
        first = call.one(path)
        tags = (first.headers["etag"], '"another"')
        again, other = call(*(("GET", path, None, {"if-none-match": tag}) for tag in tags))
        assert (again.status_code, again.content) == (304, b"")
        assert other.status_code == 200 and other.json() == first.json()


def test_a_panel_says_the_same_as_its_sql_asked_by_hand(call: Caller) -> None:
    shown = call.one("/api/runs/odd/panels/client-map?measure=loss").json()
    asked = call.sql(shown["sql"]).json()
    assert shown["values"] == asked["values"] and shown["rows"] == 18


def test_runs_are_listed_with_state_and_health(call: Caller, shown_runs: Path) -> None:
    (row,) = [row for row in call.one("/api/runs").json()["runs"] if row["run"] == "odd"]
    assert row["state"] == "ended" and row["health"]["state"] == "not diagnosed"
    table = RunTable(RunCache(shown_runs))
    try:
        wait_until(lambda: table.rows()[0].get("is_measured"), "its numbers")
        (row,) = table.rows()
    finally:
        table.close()
    assert (row["state"], row["last_round"], row["accuracy"]) == ("ended", 3, 0.5)


def test_runs_are_compared_as_the_command_does(shown_runs: Path, tmp_path: Path) -> None:
    for name in ("odd", "twin"):
        shutil.copytree(shown_runs / "odd", tmp_path / name)
    facts = json.loads((tmp_path / "twin" / "run.json").read_text())
    (tmp_path / "twin" / "run.json").write_text(json.dumps({**facts, "run": "twin", "git_commit": "another"}))
    told = Caller(tmp_path).one("/api/compare?run=odd&run=twin").json()
    said = command("compare", "odd", "twin", "--dir", tmp_path, "--json")
    (pair,) = told["pairs"]
    cause = pair.pop("cause")
    assert [pair] == json.loads(said.stdout)["pairs"] and "another" in cause
    assert told["settings"][0]["differs"] and not told["settings"][-1]["differs"]
    assert [one["name"] for one in told["settings"] if one["differs"]] == ["git commit"]


def test_files_with_anything_in_them_break_nothing(shown_runs: Path, tmp_path: Path) -> None:
    for name in ("bent", "torn"):
        shutil.copytree(shown_runs / "odd", tmp_path / name)
        (process,) = (path.parent for path in (tmp_path / name).glob("*/process.json"))
    (process / "manifest.json").write_text('{"sealed": [7], "segment": "x"}')
    (bent,) = (path.parent for path in (tmp_path / "bent").glob("*/process.json"))
    (bent / "process.json").write_text('{"pid": "x", "rank": "one", "config": 5, "started_ns": []}')
    (bent.parent / "run.json").write_text('{"run": 5, "command": 3, "started_ns": "x"}')
    (bent.parent / "stacks.jsonl").write_bytes(b'{"t_ns": "x", "depth": "y", "func": 5}\n\xff\n[]\n')
    (bent.parent / "findings.db").write_bytes(b"")
    panels = ("summary", "made", "processes", "books", "hang-stacks", "findings")
    paths = [f"/api/runs/{run}/panels/{panel}" for run in ("bent", "torn") for panel in panels]
    for path, answer in zip(("/api/runs", *paths), Caller(tmp_path)("/api/runs", *paths), strict=True):
        assert answer.status_code == 200, (path, answer.text)


def test_parameters_are_literals_whatever_is_in_them(call: Caller) -> None:
    nasty = "'; DROP TABLE steps; --"
    answer = call.one(httpx.URL("/api/runs/odd/panels/client-norm", params={"client": nasty}).raw_path.decode())
    columns = answer.json()
    assert len(columns["values"][columns["names"].index("client")]) == 3
    values = call.one("/api/runs/odd/panels/client-norm/values/client").json()["values"]
    assert nasty in values and "<script>alert(1)</script>" in values


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/api/runs/odd/panels/nothing", 400),
        ("/api/runs/odd/panels/client-map?measure=size", 400),
        ("/api/runs/odd/panels/client-map?self=1&run=2", 400),
        ("/api/runs/odd/panels/waterfall?round=1;drop", 400),
        ("/api/runs/odd/panels/summary/values/x", 404),
        ("/api/runs/nothing/panels/summary", 404),
        ("/api/runs/nothing/findings", 404),
        ("/api/runs/nothing/events", 404),
        ("/api/runs/nothing/stacks", 404),
        ("/api/compare", 400),
        ("/api/compare?run=odd", 400),
        ("/api/compare?run=odd&run=odd", 400),
        ("/api/compare?run=odd&run=nothing", 404),
    ],
)
def test_what_cannot_be_asked_is_refused_with_a_hint(call: Caller, path: str, status: int) -> None:
    answer = call.one(path)
    assert answer.status_code == status and answer.json()["error"] and "hint" in answer.json()


@pytest.mark.parametrize(
    "name",
    ["..", ".", "%2e%2e", "%252e%252e", "..%2fodd", "%2e%2e%2f%2e%2e%2fetc", "odd%2f..%2fodd", "..%5codd", "odd%00",
     "%ff", "linked", ".hidden"],
)  # fmt: skip
def test_no_name_leads_out_of_the_directory(shown_runs: Path, tmp_path: Path, name: str) -> None:
    inside = tmp_path / "inside"
    shutil.copytree(shown_runs / "odd", inside / "odd")
    shutil.copytree(shown_runs / "odd", tmp_path / "outside")
    shutil.copytree(shown_runs / "odd", inside / ".hidden")
    (inside / "linked").symlink_to(tmp_path / "outside")
    call = Caller(inside)
    answer = call.one(f"/api/runs/{name}/panels/summary")
    assert answer.status_code == 404, answer.text
    assert [row["run"] for row in call.one("/api/runs").json()["runs"]] == ["odd"]


@pytest.mark.parametrize(
    "sql",
    [
        "DROP TABLE findings",
        "INSERT INTO runs SELECT * FROM runs",
        "COPY steps TO '/tmp/stethos-out.csv'",
        "SELECT * FROM read_csv('/etc/passwd')",
        "SELECT * FROM read_text('/proc/self/environ')",
        "SELECT * FROM '/etc/passwd'",
        "ATTACH '/tmp/other.db'",
        "INSTALL httpfs",
        "SET memory_limit = '100GB'",
        "PRAGMA database_list; SELECT 1",
        "SELECT 1; SELECT 2",
        "WITH x AS (COPY steps TO '/tmp/x') SELECT 1",
        "SELECT getenv('HOME')",
        "CALL pragma_version()",
        "EXPORT DATABASE '/tmp/x'",
        "nonsense",
        "",
    ],
)
def test_a_query_reads_the_run_and_nothing_else(queries: QueryProcess, shown_runs: Path, sql: str) -> None:
    with pytest.raises(QueryError) as refusal:
        queries.ask(shown_runs / "odd", sql)
    assert refusal.value.hint


def test_a_refusal_is_told_to_the_page(call: Caller) -> None:
    answer = call.sql("DROP TABLE findings")
    assert answer.status_code == 400 and set(answer.json()) == {"error", "hint"}


def test_a_query_has_its_limits(shown_runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stethos.web.line_process.PROCESS_MEMORY_BYTES", 500 << 20)
    queries, odd = QueryProcess(), shown_runs / "odd"
    many = json.loads(queries.ask(odd, "SELECT * FROM range(1000000000)", timeout_s=DEADLINE_S))
    assert (many["rows"], many["is_cut"]) == (SQL_ROWS, True)
    with pytest.raises(QueryError, match="took longer"):
        queries.ask(odd, "SELECT sum(hash(a.range * b.range)) FROM range(1000000) a, range(1000000) b", timeout_s=0.3)
    with pytest.raises(QueryError):
        queries.ask(
            odd, "SELECT a.range, list(b.range) FROM range(10) a, range(100000000) b GROUP BY 1", timeout_s=DEADLINE_S
        )
    with pytest.raises(QueryError, match="memory"):
        queries.ask(odd, "SELECT repeat(chr(97), 300000000) FROM range(50)", timeout_s=DEADLINE_S)
    with pytest.raises(QueryError, match="larger than"):
        queries.ask(odd, "SELECT repeat(chr(97), 15000) FROM range(5000)", timeout_s=DEADLINE_S)
    assert json.loads(queries.ask(odd, "SELECT 1 AS one", timeout_s=DEADLINE_S))["values"] == [[1]]  # and it goes on
    queries.close()


@pytest.mark.parametrize(
    "body",
    [
        b"[" * 60_000, b'{"sql":' * 9_000, b'{"sql": "\\ud800"}', b'{"sql": "\xff"}',
        '{"sql": "SELECT 1"}'.encode("utf-16"), b"", b"null", b'{"sql"', b"9" * 5_000, b'{"sql": NaN}', b"\x00" * 100,
    ],
)  # fmt: skip
def test_an_odd_body_is_answered_400_or_understood(server: Served, body: bytes) -> None:
    headers = {"authorization": f"Bearer {server.token}", "origin": server.url}
    answer = httpx.post(f"{server.url}/api/runs/odd/sql", content=body, headers=headers, timeout=DEADLINE_S)
    assert answer.status_code == (200 if b"S\x00E" in body else 400) and "Traceback" not in answer.text


def test_four_hundred_half_requests_do_not_keep_the_owner_out(server: Served) -> None:
    host, port = server.url.removeprefix("http://").split(":")
    with contextlib.ExitStack() as held:
        for _ in range(450):
            with contextlib.suppress(OSError):
                held.enter_context(socket.create_connection((host, int(port)))).sendall(b"GET /api/runs HTTP/1.1\r\nHo")
        headers = {"authorization": f"Bearer {server.token}"}
        assert httpx.get(f"{server.url}/api/runs", headers=headers, timeout=DEADLINE_S).status_code == 200


def test_a_request_that_is_no_query_is_refused(call: Caller) -> None:
    for content in ([], {"sql": 7}, {"query": "SELECT 1"}, {"sql": "SELECT '" + "x" * 70_000 + "'"}):
        assert call.one(("POST", "/api/runs/odd/sql", content)).status_code == 400


def test_numbers_that_javascript_does_not_have_are_texts() -> None:
    content = {"a": [float("nan"), float("inf"), -float("inf"), 2**53 + 1, 1.5, None, True, b"\x01"]}
    assert json.loads(encode(content)) == {"a": ["NaN", "Infinity", "-Infinity", str(2**53 + 1), 1.5, None, True, "01"]}
    assert json.loads(encode("\ud800")) == "?"


def test_an_empty_a_damaged_and_a_foreign_directory_are_told(tmp_path: Path) -> None:
    with RunBuilder(tmp_path / "empty"):
        pass
    with RunBuilder(tmp_path / "damaged") as builder:
        process = builder.process(is_alive=False)
        process.steps(50)
        process.finish()
    (parquet,) = (tmp_path / "damaged").rglob("*.steps.parquet")
    parquet.write_bytes(b"not a table" * 10)
    (tmp_path / "foreign").mkdir()
    (tmp_path / "foreign" / "run.json").write_text("[]")
    (tmp_path / "file.txt").write_text("nothing to see")
    call = Caller(tmp_path)
    assert {row["run"] for row in call.one("/api/runs").json()["runs"]} == {"empty", "damaged", "foreign"}
    for run in ("empty", "damaged", "foreign"):
        answers = call(*(f"/api/runs/{run}/panels/{name}" for name in PANELS))
        assert {answer.status_code for answer in answers} <= {200, 400}, run
    assert call.one("/api/runs/empty/panels/step-loss").json()["rows"] == 0


def test_a_run_that_is_deleted_meanwhile_is_gone(shown_runs: Path, tmp_path: Path) -> None:
    shutil.copytree(shown_runs / "odd", tmp_path / "copy")
    with contextlib.closing(RunCache(tmp_path)) as cache:
        assert cache.answer("copy", ("a",), "panel", which="summary", parameters={})
        shutil.rmtree(tmp_path / "copy")
        with pytest.raises(RunNotFoundError):
            cache.answer("copy", ("a",), "panel", which="summary", parameters={})
    answers = Caller(tmp_path)("/api/runs/copy/panels/summary", "/api/runs")
    assert [answer.status_code for answer in answers] == [404, 200]
    assert answers[1].json()["runs"] == []


def test_an_answer_is_made_once_for_each_version(
    shown_runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(shown_runs / "odd", tmp_path / "copy")
    cache, made = RunCache(tmp_path), []

    def make(*told: object) -> bytes:
        made.append(told)
        return b"answer"

    monkeypatch.setattr(cache.readers, "ask", make)
    for _ in range(3):
        assert cache.answer("copy", ("a",), "job") == b"answer"
    assert made == [([tmp_path / "copy"], "job")]
    (tmp_path / "copy" / "launcher-1.json").write_text("{}")
    cache.answer("copy", ("a",), "job")
    assert len(made) == 2


def test_answers_about_older_versions_are_let_go(
    shown_runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("growing", "other"):
        shutil.copytree(shown_runs / "odd", tmp_path / name)
    cache = RunCache(tmp_path)
    monkeypatch.setattr(cache.readers, "ask", lambda *told: bytes(1000))
    cache.answer("other", ("a",), "job")
    for version in range(5):
        (tmp_path / "growing" / f"launcher-{version}.json").write_text("{}")
        for key in ("a", "b"):
            cache.answer("growing", (key,), "job")
    assert sorted((name, key) for name, _, key in cache._answers) == [
        ("growing", "a"),
        ("growing", "b"),
        ("other", "a"),
    ]
    assert 3_000 < cache._size < 5_000


def test_twenty_readers_at_once_get_the_same_answer(server: Served) -> None:
    async def ask() -> list[httpx.Response]:
        headers = {"authorization": f"Bearer {server.token}"}
        async with httpx.AsyncClient(base_url=server.url, headers=headers, timeout=DEADLINE_S) as client:
            paths = [f"/api/runs/odd/panels/{name}" for name in ("client-map", "gradient-flow", "summary")]
            return await asyncio.gather(*(client.get(path) for _ in range(20) for path in paths))

    answers = asyncio.run(ask())
    assert {answer.status_code for answer in answers} == {200}
    assert len({answer.content for answer in answers}) == 3


def test_events_begin_with_the_version(server: Served) -> None:
    headers = {"authorization": f"Bearer {server.token}"}
    with httpx.stream("GET", f"{server.url}/api/runs/odd/events", headers=headers, timeout=DEADLINE_S) as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        lines = answer.iter_lines()
        assert next(lines) == "event: version"
        assert json.loads(next(lines).removeprefix("data: "))["version"]


def test_the_server_says_nothing_about_who_came(server: Served) -> None:
    httpx.get(f"{server.url}/api/runs", headers={"authorization": f"Bearer {server.token}"}, timeout=DEADLINE_S)
    assert server.process.poll() is None
    arguments = Path(f"/proc/{server.process.pid}/cmdline").read_text()
    assert server.token not in arguments


def test_prometheus_scrapes_every_recent_run(shown_runs: Path, call: Caller) -> None:
    for place in shown_runs.iterdir():
        os.utime(place)
    answer = call.one("/metrics")
    assert answer.status_code == 200 and answer.headers["content-type"].startswith("text/plain")
    families = list(text_string_to_metric_families(answer.text))
    assert len({family.name for family in families}) == len(families)  # each metric stands in one place
    runs = {sample.labels["run"] for family in families for sample in family.samples}
    assert runs == {place.name for place in list_runs(shown_runs)}
    os.utime(shown_runs / "odd", (0, 0))
    assert 'run="odd"' not in call.one("/metrics").text
    os.utime(shown_runs / "odd")
