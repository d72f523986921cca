"""The same run on every screen: the same clients, rounds, critical path, marks, findings, proofs and actions.

The runs are a federation like the demo's, but smaller, whose faulty client is proved to be; one whose fault is over;
one in which nothing was trained; and, for findings, one in which corrections acted, and a plain training whose loss
becomes NaN.
"""

from __future__ import annotations

import json
import math
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
from builders import RunBuilder
from processes import drainers_of, finish, start_command, wait_until

import stethos
from stethos import lab
from stethos.cli.main import main
from stethos.cli.screen.text import cosine_text, ms_text, short_text
from stethos.store.run import Run, open_run
from stethos.view.finding import client_marks, findings_of

RUNS = ("proved", "over", "empty")
GUILTY = "c3"
Say = Callable[..., str]
Row = dict[str, Any]
Carried = dict[tuple[str, ...], list[Row]]


def rested(path: Path | None) -> None:
    assert path is not None
    wait_until(lambda: not drainers_of(path), "the end of its drainer", deadline_s=240)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`proved`: a client ruins the model and is proved to; `over`: it stops after round 8; `held`: corrections act on
    it; `nan`: a loss becomes NaN; `empty`: nothing was trained."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    directory = tmp_path_factory.mktemp("screens") / "runs"
    options: dict[str, Any] = {"clients": 6, "progress": False, "dir": directory}
    ruin = lab.Fault("sign-flip", GUILTY, start=3, strength=6.0)
    rested(lab.federate("digits", rounds=8, faults=[ruin], capture="all", run="proved", **options).path)
    turned = lab.Fault("sign-flip", GUILTY, start=4, end=8)
    rested(lab.federate("digits", rounds=14, faults=[turned], engine="stacked", run="over", **options).path)
    held = lab.Fault("sign-flip", GUILTY, start=4)
    rested(lab.federate("digits", rounds=12, faults=[held], correct="on", engine="stacked", run="held", **options).path)
    with stethos.watch(name="nan", dir=directory) as watched:
        layer = torch.nn.Linear(4, 1)
        optimizer = torch.optim.SGD(layer.parameters(), lr=0.01)
        for step in range(60):
            inputs = torch.randn(8, 4)
            loss = (layer(inputs) - inputs.sum(1, keepdim=True)).square().mean() * (math.nan if step == 40 else 1.0)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    rested(watched.path)
    with RunBuilder(directory / "empty") as empty:
        empty.process(is_alive=False).finish()
    assert main(["prove", "--fast", "-t", str(directory / "proved")]) in (0, 1)
    for name in (*RUNS, "nan"):
        assert main(["diagnose", "-t", str(directory / name)]) in (0, 1)  # kept, for those that show what was kept
    return directory


@pytest.fixture(params=RUNS)
def run(request: pytest.FixtureRequest, runs: Path) -> Iterator[Run]:
    with open_run(runs / request.param) as opened:
        yield opened


@pytest.fixture(scope="module")
def printed() -> dict[tuple[str, ...], str]:
    """What commands printed: each is called once for each run, since nothing changes meanwhile."""
    return {}


@pytest.fixture(scope="module")
def pages() -> dict[Path, Carried]:
    """The panels in the report of each run."""
    return {}


@pytest.fixture
def say(run: Run, printed: dict[tuple[str, ...], str], capsys: pytest.CaptureFixture[str]) -> Say:
    """What a command prints about the run."""

    def said(*words: object) -> str:
        command = (*map(str, words), "-t", str(run.path))
        if command not in printed:
            capsys.readouterr()
            main(list(command))
            printed[command] = capsys.readouterr().out
        return printed[command]

    return said


