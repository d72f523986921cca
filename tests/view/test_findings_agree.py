"""The same run on every screen: each says the same about what is wrong, what proves it, and what was done."""

from __future__ import annotations

import json
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
from stethos.store.run import open_run
from stethos.view.finding import client_marks, findings_of

GUILTY = "c3"
Say = Callable[..., str]
SETUP: dict[str, Any] = {"clients": 6, "progress": False}


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


def rested(path: Path | None) -> Path:
    assert path is not None
    wait_until(lambda: not drainers_of(path), "the end of its drainer", deadline_s=240)
    return path


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`proved`: a client ruins the model, with corrections on, and is proved to; `over`: it stops after round 8;
    `empty`: nothing was trained."""
    directory = tmp_path_factory.mktemp("screens") / "runs"
    options = {**SETUP, "dir": directory}
    ruin = lab.Fault("sign-flip", GUILTY, start=3, strength=6.0)
    rested(lab.federate("digits", rounds=8, faults=[ruin], capture="all", run="proved", **options).path)
    turn = lab.Fault("sign-flip", GUILTY, start=4, end=8)
    rested(lab.federate("digits", rounds=14, faults=[turn], engine="stacked", run="over", **options).path)
    held = lab.Fault("sign-flip", GUILTY, start=4)
    rested(lab.federate("digits", rounds=12, faults=[held], correct="on", engine="stacked", run="held", **options).path)
    with RunBuilder(directory / "empty") as empty:
        process = empty.process(is_alive=False)
        process.finish()
    assert main(["prove", "--fast", "-t", str(directory / "proved")]) in (0, 1)
    return directory


@pytest.fixture
def say(runs: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Say:
    """What a command prints about these runs."""
    monkeypatch.setenv("STETHOS_DIR", str(runs))

    def run(*words: object) -> str:
        capsys.readouterr()
        main([str(word) for word in words])
        return capsys.readouterr().out

    return run


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


def page_json(site: httpx.Client, run: str) -> dict[str, Any]:
    """What the page is sent once the diagnosis is done, and the row of the run in its list."""

    def done() -> dict[str, Any] | None:
        found: dict[str, Any] = site.get(f"/api/runs/{run}/findings").raise_for_status().json()
        time.sleep(0.05)
        return found if found["is_diagnosed"] and not found["is_under_way"] and found["took_s"] else None

    found = wait_until(done, "a diagnosis", deadline_s=120)
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


def told(diagnosis: dict[str, Any]) -> list[tuple[Any, ...]]:
    """Of each finding what a reader goes by."""
    return [
        (one["code"], one["severity"], one["state"], one["title"], one["clients"], one["first"], one["last"],
         (one["proof"] or {}).get("verdict"), [action["text"] for action in one["actions"]], one["next_step"],
         [(each["text"], each["sql"], list(each["names"])) for each in one["evidence"]],
         told({"findings": one["consequences"]}))
        for one in diagnosis["findings"]
    ]  # fmt: skip


STATES = {
    "proved": ("problem", r"1 problem", "red"),
    "over": ("problem, over", r"1 problem, over since round 8", "amber"),
    "held": ("problem", r"1 problem", "red"),
    "empty": ("nothing could be checked", r"nothing could be checked", "grey"),
}


@pytest.mark.parametrize("run", STATES)
def test_every_screen_says_the_same(
    runs: Path, say: Say, site: httpx.Client, tmp_path: Path, page_is_built: None, run: str
) -> None:
    state, words, colour = STATES[run]
    known = json.loads(say("diagnose", run, "--json"))
    assert (known["conclusion"]["state"], known["conclusion"]["colour"]) == (state, colour)
    assert re.fullmatch(words, known["conclusion"]["text"])
    text, markdown = say("diagnose", run), say("report", run, "--format", "md")
    html, page = html_json(runs, run, tmp_path), page_json(site, run)
    with open_run(runs / run) as opened:
        view = findings_of(opened).as_dict()
        python = stethos.diagnose(opened).as_dict()
    conclusion = known["conclusion"]
    assert [one["conclusion"] for one in (html, page, view, python)] == [conclusion] * 4
    assert [told(one) for one in (html, page, view, python)] == [told(known)] * 4
    assert page["row"]["health"] == conclusion
    (listed,) = [row for row in json.loads(say("ls", "--json")) if row["run"] == run]
    assert listed["conclusion"] == conclusion
    row = next(line for line in say("ls").splitlines() if line.startswith(f"{run} "))
    for shown in (text, markdown, html["text"], row, say("top", run, "--once")):
        assert conclusion["text"] in shown
    problems = [one for one in known["findings"] if one["severity"] != "info"]
    for shown in (text, markdown, html["text"]):
        plain = " ".join(re.sub(r"[\\*]|&#?\w+;", "", shown).split())
        for one in problems:
            assert one["title"] in plain and one["next_step"] in plain and one["evidence"][0]["text"] in plain
            assert ("PROVED" in plain) == (one["proof"] is not None and one["proof"]["verdict"] == "proved")
            assert all(action["text"] in plain for action in one["actions"])


def test_what_is_wrong_is_what_was_done(runs: Path, say: Say) -> None:
    """So that the comparison above compares something."""
    found = {run: json.loads(say("diagnose", run, "--json")) for run in STATES}
    for run in ("proved", "over", "held"):
        (one,) = [each for each in found[run]["findings"] if each["severity"] != "info"]
        assert one["clients"] == [GUILTY] and one["code"] == "FED001"
    proof = found["proved"]["findings"][0]["proof"]
    assert proof["verdict"] == "proved" and proof["without"][0] > proof["before"][0] and GUILTY in proof["words"]
    assert found["over"]["findings"][0]["state"] == "problem, over since round 8"
    assert any("quarantine c3" in action["text"] for action in found["held"]["findings"][0]["actions"])
    assert found["empty"]["findings"] == [] and found["empty"]["has_training"] is False
    assert [found[run]["exit_code"] for run in STATES] == [1, 0, 1, 0]


def test_accused_clients_are_marked_from_findings_alone(runs: Path) -> None:
    for run, is_over in (("proved", False), ("over", True)):
        with open_run(runs / run) as opened:
            marks = client_marks(findings_of(opened).findings)
        first, mark = next(iter(marks.items()))
        assert (first, mark.is_accused, mark.is_over, mark.kind) == (GUILTY, True, is_over, "sign-flip")
        assert mark.confidence > 0.85 and [one.is_accused for one in marks.values()].count(True) == 1
