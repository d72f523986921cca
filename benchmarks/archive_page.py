"""The first page of the dashboard over an archived run, and a training beside its archiver."""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.child import Child
from benchmarks.estimate import median
from benchmarks.report import Grid, say, verdict
from benchmarks.scale import Scale
from benchmarks.served import served

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Playwright

    from stethos.archive.address import Address

_FIRST_TARGET_S = 2.5
_SETTLED_S = 2.0  # a browser that has just started still loads parts of itself
_FLAGS = ["--no-sandbox", "--no-first-run", "--disable-background-networking", "--disable-sync"]


def first_page(scale: Scale, scratch: Path, store: str) -> Grid:
    """A federation with many layer rows, opened from S3: with nothing of it on this machine, and again."""
    from playwright.sync_api import sync_playwright

    from stethos.archive.address import parse_address
    from stethos.archive.committer import archive_run
    from stethos.record.place import RunPlace

    clients, rounds = (20, 100) if scale.is_quick else (100, 1000)
    say(f"archive: a run of {rounds} rounds x {clients} clients and {scale.group_by_rows:,} layer rows")
    job = {"run": str(scratch / "runs" / "wide"), "clients": clients, "rounds": rounds, "rows": scale.group_by_rows}
    child = Child("wide_run", job)
    child.wait_for_result()
    child.close()
    archive = parse_address(f"{store}/pages")
    outcome = archive_run(RunPlace(scratch / "runs" / "wide"), archive)
    lines = []
    for where, is_up in (("a browser that is up", True), ("a browser just started", False)):
        for what, is_cold in (("nothing on this machine", True), ("fetched before", False)):
            say(f"archive: first page, {where}, {what}")
            repeats = 2 if scale.is_quick else 5
            with sync_playwright() as play:
                taken = [_opened(play, archive / "wide", is_cold=is_cold, is_up=is_up) for _ in range(repeats)]
            drawn, ready = [one for one, _ in taken], [one for _, one in taken]
            lines.append(
                [f"{where}, {what}", f"{median(drawn):.2f}", f"{max(drawn):.2f}", f"{_FIRST_TARGET_S}",
                 verdict(max(drawn), _FIRST_TARGET_S), f"{median(ready):.2f}"]
            )  # fmt: skip
    title = f"The dashboard over an archived run of {outcome.rows:,} rows ({outcome.bytes / 1e6:.0f} MB) on S3, s"
    return Grid(title, ["first page drawn", "median", "worst", "target", "reached", "server ready, median"], lines, [
        "Chromium with a new profile each time, from the request to the last panel drawn. The server was just started "
        "for it: opening the run and that took the last column's time before the request. The run was never diagnosed."
    ])  # fmt: skip


def _opened(play: Playwright, run: Address, *, is_cold: bool, is_up: bool) -> tuple[float, float]:
    """Seconds until the page is drawn, and before that until the server was there."""
    from stethos.archive.cache import open_archived
    from stethos.archive.cached_files import cache_root

    if is_cold:
        shutil.rmtree(cache_root(), ignore_errors=True)
    browser = _launched(play) if is_up else None
    if browser is not None:
        browser.new_page().goto("data:text/html,up")
        time.sleep(_SETTLED_S)
    start = time.perf_counter()
    directory = open_archived(run).path.parent
    with served(directory) as (url, token, _):
        ready_s = time.perf_counter() - start
        browser = browser or _launched(play)
        drawn_s = _drawn_s(browser, url, token)
    browser.close()
    return drawn_s, ready_s


def _launched(play: Playwright) -> Browser:
    return play.chromium.launch(executable_path=shutil.which("chromium"), args=_FLAGS)


def _drawn_s(browser: Browser, url: str, token: str) -> float:
    from playwright.sync_api import expect

    page = browser.new_context().new_page()
    start = time.perf_counter()
    page.goto(f"{url}/#token={token}&to=/run/wide/overview", wait_until="commit")
    expect(page.locator("[data-panel=round-loss] canvas")).to_be_visible(timeout=60_000)
    expect(page.locator(".skeleton, [aria-busy=true]")).to_have_count(0, timeout=60_000)
    return time.perf_counter() - start


_TRAINING = """
import hashlib, sys, time, torch
torch.manual_seed(0)
torch.set_num_threads(1)
model = torch.nn.Sequential(torch.nn.Linear(256, 512), torch.nn.ReLU(), torch.nn.Linear(512, 10))
optimizer = torch.optim.SGD(model.parameters(), 0.05)
x, y = torch.randn(4096, 256), torch.randint(0, 10, (4096,))
taken = []
for step in range(int(sys.argv[1])):
    began = time.perf_counter()
    at = step * 64 % 4096
    loss = torch.nn.functional.cross_entropy(model(x[at:at + 64]), y[at:at + 64])
    optimizer.zero_grad(); loss.backward(); optimizer.step()
    taken.append(time.perf_counter() - began)
taken.sort()
weights = hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in model.parameters())).hexdigest()[:16]
print(f"MEASURED {1e3 * taken[len(taken) // 2]:.4f} {sum(taken):.3f} {weights}")
"""


def training(scale: Scale, scratch: Path, store: str) -> Grid:
    """One training, recorded with and without an archiver that follows it, in turns."""
    script = scratch / "training.py"
    script.write_text(_TRAINING)
    steps = 500 if scale.is_quick else 8_000
    found: dict[str, list[tuple[float, float]]] = {"recorded": [], "recorded and archived": []}
    weights = set()
    for turn in range(2 if scale.is_quick else 5):
        for name in found:
            say(f"archive: training, {name}")
            more = ["--archive", f"{store}/trainings"] if "archived" in name else []
            words = ["run", "--name", f"training-{turn}-{len(more)}", "--dir", str(scratch / "trainings"), *more]
            out = subprocess.run(
                [sys.executable, "-m", "stethos.cli.main", *words, str(script), str(steps)],
                check=True, capture_output=True, text=True,
            ).stdout  # fmt: skip
            step_ms, whole_s, digest = next(line for line in out.splitlines() if "MEASURED" in line).split()[1:]
            found[name].append((float(step_ms), float(whole_s)))
            weights.add(digest)
    lines = [[name, f"{median([step for step, _ in one]):.3f}", f"{median([whole for _, whole in one]):.2f}"]
             for name, one in found.items()]  # fmt: skip
    ratio = [float(after) / float(before) for before, after in zip(lines[0][1:], lines[1][1:], strict=True)]
    lines.append(["times", *(f"{one:.3f}" for one in ratio)])
    same = "The weights are the same bits in all." if len(weights) == 1 else "The weights DIFFER."
    return Grid(
        "A training that is archived continuously, to S3 on its own two cores", ["", "step, ms", "all steps, s"], lines,
        [f"Medians of {len(found['recorded'])} trainings of {steps:,} steps each, in turns. {same}"],
    )  # fmt: skip
