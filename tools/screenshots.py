"""Take the pictures of docs/images: every page of the dashboard, from runs that the demo leaves, and the docs' site.

python tools/screenshots.py [--runs DIR] [--only NAME] [OUT]

Without DIR the runs are made first: the demo, one with another fault, a training that goes wrong, and a search of
hyperparameters.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Literal, NamedTuple
from urllib.parse import quote

from playwright.sync_api import Page, ViewportSize, expect, sync_playwright

from stethos.store.foreign.run_writer import write_run
from stethos.store.foreign.value import LoggedNumber, LoggedSetting
from stethos.store.run import open_run

ROOT = Path(__file__).resolve().parents[1]
IMAGES = ROOT / "docs" / "images"
FLAGS = (
    "--no-sandbox", "--no-first-run", "--disable-background-networking", "--disable-component-update",
    "--disable-sync",
)  # fmt: skip
LAPTOP: ViewportSize = {"width": 1280, "height": 800}
TALL: ViewportSize = {"width": 1280, "height": 1100}
TALLEST: ViewportSize = {"width": 1280, "height": 1480}
LOW: ViewportSize = {"width": 1280, "height": 420}
PHONE: ViewportSize = {"width": 390, "height": 844}
_PATIENCE_MS = 180_000
_ENOUGH_STEPS = 120
_STETHOS = (sys.executable, "-m", "stethos.cli.main")


class Shot(NamedTuple):
    """One picture: its name, the address of the page, and how it is looked at."""

    name: str
    address: str
    size: ViewportSize = TALL
    theme: Literal["light", "dark"] = "light"
    where: Literal["", "search"] = ""
    """Which of the directories of runs."""
    at: str = ""
    """What is scrolled to."""


ASKED = "SELECT round, client, cos_centre AS cosine\nFROM updates\nWHERE layer IS NULL AND client IS NOT NULL"
SHOTS = (
    Shot("runs", "/runs", LOW),
    Shot("search", f"/runs?metric={quote('eval/accuracy')}&group=config:lr", TALL, where="search", at="groups"),
    Shot("metrics", "/run/hidden-1/metrics?smooth=0.6", TALLEST),
    Shot("overview", "/run/hidden-1/overview"),
    Shot("overview-dark", "/run/hidden-1/overview", theme="dark"),
    Shot("overview-phone", "/run/hidden-1/overview", PHONE),
    Shot("overview-training", "/run/digits-1/overview"),
    Shot("clients", "/run/hidden-1/clients?measure=cosine&client=c5"),
    Shot("clients-dark", "/run/hidden-1/clients?measure=cosine&client=c5", theme="dark"),
    Shot("layers", "/run/hidden-1/layers", TALLEST),
    Shot("layers-training", "/run/digits-1/layers"),
    Shot("time", "/run/hidden-1/time"),
    Shot("memory", "/run/hidden-1/memory"),
    Shot("findings", "/run/hidden-1/findings"),
    Shot("live", "/run/live-1/live"),
    Shot("compare", "/compare?runs=hidden-1,hidden-2", TALLEST),
    Shot("clients-phone", "/run/hidden-1/clients?measure=cosine", PHONE),
    Shot("report", "", LAPTOP),
    Shot("site", "", LAPTOP),
    Shot("sql", f"/run/hidden-1/sql?q={quote(ASKED)}&as=heat&x=round&y=cosine&by=client"),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path, nargs="?", default=IMAGES)
    parser.add_argument("--runs", type=Path, help="a directory that already has the runs")
    parser.add_argument("--only", action="append", default=[], metavar="NAME")
    parser.add_argument("--chromium", default="/usr/bin/chromium")
    choice = parser.parse_args()
    choice.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="stethos-shots-", ignore_cleanup_errors=True) as scratch:
        runs = choice.runs or Path(scratch) / "runs"
        make_runs(runs)
        make_search(Path(scratch) / "search")
        shots = [shot for shot in SHOTS if not choice.only or shot.name in choice.only]
        with served(runs) as usual, served(Path(scratch) / "search") as search, sync_playwright() as play:
            browser = play.chromium.launch(executable_path=choice.chromium, args=list(FLAGS))
            for shot in shots:
                url = search if shot.where == "search" else usual
                context = browser.new_context(viewport=shot.size, color_scheme=shot.theme)
                page = context.new_page()
                if shot.name == "live":
                    with training(runs):
                        page.goto(f"{url}&to={quote(shot.address)}")
                        take_stacks(page)
                        page.screenshot(path=choice.out / "live.png")
                elif shot.name == "report":
                    page.goto(make_report(runs / "hidden-1", Path(scratch) / "report.html"))
                    settle(page)
                    page.screenshot(path=choice.out / "report.png")
                elif shot.name == "site":
                    with site(Path(scratch) / "site") as address:
                        page.goto(address)
                        expect(page.get_by_role("textbox", name="Search")).to_be_visible()
                        page.screenshot(path=choice.out / "site.png")
                else:
                    page.goto(f"{url}&to={quote(shot.address)}")
                    settle(page)
                    if shot.address.startswith("/run/"):  # each of these runs has a finding
                        expect(page.locator(".top .state")).to_be_visible(timeout=_PATIENCE_MS)
                        expect(page.locator("nav .badge.is-error")).to_have_count(1, timeout=_PATIENCE_MS)
                        settle(page)
                    if shot.at != "":
                        page.locator(f"[data-panel={shot.at}]").evaluate("one => one.scrollIntoView()")
                        page.wait_for_timeout(300)
                    page.screenshot(path=choice.out / f"{shot.name}.png")
                context.close()
            browser.close()


def make_runs(runs: Path) -> None:
    runs.mkdir(parents=True, exist_ok=True)
    for choice, name in (((), "hidden-1"), (("--seed", "7"), "hidden-2")):
        if not (runs / name).exists():
            words = ("demo", "--dir", runs.name, *choice, "--json")
            subprocess.run([*_STETHOS, *words], check=True, stdout=subprocess.DEVNULL, cwd=runs.parent)
    if not (runs / "digits-1").exists():
        words = ("run", "--dir", str(runs.resolve()), "--name", "digits-1", "examples/demo.py")
        subprocess.run([*_STETHOS, *words], check=True, capture_output=True, cwd=ROOT)
        words = ("diagnose", "-t", str(runs / "digits-1"))  # its exit status tells what it found
        subprocess.run([*_STETHOS, *words], check=False, capture_output=True)


def make_search(directory: Path) -> None:
    """Sixty small runs that differ in learning rate, width and seed."""
    for number in range(60):
        lr, width, seed = 10.0 ** -(1 + number % 4), 2 ** (4 + number // 4 % 5), number // 20
        settings = [LoggedSetting("lr", lr), LoggedSetting("width", width), LoggedSetting("seed", seed)]
        best = 0.93 - 0.06 * abs(math.log10(lr) + 2.4) + 0.008 * math.log2(width) + 0.01 * math.sin(7.0 * number)
        told = [
            LoggedNumber("eval/accuracy", step, 10**18 + step * 10**9, best * (1 - math.exp(-step / (4 + 60 * lr))))
            for step in range(40)
        ]
        write_run(directory / f"search-{number}", Path("made"), [*settings, *told])


def make_report(run: Path, file: Path) -> str:
    """The address of a run's report."""
    subprocess.run([*_STETHOS, "report", "-t", str(run), "-o", str(file)], check=True, stdout=subprocess.DEVNULL)
    return file.resolve().as_uri()


