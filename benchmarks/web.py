"""How long the dashboard lets one wait over a large run, in a real browser, and what its server and training pay."""

from __future__ import annotations

import re
import shutil
import time
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from benchmarks import serving
from benchmarks.child import Child
from benchmarks.estimate import median
from benchmarks.report import Grid, say, verdict
from benchmarks.scale import Scale
from benchmarks.served import served
from stethos.web.page_files import PageFiles
from stethos.web.panels import PANELS

_FIRST_TARGET_MS, _PANEL_TARGET_MS, _LIVE_TARGET_MS, _RSS_TARGET_MB, _BUNDLE_TARGET_KB = 1500, 500, 1000, 400, 300
_BROWSERS = 20
_FLAGS = [
    "--no-sandbox",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


def measure(scale: Scale, scratch: Path) -> list[Grid]:
    clients, rounds = (100, 1000) if not scale.is_quick else (20, 100)
    say(f"web: a run of {rounds} rounds x {clients} clients and {scale.group_by_rows:,} layer rows")
    job = {"run": str(scratch / "runs" / "wide"), "clients": clients, "rounds": rounds, "rows": scale.group_by_rows}
    child = Child("wide_run", job)
    try:
        child.wait_for_result()
        with served(scratch / "runs") as (url, token, server):
            rows = [*_panels(url, token), *_crowd(url, token), *_browser(url, token, child, rounds, scale)]
            rss_mb = server.memory_info().rss / 1e6
        rows.append(["server memory, MB", f"{rss_mb:.0f}", "", str(_RSS_TARGET_MB), verdict(rss_mb, _RSS_TARGET_MB)])
        size_kb = _bundle_kb()
        rows.append(
            ["page, kB gzip", f"{size_kb:.0f}", "", str(_BUNDLE_TARGET_KB), verdict(size_kb, _BUNDLE_TARGET_KB)]
        )
    finally:
        child.close()
    title = f"The dashboard over {rounds:,} rounds x {clients} clients and {scale.group_by_rows:,} layer rows"
    notes = [
        "Panels: asked one after the other, nothing cached, over HTTP; the worst is named. First page: the overview "
        "in a new browser profile, from the request to the last panel drawn. Live: from a round's being written to its "
        "number on the page, half a second of which a drainer may leave it in the ring. The diagnosis runs in a "
        "process of its own and is not part of the server's memory."
    ]
    return [Grid(title, ["", "median", "worst", "target", "reached"], rows, notes), serving.measure(scale, scratch)]


def _panels(url: str, token: str) -> Iterator[list[str]]:
    took = {}
    _get(f"{url}/api/runs/wide/panels/summary", token)  # opens the run
    for panel in PANELS.values():
        start = time.perf_counter()
        _get(f"{url}/api/runs/wide/panels/{panel.name}", token)
        took[panel.name] = (time.perf_counter() - start) * 1000
    worst = max(took, key=lambda name: took[name])
    yield _row("a panel, ms", median(list(took.values())), took[worst], _PANEL_TARGET_MS, worst)


def _crowd(url: str, token: str) -> Iterator[list[str]]:
    """Twenty readers ask for the same page at once."""
    names = [panel.name for panel in PANELS.values() if panel.page == "clients"]
    with ThreadPoolExecutor(_BROWSERS) as pool:

        def read(_: int) -> float:
            start = time.perf_counter()
            for name in names:
                _get(f"{url}/api/runs/wide/panels/{name}?{'client=client-007' if name in _OF_ONE else ''}", token)
            return (time.perf_counter() - start) * 1000

        took = list(pool.map(read, range(_BROWSERS)))
    yield _row(f"the clients page for {_BROWSERS} at once, ms", median(took), max(took), None)


_OF_ONE = {panel.name for panel in PANELS.values() if any(one.name == "client" for one in panel.parameters)}


def _browser(url: str, token: str, child: Child, rounds: int, scale: Scale) -> Iterator[list[str]]:
    chromium = shutil.which("chromium")
    if chromium is None:
        say("web: no Chromium, so nothing is measured in a browser")
        return
    from playwright.sync_api import expect, sync_playwright

    repeats = 2 if scale.is_quick else 7
    first, live = [], []
    with sync_playwright() as play:
        browser = play.chromium.launch(executable_path=chromium, args=_FLAGS)
        for _ in range(repeats):
            page = browser.new_context().new_page()
            start = time.perf_counter()
            page.goto(f"{url}/#token={token}&to=/run/wide/overview", wait_until="commit")
            expect(page.locator("[data-panel=round-loss] canvas")).to_be_visible(timeout=60_000)
            expect(page.locator(".skeleton, [aria-busy=true]")).to_have_count(0, timeout=60_000)
            first.append((time.perf_counter() - start) * 1000)
            page.context.close()
        page = browser.new_page()
        page.goto(f"{url}/#token={token}&to=/run/wide/overview")
        title = page.locator("dt", has_text=re.compile("^rounds$"))
        tile = page.locator("[data-panel=summary] dl > div", has=title).locator("dd")
        expect(tile).to_have_text(f"{rounds:,}", timeout=60_000)
        for number in range(rounds + 1, rounds + 1 + repeats):
            start = time.perf_counter()
            child.tell("round")
            while tile.inner_text() != f"{number:,}":
                time.sleep(0.005)
            live.append((time.perf_counter() - start) * 1000)
        browser.close()
    yield _row("first page drawn, ms", median(first), max(first), _FIRST_TARGET_MS)
    yield _row("a new round on the page, ms", median(live), max(live), _LIVE_TARGET_MS)


def _row(name: str, middle: float, worst: float, target: float | None, who: str = "") -> list[str]:
    said = f"{worst:.0f}{f' ({who})' if who else ''}"
    return [
        name,
        f"{middle:.0f}",
        said,
        "" if target is None else str(target),
        "" if target is None else verdict(worst, target),
    ]


def _get(url: str, token: str) -> bytes:
    request = urllib.request.Request(url, headers={"authorization": f"Bearer {token}"})
    with urllib.request.urlopen(request, timeout=120) as answer:
        body: bytes = answer.read()
    return body


def _bundle_kb() -> float:
    import gzip

    return sum(len(gzip.compress(asset.content)) for asset in PageFiles().assets.values()) / 1000
