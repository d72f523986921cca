"""The page over many runs, over many clients, and left open: in a real browser.

    python -m benchmarks --only workspace

Runs with hyperparameters and metrics are made, served twice (without and with what an earlier server kept), sorted,
filtered and drawn; then a live federation of many clients is looked at, and left alone.
"""

from __future__ import annotations

import json
import math
import shutil
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil
from playwright.sync_api import Browser, CDPSession, Page, expect, sync_playwright

from benchmarks.child import Child
from benchmarks.estimate import median
from benchmarks.report import Grid, say, verdict
from benchmarks.scale import Scale
from benchmarks.served import served
from stethos.store.foreign.run_writer import write_run
from stethos.store.foreign.value import Logged, LoggedNumber, LoggedSetting

_T0_NS = 1_700_000_000_000_000_000
_PATIENCE_MS = 300_000
_SETTLE_MS = 2_000
_TABLE_TARGET_MS, _SORT_TARGET_MS, _CURVES_TARGET_MS, _MAP_TARGET_MS = 1500, 100, 200, 1000
_IDLE_TARGET_SHARE = 0.01
_SORT = ".runs-table thead th:nth-child(2) button"
_FILTER = ".run-tools input[type=search]"
_FILTERS = ("run-1", "run-12", "run-123", "run-12", "run-9", "lr<0.01", "")
_SMOOTHINGS = ("0.5", "0.9", "0.6", "0.8", "0.7")
# From the click or the key to the second frame after the table says something else: drawings follow in the first.
_ACT = """async ([selector, said, value]) => {
  const element = document.querySelector(selector);
  const told = () => document.querySelector(said)?.textContent ?? '';
  const before = told();
  const start = performance.now();
  if (value === null) element.click();
  else { element.value = value; element.dispatchEvent(new Event('input', { bubbles: true })); }
  while (told() === before) await new Promise(requestAnimationFrame);
  await new Promise(requestAnimationFrame);
  await new Promise(requestAnimationFrame);
  return performance.now() - start;
}"""
# From the beginning of the navigation to the frame after the one in which so many of these are drawn.
_SEEN = """async ([selector, count]) => {
  const isDrawn = one => one.tagName !== 'CANVAS' || one.style.height !== '' && one.width !== 300;
  const drawn = () => [...document.querySelectorAll(selector)].filter(isDrawn).length;
  while (drawn() < count) await new Promise(requestAnimationFrame);
  await new Promise(requestAnimationFrame);
  return performance.now();
}"""


@dataclass(frozen=True, slots=True)
class Took:
    """One thing that was waited for: by the clock, and the CPU time of the page's own thread."""

    wall_ms: float
    cpu_ms: float


def measure(scale: Scale, scratch: Path) -> list[Grid]:
    runs, points = (100, 200) if scale.is_quick else (1000, 2000)
    clients, rounds = (500, 20) if scale.is_quick else (10_000, 100)
    say(f"workspace: {runs:,} runs x {points:,} points are made")
    for number in range(runs):
        write_run(scratch / "runs" / f"run-{number}", Path("made"), _logged(number, points))
    with sync_playwright() as play:
        browser = play.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        expect.set_options(timeout=_PATIENCE_MS)
        rows = [
            *_many_runs(browser, scratch / "runs", scale),
            *_left_open(browser, scratch, 5 if scale.is_quick else 30),
            *_many_clients(browser, scratch, clients, rounds),
        ]
        browser.close()
    notes = [
        "By the clock, the worst of the repeats is judged; `CPU` is the median of the page's own thread, which other "
        "work on the machine does not lengthen. First table: from the request in a new browser profile to the first "
        "rows, by the page's clock; `first start` is a server that knows none of the runs, `later` one that finds what "
        "another kept. Sort, filter and smoothing: from the event to the second frame after the change. Client map: "
        "from the request to the map, nothing cached. Idle: a live run in which nothing happens, its page open; all "
        "processes of the browser, and the server with its own, over the stretch."
    ]
    headings = ["", "ms", "worst, ms", "CPU, ms", "target", "reached"]
    title = f"The page over {runs:,} runs x {points:,} points, and {clients:,} clients x {rounds:,} rounds"
    return [Grid(title, headings, rows, notes)]


