"""`stethos top`: one frame for logs and tests, a living one in a real terminal."""

from __future__ import annotations

import json
import os
import re
import shutil
from pathlib import Path

import pytest
from builders import T0_NS, RunBuilder
from federated_rows import EVIL, build_federation
from rich.console import Console
from terminal import Terminal

from stethos.cli.main import main
from stethos.cli.screen.top_keys import TopKeys, press
from stethos.cli.screen.top_view import draw
from stethos.diagnose.api import diagnose
from stethos.store.run import open_run
from stethos.view.vitals import POINTS, Monitor


@pytest.fixture(scope="module")
def wards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("runs") / "wards"
    build_federation(path)
    return path


@pytest.fixture
def growing(run: RunBuilder) -> RunBuilder:
    process = run.process()
    process.steps(20)
    process.drain()
    return run


def frame(path: Path, width: int, height: int | None = None) -> list[str]:
    console = Console(width=width, file=open(os.devnull, "w"), record=True, color_system=None)  # noqa: SIM115
    with open_run(path) as run:
        console.print(draw(Monitor(run).look(), width, height))
    console.file.close()
    return console.export_text().splitlines()


def test_one_frame_shows_the_federation(wards: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["top", "-t", str(wards), "--once"]) == 0
    shown = capsys.readouterr().out
    lines = [re.split(r"\s{2,}", line.strip()) for line in shown.splitlines()]
    assert ["1", "1.00", "0.500", "1.0 s", "3/3", "0"] in lines and [
        "3",
        "0.333",
        "0.500",
        "1.0 s",
        "2/3",
        "1",
    ] in lines
    assert "3 clients in round 3, 1 without an update" in shown and "failed" in shown
    assert "\x1b" not in shown and "NaN" in shown and "not diagnosed" in shown


def test_a_run_that_was_diagnosed_and_is_well_says_so(growing: RunBuilder, capsys: pytest.CaptureFixture[str]) -> None:
    main(["top", "--once"])
    assert "not diagnosed" in capsys.readouterr().out
    with open_run(growing.path) as run:
        assert not diagnose(run, keep=True).findings
    main(["top", "--once"])
    assert "nothing found" in capsys.readouterr().out