@pytest.fixture(scope="module")
def site(runs: Path) -> Iterator[httpx.Client]:
    """A server over these runs, as a browser asks it."""
    process = start_command("serve", "--dir", runs, "--port", "0", "--json", stderr=None)
    assert process.stdout is not None
    text = ""
    while not text.rstrip().endswith("}"):
        line = process.stdout.readline()
        assert line, "the server did not start"
        text += line
    url, _, token = json.loads(text)["url"].partition("/#token=")
    with httpx.Client(base_url=url, headers={"authorization": f"Bearer {token}"}, timeout=60) as client:
        yield client
    process.terminate()
    finish(process)


def records(columns: Row) -> list[Row]:
    """A panel's numbers as rows."""
    return [dict(zip(columns["names"], row, strict=True)) for row in zip(*columns["values"], strict=True)]


def panel(site: httpx.Client, run: Run, name: str, **given: object) -> list[Row]:
    answer = site.get(f"/api/runs/{run.name}/panels/{name}", params={key: str(one) for key, one in given.items()})
    return records(answer.raise_for_status().json())


@pytest.fixture
def carried(run: Run, pages: dict[Path, Carried], tmp_path: Path) -> Carried:
    """The panels in the run's report, each with what was chosen."""
    if run.path not in pages:
        file = tmp_path / "report.html"
        assert main(["report", "-t", str(run.path), "-o", str(file), "--force"]) == 0
        pages[run.path] = panels_in(file)
    return pages[run.path]


def panels_in(file: Path) -> Carried:
    data = re.search(r'id="stethos-report">(.*?)</script>', file.read_text(), re.DOTALL)
    assert data is not None
    panels = json.loads(data[1])["panels"]
    return {(one["panel"], *one["given"].values()): records(one["columns"]) for one in panels}


def near(one: Any, other: Any) -> bool:
    """The same number, or missing here as well as there: a report rounds to seven digits."""
    if one is None or other is None:
        return one is other
    return one == other or math.isclose(float(one), float(other), rel_tol=1e-6)


def test_a_client_has_the_same_numbers_on_every_screen(
    run: Run, say: Say, site: httpx.Client, carried: Carried
) -> None:
    told = {row["client"]: row for row in json.loads(say("clients", "--json"))}
    page = {row["client"]: row for row in panel(site, run, "client-table")}
    report = {row["client"]: row for row in carried["client-table",]}
    assert set(told) == set(page) == set(report) and bool(told) == (run.name != "empty")
    shown = say("clients")
    for client, row in told.items():
        for column in ("turns", "samples", "entry_loss", "loss", "cosine", "norm_ratio", "duration_ms", "sent_bytes"):
            assert near(row[column], page[client][column]) and near(row[column], report[client][column]), column
        (line,) = [line for line in shown.splitlines() if line.split()[:1] == [client]]
        for text in (short_text(row["loss"]), cosine_text(row["cosine"]), ms_text(row["duration_ms"])):
            assert text in line
        beside = {one["measure"]: one for one in json.loads(say("diagnose", "--client", client, "--json"))["measures"]}
        names = {
            "cosine": "cosine to the centre of the others' updates",
            "entry_loss": "loss of the incoming model on its data",
            "duration_ms": "duration of its turn",
            "samples": "samples",
        }
        for column, name in names.items():
            assert near(row[column], beside[name]["client"]), column
        pair = json.loads(say("compare-clients", client, "c0" if client != "c0" else "c1", "--json"))
        assert near(pair[0]["a"]["entry_loss"], row["entry_loss"]) and near(pair[0]["a"]["loss"], row["loss"])
        assert near(pair[1]["a"]["cosine"], row["cosine"])