def _logged(number: int, points: int) -> Iterator[Logged]:
    for name, value in {"lr": 10 ** -(1 + number % 4), "seed": number % 10, "width": 2 ** (number % 7)}.items():
        yield LoggedSetting(name, value)
    for name in ("train/loss", "eval/accuracy"):
        for step in range(points):
            noise = math.sin(step * 12.9898 + number) * 0.1
            value = (2 / (1 + step / 100) if name == "train/loss" else step / points) + noise
            yield LoggedNumber(name, step, _T0_NS + number * 10**12 + step * 10**8, value)


def _many_runs(browser: Browser, runs: Path, scale: Scale) -> Iterator[list[str]]:
    with served(runs) as (url, token, _):
        say("workspace: the first start, then until every run is known")
        yield _row("first table, first start", [_first_table(browser, url, token)], _TABLE_TARGET_MS)
        while not all(row.get("is_measured") for row in _rows_of(url, token)):
            time.sleep(1)
    with served(runs) as (url, token, _):
        repeats = 2 if scale.is_quick else 5
        first = _first_table(browser, url, token)
        yield _row("first table, later start", [first], _TABLE_TARGET_MS)
        more = [_first_table(browser, url, token) for _ in range(repeats)]
        yield _row("first table, same server", more, _TABLE_TARGET_MS)
        page, session = _page(browser)
        page.goto(f"{url}/#token={token}&to=/runs")
        expect(page.locator("[aria-busy=true]")).to_have_count(0)
        expect(page.locator(".runs-table tbody tr:not(.filler)").nth(5)).to_be_visible()
        page.wait_for_timeout(_SETTLE_MS)
        table = ".runs-table tbody"
        heading = ".runs-table thead th:nth-child(2)"
        sorts = [_act(page, session, _SORT, heading, None) for _ in range(6)]
        yield _row("sort", sorts, _SORT_TARGET_MS)
        page.evaluate(_ACT, [_FILTER, table, "run-7"])
        filters = [_act(page, session, _FILTER, table, text) for text in _FILTERS]
        yield _row("filter, as one types", filters, _SORT_TARGET_MS)
        page.goto("about:blank")
        page.goto(f"{url}/#token={token}&to=/runs%3Fmetric=train/loss")
        expect(page.locator("[data-panel=curves] canvas")).to_be_visible()
        page.wait_for_timeout(_SETTLE_MS)
        slider, output = "[data-panel=curves] input[type=range]", "[data-panel=curves] output"
        curves = [_act(page, session, slider, output, value) for value in _SMOOTHINGS]
        yield _row("50 curves smoothed", curves, _CURVES_TARGET_MS)
        page.context.close()


def _many_clients(browser: Browser, scratch: Path, clients: int, rounds: int) -> Iterator[list[str]]:
    say(f"workspace: a live federation of {clients:,} clients x {rounds:,} rounds")
    with _federation(scratch / "many", clients, rounds), served(scratch / "many") as (url, token, _):
        page, session = _page(browser)
        page.goto(f"{url}/#token={token}&to=/run/live/clients")
        drawn = "[data-panel=client-map] canvas"

        def look(measure: str) -> Took:
            expect(page.locator(".skeleton, [aria-busy=true]")).to_have_count(0)  # what the page before asked for
            page.goto("about:blank")
            address = f"{url}/#/run/live/clients?measure={measure}"
            return _seen(page, session, lambda: page.goto(address, wait_until="commit"), drawn, 1)

        expect(page.locator(drawn)).to_be_visible()
        maps = [look(one) for one in ("cosine", "entry_loss", "loss", "duration")]
        yield _row(f"client map, {clients:,} clients", maps, _MAP_TARGET_MS)
        page.context.close()


def _left_open(browser: Browser, scratch: Path, stretch_s: float) -> Iterator[list[str]]:
    say("workspace: a live page on which nothing happens")
    with _federation(scratch / "few", 20, 20), served(scratch / "few") as (url, token, server):
        page, _ = _page(browser)
        page.goto(f"{url}/#token={token}&to=/run/live/overview")
        expect(page.locator("[data-panel=summary]")).to_be_visible()
        _wait_until_diagnosed(url, token)
        page.wait_for_timeout(5 * _SETTLE_MS)
        yield from _idle(page, server, stretch_s)
        page.context.close()


