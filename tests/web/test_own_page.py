"""In a browser that may edit: questions become panels, pages views, links are made and revoked, findings seen to."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from builders import RunBuilder
from playwright.sync_api import Browser, Page, expect
from processes import environment, finish, start_command
from served import PATIENCE_MS, Served

from stethos.diagnose.api import diagnose
from stethos.store.run import open_run
from stethos.store.silences import read_silences
from stethos.web.own_panels import FILE, read_own

BROKEN = '[[panel]]\ntitle = "Bad <b>SQL</b>"\nsql = "SELECT nothing FROM nowhere"\n\n[[panel]]\ntitle = "no query"\n'


@pytest.fixture(scope="module")
def editing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    directory = tmp_path_factory.mktemp("editing")
    config, cache = str(directory / "config"), str(directory / "cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CONFIG_HOME", config)  # the run is this user's by a key that is kept there
        _build(directory)
    mine = directory / "mine.toml"
    mine.write_text(BROKEN)
    private = environment(XDG_CONFIG_HOME=config, XDG_CACHE_HOME=cache)
    words = ("serve", "--dir", directory, "--port", "0", "--json", "--edit", "--panels", mine)
    server = start_command(*words, env=private, stderr=None)
    assert server.stdout is not None
    text = ""
    while not text.rstrip().endswith("}"):
        text += server.stdout.readline()
    url, _, token = json.loads(text)["url"].partition("/#token=")
    yield Served(url, token, directory, server)
    server.terminate()
    finish(server)


def _build(directory: Path) -> None:
    with RunBuilder(directory / "one") as run:
        process = run.process(is_alive=False)
        process.steps(20, losses=[1.0] * 10 + [float("nan")] * 10)
        process.drain()
        process.finish()
    with open_run(directory / "one") as opened:
        assert diagnose(opened, keep=True).findings


@pytest.fixture
def page(browser: Browser, editing: Served) -> Iterator[Page]:
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    context.set_default_timeout(PATIENCE_MS)
    yield context.new_page()
    context.close()


def test_a_question_is_completed_asked_and_kept_as_a_panel(page: Page, editing: Served) -> None:
    page.goto(editing.page("/run/one/sql"))
    editor = page.get_by_label("SQL", exact=True)
    editor.fill("SELECT step, los")
    editor.press("End")
    editor.press_sequentially("s FROM ste")
    offers = page.get_by_role("listbox", name="Names that fit")
    expect(offers.get_by_role("option", name="steps", exact=True)).to_be_visible()
    editor.press("Tab")
    expect(editor).to_have_value("SELECT step, loss FROM steps")
    expect(page.locator(".editor-colours .sql-word").first).to_have_text("SELECT")
    editor.press("Control+Enter")
    result = page.locator("[data-panel=result]")
    expect(result.locator("tbody tr")).to_have_count(20)
    result.get_by_role("radio", name="line").click()
    with page.expect_download() as told:
        result.get_by_role("button", name="CSV").click()
    assert Path(told.value.path()).read_text().splitlines()[0] == "step,loss"
    page.get_by_label("Title of the panel").fill("My <i>loss</i>")
    page.get_by_role("button", name="Save as a panel").click()
    expect(page.get_by_text("saved under Own panels")).to_be_visible()
    (saved,) = read_own(editing.directory / FILE).panels
    assert (saved.title, saved.chart, saved.x, saved.y) == ("My <i>loss</i>", "line", "step", "loss")
    page.get_by_role("link", name=re.compile("^Own panels")).click()
    expect(page.locator("[data-own='My <i>loss</i>'] canvas")).to_be_visible()
    expect(page.locator("[data-own='Bad <b>SQL</b>'] [role=alert]")).to_contain_text("no table 'nowhere'")
    expect(page.get_by_text("mine.toml: panel 2: sql is missing")).to_be_visible()
    page.goto("about:blank")
    page.goto(editing.page("/run/one/sql"))
    expect(page.get_by_label("Questions asked before").locator("option")).to_have_count(2)


def test_a_page_is_saved_as_a_view(page: Page, editing: Served) -> None:
    page.goto(editing.page("/run/one/metrics%3Fsmooth=0.5"))
    page.get_by_role("button", name="Save view").click()
    page.get_by_label("Name of the view").fill("Smooth")
    page.get_by_role("button", name="Save", exact=True).click()
    link = page.get_by_role("navigation", name="Pages").get_by_role("link", name="Smooth")
    expect(link).to_have_attribute("href", "#/run/one/metrics?smooth=0.5")


def test_a_link_is_made_and_revoked(page: Page, editing: Served, browser: Browser) -> None:
    page.goto(editing.page("/run/one/overview"))
    page.get_by_role("button", name="Share").click()
    page.get_by_label("For whom").fill("Ann")
    page.get_by_role("button", name="Make a link").click()
    address = page.get_by_label("The new link").input_value()
    with browser.new_context() as theirs:
        other = theirs.new_page()
        other.goto(address)
        expect(other.get_by_role("heading", name="one")).to_be_visible()
        expect(other.get_by_role("button", name="Save view")).to_have_count(0)
        page.get_by_role("button", name=re.compile("^revoke Ann")).click()
        expect(page.get_by_role("button", name=re.compile("^revoke Ann"))).to_have_count(0)
        other.reload()
        expect(other.get_by_role("heading", name="Enter the token")).to_be_visible()


def test_a_finding_is_acknowledged_and_that_is_undone(page: Page, editing: Served) -> None:
    page.goto(editing.page("/run/one/findings"))
    page.get_by_role("button", name="Acknowledge").first.click()
    expect(page.locator(".finding .tag").first).to_have_text("acknowledged")
    assert [one.state for one in read_silences(editing.directory / "one").values()] == ["acknowledged"]
    page.reload()
    page.get_by_role("button", name="Undo").first.click()
    expect(page.get_by_role("button", name="Acknowledge").first).to_be_visible()
    assert read_silences(editing.directory / "one") == {}
