"""What is drawn: samples as dots, flags beside each other, runs over each other, and axes that tell values apart."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from builders import T0_NS, RunBuilder
from federated_rows import build_federation, put_row
from playwright.sync_api import Browser, Locator, Page, Route, expect
from processes import wait_until
from served import PATIENCE_MS, Served

from stethos.schema import CLIENT_REPORTS, ROUNDS, UPDATES
from stethos.store.foreign.run_writer import write_run
from stethos.store.foreign.value import LoggedMedia, LoggedNumber

STEPS = 100
DOT = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
KINDS = ("non-finite-loss", "learning-rate-too-high", "divergence")
# Every text and every line that is drawn on a canvas: texts with their place and width, lines by their canvas.
RECORD = """
window.drawn = { texts: [], lines: [] };
const prototype = CanvasRenderingContext2D.prototype;
const [text, line] = [prototype.fillText, prototype.stroke];
prototype.fillText = function (words, x, y) {
  window.drawn.texts.push([String(words), x, y, this.measureText(words).width, this.canvas]);
  return text.apply(this, arguments);
};
const lineTo = Path2D.prototype.lineTo;
Path2D.prototype.lineTo = function () {
  this.isLine = true; // the outline of a dot has none
  return lineTo.apply(this, arguments);
};
prototype.stroke = function (path) {
  if (path?.isLine) window.drawn.lines.push(this.canvas);
  return line.apply(this, arguments);
};
"""
LINES_IN = "panel => window.drawn.lines.filter(one => one.closest(`[data-panel=${panel}]`)).length"
TEXTS_IN = """panel => window.drawn.texts.filter(([, , , , one]) => one.closest(`[data-panel=${panel}]`))
  .map(([words, x, y, wide]) => [words, x, y, wide])"""


@pytest.fixture
def page(browser: Browser, server: Served) -> Iterator[Page]:
    for name in ("first", "second"):
        if not (server.directory / name).exists():
            build(server.directory / name)
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    context.set_default_timeout(PATIENCE_MS)
    context.add_init_script(RECORD)
    yield context.new_page()
    context.close()


def build(path: Path) -> None:
    """A training of 100 steps; three of them were sampled, and it took more than its budget."""
    with RunBuilder(path) as run:
        process = run.process(is_alive=False, overhead_budget=1e-9)
        process.steps(STEPS)
        for step in (0, 50, 90):
            process.layers(["a.weight"], step=step, norm=1.0 + step)
            process.layers(["a.weight"], "weight", step=step, norm=2.0)
        process.metric("eval/score", 0.5)
        process.drain()
        process.finish()


def opened(page: Page, server: Served, address: str) -> Page:
    page.goto("about:blank")
    page.goto(server.page(address.replace("?", "%3F").replace("&", "%26")))
    expect(page.locator("main .card").first).to_be_visible()
    expect(page.locator(".skeleton, [aria-busy=true]")).to_have_count(0)
    return page


def test_samples_are_dots_over_all_steps_and_steps_are_a_line(page: Page, server: Served) -> None:
    opened(page, server, "/run/first/layers")
    panel = page.locator("[data-panel=layer-series]")
    expect(panel).to_contain_text("Samples: 3 of 100 steps (3 %)")
    wait_until(lambda: page.evaluate(TEXTS_IN, "layer-series"), "a drawing")
    assert page.evaluate(LINES_IN, "layer-series") == 0
    assert "80" in {words for words, *_ in page.evaluate(TEXTS_IN, "layer-series")}
    opened(page, server, "/run/first/overview")
    wait_until(lambda: page.evaluate(LINES_IN, "step-loss") > 0, "a line")


def test_moves_of_weights_between_samples_are_dots(page: Page, server: Served) -> None:
    with RunBuilder(server.directory / "moved") as run:
        process = run.process(is_alive=False)
        process.steps(STEPS)
        for step in (0, 50, 90):
            process.layers(["a.weight", "b.weight"], "weight", step=step, norm=2.0, drift=0.01 * (1 + step))
        process.drain()
        process.finish()
    opened(page, server, "/run/moved/layers")
    expect(page.locator("[data-panel=update-ratio]")).to_contain_text("Samples: 2 of 100 steps (2 %)")
    wait_until(lambda: page.evaluate(TEXTS_IN, "update-ratio"), "a drawing")
    assert page.evaluate(LINES_IN, "update-ratio") == 0


def test_what_is_not_a_number_is_told_at_each_sample_and_no_label_is_cut(page: Page, server: Served) -> None:
    if not (server.directory / "lost").exists():
        with RunBuilder(server.directory / "lost") as run:
            process = run.process(is_alive=False)
            process.steps(1001, losses=[1.0] * 500 + [float("nan")] * 501)
            for step in (*range(0, 80, 10), 500, 900):
                process.layers(["a.weight"], step=step, nan=0 if step < 500 else 4)
            process.drain()
            process.finish()
    opened(page, server, "/run/lost/layers?layer=a.weight")
    panel = page.locator("[data-panel=layer-series]")
    expect(panel.locator(".legend-steps")).to_contain_text("NaN or infinite at 2 of 10")
    wait_until(lambda: page.evaluate(TEXTS_IN, "layer-series"), "a drawing")
    wide = panel.locator("canvas").evaluate("one => one.width")
    texts = page.evaluate(TEXTS_IN, "layer-series")
    assert "1,000" in {words for words, *_ in texts}
    assert all(x + w / 2 <= wide for words, x, _, w in texts if words == "1,000")


def test_a_metric_is_drawn_by_step_round_time_clock_and_samples(page: Page, server: Served) -> None:
    if not (server.directory / "wards").exists():
        build_federation(server.directory / "wards")
    seen = "() => window.drawn.texts.filter(([, , , , one]) => one.closest('[data-metric]')).map(([words]) => words)"
    opened(page, server, "/run/wards/metrics?like=rounds/loss")
    for axis, shape in (
        ("round", r"[123]"), ("time", r"[\d.]+ s"), ("clock", r"\d\d:\d\d:\d\d.*"), ("samples", r"\d+"),
        ("step", r"\d+"),
    ):  # fmt: skip
        page.evaluate("window.drawn.texts = []")
        page.get_by_role("radio", name=axis, exact=True).click()
        expect(page).to_have_url(re.compile("x=" + axis if axis != "step" else r"metrics\?like=[^&]*$"))
        expect(page.locator("[data-metric] canvas")).to_be_visible()
        wait_until(lambda shape=shape: any(re.fullmatch(shape, one) for one in page.evaluate(seen)), axis)  # type: ignore[misc]


def test_metrics_of_a_server_that_makes_no_step_are_drawn_by_round(page: Page, server: Served) -> None:
    with RunBuilder(server.directory / "served") as run:
        process = run.process(is_alive=False)
        for number in range(1, 41):
            put_row(process, ROUNDS, T0_NS + number * 10**9, round=number, federation="w", loss=2.0 / number)
        process.drain()
        process.finish()
    opened(page, server, "/run/served/metrics")
    panel = page.locator("[data-metric='rounds/loss']")
    expect(panel).to_contain_text("last 0.05")  # not any of those that share a step
    expect(page.get_by_role("radio", name="round", exact=True)).to_be_checked()
    (path,) = paths_of(svg_of(page, panel), 'stroke-width="1.8"')
    assert len(set(re.findall(r"[ML]([-\d.]+) ", path))) == 40
    page.get_by_role("radio", name="step", exact=True).click()
    expect(page).to_have_url(re.compile("x=step"))
    expect(page.get_by_role("radio", name="step", exact=True)).to_be_checked()


def test_a_metric_that_diverges_is_drawn_on_a_logarithmic_scale_that_is_told(page: Page, server: Served) -> None:
    told = [LoggedNumber("lost", step, T0_NS + step * 10**9, 1e12 if step == 39 else 0.5) for step in range(40)]
    told += [LoggedNumber("tokens", step, T0_NS + step * 10**9, 6000.0 * step) for step in range(40)]
    write_run(server.directory / "diverged", Path("logs"), told)
    opened(page, server, "/run/diverged/metrics")
    note = page.get_by_text("Logarithmic scale")
    expect(note).to_have_count(1)
    expect(page.locator("[data-metric=lost]")).to_contain_text("Logarithmic scale")
    labels = (
        "() => window.drawn.texts.filter(([, , , , one]) => one.closest('[data-metric=tokens]')).map(([one]) => one)"
    )
    wait_until(lambda: {"50,000", "100,000", "200,000"} <= set(page.evaluate(labels)), "labels that are written alike")
    page.get_by_label("scale").select_option("linear")
    expect(note).to_have_count(0)
    expect(page).to_have_url(re.compile("log=0"))
    opened(page, server, "/runs?metric=lost")
    expect(page.locator("[data-panel=curves]")).to_contain_text("Logarithmic scale")


def test_a_panel_alone_in_its_row_fills_it_and_an_empty_page_says_so(page: Page, server: Served) -> None:
    with RunBuilder(server.directory / "nothing") as run:
        run.process(is_alive=False).finish()
    opened(page, server, "/run/first/layers")
    whole, alone = page.locator("[data-panel=gradient-flow]"), page.locator("[data-panel=layer-series]")
    boxes = [one.bounding_box() for one in (whole, alone)]
    assert boxes[0] is not None and boxes[1] is not None and abs(boxes[0]["width"] - boxes[1]["width"]) < 2
    expect(page.get_by_text("Nothing recorded.")).to_be_hidden()
    page.goto(server.page("/run/nothing/time"))
    expect(page.get_by_text("Nothing was timed in this run")).to_be_visible()


def test_thin_bars_have_the_colours_of_their_names(page: Page, server: Served) -> None:
    opened(page, server, "/run/first/time")
    panel = page.locator("[data-panel=step-time]")
    named = panel.locator(".legend-steps i").evaluate_all(
        "all => all.map(one => getComputedStyle(one).backgroundColor)"
    )
    count = """one => {
      const { data } = one.getContext('2d').getImageData(0, 0, one.width, one.height);
      const found = {};
      for (let at = 0; at < data.length; at += 4) {
        const colour = `rgb(${data[at]}, ${data[at + 1]}, ${data[at + 2]})`;
        found[colour] = (found[colour] ?? 0) + 1;
      }
      return found;
    }"""

    def filled() -> list[str]:
        pixels = panel.locator("canvas").evaluate(count)
        return [colour for colour in named if pixels.get(colour, 0) > 5000]

    wait_until(lambda: len(filled()) >= 2, "two areas, of 4 ns each, in the very colours of their names", 60)


def test_a_zoom_stays_while_the_run_goes_on(page: Page, server: Served) -> None:
    with RunBuilder(server.directory / "going") as run:
        process = run.process()
        process.steps(100)
        process.drain()
        opened(page, server, "/run/going/overview?zoom-step=10..20")
        steps = page.locator("[data-panel=summary]")
        expect(steps).to_contain_text("100")
        process.steps(150)
        process.drain()
        expect(steps).to_contain_text("250")
        page.evaluate("window.drawn.texts = []")
        process.steps(150)
        process.drain()
        expect(steps).to_contain_text("400")
        wait_until(lambda: page.evaluate(TEXTS_IN, "step-loss"), "a drawing")
        ends = {words for words, _, y, _ in page.evaluate(TEXTS_IN, "step-loss")}
        assert "15" in ends and not ends & {"100", "200", "300", "400"}
        expect(page).to_have_url(re.compile("zoom-step=10..20"))
        expect(page.get_by_role("button", name="Show all").first).to_be_visible()


def test_histograms_of_a_layer_are_a_map_over_the_steps(page: Page, server: Served) -> None:
    if not (server.directory / "spread").exists():
        with RunBuilder(server.directory / "spread") as run:
            process = run.process(is_alive=False)
            process.steps(STEPS)
            for layer, kind in (("a.weight", "gradient"), ("a.weight", "weight"), ("b.bias", "gradient")):
                process.layers([layer], kind)
                for step in range(0, 90 if kind == "gradient" else 30, 10):
                    process.histogram(layer, -1.0 / (step + 1), 2.0 / (step + 1), [*range(16)], kind, step=step)
            process.drain()
            process.finish()
    opened(page, server, "/run/spread/layers")
    panel = page.locator("[data-panel=layer-histograms]")
    expect(panel.get_by_role("img", name=re.compile("32 rows by 9 columns of Share of the gradient's"))).to_be_visible()
    panel.get_by_role("radio", name="weight").click()
    expect(panel.get_by_role("img", name=re.compile("32 rows by 3 columns of Share of the weight's"))).to_be_visible()
    panel.get_by_role("combobox", name="Layer").select_option("b.bias")
    expect(panel).to_have_count(0)  # of its weight there is none
    opened(page, server, "/run/spread/layers?layer=b.bias")
    with page.expect_download() as saved:
        panel.get_by_role("button", name="CSV").click()
    lines = Path(saved.value.path()).read_text().splitlines()
    assert lines[0] == "step,bucket,place,value" and len(lines) == 1 + 32 * 9
    opened(page, server, "/run/first/layers")
    expect(page.locator("[data-panel=layer-series]")).to_be_visible()
    expect(panel).to_have_count(0)


def test_an_overhead_above_the_budget_is_marked(page: Page, server: Served) -> None:
    opened(page, server, "/run/first/overview")
    expect(page.locator("[data-panel=summary] .is-odd")).to_contain_text(re.compile(r"overhead.*above the budget of"))


def test_flags_of_findings_do_not_hide_each_other(page: Page, server: Served) -> None:
    def beside(route: Route) -> None:
        """Findings that begin close to each other, whatever the diagnosis says."""
        answer: dict[str, Any] = route.fetch().json()
        plain = {
            "code": "X", "title": "t", "severity": "error", "confidence": 1, "open": True, "clients": [], "layers": [],
            "unit": "step", "last": None, "evidence": [], "consequences": [], "proof": None, "next_step": "",
        }  # fmt: skip
        answer["findings"] = [{**plain, "kind": kind, "first": 40 + place} for place, kind in enumerate(KINDS)]
        answer["is_diagnosed"] = True
        route.fulfill(body=json.dumps(answer), content_type="application/json")

    page.route("**/findings", beside)
    opened(page, server, "/run/first/overview")
    wait_until(
        lambda: set(KINDS) <= {words for words, *_ in page.evaluate(TEXTS_IN, "step-loss")}, "the flags of all findings"
    )
    flags = {words: place for words, *place in page.evaluate(TEXTS_IN, "step-loss") if words in KINDS}
    rows = [flags[kind][1] for kind in KINDS]
    page.unroute_all(behavior="ignoreErrors")
    assert len(set(rows)) == 3


def test_a_client_that_is_not_among_those_drawn_is_found_by_its_name(page: Page, server: Served) -> None:
    if not (server.directory / "crowded").exists():
        with RunBuilder(server.directory / "crowded") as run:
            process = run.process(is_alive=False)
            for place in range(130):
                facts = {"norm": 1.0 + (place % 7 if place < 110 else 0), "cos_centre": 0.5, "nan": 0, "inf": 0}
                common = {"client": f"c{place:03}", "round": 1, "federation": "wards"}
                put_row(process, UPDATES, T0_NS, **common, **facts)
                put_row(process, CLIENT_REPORTS, T0_NS, **common, duration_ms=1.0)
            process.drain()
            process.finish()
    opened(page, server, "/run/crowded/clients")
    expect(page.locator("[data-panel=client-map]")).to_contain_text("the 100 of 130 clients that differ most")
    page.get_by_role("searchbox", name="another client").fill("c129")
    page.keyboard.press("Enter")
    expect(page.locator("#one-client")).to_contain_text("c129")
    page.set_viewport_size({"width": 390, "height": 844})
    assert page.locator(".finder").evaluate("one => getComputedStyle(one).float") == "none"  # below the words there
    expect(page.locator("[data-panel=client-norm] canvas")).to_be_visible()


def test_no_line_crosses_a_gap_and_a_saved_picture_shows_what_the_page_does(page: Page, server: Served) -> None:
    if not (server.directory / "absent").exists():
        with RunBuilder(server.directory / "absent") as run:
            process = run.process(is_alive=False)
            for number in range(1, 31):
                for client in ("a", "b", "c"):
                    common = {"client": client, "round": number, "federation": "wards"}
                    if client == "b" and (9 <= number <= 14 or number in (20, 22)):
                        continue  # it takes no part; in 21 it does, alone between two gaps
                    put_row(process, UPDATES, T0_NS, **common, norm=1.0 + number / 10, cos_centre=0.5, nan=0, inf=0)
                    put_row(process, CLIENT_REPORTS, T0_NS, **common, duration_ms=1.0)
            process.drain()
            process.finish()
    opened(page, server, "/run/absent/clients?client=b")
    panel = page.locator("[data-panel=client-norm]")
    assert [one.count("M") for one in paths_of(svg_of(page, panel), 'stroke-width="1.8"')] == [4, 1]
    assert len(paths_of(svg_of(page, panel), 'stroke-linecap="round"')) == 1
    texts = re.findall(r"<text[^>]*>([^<]*)</text>", svg_of(page, panel))
    assert {"Size of its update", "b", "the others", "round", "30"} <= set(texts)
    opened(page, server, "/run/absent/clients?client=b&zoom-round=10..20")
    shown = set(re.findall(r"<text[^>]*>([^<]*)</text>", svg_of(page, panel)))
    assert "20" in shown and "30" not in shown


def svg_of(page: Page, panel: Locator) -> str:
    with page.expect_download() as saved:
        panel.get_by_role("button", name="SVG").click()
    return Path(saved.value.path()).read_text()


def paths_of(svg: str, like: str) -> list[str]:
    return [found[1] for found in re.finditer(r'<path d="([^"]*)"[^>]*>', svg) if like in found[0]]


def test_compared_runs_have_a_panel_for_every_metric_with_a_curve_for_each_run(page: Page, server: Served) -> None:
    for number in range(2):
        path = server.directory / f"logged-{number}"
        if not path.exists():
            told = [
                LoggedNumber(name, step, T0_NS + step * 10**9, step + number)
                for name in ("eval/<b>score</b>", "train/loss")
                for step in range(30)
            ]
            write_run(path, Path("logs"), told)
    opened(page, server, "/compare?runs=logged-0,logged-1")
    card = page.locator("[data-metric='eval/<b>score</b>']")
    expect(page.locator("[data-metric]")).to_have_count(2)
    expect(card.locator(".legend-steps button")).to_have_text(["logged-0", "logged-1"])
    with page.expect_download() as told:
        card.get_by_role("button", name="CSV").click()
    lines = Path(told.value.path()).read_text().splitlines()
    assert lines[0].startswith("run,name,series") and len(lines) == 61
    assert {line.partition(",")[0] for line in lines[1:]} == {"logged-0", "logged-1"}
    page.get_by_role("searchbox", name="Search metrics").fill("loss")
    expect(page.locator("[data-metric]")).to_have_count(1)
    expect(page).to_have_url(re.compile("like=loss"))
    page.get_by_role("slider", name="smoothing").fill("0.5")
    expect(page).to_have_url(re.compile("smooth=0.5"))


def test_runs_are_compared_over_time_too_and_what_is_zoomed_stands_in_the_address(page: Page, server: Served) -> None:
    for number in range(2):
        path = server.directory / f"paced-{number}"
        if not path.exists():
            told = [LoggedNumber("score", step, T0_NS + step * (number + 1) * 10**9, step) for step in range(30)]
            write_run(path, Path("logs"), told)
    seen = "() => window.drawn.texts.map(([words]) => words)"
    for address, panel in (
        ("/compare?runs=paced-0,paced-1&like=score", "[data-metric=score]"),
        ("/runs?q=paced&metric=score", "[data-panel=curves]"),
    ):
        opened(page, server, address)
        expect(page.locator(panel).locator("canvas")).to_be_visible()
        page.evaluate("window.drawn.texts = []")
        page.get_by_role("radio", name="time", exact=True).click()
        wait_until(lambda: "40 s" in page.evaluate(seen), "the time of the slower run")
        expect(page).to_have_url(re.compile("x=time"))
        over = page.locator(panel).locator(".u-over")
        over.scroll_into_view_if_needed()
        box = over.bounding_box()
        assert box is not None
        page.mouse.move(box["x"] + box["width"] * 0.5, box["y"] + 40)
        page.mouse.down()
        page.mouse.move(box["x"] + box["width"] * 0.75, box["y"] + 40, steps=4)
        page.mouse.up()
        expect(page).to_have_url(re.compile(r"zoom-time=[23]\d[\d.]*\.\.4\d"))
        page.reload()
        expect(page.locator(panel).get_by_role("button", name="Show all")).to_be_visible()


def test_a_zoom_by_the_clock_is_in_the_saved_picture(page: Page, server: Served) -> None:
    told = [LoggedNumber("score", step, T0_NS + step * 10**9, step) for step in range(30)]
    write_run(server.directory / "clocked", Path("logs"), told)
    second = T0_NS // 10**9
    opened(page, server, f"/run/clocked/metrics?like=score&x=clock&zoom-t_ns={second + 10}..{second + 20}")
    (path,) = paths_of(svg_of(page, page.locator("[data-metric=score]")), 'stroke-width="1.8"')
    places = [float(place) for place in re.findall(r"[ML]([-\d.]+) ", path)]
    assert len([place for place in places if 76 <= place <= 940]) == 11


def test_a_value_that_rounding_alone_changes_is_drawn_level(page: Page, server: Served) -> None:
    told = [LoggedNumber("rate", step, T0_NS + step * 10**9, 0.1) for step in range(200)]
    write_run(server.directory / "level", Path("logs"), told)
    opened(page, server, "/run/level/metrics?like=rate&smooth=0.6")
    (path,) = paths_of(svg_of(page, page.locator("[data-metric=rate]")), 'stroke-width="1.8"')
    assert len(set(re.findall(r" ([\d.]+)", path))) == 1


def test_a_high_window_is_full_of_runs(page: Page, server: Served) -> None:
    rows = [{"run": f"run-{number}", "is_known": True, "is_measured": True, "state": "ended"} for number in range(100)]
    page.route("**/api/runs?*", lambda route: route.fulfill(json={"version": "1", "runs": rows}))
    page.set_viewport_size({"width": 1280, "height": 2400})
    opened(page, server, "/runs")
    frame, last = page.locator(".table-frame.is-long").bounding_box(), page.locator(".runs-table .run-name").last
    below = last.bounding_box()
    assert frame is not None and below is not None and below["y"] > frame["y"] + frame["height"] - 38
    page.set_viewport_size({"width": 390, "height": 844})
    page.locator(".table-frame.is-long").evaluate("one => { one.scrollLeft = 200 }")
    first, frame = page.locator(".runs-table .run-name").first, page.locator(".table-frame.is-long").bounding_box()
    name = first.bounding_box()
    assert frame is not None and name is not None and frame["x"] < name["x"] < frame["x"] + 60  # which run it is stays


def test_curves_of_a_run_that_goes_on_follow_it(page: Page, server: Served) -> None:
    told = [LoggedNumber("eval/score", step, T0_NS + step * 10**9, step) for step in range(30)]
    write_run(server.directory / "going-0", Path("logs"), told)
    with RunBuilder(server.directory / "going-1") as run:
        process = run.process()
        for step in range(5):
            process.steps(1)
            process.metric("eval/score", float(step))
        process.drain()
        for address in ("/compare?runs=going-0,going-1&like=score", "/runs?q=going&metric=eval/score"):
            opened(page, server, address)
            page.get_by_role("button", name="Table").last.click()
            rows = page.locator("[role=region][aria-label='Table: eval/score'] tbody tr")
            expect(rows.first).to_be_visible()
            before = page.locator("[role=region][aria-label='Table: eval/score']").inner_text()
            process.steps(3)
            process.metric("eval/score", 77.0)
            process.drain()
            expect(page.locator("[role=region][aria-label='Table: eval/score']")).not_to_have_text(before)
            expect(page.locator("[role=region][aria-label='Table: eval/score']")).to_contain_text("77")
        process.finish()


def test_a_table_is_sorted_with_what_is_unknown_last(page: Page, server: Served) -> None:
    asked = "SELECT * FROM (VALUES (1, 2.0), (2, NULL), (3, 'nan'::DOUBLE), (4, 5.0)) AS told(name, value)"
    opened(page, server, "/run/first/sql")
    page.get_by_label("SQL", exact=True).fill(asked)
    page.keyboard.press("Control+Enter")
    result = page.locator("[data-panel=result]")
    for order in (["4", "1", "3", "2"], ["1", "4", "3", "2"]):
        result.locator("thead").get_by_role("button", name="value").click()
        expect(result.locator("tbody tr td:first-child")).to_have_text(order)


def test_texts_images_tables_and_histograms_are_shown_by_step_and_saved(page: Page, server: Served) -> None:
    contents = {
        "text": [f"<b>sample {step}</b>" for step in range(3)],
        "image": [DOT] * 3,
        "table": [json.dumps({"columns": ["a", "<i>"], "rows": [["1", "<s>2</s>"]] * 2, "all_rows": 9})] * 3,
        "histogram": [json.dumps({"low": -1.0, "high": 1.0 + step, "counts": [1, 2, 4, 1]}) for step in range(3)],
    }
    told = [
        LoggedMedia(f"a {kind}", kind, 10 * step, T0_NS + step * 10**9, content)
        for kind, steps in contents.items()
        for step, content in enumerate(steps)
    ]
    if not (server.directory / "media").exists():
        write_run(server.directory / "media", Path("logs"), told)
    opened(page, server, "/run/media/metrics")
    shown = {kind: page.locator(f"[data-media='a {kind}']") for kind in contents}
    expect(shown["text"].locator("pre")).to_have_text("<b>sample 2</b>")
    shown["text"].get_by_role("slider", name="step 20").fill("0")
    expect(shown["text"].locator("pre")).to_have_text("<b>sample 0</b>")
    expect(shown["image"].get_by_role("img", name="a image at step 20")).to_be_visible()
    expect(shown["table"]).to_contain_text("the first 2 of 9 rows")
    expect(shown["table"].get_by_role("cell", name="<s>2</s>").first).to_be_visible()
    expect(shown["histogram"].get_by_role("img", name=re.compile("24 rows by 3 columns"))).to_be_visible()
    for kind, begins in (("PNG", b"\x89PNG"), ("SVG", b"<svg"), ("CSV", b"step,bucket,value")):
        with page.expect_download() as saved:
            shown["histogram"].get_by_role("button", name=kind).click()
        assert Path(saved.value.path()).read_bytes().startswith(begins)
    shown["histogram"].get_by_role("button", name="Table").click()
    expect(shown["histogram"].locator("tbody tr")).to_have_count(72)
