"""A page that is built, runs to look at, a server over them, and a real browser."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect, sync_playwright
from processes import drainers_of, environment, finish, start_command, start_program, wait_for_rest, wait_until
from served import FLAGS, GO_ON, PATIENCE_MS, Served

expect.set_options(timeout=PATIENCE_MS)  # five seconds are not much on a busy machine


@pytest.fixture(scope="session")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the processes of these tests are registered."""
    return tmp_path_factory.mktemp("registry")


@pytest.fixture(scope="session")
def shown_runs(tmp_path_factory: pytest.TempPathFactory, registry: Path) -> Path:
    """A directory with one run, `odd`, whose names are as bad as names can be."""
    directory = tmp_path_factory.mktemp("shown")
    mine = environment(XDG_RUNTIME_DIR=str(registry))
    program = start_program("odd_names.py", directory, "odd", env=mine)
    result = finish(program)
    assert result.returncode == 0, result.stderr
    wait_for_rest(directory / "odd")
    wait_until(lambda: not drainers_of(directory), "the end of its drainer, after which nothing in it changes")
    return directory


@pytest.fixture(scope="module")
def server(shown_runs: Path, tmp_path_factory: pytest.TempPathFactory, registry: Path) -> Iterator[Served]:
    """A server over a copy of these runs, to which a file of tests may add others."""
    directory = Path(shutil.copytree(shown_runs, tmp_path_factory.mktemp("served") / "runs"))
    mine = environment(XDG_RUNTIME_DIR=str(registry))
    process = start_command("serve", "--dir", directory, "--port", "0", "--json", env=mine, stderr=None)
    assert process.stdout is not None
    text = ""
    while not text.rstrip().endswith("}"):
        line = process.stdout.readline()
        assert line, "the server did not start"
        text += line
    url, _, token = json.loads(text)["url"].partition("/#token=")
    try:
        yield Served(url, token, directory, process)
    finally:
        process.terminate()
        finish(process)


@pytest.fixture(scope="module")
def training(server: Served, registry: Path) -> Iterator[subprocess.Popen[str]]:
    """A federated training in that directory: run `live`, client c1 faulty from round 5; it goes on after `let_go`."""
    mine = environment(XDG_RUNTIME_DIR=str(registry), STETHOS_HANG_AFTER="0")
    process = start_program(
        "watched_demo.py", server.directory, "live", registry / GO_ON, env=mine, stderr=subprocess.DEVNULL
    )
    yield process
    process.kill()
    process.communicate()


@pytest.fixture(scope="session")
def chromium() -> str:
    """Debian's Chromium; where it could be installed, missing it is a failure."""
    found = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if found is None:
        if os.geteuid() == 0 and shutil.which("apt-get"):
            pytest.fail("Chromium is not installed: `make test` installs it")
        pytest.skip("no browser")
    return found


@pytest.fixture(scope="module")
def browser(chromium: str, page_is_built: None) -> Iterator[Browser]:
    """Headless, with an empty profile."""
    with sync_playwright() as play:
        browser = play.chromium.launch(executable_path=chromium, args=list(FLAGS), timeout=PATIENCE_MS)
        yield browser
        browser.close()
