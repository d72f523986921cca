"""Links that last and can be revoked, a token that stays, and findings that people have seen to."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path
from typing import Any

import httpx
import pytest
from builders import RunBuilder

from stethos.act.alert_rule import Alerts, Rule, WebhookSink
from stethos.act.alerter import Alerter
from stethos.cli.main import main
from stethos.diagnose.api import diagnose
from stethos.errors import UsageError
from stethos.record.place import RunPlace
from stethos.store.run import open_run
from stethos.store.silences import FILE, change_silence, read_silences
from stethos.web.app import make_app
from stethos.web.links import Links, token_in
from stethos.web.page_files import PageFiles


@pytest.fixture(autouse=True)
def own_config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def ask(directory: Path, token: str, path: str, body: dict[str, Any] | None = None) -> httpx.Response:
    async def asked() -> httpx.Response:
        app = make_app(directory, {"owner": "edit"}, bundle=PageFiles(Path("/nowhere")))
        headers = {"authorization": f"Bearer {token}", "origin": "http://localhost"}
        transport = httpx.ASGITransport(app=app)
        async with (
            app.app.router.lifespan_context(app.app),
            httpx.AsyncClient(transport=transport, base_url="http://localhost", headers=headers) as client,
        ):
            return await (client.get(path) if body is None else client.post(path, json=body))

    return asyncio.run(asked())


def test_a_link_reads_until_it_is_revoked_also_after_a_restart(tmp_path: Path) -> None:
    link = ask(tmp_path, "owner", "/api/links/new", {"note": "Ann"}).json()
    assert ask(tmp_path, link["token"], "/api/runs").status_code == 200
    for path, body in (("/api/links", None), ("/api/links/new", {}), ("/api/own/save", {"remove": "x"})):
        assert ask(tmp_path, link["token"], path, body).status_code == 403
    other = tmp_path / "other"
    other.mkdir()
    assert ask(other, link["token"], "/api/runs").status_code == 401
    listed = ask(tmp_path, "owner", "/api/links").json()["links"]
    assert [one["note"] for one in listed] == ["Ann"] and link["token"] not in json.dumps(listed)
    (kept,) = (tmp_path / "config").rglob("links/*.json")
    assert link["token"] not in kept.read_text() and kept.stat().st_mode & 0o077 == 0
    assert ask(tmp_path, "owner", "/api/links/revoke", {"id": link["id"]}).status_code == 200
    assert ask(tmp_path, link["token"], "/api/runs").status_code == 401


def test_a_link_that_another_process_revokes_is_revoked_here(tmp_path: Path) -> None:
    mine, theirs = Links.of(tmp_path), Links.of(tmp_path)
    link, token = mine.add("x")
    assert mine.allows(token.encode()) == "read" == theirs.allows(token.encode())
    theirs.revoke(link.id)
    assert mine.allows(token.encode()) is None and mine.allows(b"") is None


def test_links_on_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    where = ["--dir", str(tmp_path)]
    assert main(["link", *where, "--new", "for \x1b[31mAnn", "--json"]) == 0
    made = json.loads(capsys.readouterr().out)
    assert Links.of(tmp_path).allows(made["token"].encode()) == "read"
    assert main(["link", *where]) == 0
    listed = capsys.readouterr().out
    assert made["id"] in listed and "\x1b" not in listed and made["token"] not in listed
    assert main(["link", *where, "--revoke", made["id"]]) == 0 and main(["link", *where, "--revoke", "none"]) == 2


def test_a_token_file_is_made_once_and_kept_private(tmp_path: Path) -> None:
    file = tmp_path / "deep" / "token"
    token = token_in(file)
    assert token_in(file) == token and file.stat().st_mode & 0o777 == 0o600
    os.chmod(file, 0o644)
    with pytest.raises(UsageError, match="other users"):
        token_in(file)
    os.chmod(file, 0o600)
    for content in ("", "short", "x" * 40 + "\n; rm", "é" * 40):
        file.write_text(content)
        with pytest.raises(UsageError):
            token_in(file)


def broken(run: RunBuilder) -> RunPlace:
    process = run.process()
    process.steps(20, losses=[1.0] * 10 + [float("nan")] * 10)
    process.drain()
    process.finish()
    return run.place


def test_what_people_have_seen_to_is_not_told(run: RunBuilder) -> None:
    place = broken(run)
    sink = WebhookSink("http://127.0.0.1:9/")
    alerts = Alerts((Rule("all", ("hook",), repeat_s=10.0),), {"hook": sink}, group_s=0.0)
    now = [0.0]
    with open_run(place.path) as opened:
        diagnosis = diagnose(opened)
        keys = [
            json.loads(one.as_dict()["key"]) and one.as_dict()["key"] for one in diagnosis.findings if one.is_problem
        ]
        assert keys
        alerter = Alerter(alerts, opened, clock=lambda: now[0])
        for key in keys:
            change_silence(place, {"key": key, "state": "silenced"})
        alerter.look(diagnosis)
        assert alerter._state.waiting() == []
        for key in keys:
            change_silence(place, {"key": key, "state": None})
        alerter.look(diagnosis)
        assert len(alerter._state.waiting()) == len(keys)
        for key in keys:
            change_silence(place, {"key": key, "state": "acknowledged", "note": "being mended"})
        now[0] = 100.0
        alerter.look(diagnosis)
        assert len(alerter._state.waiting()) == len(keys)  # not told again


def test_findings_are_acknowledged_over_the_api_and_shown(run: RunBuilder) -> None:
    place = broken(run)
    directory, path = place.path.parent, f"/api/runs/{place.name}"
    body = {"key": '["NUM001"]', "state": "acknowledged", "note": "<b>"}
    assert ask(directory, "owner", f"{path}/silences", body).status_code == 200
    assert ask(directory, "owner", f"{path}/findings").json()["silences"]['["NUM001"]']["note"] == "<b>"
    for wrong in ({}, {"key": 3}, {"key": "x", "state": "gone"}, {"key": "x" * 3000, "state": None}):
        assert ask(directory, "owner", f"{path}/silences", wrong).status_code == 400
    for content in (b"", b"[]", b'{"a": {}}', b'{"a": {"state": "x", "note": "", "t_ns": 1}}', b"\xff"):
        (place.path / FILE).write_bytes(content)
        assert read_silences(place.path) == {}


def test_what_keeps_links_and_keys_is_the_users_alone_under_every_umask(tmp_path: Path) -> None:
    mask = os.umask(0)
    try:
        Links.of(tmp_path).add("Ann")
        token_in(tmp_path / "made" / "here" / "token")
    finally:
        os.umask(mask)
    made = [*(tmp_path / "config").rglob("*"), *(tmp_path / "made").rglob("*"), tmp_path / "config", tmp_path / "made"]
    assert [path for path in made if path.stat().st_mode & 0o077] == []


def test_who_holds_a_link_keeps_the_owner_from_nothing(tmp_path: Path) -> None:
    with RunBuilder(tmp_path / "small") as run:
        process = run.process()
        process.steps(3)
        process.finish()
    _, token = Links.of(tmp_path).add("x")
    endless = {"sql": "SELECT count(*) FROM range(1000000000000)"}

    async def ask_beside_queries() -> tuple[list[httpx.Response], list[str]]:
        app = make_app(tmp_path, {"owner": "read"}, bundle=PageFiles(Path("/nowhere")))  # as without --edit
        transport = httpx.ASGITransport(app=app)
        theirs, mine = ({"authorization": f"Bearer {one}", "origin": "http://localhost"} for one in (token, "owner"))
        async with (
            app.app.router.lifespan_context(app.app),
            httpx.AsyncClient(transport=transport, base_url="http://localhost") as client,
        ):
            path = "/api/runs/small/sql"
            jobs = [asyncio.create_task(client.post(path, json=endless, headers=theirs)) for _ in range(60)]
            await asyncio.wait(jobs, return_when=asyncio.FIRST_COMPLETED)  # the first that there is no place for
            answered = [await client.get("/api/own", headers=mine)]
            early = {one.result().text for one in jobs if one.done()}
            assert all("are waiting" in one for one in early), early  # before any was run
            answered.append(await client.get("/api/runs/small/panels/summary", headers=mine))
            answered.append(await client.post(path, json={"sql": "SELECT count(*) FROM steps"}, headers=mine))
        return answered, [(await one).text for one in jobs]

    answered, refused = asyncio.run(ask_beside_queries())
    assert [one.status_code for one in answered] == [200] * 3 and answered[-1].json()["values"] == [[3]]
    assert sum("too many queries are waiting" in one for one in refused) == 50
    assert all("error" in one for one in refused)