def test_what_a_client_was_measured_at_in_each_round_is_the_same(
    run: Run, say: Say, site: httpx.Client, carried: Carried
) -> None:
    for measure in ("cosine", "norm", "entry_loss", "loss", "duration"):
        cells = {(row["client"], row["round"]): row["value"] for row in panel(site, run, "client-map", measure=measure)}
        sent = carried["client-map",] if measure == "norm" else carried["client-map", measure]
        assert {(row["client"], row["round"]) for row in sent} == set(cells)
        assert all(near(row["value"], cells[row["client"], row["round"]]) for row in sent)
        if not cells:
            continue
        axis = run.plot.clients(measure).axes[0]
        clients = [label.get_text() for label in axis.get_yticklabels()]
        grid = axis.images[0].get_array().filled(math.nan).tolist()
        numbers = sorted({number for _, number in cells})
        drawn = {
            (client, numbers[place]): value
            for client, values in zip(clients, grid, strict=True)
            for place, value in enumerate(values)
            if not math.isnan(value)
        }
        assert set(drawn) == {key for key, value in cells.items() if value is not None}
        assert all(near(value, cells[key]) for key, value in drawn.items()), measure


def test_a_round_is_the_same_on_every_screen(run: Run, say: Say, site: httpx.Client) -> None:
    told = {row["round"]: row for row in json.loads(say("rounds", "--json"))}
    for column in ("loss", "accuracy"):
        page = {row["round"]: row[column] for row in panel(site, run, f"round-{column}")}
        assert set(page) == set(told) and all(near(told[number][column], value) for number, value in page.items())
    vitals = json.loads(say("top", "--json"))["rounds"]
    assert len(vitals) == len(told)
    for row in vitals:
        for column in ("loss", "accuracy", "duration_ms", "wait_ms", "selected", "ok", "failed"):
            assert near(row[column], told[row["round"]][column]), column
    text, frame = say("rounds", "--last", "4"), say("top", "--once")
    for number in sorted(told)[-4:]:
        for text_of in (text, frame):
            values = short_text(told[number]["loss"]), ms_text(told[number]["duration_ms"])
            lines = [line for line in text_of.splitlines() if line.split()[:1] == [str(number)]]
            assert any(all(value in line for value in values) for line in lines)
    markdown = say("report", "--format", "md")
    for number in sorted(told)[-4:]:
        (line,) = [line for line in markdown.splitlines() if line.startswith(f"| {number} |")]
        assert short_text(told[number]["loss"]) in line and ms_text(told[number]["duration_ms"]) in line


def test_a_round_has_one_critical_path(run: Run, say: Say, site: httpx.Client, carried: Carried) -> None:
    told = json.loads(say("rounds", "--json"))
    if run.name == "empty":
        assert told == [] and panel(site, run, "waterfall") == [] and panel(site, run, "critical-clients") == []
        return
    markdown = say("report", "--format", "md")
    for row in (told[0], told[3], told[-1]):
        number, critical = row["round"], row["critical"]
        turns = panel(site, run, "waterfall", round=number)
        (last,) = [turn for turn in turns if turn["is_critical"]]
        ends = {turn["client"]: turn["start_ms"] + turn["duration_ms"] for turn in turns}
        assert last["client"] == critical and near(last["duration_ms"], row["critical_ms"])
        assert last["wait_ms"] == 0 and max(ends, key=lambda client: ends[client]) == critical
        assert all(near(ends[turn["client"]] + turn["wait_ms"], ends[critical]) for turn in turns)
        figure = run.plot.waterfall(number).axes[0]
        assert f"{critical} is the critical path" in figure.get_xlabel()
        assert max(bar.get_x() + bar.get_width() for bar in figure.patches) == pytest.approx(ends[critical] / 1e3)
        assert f" {critical} {ms_text(row['critical_ms'])}" in say("rounds", "--all")
        (line,) = [line for line in markdown.splitlines() if line.startswith(f"| {number} |")]
        assert f"| {critical} |" in line
    sent = carried["waterfall", str(told[-1]["round"])]
    assert [turn["client"] for turn in sent if turn["is_critical"]] == [told[-1]["critical"]]
    counts = {row["client"]: row["rounds"] for row in panel(site, run, "critical-clients")}
    assert counts == {name: sum(row["critical"] == name for row in told) for name in {row["critical"] for row in told}}
    (profile,) = json.loads(say("profile", "--json"))["rounds"]
    measured = told[len(told) - profile["rounds"] :]  # without the first, where that warms up
    waited = {(one["client"], one["rounds"]) for one in _added(profile["waited_for"])}
    assert waited == {(name, count) for name in counts if (count := sum(row["critical"] == name for row in measured))}


