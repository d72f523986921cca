"""What a page is given at its worst: names without end, a million points, and no number that is one."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect
from processes import finish, start_command, wait_until
from served import PATIENCE_MS, Served
from torch.utils.tensorboard import SummaryWriter

from stethos.export.prometheus import text
from stethos.record.place import RunPlace
from stethos.store.foreign.run_writer import write_run
from stethos.store.foreign.value import Logged, LoggedNumber, LoggedSetting
from stethos.store.run import Run, open_run
from stethos.web.encode import encode
from stethos.web.panel import evaluate
from stethos.web.panels import PANELS
from stethos.web.reading import PANEL_MEMORY_BYTES
from stethos.web.run_cache import RunCache
from stethos.web.run_table import RunTable

T0_NS = 1_700_000_000_000_000_000
NAMES, POINTS = 100_000, 900_000
BROKEN = (math.nan, math.inf, -math.inf)
HOSTILE = 'x"} 1\nup 0\n# \x1b[31m<img src=x onerror=alert(1)>'


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`endless`: a million rows under 100,001 names. `broken`: NaN and infinities alone, also as hyperparameters."""
    directory = tmp_path_factory.mktemp("bad")
    write_run(directory / "endless", Path("logs"), endless())
    told: list[Logged] = [LoggedSetting("lr", math.nan), LoggedSetting("net", {"width": math.inf, "name": HOSTILE})]
    told += [
        LoggedNumber(name, step, T0_NS + step, BROKEN[step % 3]) for name in ("loss", HOSTILE) for step in range(30)
    ]
    write_run(directory / "broken", Path("logs"), told)
    return directory


def endless() -> Iterator[Logged]:
    for index in range(NAMES):
        yield LoggedNumber(f"layer{index:06}/norm", 1, T0_NS, 1.0)
    for step in range(POINTS):
        yield LoggedNumber("a/long", step, T0_NS + step, math.nan if step == 450_000 else step % 7)


@pytest.fixture(scope="module")
def rows(runs: Path) -> dict[str, dict[str, Any]]:
    table = RunTable(RunCache(runs))
    try:
        wait_until(lambda: all(row.get("is_measured") for row in table.rows()), "the metrics")
        return {row["run"]: row for row in json.loads(table.answer(table.rows(), ""))["runs"]}
    finally:
        table.close()


