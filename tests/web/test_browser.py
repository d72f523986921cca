"""The page in a real browser: a live run, the faulty client, SQL, and names that are no markup."""

from __future__ import annotations

import math
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from builders import T0_NS, RunBuilder
from hung_run import make_hung_run
from playwright.sync_api import Browser, BrowserContext, Locator, Page, expect
from processes import DEADLINE_S, environment, finish, start_program, wait_until
from served import GO_ON, PATIENCE_MS, Served

from stethos.store.foreign.run_writer import write_run
from stethos.store.foreign.value import LoggedNumber

SCRIPT = "<script>alert(1)</script>"
CROWD = 20
SERVER_BYTES = 400_000_000
RUN_PAGES = ("overview", "metrics", "clients", "layers", "time", "memory", "findings", "live", "sql")


class Window:
    """One tab, and everything that goes wrong in it."""

    def __init__(self, context: BrowserContext, server: Served) -> None:
        self.server = server
        self.troubles: list[str] = []
        self.requests: list[str] = []
        self.loads = 0
        context.set_default_timeout(PATIENCE_MS)
        self.page: Page = context.new_page()
        self.page.on("console", lambda said: self.troubles.append(said.text) if said.type == "error" else None)
        self.page.on("pageerror", lambda error: self.troubles.append(error.stack or str(error)))
        self.page.on("dialog", lambda dialog: (self.troubles.append(f"dialog {dialog.message}"), dialog.dismiss()))
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.on("load", self._loaded)

    def _loaded(self, _: Page) -> None:
        self.loads += 1

    def go(self, address: str) -> Page:
        """Open an address of the page, and wait until everything in it is drawn."""
        self.page.goto("about:blank")
        self.page.goto(self.server.page(address))
        self.settle()
        return self.page

    def settle(self) -> None:
        expect(self.page.locator("main .card").first).to_be_visible()
        expect(self.page.locator(".skeleton, [aria-busy=true]")).to_have_count(0)

    def tile(self, name: str) -> Locator:
        title = self.page.locator("dt", has_text=re.compile(f"^{name}$"))
        return self.page.locator("[data-panel=summary] dl > div", has=title).locator("dd")


@pytest.fixture
def window(browser: Browser, server: Served) -> Iterator[Window]:
    """A tab in which nothing may go wrong, and from which nothing goes out."""
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    window = Window(context, server)
    yield window
    context.close()
    assert window.troubles == []
    outside = [url for url in window.requests if not url.startswith((f"{server.url}/", "about:", "blob:", "data:"))]
    assert outside == []


def size_of(element: Locator) -> tuple[float, float]:
    """As wide and as high as it is, also while it is being replaced."""
    width, height = element.evaluate_all("all => [all[0]?.clientWidth ?? 0, all[0]?.clientHeight ?? 0]")
    return width, height


def expect_colours(canvas: Locator, count: int = 5) -> None:
    """Wait until a drawing has more different values than that: an empty one has one or two."""
    script = "one => new Set(one.getContext('2d').getImageData(0, 0, one.width, one.height).data).size"
    wait_until(lambda: canvas.evaluate(script) > count, f"{count} colours")


def test_a_live_run_is_watched_and_its_faulty_client_found_by_clicking(
    window: Window, training: subprocess.Popen[str], registry: Path
) -> None:
    live = window.server.directory / "live"
    wait_until(lambda: any(live.glob("*/process.json")), "the run to begin")
    page = window.go("/run/live/overview")
    expect(page.locator(".top .state")).to_have_text("running")
    expect(window.tile("rounds")).to_have_text("2")
    (registry / GO_ON).touch()
    expect(window.tile("rounds")).not_to_have_text("2")  # a new round, without a reload
    assert int(window.tile("rounds").inner_text()) > 2
    assert training.wait(timeout=DEADLINE_S) == 0
    expect(page.locator(".top .state")).to_have_text("ended")
    expect(window.tile("rounds")).to_have_text("16")
    assert window.loads == 2  # about:blank and the page

    page.get_by_role("link", name="Clients").click()
    window.settle()
    page.get_by_role("radio", name="cosine").click()
    expect(page).to_have_url(re.compile("measure=cosine"))
    window.settle()
    canvas = page.locator("[data-panel=client-map] canvas")
    expect_colours(canvas, 20)
    box = canvas.bounding_box()
    assert box is not None
    canvas.click(position={"x": box["width"] * 0.9, "y": 6 + 26 * 1.5})  # the second row: c1
    expect(page.locator("#one-client")).to_contain_text("c1")
    window.settle()
    expect_colours(page.locator("[data-panel=client-cosine] canvas"))
    page.get_by_role("link", name="Overview").click()
    expect(page.locator(".verdict-word")).to_contain_text("c1")
    page.get_by_role("link", name="Findings").click()
    expect(page.locator(".finding.is-error").first).to_contain_text("c1")


