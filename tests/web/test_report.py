"""`stethos report`: one file, opened in a real browser from the disk, and text for an issue."""

from __future__ import annotations

import json
import os
import re
import shutil
import stat
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from builders import RunBuilder
from federated_rows import EVIL, build_federation
from playwright.sync_api import Browser, Page, expect
from processes import command, environment, finish, start, wait_for_rest
from served import PATIENCE_MS

from stethos.cli.main import main
from stethos.cli.screen.markdown import escape
from stethos.store.rows import Rows
from stethos.store.run import open_run
from stethos.web.page_files import PageFiles
from stethos.web.panels import PANELS
from stethos.web.report import gather, thin

BREAKOUT = "</script><script>alert(1)</script>"
HOSTILE = ("c1", BREAKOUT, "<!--<script>", "@octocat", "a|b`c`", "[x](http://evil.example)", EVIL)
PAGES = ("overview", "clients", "layers", "time", "memory", "findings", "live")


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory, registry: Path) -> Path:
    """A run of the demo: ten clients, c1 faulty from round 5 on."""
    directory = tmp_path_factory.mktemp("demo")
    words = ("-m", "stethos.lab.demo", "--dir", directory, "--name", "demo", "--seed", "2")
    process = start(*words, env=environment(XDG_RUNTIME_DIR=str(registry)), stdout=subprocess.DEVNULL)
    result = finish(process)
    assert result.returncode == 0, result.stderr
    wait_for_rest(directory / "demo")
    return directory / "demo"