def _added(waited: list[Row]) -> list[Row]:
    """In how many rounds each client was waited for, whatever its longest phase."""
    names = dict.fromkeys(one["client"] for one in waited)
    return [{"client": name, "rounds": sum(one["rounds"] for one in waited if one["client"] == name)} for name in names]


def test_findings_alone_mark_clients_and_do_so_on_every_screen(run: Run, say: Say) -> None:
    told = json.loads(say("clients", "--json"))
    diagnosis = json.loads(say("diagnose", "--json"))
    named = {client for one in diagnosis["findings"] if one["severity"] != "info" for client in one["clients"]}
    accused = [row["client"] for row in told if row["is_accused"]]
    assert set(accused) == named == (set() if run.name == "empty" else {GUILTY})
    assert [row["client"] for row in told][: len(accused)] == accused  # they come first
    markdown, frame = say("report", "--format", "md"), say("top", "--once")
    conclusion = diagnosis["conclusion"]["text"]
    assert conclusion in frame and json.loads(say("top", "--json"))["conclusion"] == conclusion
    for row in told:
        lines = [line for line in (*markdown.splitlines(), *frame.splitlines()) if row["mark"] and row["mark"] in line]
        assert bool(lines) == row["is_accused"]
        assert len(lines) == 2 * row["is_accused"] and all(row["client"] in line for line in lines)
    if run.name == "over":
        assert told[0]["mark"].endswith("to 8") and "over since round" in conclusion
        assert say("clients").splitlines()[0].endswith("ended, 1 accused, over now")