def asked(run: Run, **given: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(encode(evaluate(run, PANELS["metrics"], **given).as_dict()))
    return found


def test_of_names_without_end_a_page_gets_sixty_and_a_row_two_hundred(runs: Path, rows: dict[str, Any]) -> None:
    assert len(rows["endless"]["metrics"]) == 200
    with open_run(runs / "endless") as run:
        answer = asked(run)
        columns = dict(zip(answer["names"], answer["values"], strict=True))
        assert len(set(columns["name"])) == 60 and set(columns["names"]) == {NAMES + 1}
        found = asked(run, like="layer099999")
        assert set(found["values"][found["names"].index("name")]) == {"layer099999/norm"}


def test_a_name_that_many_others_contain_is_found(tmp_path: Path) -> None:
    names = [*(f"client{number}/loss" for number in range(70)), "loss"]
    write_run(tmp_path / "many", Path("logs"), (LoggedNumber(name, 1, T0_NS, 1.0) for name in names))
    with open_run(tmp_path / "many") as run:
        found = asked(run, like="loss")
    assert "loss" in found["values"][found["names"].index("name")]


@pytest.fixture
def within_a_panel(runs: Path) -> Iterator[Run]:
    """The endless run, with as much memory as the server gives a panel."""
    run = Run(RunPlace(runs / "endless"), memory_bytes=PANEL_MEMORY_BYTES)
    yield run
    run.close()


def test_every_panel_of_a_million_points_fits_into_its_memory(within_a_panel: Run) -> None:
    assert asked(within_a_panel)["rows"] == 666 + 59  # 40,000 points for 60 lines, and one of each short one
    for panel in PANELS.values():
        given = {one.name: "x" for one in panel.parameters if one.kind == "text"}
        evaluate(within_a_panel, panel, **given)


def test_a_million_points_are_drawn_as_two_thousand_and_none_hides_its_nan(within_a_panel: Run) -> None:
    answer = asked(within_a_panel, like="a/long")
    columns = dict(zip(answer["names"], answer["values"], strict=True))
    assert 1000 < answer["rows"] <= 2000 and sum(columns["points"]) == POINTS and sum(columns["broken"]) == 1
    assert (min(columns["low_end"]), max(columns["high_end"])) == (0, 6)


def test_numbers_that_are_none_are_told_as_what_they_are(runs: Path, rows: dict[str, Any]) -> None:
    last, low, high = rows["broken"]["metrics"]["loss"]
    assert (last, low, high) == ("-Infinity", None, None)
    assert rows["broken"]["config"]["lr"] == "NaN" and rows["broken"]["config"]["net.name"] == HOSTILE
    with open_run(runs / "broken") as run:
        answer = asked(run)
        columns = dict(zip(answer["names"], answer["values"], strict=True))
        assert set(columns["value"]) == {"NaN", "Infinity", "-Infinity"} and sum(columns["broken"]) == 60
        for panel in PANELS.values():
            given = {one.name: "x" for one in panel.parameters if one.kind == "text"}
            json.loads(encode(evaluate(run, panel, **given).as_dict()))


def test_a_hostile_name_adds_no_line_to_what_prometheus_reads(runs: Path) -> None:
    with open_run(runs / "broken") as run:
        said = text(run)
    assert all(line.startswith(("# HELP stethos_", "# TYPE stethos_", "stethos_")) for line in said.splitlines())
    assert "\x1b" not in said


@pytest.fixture
def page(browser: Browser, server: Served, runs: Path) -> Iterator[Page]:
    """A page over these runs, too, in which no script fails and none that a name has begun runs."""
    for run in runs.iterdir():
        if not (server.directory / run.name).exists():
            shutil.copytree(run, server.directory / run.name)
    troubles: list[str] = []
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    context.set_default_timeout(PATIENCE_MS)
    page = context.new_page()
    page.on("console", lambda said: troubles.append(said.text) if said.type == "error" else None)
    page.on("pageerror", lambda error: troubles.append(str(error)))
    page.on("dialog", lambda dialog: (troubles.append(dialog.message), dialog.dismiss()))
    yield page
    context.close()
    assert troubles == []


def go(page: Page, server: Served, address: str) -> None:
    page.goto("about:blank")
    page.goto(server.page(address.replace("?", "%3F").replace("&", "%26")))
    expect(page.locator("main .card").first).to_be_visible()
    expect(page.locator(".skeleton, [aria-busy=true]")).to_have_count(0)


def test_a_browser_turns_the_pages_of_a_hundred_thousand_names_and_draws_a_million_points(
    page: Page, server: Served
) -> None:
    go(page, server, "/run/endless/metrics")
    expect(page.locator("[data-metric]")).to_have_count(60)
    pager = page.get_by_role("navigation", name="More metrics")
    expect(pager).to_contain_text("1 to 60 of 100,001")
    pager.get_by_role("button", name="Next").click()
    expect(pager).to_contain_text("61 to 120 of 100,001")
    page.get_by_role("searchbox", name="Search metrics").fill("layer099999")
    expect(page.locator("[data-metric]")).to_have_count(1)
    page.get_by_role("searchbox", name="Search metrics").fill("a/long")
    expect(page.locator("[data-metric='a/long']")).to_contain_text("NaN or infinite at 1 of")
    expect(page.locator("[data-metric='a/long'] canvas")).to_be_visible()


def test_a_browser_shows_numbers_that_are_none_and_names_that_are_markup_as_text(page: Page, server: Served) -> None:
    for address in ("overview", "metrics", "metrics?log=1&smooth=0.9", "layers", "findings"):
        go(page, server, f"/run/broken/{address}")
    go(page, server, "/run/broken/metrics")
    expect(page.locator("[data-metric=loss]")).to_contain_text("NaN or infinite at every step")
    expect(page.get_by_text("<img src=x onerror=alert(1)>").first).to_be_visible()
    for address in (
        "/runs?group=config:lr&metric=loss",
        "/runs?sort=-metric:last:loss",
        "/compare?runs=broken,endless",
    ):
        go(page, server, address)
    expect(page.locator("img[src=x]")).to_have_count(0)


def test_a_damaged_event_file_is_imported_as_far_as_it_goes_and_shown(
    page: Page, server: Served, tmp_path: Path
) -> None:
    with SummaryWriter(str(tmp_path)) as writer:
        for step in range(100):
            writer.add_scalar("train/<b>loss</b>", 1 / (step + 1), step)
    (file,) = tmp_path.glob("events*")
    content = file.read_bytes()
    file.write_bytes(content[:2000] + b"\xff" * 40 + content[2040:])
    finish(start_command("import", str(tmp_path), "--dir", str(server.directory), "--name", "hurt"))
    go(page, server, "/run/hurt/metrics")
    expect(page.locator("[data-metric='train/<b>loss</b>'] canvas")).to_be_visible()