@contextmanager
def _federation(directory: Path, clients: int, rounds: int) -> Iterator[None]:
    """A live run of that many clients and rounds, whose process does nothing more."""
    job = {"run": str(directory / "live"), "clients": clients, "rounds": rounds, "rows": 0, "layers": 0}
    child = Child("wide_run", job)
    try:
        child.wait_for_result()
        yield
    finally:
        child.close()


def _idle(page: Page, server: psutil.Process, stretch_s: float) -> Iterator[list[str]]:
    browsing = [one for one in psutil.Process().children(recursive=True) if "chrom" in one.name()]
    serving = [server, *server.children(recursive=True)]
    before = [_cpu_s(browsing), _cpu_s(serving)]
    page.wait_for_timeout(stretch_s * 1000)
    shares = [(now - then) / stretch_s for now, then in zip((_cpu_s(browsing), _cpu_s(serving)), before, strict=True)]
    for name, share in zip(("browser", "server"), shares, strict=True):
        target = f"{_IDLE_TARGET_SHARE:.0%} of a core"
        yield [f"idle live page: {name}", f"{share:.2%}", "", "", target, verdict(share, _IDLE_TARGET_SHARE)]


def _cpu_s(processes: list[psutil.Process]) -> float:
    return float(sum(used.user + used.system for used in (one.cpu_times() for one in processes)))


def _wait_until_diagnosed(url: str, token: str) -> None:
    while True:
        found = _get(f"{url}/api/runs/live/findings", token)
        if found["is_diagnosed"] and not found["is_under_way"]:
            return
        time.sleep(1)


def _first_table(browser: Browser, url: str, token: str) -> Took:
    page, session = _page(browser)
    address = f"{url}/#token={token}&to=/runs"
    rows = ".runs-table tbody tr:not(.filler)"
    took = _seen(page, session, lambda: page.goto(address, wait_until="commit"), rows, 6)
    page.context.close()
    return took


def _page(browser: Browser) -> tuple[Page, CDPSession]:
    page = browser.new_context(viewport={"width": 1360, "height": 900}).new_page()
    page.set_default_timeout(_PATIENCE_MS)
    session = page.context.new_cdp_session(page)
    session.send("Performance.enable", {"timeDomain": "threadTicks"})
    return page, session


def _act(page: Page, session: CDPSession, selector: str, said: str, value: str | None) -> Took:
    before = _thread_ms(session)
    wall_ms = float(page.evaluate(_ACT, [selector, said, value]))
    return Took(wall_ms, _thread_ms(session) - before)


def _seen(page: Page, session: CDPSession, begin: Callable[[], object], selector: str, count: int) -> Took:
    """Until so many of these are drawn, by the clock of the page: a locator is looked at a few times a second only."""
    begin()
    before = _thread_ms(session)  # a new page counts from 0
    wall_ms = float(page.evaluate(_SEEN, [selector, count]))
    return Took(wall_ms, _thread_ms(session) - before)


def _thread_ms(session: CDPSession) -> float:
    """CPU time of the page's main thread so far."""
    metrics = {one["name"]: one["value"] for one in session.send("Performance.getMetrics")["metrics"]}
    return float(metrics["TaskDuration"]) * 1000


def _row(name: str, took: list[Took], target_ms: float) -> list[str]:
    worst = max(one.wall_ms for one in took)
    middle, cpu = median([one.wall_ms for one in took]), median([one.cpu_ms for one in took])
    row = [name, f"{middle:.0f}", f"{worst:.0f}", f"{cpu:.0f}", f"{target_ms:.0f}", verdict(worst, target_ms)]
    say(f"workspace: {', '.join(row)}")
    return row


def _rows_of(url: str, token: str) -> list[dict[str, object]]:
    rows: list[dict[str, object]] = _get(f"{url}/api/runs", token)["runs"]
    return rows


def _get(url: str, token: str) -> dict[str, object]:
    request = urllib.request.Request(url, headers={"authorization": f"Bearer {token}"})
    with urllib.request.urlopen(request, timeout=120) as answer:
        content: dict[str, object] = json.loads(answer.read())
    return content