@contextmanager
def site(directory: Path) -> Iterator[str]:
    """The address of the documentation, built and served: without a server it has no search."""
    words = (sys.executable, "-m", "mkdocs", "build", "-q", "-d", str(directory))
    subprocess.run(words, check=True, cwd=ROOT, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"})
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(QuietHandler, directory=str(directory))) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()


class QuietHandler(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


@contextmanager
def training(runs: Path) -> Iterator[None]:
    """A training that goes on while it is looked at."""
    shutil.rmtree(runs / "live-1", ignore_errors=True)
    words = ("run", "--dir", str(runs.resolve()), "--name", "live-1", "examples/demo.py", "--epochs", "400")
    process = subprocess.Popen([*_STETHOS, *words], stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL, cwd=ROOT)
    try:
        while not any(one["steps"] > _ENOUGH_STEPS for one in _processes(runs / "live-1")):
            time.sleep(0.2)
        yield
    finally:
        process.terminate()
        process.wait()


def _processes(run: Path) -> list[dict[str, Any]]:
    return open_run(run).processes() if (run / "run.json").exists() else []


def take_stacks(page: Page) -> None:
    settle(page)
    page.get_by_role("button", name="Take the stacks").click()
    expect(page.locator(".branch").first).to_be_visible(timeout=_PATIENCE_MS)
    page.wait_for_timeout(300)


def settle(page: Page) -> None:
    """Wait until every panel has its numbers and the diagnosis has ended."""
    expect(page.locator("main .card").first).to_be_visible(timeout=_PATIENCE_MS)
    expect(page.locator(".skeleton, [aria-busy=true]")).to_have_count(0, timeout=_PATIENCE_MS)
    expect(page.get_by_text(re.compile("^(Diagnosing|Asking) …|^reading the metrics"))).to_have_count(
        0, timeout=_PATIENCE_MS
    )
    expect(page.locator(".skeleton")).to_have_count(0, timeout=_PATIENCE_MS)
    page.wait_for_timeout(600)


@contextmanager
def served(runs: Path) -> Iterator[str]:
    """The address of a server over a directory of runs, token included."""
    words = [*_STETHOS, "serve", "--dir", runs.name, "--port", "0", "--json"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True, cwd=runs.resolve().parent) as server:
        assert server.stdout is not None
        text = ""
        while not text.rstrip().endswith("}"):
            text += server.stdout.readline() or sys.exit("the server did not start")
        try:
            yield json.loads(text)["url"]
        finally:
            server.terminate()


if __name__ == "__main__":
    main()
