"""In a browser that may edit: questions become panels, pages views, links are made and revoked, findings seen to."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from builders import T0_NS, RunBuilder
from playwright.sync_api import Browser, Page, expect
from processes import environment, finish, start_command
from served import PATIENCE_MS, Served

from stethos.diagnose.api import diagnose
from stethos.store.foreign.run_writer import write_run
from stethos.store.foreign.value import LoggedNumber, LoggedSetting
from stethos.store.labels import read_labels
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
    for number in range(6):  # three learning rates, two seeds each
        lr, seed = 10.0 ** -(number // 2 + 1), number % 2
        told = [LoggedNumber("eval/score", step, T0_NS + step * 10**9, lr * step + seed) for step in range(30)]
        settings = [LoggedSetting("lr", lr), LoggedSetting("seed", seed)]
        write_run(directory / f"sweep-{number}", Path("logs"), [*settings, *told])


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
    expect(page.locator(".finding .next").first).not_to_contain_text("`")
    expect(page.locator(".finding .next code").first).to_be_visible()
    page.get_by_role("button", name="Acknowledge").first.click()
    expect(page.locator(".finding .tag").first).to_have_text("acknowledged")
    assert [one.state for one in read_silences(editing.directory / "one").values()] == ["acknowledged"]
    page.reload()
    page.get_by_role("button", name="Undo").first.click()
    expect(page.get_by_role("button", name="Acknowledge").first).to_be_visible()
    assert read_silences(editing.directory / "one") == {}


def names_in(page: Page) -> list[str]:
    return page.locator(".runs-table .run-name").all_inner_texts()


def test_the_table_of_runs_is_filtered_sorted_and_remembers_its_columns(page: Page, editing: Served) -> None:
    page.goto(editing.page("/runs"))
    heading = page.locator(".runs-table thead")
    expect(heading.get_by_role("button", name="eval/score", exact=True)).to_be_visible()
    expect(heading.get_by_role("button", name="lr", exact=True)).to_be_visible()  # what differs is there unasked
    wanted = page.get_by_role("searchbox", name="Filter runs")
    for text, count in (
        ("sweep-1", 1), ("name:sweep", 6), ("state:ended name:sweep", 6), ("sweep lr<0.05", 4), ("sweep lr=0.1", 2),
        ("sweep eval/score>2", 2), ("verdict:problem", 1), ("verdict:NaN", 1), ("tag:best", 0), ("name:sweep", 6),
    ):  # fmt: skip
        wanted.fill(text)
        expect(page.locator(".runs-table .run-name")).to_have_count(count)
    expect(page.locator(".runs-table .what .severity + .muted")).to_have_count(0)
    wanted.fill("")
    expect(page.locator(".runs-table tr", has_text="one").locator(".what")).to_contain_text("the loss is NaN")
    other = page.locator(".runs-table tr", has_text="sweep-0").locator(".what")
    expect(other).not_to_contain_text("not diagnosed")  # nobody has opened it: diagnosed in the background
    wanted.fill("name:sweep")
    heading.get_by_role("button", name="eval/score", exact=True).click()
    assert names_in(page)[0] == "sweep-1"  # 0.1 * 29 + 1
    heading.get_by_role("button", name="eval/score").click()
    assert names_in(page)[0] == "sweep-4"
    page.get_by_text("Columns", exact=True).click()
    page.get_by_role("searchbox", name="Search columns").fill("score (")
    page.get_by_role("checkbox", name="eval/score (max)").check()
    page.get_by_role("button", name="pin").click()
    expect(heading.locator("th").nth(3)).to_have_text(re.compile(r"eval/score \(max\)"))
    page.goto("about:blank")
    page.goto(editing.page("/runs"))
    expect(heading.locator("th").nth(3)).to_have_text(re.compile(r"eval/score \(max\)"))  # by this browser


def test_runs_are_ticked_compared_grouped_and_drawn(page: Page, editing: Served) -> None:
    page.goto(editing.page("/runs%3Fq=sweep%26metric=eval/score"))
    expect(page.locator("[data-panel=curves] canvas")).to_be_visible()
    expect(page.locator("[data-panel=curves] .legend-steps button")).to_have_count(6)
    page.get_by_label("group by").select_option("config:lr")
    expect(page.locator("[data-panel=groups] tbody tr")).to_have_count(3)
    expect(page.locator("[data-panel=groups]")).to_contain_text("±")
    expect(page.locator("[data-panel=groups] tbody td:first-child")).to_have_text(["0.001", "0.01", "0.1"])
    expect(page.locator("[data-panel=curves] .legend-steps button").first).to_contain_text("(2)")  # mean of two seeds
    with page.expect_download() as saved:
        page.locator("[data-panel=curves]").get_by_role("button", name="SVG").click()
    drawn = re.findall(r'<path d="(M[^"Z]*)" fill="none"', Path(saved.value.path()).read_text())
    assert [path.count("L") for path in drawn] == [29] * 3  # a mean at each of the 30 steps, no stairs between them
    expect(page.locator("[data-panel=sweep] path")).to_have_count(6)
    page.get_by_role("radio", name="scatter").click()
    expect(page.locator("[data-panel=sweep] circle")).to_have_count(6)
    for kind, begins in (("SVG", b"<svg"), ("PNG", b"\x89PNG"), ("CSV", b"run,")):
        with page.expect_download() as saved:
            page.locator("[data-panel=sweep]").get_by_role("button", name=kind).click()
        assert Path(saved.value.path()).read_bytes().startswith(begins)
    with page.expect_download() as saved:
        page.locator(".run-tools").get_by_role("button", name="CSV").click()
    lines = Path(saved.value.path()).read_text().splitlines()
    assert lines[0].startswith("run,state") and len(lines) == 7
    page.get_by_role("radio", name="parallel").click()
    page.get_by_role("radio", name="result", exact=True).click()
    expect(page.locator(".sweep-key")).to_contain_text("eval/score")
    axis = page.locator("[data-axis=lr] .handle")
    axis.scroll_into_view_if_needed()
    box = axis.bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + 12, box["y"] + 2)  # from the upper end of lr, 0.1, to above its middle, 0.01
    page.mouse.down()
    page.mouse.move(box["x"] + 12, box["y"] + box["height"] * 0.4, steps=4)
    page.mouse.up()
    expect(page.get_by_role("searchbox", name="Filter runs")).to_have_value(re.compile(r"^sweep lr>=0\.01\d+$"))
    expect(page.locator(".runs-table .run-name")).to_have_count(2)
    page.get_by_role("searchbox", name="Filter runs").fill("sweep")
    for name in ("sweep-0", "sweep-1"):
        page.get_by_role("checkbox", name=f"compare {name}").check()
    page.get_by_role("link", name="Compare 2").click()
    expect(page.locator("[data-panel=settings] tr.differs").first).to_contain_text("seed")


def test_of_two_tabs_that_edit_one_run_the_second_is_told(page: Page, editing: Served) -> None:
    page.goto(editing.page("/runs"))
    other = page.context.new_page()
    other.goto(editing.page("/runs"))
    for tab, tag in ((page, "mine"), (other, "theirs")):
        tab.get_by_role("button", name="edit sweep-4").click()
        tab.get_by_label("Tags, with commas").fill(tag)
    page.get_by_role("button", name="Save", exact=True).click()
    expect(page.locator(".runs-table .tag")).to_have_text(["mine"])
    other.get_by_role("button", name="Save", exact=True).click()
    expect(other.get_by_role("dialog").get_by_role("alert")).to_contain_text("meanwhile")
    assert read_labels(editing.directory / "sweep-4").tags == ("mine",)
    other.get_by_role("button", name="Cancel").click()
    expect(other.locator(".runs-table .tag")).to_have_text(["mine"])  # what the first has saved


def test_a_run_is_tagged_renamed_archived_and_deleted(page: Page, editing: Served) -> None:
    page.goto(editing.page("/runs"))
    page.get_by_role("button", name="edit sweep-5").click()
    page.get_by_label("Title").fill("The <b>last</b>")
    page.get_by_label("Tags, with commas").fill("best, seed 1")
    page.get_by_role("textbox", name="Note").fill("look again")
    page.get_by_role("button", name="Save", exact=True).click()
    row = page.locator("tr", has=page.get_by_role("link", name="The <b>last</b>"))
    expect(row.locator(".tag")).to_have_text(["best", "seed 1"])
    assert read_labels(editing.directory / "sweep-5").note == "look again"
    page.get_by_role("button", name="edit sweep-5").click()
    page.get_by_role("checkbox", name="archived", exact=True).check()
    page.get_by_role("button", name="Save", exact=True).click()
    expect(row).to_have_count(0)
    page.get_by_role("checkbox", name="archived too").check()
    expect(row).to_have_count(1)
    page.get_by_role("button", name="edit sweep-5").click()
    page.get_by_text("Delete this run").click()
    page.get_by_label("Name of the run to delete").fill("sweep-5")
    page.get_by_role("button", name="Delete", exact=True).click()
    expect(row).to_have_count(0)
    assert not (editing.directory / "sweep-5").exists()
