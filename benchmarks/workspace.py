"""The page over many runs: python -m benchmarks.workspace [RUNS [POINTS]].

Makes runs with hyperparameters and metrics, serves them, and measures in a real browser: until the first table is
there, sorting, filtering as one types, and drawing one metric of fifty runs, smoothed.
"""

from __future__ import annotations

import gzip
import json
import math
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from playwright.sync_api import Page, expect, sync_playwright

import stethos
from stethos.store.foreign.run_writer import write_run
from stethos.store.foreign.value import Logged, LoggedNumber, LoggedSetting
from stethos.wiring import command_line

T0_NS = 1_700_000_000_000_000_000
PATIENCE_MS = 120_000
CLOCK = """async ([selector, type, text]) => {
  const said = () => document.querySelector('.runs-table tbody').textContent;
  const one = document.querySelector(selector);
  const sorted = () => one.closest('th')?.getAttribute('aria-sort');
  const before = type === 'click' ? sorted() : said();
  const start = performance.now();
  if (type === 'click') one.click();
  else { one.value = text; one.dispatchEvent(new Event('input', { bubbles: true })); }
  while ((type === 'click' ? sorted() : said()) === before) await new Promise(requestAnimationFrame);
  await new Promise(requestAnimationFrame);
  return performance.now() - start;
}"""


def told(number: int, points: int) -> Iterator[Logged]:
    for name, value in {"lr": 10 ** -(1 + number % 4), "seed": number % 10, "width": 2 ** (number % 7)}.items():
        yield LoggedSetting(name, value)
    for name in ("train/loss", "eval/accuracy"):
        for step in range(points):
            noise = math.sin(step * 12.9898 + number) * 0.1
            value = (2 / (1 + step / 100) if name == "train/loss" else step / points) + noise
            yield LoggedNumber(name, step, T0_NS + number * 10**12 + step * 10**8, value)


def measure(page: Page, url: str, runs: int) -> dict[str, float]:
    start = time.monotonic()
    page.goto(url)
    expect(page.locator(".runs-table tbody tr:not(.filler)").nth(5)).to_be_visible()
    first_s = time.monotonic() - start
    expect(page.locator(".runs header .muted")).to_have_text(f"{runs:,} runs")
    expect(page.locator("[aria-busy=true]")).to_have_count(0)
    page.wait_for_timeout(2000)
    sorts = [page.evaluate(CLOCK, [".runs-table thead th:nth-child(2) button", "click", ""]) for _ in range(5)]
    texts = ("run-1", "run-12", "run-123", "run-12", "run-9")
    filters = [page.evaluate(CLOCK, [".run-tools input[type=search]", "input", text]) for text in texts]
    return {"first table, s": first_s, "sort, ms": max(sorts), "filter, ms": max(filters)}


def measure_curves(page: Page, url: str) -> float:
    """From moving the slider to the drawing of fifty smoothed curves; their numbers are there already."""
    page.goto("about:blank")
    page.goto(f"{url}%3Fmetric=train/loss")
    expect(page.locator("[data-panel=curves] canvas")).to_be_visible(timeout=PATIENCE_MS)
    page.wait_for_timeout(1500)
    script = """async () => {
      const slider = document.querySelector('[data-panel=curves] input[type=range]');
      const times = [];
      for (const value of ['0.5', '0.9', '0.6', '0.8']) {
        const start = performance.now();
        slider.value = value;
        slider.dispatchEvent(new Event('input', { bubbles: true }));
        const output = document.querySelector('[data-panel=curves] output');
        while (output.textContent !== value) await new Promise(requestAnimationFrame);
        await new Promise(requestAnimationFrame);
        times.push(performance.now() - start);
      }
      return Math.max(...times);
    }"""
    return float(page.evaluate(script))


def main() -> None:
    runs, points = (int(word) for word in (*sys.argv[1:3], "1000", "2000")[:2]) if len(sys.argv) < 2 else (
        int(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 2000
    )  # fmt: skip
    directory = Path(tempfile.mkdtemp(prefix="stethos-runs-"))
    try:
        for number in range(runs):
            write_run(directory / f"run-{number}", Path("made"), told(number, points))
        server = subprocess.Popen(
            [*command_line(), "serve", "--dir", directory, "--port", "0", "--json"], stdout=subprocess.PIPE, text=True
        )
        try:
            assert server.stdout is not None
            text = ""
            while not text.rstrip().endswith("}"):
                text += server.stdout.readline()
            url = json.loads(text)["url"] + "&to=/runs"
            with sync_playwright() as play:
                browser = play.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
                page = browser.new_page(viewport={"width": 1360, "height": 900})
                page.set_default_timeout(PATIENCE_MS)
                expect.set_options(timeout=PATIENCE_MS)
                found = measure(page, url, runs)
                found["50 curves smoothed, ms"] = measure_curves(page, url)
                browser.close()
        finally:
            server.terminate()
            server.wait()
    finally:
        shutil.rmtree(directory)
    files = [*(Path(stethos.__file__).parent / "web" / "static").rglob("*.*")]
    found["page, kB gzip"] = sum(len(gzip.compress(file.read_bytes())) for file in files) / 1000
    for name, value in found.items():
        sys.stdout.write(f"{name:26} {value:10.2f}\n")


if __name__ == "__main__":
    main()