def test_sql_is_asked_and_drawn(window: Window) -> None:
    page = window.go("/run/odd/sql")
    page.get_by_label("SQL", exact=True).fill("SELECT round, loss FROM rounds ORDER BY round")
    page.keyboard.press("Control+Enter")
    result = page.locator("[data-panel=result]")
    expect(result.locator("tbody tr")).to_have_count(3)
    result.get_by_role("radio", name="line").click()
    expect_colours(result.locator("canvas"))
    expect(page).to_have_url(re.compile(r"as=line"))
    page.reload()  # a deep link
    expect(page.locator("[data-panel=result] canvas")).to_be_visible()


def test_wrong_sql_is_explained(browser: Browser, server: Served) -> None:
    context = browser.new_context()
    page = Window(context, server).go("/run/odd/sql")
    page.get_by_label("SQL", exact=True).fill("SELECT los FROM steps")
    page.get_by_role("button", name="Ask", exact=True).click()
    expect(page.locator(".trouble")).to_contain_text("los")
    context.close()


def test_names_are_text_on_every_page(window: Window) -> None:
    page = window.page
    for name in RUN_PAGES:
        window.go(f"/run/odd/{name}")
        assert page.locator("main script, main img, main s, main u").count() == 0, name
    window.go("/run/odd/clients")
    expect(page.locator("[data-panel=client-table]").get_by_role("button", name=SCRIPT)).to_be_visible()
    page.locator("[data-panel=client-table]").get_by_role("button", name=SCRIPT).click()
    expect(page.locator("#one-client")).to_contain_text(SCRIPT)
    hidden = page.locator("[data-panel=client-table]").get_by_role("button", name="a\\u202ebxxx")
    expect(hidden).to_be_visible()  # the mark that turns text round is spelled out
    window.go("/run/odd/live")
    expect(page.locator("[data-panel=logs]")).to_contain_text("<script>alert(4)</script>")


def test_the_keys_reach_the_map(window: Window) -> None:
    page = window.go("/run/odd/clients")
    canvas = page.locator("[data-panel=client-map] canvas")
    canvas.focus()
    for key in ("ArrowDown", "ArrowRight", "Enter"):
        page.keyboard.press(key)
    expect(page.locator("#one-client")).to_be_visible()
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement !== document.body")


def test_every_panel_shows_its_sql_and_its_json(window: Window) -> None:
    page = window.go("/run/odd/overview")
    panel = page.locator("[data-panel=round-loss]")
    panel.get_by_role("button", name="SQL", exact=True).click()
    expect(panel.locator("pre")).to_contain_text("FROM rounds")
    with page.expect_popup() as opened:
        panel.get_by_role("link", name="JSON").click()
    expect(opened.value.locator("body")).to_contain_text('"panel": "round-loss"')
    panel.get_by_role("link", name="SQL page").click()
    expect(page.locator("[data-panel=result] tbody tr")).to_have_count(3)


def test_the_address_loses_the_token_and_other_tabs_have_it(window: Window, browser: Browser) -> None:
    page = window.go("/runs")
    assert window.server.token not in page.url and page.url.endswith("#/runs")
    expect(page.get_by_role("link", name="odd")).to_be_visible()
    other = page.context.new_page()
    other.goto(f"{window.server.url}/#/run/odd/overview")
    expect(other.locator(".verdict-word")).to_be_visible()
    assert not [url for url in window.requests if window.server.token in url.partition("#")[0]]


def test_without_a_token_nothing_is_shown(browser: Browser, server: Served) -> None:
    context = browser.new_context()
    context.set_default_timeout(PATIENCE_MS)
    page = context.new_page()
    page.goto(f"{server.url}/#/run/odd/overview")
    expect(page.get_by_role("heading")).to_have_text("Enter the token")
    assert "odd" not in page.inner_text("body")
    context.close()


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_pages_fit_a_phone_in_both_themes(browser: Browser, server: Served, theme: str) -> None:
    context = browser.new_context(viewport={"width": 390, "height": 844}, color_scheme=theme)  # type: ignore[arg-type]
    window = Window(context, server)
    for name in ("overview", "clients", "layers", "time"):
        page = window.go(f"/run/odd/{name}")
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), name
    assert page.evaluate("document.documentElement.dataset.theme") == theme
    assert window.troubles == []
    context.close()


