"""The page by keyboard and for screen readers: axe finds nothing on any page, light or dark, and keys reach all."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from federated_rows import build_federation
from playwright.sync_api import Browser, Page, expect
from processes import finish, start_command
from served import PATIENCE_MS, Served

AXE = Path(__file__).resolve().parents[2] / "web" / "node_modules" / "axe-core" / "axe.min.js"
RULES = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]
PAGES = (
    "/runs?group=state", "/compare?runs=odd,two", "/run/odd/overview", "/run/odd/metrics", "/run/two/clients?client=c1",
    "/run/odd/layers", "/run/two/time", "/run/odd/memory", "/run/two/findings", "/run/odd/live", "/run/odd/views",
    "/run/odd/sql?q=SELECT+step,+loss+FROM+steps&as=line", "/run/odd/sql?q=SELECT+nothing", "/run/nobody/overview",
)  # fmt: skip
CONTROLS = "button:not(:disabled), a[href], input, select, textarea, summary, [tabindex='0']"


@pytest.fixture
def page(browser: Browser, server: Served) -> Iterator[Page]:
    if not (server.directory / "two").exists():
        build_federation(server.directory / "two")
    context = browser.new_context(viewport={"width": 1280, "height": 900}, bypass_csp=True, color_scheme="light")
    context.set_default_timeout(PATIENCE_MS)
    yield context.new_page()
    context.close()


def settle(page: Page) -> None:
    expect(page.locator("main :is(.card, .trouble)").first).to_be_visible()
    expect(page.locator(".skeleton, [aria-busy=true]")).to_have_count(0)
    expect(page.get_by_text(re.compile("^(Diagnosing|Asking) …"))).to_have_count(0)


def violations(page: Page) -> list[str]:
    """What axe objects to: the rule, and where."""
    page.evaluate(AXE.read_text(encoding="utf-8"))
    found = page.evaluate("rules => axe.run({ runOnly: rules })", RULES)
    assert len(found["passes"]) > 10
    return [
        f"{one['id']}: {node['target']} {node['html'][:120]}" for one in found["violations"] for node in one["nodes"]
    ]


@pytest.mark.parametrize("address", PAGES)
def test_axe_finds_nothing_in_light_or_dark(page: Page, server: Served, address: str) -> None:
    page.goto(server.page(address.replace("?", "%3F").replace("&", "%26")))
    settle(page)
    assert violations(page) == []
    page.get_by_role("button", name="dark").click()
    expect(page.locator("html")).to_have_attribute("data-theme", "dark")
    settle(page)
    page.mouse.move(0, 0)
    assert violations(page) == []


def test_axe_finds_nothing_in_a_report(page: Page, server: Served, tmp_path: Path) -> None:
    file = tmp_path / "report.html"
    made = finish(start_command("report", "-t", str(server.directory / "two"), "-o", str(file)))
    assert made.returncode == 0, made.stderr
    page.goto(file.as_uri())
    settle(page)
    assert violations(page) == []


@pytest.mark.parametrize("address", ["/runs", "/run/two/clients", "/run/odd/metrics", "/run/odd/sql"])
def test_tab_reaches_every_control(page: Page, server: Served, address: str) -> None:
    page.goto(server.page(address))
    settle(page)
    # Of a group of which one is chosen the arrow keys reach the others.
    script = """selector => {
      const isSeen = one => one.checkVisibility() && one.tabIndex >= 0;
      const all = [...document.querySelectorAll(selector)].filter(isSeen);
      all.forEach((one, place) => { one.dataset.place = place; });
      return all.length;
    }"""
    count = page.evaluate(script, CONTROLS)
    assert count > 10
    seen = set()
    for _ in range(3 * count):
        page.keyboard.press("Tab")
        place = page.evaluate("document.activeElement.dataset?.place ?? null")
        seen |= {place} - {None}
        if len(seen) == count:
            return
    missing = page.evaluate(
        "seen => [...document.querySelectorAll('[data-place]')].filter(one => !seen.includes(one.dataset.place))"
        ".map(one => one.outerHTML.slice(0, 100))", sorted(seen),
    )  # fmt: skip
    pytest.fail(f"never reached: {missing}")


def test_a_chart_is_zoomed_with_the_keys_and_has_a_table_behind_it(page: Page, server: Served) -> None:
    page.goto(server.page("/run/two/overview"))
    settle(page)
    panel = page.locator("[data-panel=round-accuracy]")
    panel.locator(".plot").focus()
    page.keyboard.press("ArrowRight")
    expect(panel.locator(".tip")).to_contain_text("round")
    page.keyboard.press("+")
    expect(page).to_have_url(re.compile("zoom-round="))
    page.keyboard.press("0")
    expect(page).not_to_have_url(re.compile("zoom-round="))
    panel.get_by_role("button", name="Table").press("Enter")
    expect(panel.get_by_role("region", name="Table: Accuracy by round").locator("tbody tr")).to_have_count(3)


@pytest.mark.parametrize(("address", "panel"), [("/run/odd/clients", "client-map"), ("/run/two/time", "waterfall")])
def test_maps_and_rounds_are_saved_as_pictures(page: Page, server: Served, address: str, panel: str) -> None:
    page.goto(server.page(address))
    settle(page)
    for kind, begins in (("SVG", b"<svg"), ("PNG", b"\x89PNG"), ("CSV", b"")):
        with page.expect_download() as told:
            page.locator(f"[data-panel={panel}]").get_by_role("button", name=kind).click()
        content = Path(told.value.path()).read_bytes()
        assert content.startswith(begins) and len(content) > 100
        if kind == "SVG":
            assert content.count(b"<rect") > 5 and b"<script" not in content