@pytest.fixture
def tell(runs: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Say:
    """What a command prints about these runs, which are in its directory."""
    monkeypatch.setenv("STETHOS_DIR", str(runs))

    def told(*words: object) -> str:
        capsys.readouterr()
        main([str(word) for word in words])
        return capsys.readouterr().out

    return told


def page_json(site: httpx.Client, run: str) -> dict[str, Any]:
    """What the page is sent once the diagnosis is done, and the row of the run in its list."""

    def done() -> dict[str, Any] | None:
        found: dict[str, Any] = site.get(f"/api/runs/{run}/findings").raise_for_status().json()
        time.sleep(0.05)
        return found if found["is_diagnosed"] and not found["is_under_way"] and found["took_s"] else None

    found = wait_until(done, "a diagnosis")
    assert found is not None
    rows = site.get("/api/runs").json()["runs"]
    return {**found, "row": next(row for row in rows if row["run"] == run)}


def html_json(runs: Path, run: str, tmp_path: Path) -> dict[str, Any]:
    """What a report carries for the page, and the text where scripts are off."""
    file = tmp_path / f"{run}.html"
    assert main(["report", "-t", str(runs / run), "-o", str(file)]) == 0
    text = file.read_text()
    data = re.search(r'id="stethos-report">(.*?)</script>', text, re.DOTALL)
    shown = re.search(r"<noscript><pre>(.*?)</pre>", text, re.DOTALL)
    assert data is not None and shown is not None
    return {**json.loads(data[1])["findings"], "text": shown[1]}


def essence(diagnosis: dict[str, Any]) -> list[tuple[Any, ...]]:
    """Of each finding what a reader goes by."""
    return [
        (one["code"], one["severity"], one["state"], one["title"], one["clients"], one["first"], one["last"],
         (one["proof"] or {}).get("verdict"), [action["text"] for action in one["actions"]], one["next_step"],
         [(each["text"], each["sql"], list(each["names"])) for each in one["evidence"]],
         essence({"findings": one["consequences"]}))
        for one in diagnosis["findings"]
    ]  # fmt: skip


STATES = {
    "proved": ("problem", r"1 problem", "red"),
    "over": ("problem, over", r"1 problem, over since round 8", "amber"),
    "held": ("problem", r"1 problem", "red"),
    "nan": ("problem", r"1 problem", "red"),
    "empty": ("nothing could be checked", r"nothing could be checked", "grey"),
}


@pytest.mark.parametrize("run", STATES)
def test_every_screen_says_the_same(
    runs: Path, tell: Say, site: httpx.Client, tmp_path: Path, page_is_built: None, run: str
) -> None:
    state, words, colour = STATES[run]
    known = json.loads(tell("diagnose", run, "--json"))
    assert (known["conclusion"]["state"], known["conclusion"]["colour"]) == (state, colour)
    assert re.fullmatch(words, known["conclusion"]["text"]), [one["title"] for one in known["findings"]]
    text, markdown = tell("diagnose", run), tell("report", run, "--format", "md")
    html, page = html_json(runs, run, tmp_path), page_json(site, run)
    with open_run(runs / run) as opened:
        view = findings_of(opened).as_dict()
        python = stethos.diagnose(opened).as_dict()
    conclusion = known["conclusion"]
    assert [one["conclusion"] for one in (html, page, view, python)] == [conclusion] * 4
    assert [essence(one) for one in (html, page, view, python)] == [essence(known)] * 4
    assert page["row"]["health"] == conclusion
    (listed,) = [row for row in json.loads(tell("ls", "--json")) if row["run"] == run]
    assert listed["conclusion"] == conclusion
    row = next(line for line in tell("ls").splitlines() if line.startswith(f"{run} "))
    for shown in (text, markdown, html["text"], row, tell("top", run, "--once")):
        assert conclusion["text"] in shown
    problems = [one for one in known["findings"] if one["severity"] != "info"]
    for shown in (text, markdown, html["text"]):
        plain = " ".join(re.sub(r"[\\*]|&#?\w+;", "", shown).split())
        for one in problems:
            assert one["title"] in plain and one["next_step"] in plain and one["evidence"][0]["text"] in plain
            assert ("PROVED" in plain) == (one["proof"] is not None and one["proof"]["verdict"] == "proved")
            assert all(action["text"] in plain for action in one["actions"])


def test_what_is_wrong_is_what_was_done(runs: Path, tell: Say) -> None:
    """So that the comparison above compares something."""
    found = {run: json.loads(tell("diagnose", run, "--json")) for run in STATES}
    for run in ("proved", "over", "held"):
        (one,) = [each for each in found[run]["findings"] if each["severity"] != "info"]
        assert one["clients"] == [GUILTY] and one["code"] == "FED001"
    proof = found["proved"]["findings"][0]["proof"]
    assert proof["verdict"] == "proved" and proof["without"][0] > proof["before"][0] and GUILTY in proof["words"]
    assert found["over"]["findings"][0]["state"] == "problem, over since round 8"
    assert any("quarantine c3" in action["text"] for action in found["held"]["findings"][0]["actions"])
    assert found["empty"]["findings"] == [] and found["empty"]["has_training"] is False
    (broken,) = [one for one in found["nan"]["findings"] if one["code"] == "NUM001"]
    assert broken["consequences"] and broken["first"] == 40
    assert [found[run]["exit_code"] for run in STATES] == [1, 0, 1, 1, 0]


def test_accused_clients_are_marked_from_findings_alone(runs: Path) -> None:
    for run, is_over in (("proved", False), ("over", True)):
        with open_run(runs / run) as opened:
            marks = client_marks(findings_of(opened).findings)
        first, mark = next(iter(marks.items()))
        assert (first, mark.is_accused, mark.is_over, mark.kind) == (GUILTY, True, is_over, "sign-flip")
        assert mark.confidence >= 0.75 and [one.is_accused for one in marks.values()].count(True) == 1