def test_the_evaluations_of_a_federation_are_shown_once(window: Window) -> None:
    page = window.go("/run/odd/metrics")
    expect(page.locator("[data-metric=accuracy]")).to_have_count(1)
    expect(page.locator("[data-metric='rounds/accuracy'], [data-metric='rounds/loss']")).to_have_count(0)
    shown = page.locator("[data-metric]").count()
    expect(page.get_by_role("searchbox", name="Search metrics")).to_have_attribute(
        "placeholder", f"search {shown} metrics"
    )
    window.go("/run/odd/metrix")
    expect(page.locator("main")).to_contain_text("There is no page called “metrix”. Overview")
    page.locator("main").get_by_role("link", name="Overview").click()
    expect(page.locator("[data-panel=metrics] [data-metric]")).to_have_count(1)  # loss and accuracy stand above


def test_runs_are_compared(window: Window, training: subprocess.Popen[str], registry: Path) -> None:
    (registry / GO_ON).touch()
    assert training.wait(timeout=DEADLINE_S) == 0
    page = window.go("/compare?runs=odd,live".replace("?", "%3F"))
    expect(page.locator("table.facts thead th")).to_have_count(3)
    expect(page.locator(".plot canvas").first).to_be_visible()
    expect(page.locator("[data-panel=verdict] .verdict-word")).to_contain_text("(worse)")
    expect(page.locator("[data-panel=quantities] tbody tr").first).to_contain_text("final loss")
    expect(page.locator("[data-panel=settings] tr.differs").first).to_be_visible()
    page.get_by_role("checkbox", name="odd").click()
    expect(page.get_by_text("Choose another one to compare it with.")).to_be_visible()


def test_nan_is_seen_and_a_run_without_rows_is_not_called_well(window: Window) -> None:
    with RunBuilder(window.server.directory / "nothing"):
        pass
    with RunBuilder(window.server.directory / "lost") as lost:
        process = lost.process(is_alive=False)
        process.steps(10, losses=[1.0] * 6 + [float("nan")] * 4)
        process.finish()
    page = window.go("/run/lost/overview")
    expect(page.locator("[data-panel=step-loss]")).to_contain_text("NaN or infinite at 4 of 10")
    window.go("/run/nothing/overview")
    expect(page.locator(".verdict-word")).to_have_text("Nothing could be checked")
    expect(page.locator(".verdict.is-ok")).to_have_count(0)
    window.go("/run/nothing/metrics")
    expect(page.get_by_text("No metric was logged, and no step was made.")).to_be_visible()
    expect(page.locator("main .card")).to_have_count(1)  # no controls, no numbers of panels that are not there
    window.go("/runs")
    expect(page.locator("tr", has=page.get_by_role("link", name="nothing"))).to_contain_text("nothing could be checked")
    curves = page.locator("[data-panel=curves]")
    curves.get_by_label("metric").select_option("steps/loss")
    expect(curves.locator(".legend-steps").first).to_have_text("NaN or infinite in lost")


def test_a_hang_shows_who_stood_where(window: Window) -> None:
    make_hung_run(window.server.directory / "hung")
    page = window.go("/run/hung/live")
    expect(page.locator("[data-panel=hangs] tbody tr")).to_have_count(3)
    branches = page.locator("[data-panel=hang-stacks] .branch")
    expect(branches.filter(has_text="evaluate").last).to_contain_text("rank 2")
    expect(branches.filter(has_text="all_reduce").last).to_contain_text("rank 0, rank 1")
    window.go("/run/hung/memory")
    expect_colours(page.locator("[data-panel=gpu-busy] canvas"))
    window.go("/run/hung/time")
    expect(page.locator("[data-panel=collectives] tbody tr")).to_have_count(3)


def test_twenty_browsers_watch_a_live_run_at_once(browser: Browser, server: Served, registry: Path) -> None:
    program = start_program(
        "rows_on_demand.py", server.directory, "crowd", env=environment(XDG_RUNTIME_DIR=str(registry))
    )
    say(program, "40 2")
    windows = [
        Window(browser.new_context(viewport={"width": 640, "height": 480}, reduced_motion="reduce"), server)
        for _ in range(CROWD)
    ]
    try:
        for window in windows:
            window.page.goto(server.page("/run/crowd/overview"), wait_until="commit")
        for window in windows:
            window.settle()
        say(program, "500 2")
        for window in windows:
            expect(window.tile("rows stored")).to_have_text(re.compile(r"^[45],\d\d\d$"))
            expect_colours(window.page.locator("[data-panel=metrics] canvas"))
        assert psutil.Process(server.process.pid).memory_info().rss < SERVER_BYTES
    finally:
        for window in windows:
            window.page.context.close()
        finish(program)
    assert [trouble for window in windows for trouble in window.troubles] == []
    assert [url for window in windows for url in window.requests if not url.startswith(f"{server.url}/")] == []