@pytest.fixture(scope="module")
def page_file(demo: Path, tmp_path_factory: pytest.TempPathFactory, page_is_built: None) -> Path:
    """Its report, as the command writes it."""
    path = tmp_path_factory.mktemp("report") / "report.html"
    said = command("report", "-t", demo, "-o", path)
    assert said.returncode == 0, said.stderr
    assert "report of run demo" in said.stdout
    return path


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A federation whose clients have names that are more than text elsewhere."""
    path = tmp_path_factory.mktemp("hostile") / "<u>run & co"
    build_federation(path, clients=HOSTILE)
    return path


Open = Callable[..., Page]


@pytest.fixture
def opened(browser: Browser) -> Iterator[Open]:
    """Open a file; nothing may be complained about, and nothing but the file itself be asked for."""
    context = browser.new_context(viewport={"width": 1280, "height": 900}, offline=True)
    context.set_default_timeout(PATIENCE_MS)
    troubles: list[str] = []
    requests: list[str] = []

    def go(path: Path, address: str = "") -> Page:
        page = context.new_page()
        page.on("console", lambda said: troubles.append(said.text))
        page.on("pageerror", lambda error: troubles.append(str(error)))
        page.on("dialog", lambda dialog: (troubles.append(f"dialog {dialog.message}"), dialog.dismiss()))
        page.on("request", lambda request: requests.append(request.url))
        page.goto(path.as_uri() + address)
        settle(page)
        return page

    yield go
    context.close()
    assert troubles == []
    assert not [url for url in requests if not url.startswith(("file:", "data:"))]
    assert len([url for url in requests if url.startswith("file:")]) == 1


def settle(page: Page) -> None:
    expect(page.locator("main .card").first).to_be_visible()
    expect(page.locator(".skeleton, [aria-busy=true]")).to_have_count(0)


def visit(page: Page, name: str) -> None:
    here = page.get_by_role("navigation").locator("a[href$='/overview']").get_attribute("href")
    assert here is not None
    page.evaluate("hash => { location.hash = hash }", here.replace("/overview", f"/{name}"))
    expect(page.locator(f"nav a[aria-current=page][href*='/{name.partition('?')[0]}']")).to_be_visible()
    settle(page)


def written(*words: object) -> int:
    return main(["report", *map(str, words)])


def test_the_report_of_the_demo_tells_its_story_offline(page_file: Path, opened: Open) -> None:
    assert page_file.stat().st_size <= 1_000_000
    page = opened(page_file)
    expect(page.locator(".verdict-word")).to_contain_text("c1")
    expect(page.locator("[data-panel=made]")).to_contain_text("stethos.lab.demo")
    expect(page.locator("[data-panel=round-loss] canvas")).to_be_visible()
    page.locator("[data-panel=round-loss]").get_by_role("button", name="SQL", exact=True).click()
    expect(page.locator("[data-panel=round-loss] pre")).to_contain_text("FROM rounds")
    page.get_by_role("link", name="See c1 beside the others").click()
    expect(page.locator("#one-client")).to_contain_text("c1")
    settle(page)
    expect(page.locator("[data-panel=client-cosine] canvas")).to_be_visible()
    page.get_by_role("radio", name="cosine").click()
    expect(page).to_have_url(re.compile("measure=cosine"))
    settle(page)
    expect(page.locator("[data-panel=client-map] canvas")).to_be_visible()
    for name in PAGES:
        page.get_by_role("navigation").locator(f"a[href$='/{name}']").click()
        settle(page)
        expect(page.locator(".crumb")).not_to_be_empty()
        assert page.locator(".trouble").all_inner_texts() == [], name
    visit(page, "layers?layer=hidden.bias&statistic=std")  # whatever order the choices were made in
    visit(page, "time?round=5")
    expect(page.locator("[data-panel=waterfall]")).to_contain_text("round 5")
    assert page.locator(".trouble").count() == 0
    visit(page, "findings")
    expect(page.locator(".finding.is-error").first).to_contain_text("c1")


def test_where_scripts_are_not_allowed_the_verdict_is_text(page_file: Path, browser: Browser) -> None:
    context = browser.new_context(java_script_enabled=False)
    context.set_default_timeout(PATIENCE_MS)
    page = context.new_page()
    page.goto(page_file.as_uri())
    expect(page.locator("noscript pre")).to_contain_text("client c1")
    context.close()


def test_only_our_own_script_may_run(page_file: Path) -> None:
    text = page_file.read_text(encoding="utf-8")
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', text)
    assert policy is not None and "default-src 'none'" in policy[1] and "unsafe" not in policy[1]
    assert text.count("<script") == text.count("</script>") == 2
    assert "http://" not in re.sub(r"http://www\.w3\.org/[\w/]+", "", text.partition("<body>")[0])


def test_names_are_text(hostile: Path, tmp_path: Path, opened: Open, page_is_built: None) -> None:
    path = tmp_path / "report.html"
    assert written("-t", hostile, "-o", path) == 0
    text = path.read_text(encoding="utf-8")
    data = re.search(r'id="stethos-report">(.*?)</script>', text, re.DOTALL)
    assert data is not None and not set("<>&\u2028\u2029") & set(data[1])
    assert json.loads(data[1])["run"] == hostile.name
    page = opened(path)
    assert page.title() == f"{hostile.name} · Stethos"
    for name in PAGES:
        visit(page, name)
        assert page.locator("main script, main img, main u").count() == 0, name
    visit(page, "clients")
    page.locator("[data-panel=client-table]").get_by_role("button", name=BREAKOUT).click()
    expect(page.locator("#one-client")).to_contain_text(BREAKOUT)
    settle(page)
    assert page.locator(".trouble").count() == 0


def test_a_small_limit_thins_and_says_so(
    demo: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], opened: Open, page_is_built: None
) -> None:
    path = tmp_path / "small.html"
    assert written("-t", demo, "-o", path, "--limit-bytes", 1000) == 2
    least = int(re.findall(r"at least (\d+)", capsys.readouterr().err)[0])
    assert written("-t", demo, "-o", path, "--limit-bytes", least, "--json") == 0
    told = json.loads(capsys.readouterr().out)
    assert told["size_bytes"] == path.stat().st_size <= least
    assert any("Thinned" in note for note in told["notes"]) and any("of 10 clients" in note for note in told["notes"])
    page = opened(path)
    expect(page.locator(".verdict-word")).to_contain_text("c1")
    expect(page.locator(".made")).to_contain_text("Thinned")
    page.get_by_role("link", name="See c1 beside the others").click()
    settle(page)
    assert page.locator(".trouble").count() == 0  # whom a finding names is kept first
    visit(page, "clients?client=nobody")
    expect(page.locator(".trouble").first).to_contain_text("not part of this report")


def test_thinning_keeps_whole_columns_of_a_map_and_the_top_of_a_table() -> None:
    cells = [(layer, step, 0.5) for layer in "abc" for step in range(400)]
    columns = Rows(("layer", "step", "value"), ("VARCHAR", "INTEGER", "DOUBLE"), cells)
    thinned = thin(PANELS["gradient-flow"], columns, 3_000)
    steps = thinned.column("step")
    assert thinned.is_cut and 0 < len(thinned.values) < len(columns.values)
    assert len(thinned.values) == 3 * len(set(steps)) and min(steps) == 0 and max(steps) > 350
    table = thin(PANELS["layer-table"], columns, 3_000)
    assert (
        0 < len(table.values) < len(columns.values)
        and table.column("layer") == columns.column("layer")[: len(table.values)]
    )
    assert thin(PANELS["layer-table"], columns, 10).values == []


@pytest.mark.parametrize("state", ["empty", "live", "killed", "damaged"])
def test_any_run_has_a_report(
    run: RunBuilder, state: str, tmp_path: Path, hostile: Path, opened: Open, page_is_built: None
) -> None:
    path = run.path
    if state in ("live", "killed"):
        run.process(is_alive=state == "live").steps(30)
        if state == "killed":
            run.close()  # nobody collects its rows any more
    elif state == "damaged":
        path = Path(shutil.copytree(hostile, tmp_path / "damaged"))
        for file in [*path.glob("*/*.seg"), *path.glob("*/*.parquet"), *path.glob("*/ring")]:
            content = file.read_bytes()
            file.write_bytes(content[: len(content) // 2])
    before = sorted(path.rglob("*"))
    assert written("-t", path, "-o", tmp_path / "report.html") == 0
    assert written("-t", path, "-o", tmp_path / "report.md") == 0
    assert state not in ("empty", "live") or sorted(path.rglob("*")) == before  # a report reads
    page = opened(tmp_path / "report.html")
    expect(page.locator(".verdict-word")).not_to_be_empty()
    expect(page.locator(".made")).to_contain_text("Report of")
    assert ("still going on" in page.locator(".made").inner_text()) == (state == "live")


def test_a_file_that_exists_is_kept_and_appears_only_whole(
    demo: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "report.md"
    path.write_text("mine")
    assert written("-t", demo, "-o", path) == 2
    assert path.read_text() == "mine" and "--force" in capsys.readouterr().err
    assert written("-t", demo, "-o", path, "--force") == 0
    assert path.read_text().startswith("## run demo") and stat.S_IMODE(path.stat().st_mode) & 0o400
    assert list(tmp_path.iterdir()) == [path]
    os.mkfifo(pipe := tmp_path / "pipe")
    for words, complaint in (
        (("-o", tmp_path, "--force"), "Is a directory"),
        (("-o", pipe, "--force"), "not a file"),
        (("-o", path / "below.md"), "cannot write"),
        (("-o", "-", "--json"), "-o FILE"),
        (("-t", tmp_path / "none", "--format", "md"), "no run"),
    ):
        assert written(*(() if "-t" in words else ("-t", demo)), "--format", "md", *words) >= 2
        assert complaint in capsys.readouterr().err
    assert pipe.is_fifo()


def test_without_the_page_text_can_still_be_had(
    demo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(PageFiles, "__init__", lambda self: setattr(self, "_directory", tmp_path / "nothing"))
    assert written("-t", demo, "-o", tmp_path / "report.html") == 2
    assert "--format md" in capsys.readouterr().err and not (tmp_path / "report.html").exists()


def test_markdown_tells_the_same_story(demo: Path) -> None:
    said = command("report", "-t", demo, "--format", "md")
    assert said.returncode == 0, said.stderr
    text = said.stdout
    assert text.startswith("## run demo (ended): 1 problem")
    assert re.search(r"### ERROR: client c1 .*\n\nfaulty-client \(FED001\), since round 5, \d+ % sure", text)
    assert "- **next: " in text and re.search(r"loss `[▁-█]{20}` ", text)
    assert re.search(r"^\| 20 \| 10/10 \| [\d.]+ \| [\d.]+ \| ", text, re.MULTILINE) and "| ⋮ |" in text
    assert re.search(r"^\| c1 \| [^|]*since round 5 \| 20/20 \| ", text, re.MULTILINE) and "- torch: " in text
    assert len(text) < 10_000


def test_markdown_escapes_names(hostile: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert written("-t", hostile, "--format", "md") == 0
    text = capsys.readouterr().out
    prose = re.sub(r"```sql\n.*?```", "", text, flags=re.DOTALL)
    assert "<" not in prose and "\x1b" not in text and "&lt;script&gt;" in prose
    assert escape("[x](http://evil) | `c` @octocat #12 <b> $x$") == (
        r"\[x\](http:&#8203;//evil) \| \`c\` @&#8203;octocat #&#8203;12 &lt;b&gt; &#36;x&#36;"
    )


def test_the_report_holds_what_the_panels_say(hostile: Path) -> None:
    with open_run(hostile) as run:
        report = gather(run, {"findings": []}, room_bytes=2_000_000)
        rounds = run.rows(PANELS["round-loss"].query()).values
    carried = {(one["panel"], *one["given"].values()): one["columns"] for one in json.loads(report.data)["panels"]}
    for (number, name, loss), row in zip(rounds, zip(*carried["round-loss",]["values"], strict=True), strict=True):
        assert row[:2] == (number, name) and float(row[2]) == pytest.approx(loss, rel=1e-6, nan_ok=True)
    assert {one for name, *given in carried if name == "client-norm" for one in given} == set(HOSTILE)
    assert "<" not in report.data and report.panels == len(carried)