def test_as_json_it_is_for_scripts(growing: RunBuilder, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["top", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert (said["run"], said["state"], said["steps"], said["loss"]) == ("demo", "running", 20, 0.05)
    assert said["processes"][0]["age_s"] > 0 and len(said["losses"]) == 20


@pytest.mark.parametrize("width", [20, 40, 80, 200])
def test_no_line_is_wider_than_the_terminal(wards: Path, width: int) -> None:
    assert max(map(len, frame(wards, width))) <= width


def test_a_frame_is_no_higher_than_the_terminal(tmp_path: Path) -> None:
    build_federation(tmp_path / "wards", rounds=12, clients=tuple(f"c{number}" for number in range(10)))
    assert len(frame(tmp_path / "wards", 80, 20)) <= 20


def test_only_what_is_new_is_read(growing: RunBuilder, monkeypatch: pytest.MonkeyPatch) -> None:
    process = growing._processes[0]
    with open_run(growing.path) as run:
        monitor = Monitor(run, now_ns=iter(range(T0_NS + 10**9, T0_NS + 10**12, 10**9)).__next__)
        assert monitor.look().steps_per_s is not None
        process.steps(30)
        process.drain()
        vitals = monitor.look()
        assert (vitals.steps, len(vitals.losses), vitals.steps_per_s) == (50, 50, 30.0)
        assert vitals.loss == pytest.approx(1 / 50)
        asked: list[str] = []
        rows = run.rows
        monkeypatch.setattr(run, "rows", lambda query, **options: asked.append(query) or rows(query, **options))
        assert monitor.look().losses == vitals.losses
        assert all("t_ns >" in query for query in asked if "FROM steps" in query)


def test_a_long_curve_stays_short(growing: RunBuilder) -> None:
    process = growing._processes[0]
    with open_run(growing.path) as run:
        monitor = Monitor(run)
        for _ in range(4):
            process.steps(400)
            process.drain()
            assert len(monitor.look().losses) <= 2 * POINTS
    with open_run(growing.path) as run:
        assert len(Monitor(run).look().losses) <= 2 * POINTS


def test_in_a_terminal_it_follows_the_run_and_q_ends_it(growing: RunBuilder) -> None:
    process = growing._processes[0]
    with Terminal("top", "-t", growing.path, "--interval", "0.1", columns=50) as shown:
        shown.expect("steps 20")
        process.steps(7)
        process.drain()
        shown.expect("steps 27")
        process.finish()
        shown.expect("demo  ended")
        assert shown.process.poll() is None
        shown.send("xq")
        assert shown.wait() == 0
        assert shown.modes()[:4] == shown.modes_before[:4]


def test_it_ends_when_the_run_is_deleted_and_with_ctrl_c(growing: RunBuilder, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(growing.path, tmp_path / "copy"))
    with (
        Terminal("top", "-t", copy, "--interval", "0.1") as shown,
        Terminal("top", "-t", growing.path, "--interval", "0.1") as other,
    ):
        shown.expect("steps 20")
        shutil.rmtree(copy.rename(tmp_path / "doomed"))  # its drainer may be just about to make a file
        assert shown.wait() == 0
        shown.expect("has been deleted")
        other.expect("steps 20")
        other.send("\x03")
        assert other.wait() == 0 and "Traceback" not in other.text
        assert other.modes()[:4] == other.modes_before[:4]


def test_a_run_ended_as_its_command_did_whatever_became_of_a_child(run: RunBuilder) -> None:
    """As `ls` and `doctor` say it."""
    first, child = run.process(is_alive=False), run.process(is_alive=False)
    run.launcher(first.pid, 0, pid=first.pid)
    first.finish()
    child.finish(None)
    with open_run(run.path) as opened:
        assert opened.summary()["state"] == "ended" == Monitor(opened).look().state


def test_keys_sort_filter_help_and_go_to_other_runs(tmp_path: Path) -> None:
    build_federation(tmp_path / "wards", clients=("north", "south", "west"))
    build_federation(tmp_path / "other", clients=("x1", "x2"))
    with Terminal("top", "-t", tmp_path / "wards", "--interval", "60", columns=160, rows=40) as shown:
        shown.expect("sort: time")
        shown.send("s")
        shown.expect("sort: loss")
        shown.send("sr")
        shown.expect("sort: name reversed")
        shown.send("/ort")
        shown.expect("filter: ort_")
        shown.send("\r")
        shown.expect("1 client in round 3")
        shown.expect("help  filter: ort")
        shown.send("?")
        shown.expect("the next run of the directory")
        shown.send("?n")
        shown.expect("other  ended")
        shown.send("q")
        assert shown.wait() == 0


def test_the_whole_width_is_used_and_the_accused_come_first(wards: Path) -> None:
    wide = frame(wards, 200, 40)
    assert any("round" in line[:100] and "process" in line[100:] for line in wide)
    assert max(map(len, wide)) <= 200 and len(wide) <= 40


def test_keys_that_mean_nothing_change_nothing() -> None:
    keys = TopKeys()
    assert press(keys, "xyz\x1b[A\x00") == keys and press(keys, "\x1b[A") == keys
    assert press(keys, "/a\x7fbé\x1b") == keys and press(keys, "/'; DROP\r").wanted == "'; DROP"
    assert press(keys, "ssS") == keys and press(keys, "nnp").move == 1


@pytest.mark.parametrize("wanted", ["'", "%", "\\", "C1", "\x00", "é" * 60])
def test_a_filter_of_anything_is_text(wards: Path, wanted: str) -> None:
    with open_run(wards) as run:
        found = Monitor(run, wanted=wanted).look().clients
    assert {one.client for one in found} == ({"c1"} if wanted == "C1" else set()) | (
        {EVIL} if wanted in EVIL or wanted == "\x00" else set()
    ) | ({"c1", "c2"} if wanted == "\x00" else set())