def say(program: subprocess.Popen[str], line: str) -> None:
    """Ask for rows, and wait until they are written."""
    assert program.stdin is not None and program.stdout is not None
    program.stdin.write(f"{line}\n")
    program.stdin.flush()
    assert program.stdout.readline()


def test_every_metric_has_a_panel_that_is_searched_zoomed_and_saved(window: Window) -> None:
    names = ("train/loss", "train/<img src=x onerror=alert(1)>", "eval/accuracy")
    told = [
        LoggedNumber(name, index, T0_NS + index * 10**9, index / 10 if name != "broken" else math.nan)
        for name in (*names, "broken") for index in range(200)
    ]  # fmt: skip
    write_run(window.server.directory / "logged", Path("logs"), told)
    page = window.go("/run/logged/metrics")
    panel = page.locator('[data-metric="train/loss"]')
    expect(page.locator("[data-metric]")).to_have_count(4)
    expect(page.get_by_role("heading", name="train 2")).to_be_visible()
    expect(page.get_by_role("link", name="Clients", exact=True)).to_have_count(0)  # it has none
    expect(page.locator("[data-metric=broken]")).to_contain_text("NaN or infinite at every step")
    over = panel.locator(".u-over")
    wide, high = size_of(over)
    panel.get_by_role("button", name="Larger").click()
    wait_until(lambda: size_of(over) > (1.5 * wide, high) and size_of(over)[1] > high + 150, "a larger drawing")
    panel.get_by_role("button", name="Smaller").click()
    wait_until(lambda: size_of(over) == (wide, high), "the drawing as it was")
    over.scroll_into_view_if_needed()
    box = over.bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + box["width"] * 0.25, box["y"] + 40)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * 0.5, box["y"] + 40, steps=4)
    page.mouse.up()
    expect(page).to_have_url(re.compile(r"zoom-step=[45]\d.*\.\.[91]\d"))
    expect(page.get_by_role("button", name="Show all")).to_have_count(4)  # all of them, in step
    page.reload()
    expect(page.get_by_role("button", name="Show all")).to_have_count(4)
    page.get_by_role("radio", name="time").click()
    expect(page).to_have_url(re.compile("x=time"))
    with page.expect_download() as saved:
        panel.get_by_role("button", name="CSV").click()
    assert Path(saved.value.path()).read_text().splitlines()[1].startswith("train/loss,imported,0,0,0,0,1,")
    for kind in ("SVG", "PNG"):
        with page.expect_download() as saved:
            panel.get_by_role("button", name=kind).click()
        assert Path(saved.value.path()).stat().st_size > 1000
    panel.get_by_text("y axis").click()
    panel.get_by_label("from").fill("5")
    panel.get_by_label("from").press("Enter")
    page.get_by_label("scale").select_option("logarithmic")
    slider = page.get_by_role("slider", name="smoothing")
    assert slider.evaluate("one => getComputedStyle(one).paddingLeft") == "0px"  # 0 is at the very left
    slider.fill("0.6")
    expect(page).to_have_url(re.compile("log=1.*smooth=0.6|smooth=0.6.*log=1"))
    other = page.locator('[data-metric="eval/accuracy"]')
    panel.locator(".u-over").hover()
    expect(other.locator(".tip")).to_contain_text("time")  # one cursor for all
    page.get_by_role("searchbox").fill("accu")
    expect(page.locator("[data-metric]")).to_have_count(1)


def test_a_run_that_is_deleted_while_it_is_looked_at_stays_in_sight(browser: Browser, server: Served) -> None:
    told = [LoggedNumber("loss", index, T0_NS + index * 10**9, 1 / (index + 1)) for index in range(20)]
    write_run(server.directory / "brief", Path("logs"), told)
    context = browser.new_context()
    window = Window(context, server)
    page = window.go("/run/brief/metrics")
    expect(page.locator("[data-metric=loss] canvas")).to_be_visible()
    rows_first = sorted((server.directory / "brief").rglob("*.*"), key=lambda path: -len(path.name))
    for path in rows_first:  # slowly, as a full disk does it
        path.unlink()
        page.wait_for_timeout(600)
    shutil.rmtree(server.directory / "brief")
    expect(page.get_by_role("alert")).to_contain_text("This run has been deleted. You see its last known state.")
    expect(page.locator("[data-metric=loss] canvas")).to_be_visible()
    page.get_by_role("link", name="All runs", exact=True).click()
    expect(page.locator(".runs-table")).to_be_visible()
    expect(page.locator(".runs-table")).not_to_contain_text("brief")
    assert all("404" in one for one in window.troubles)
    context.close()
