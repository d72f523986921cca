"""Take the pictures of docs/images: every page of the dashboard, from the demo's own runs.

python tools/screenshots.py RUNS [OUT]

RUNS is a directory with a federated run and an ordinary one, as `stethos demo` and `make traindemo` leave them.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

from playwright.sync_api import Page, ViewportSize, expect, sync_playwright

ROOT = Path(__file__).resolve().parents[1]
IMAGES = ROOT / "docs" / "images"
FLAGS = (
    "--no-sandbox", "--no-first-run", "--disable-background-networking", "--disable-component-update",
    "--disable-sync",
)  # fmt: skip
LAPTOP: ViewportSize = {"width": 1280, "height": 800}
PHONE: ViewportSize = {"width": 390, "height": 844}

Shot = tuple[str, str, Literal["light", "dark"], ViewportSize]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("runs", type=Path)
    parser.add_argument("out", type=Path, nargs="?", default=IMAGES)
    parser.add_argument("--chromium", default="/usr/bin/chromium")
    parser.add_argument("--only", action="append", default=[])
    choice = parser.parse_args()
    names = [path.name for path in sorted(choice.runs.iterdir()) if (path / "run.json").is_file()]
    federated = next((name for name in names if name.startswith(("demo", "hidden"))), names[0])
    training = next((name for name in names if name != federated and "digits" in name), federated)
    choice.out.mkdir(parents=True, exist_ok=True)
    with served(choice.runs) as url, sync_playwright() as play:
        browser = play.chromium.launch(executable_path=choice.chromium, args=list(FLAGS))
        for name, address, theme, size in shots(federated, training, ",".join(names[:3])):
            if choice.only and name not in choice.only:
                continue
            context = browser.new_context(viewport=size, color_scheme=theme, device_scale_factor=1)
            page = context.new_page()
            page.goto(f"{url}&to={address}")
            settle(page)
            page.screenshot(path=choice.out / f"{name}.png", full_page=size is PHONE)
            context.close()
        browser.close()


def shots(federated: str, training: str, compared: str) -> Iterator[Shot]:
    """Name, address, theme and size of every picture."""
    from urllib.parse import quote

    asked = quote(
        "SELECT round, client, cos_centre AS cosine FROM updates\nWHERE layer IS NULL AND client IS NOT NULL", safe=""
    )
    tall: ViewportSize = {"width": 1280, "height": 1180}
    yield "runs", "/runs", "light", {"width": 1280, "height": 460}
    yield "overview", f"/run/{federated}/overview", "light", tall
    yield "overview-dark", f"/run/{federated}/overview", "dark", tall
    yield "overview-phone", f"/run/{federated}/overview", "light", PHONE
    yield "overview-training", f"/run/{training}/overview", "light", tall
    yield "clients", f"/run/{federated}/clients%3Fmeasure=cosine%26client=c1", "light", tall
    yield "clients-dark", f"/run/{federated}/clients%3Fmeasure=cosine%26client=c1", "dark", tall
    yield "layers", f"/run/{training}/layers", "light", tall
    yield "time", f"/run/{federated}/time", "light", tall
    yield "memory", f"/run/{federated}/memory", "light", tall
    yield "findings", f"/run/{federated}/findings", "light", LAPTOP
    yield "live", f"/run/{training}/live", "light", tall
    yield "compare", f"/compare%3Fruns={compared}", "light", tall
    yield "sql", f"/run/{federated}/sql%3Fq={quote(asked)}%26as=heat%26x=round%26y=cosine%26by=client", "light", tall


def settle(page: Page) -> None:
    """Wait until every panel has its numbers and the diagnosis has ended."""
    page.wait_for_selector("main .card")
    page.wait_for_load_state("load")
    expect(page.locator(".skeleton, [aria-busy=true], .verdict.is-looking")).to_have_count(0, timeout=60_000)
    page.wait_for_timeout(400)


@contextmanager
def served(runs: Path) -> Iterator[str]:
    """The address of a server over a directory of runs, token included."""
    words = [sys.executable, "-m", "stethos.cli.main", "serve", "--dir", str(runs), "--port", "0", "--json"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as server:
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
