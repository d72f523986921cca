"""`stethos top`: one frame for logs and tests, a living one in a real terminal."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import shutil
import signal
import struct
import subprocess
import sys
import termios
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from builders import T0_NS, RunBuilder
from federated_rows import build_federation
from processes import DEADLINE_S, environment, wait_until
from rich.console import Console

from stethos.cli.main import main
from stethos.cli.top_view import draw
from stethos.cli.vitals import POINTS, Monitor
from stethos.diagnose.api import diagnose
from stethos.store.run import open_run


class Screen:
    """A program in a terminal of its own, and everything it has drawn so far."""

    def __init__(self, *words: str, columns: int = 80, rows: int = 30) -> None:
        self._leader, follower = pty.openpty()
        fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        self.before = termios.tcgetattr(follower)
        self._follower = follower
        self.process = subprocess.Popen(
            [sys.executable, "-m", "stethos.cli.main", *words], stdin=follower, stdout=follower, stderr=follower,
            env=environment(TERM="xterm-256color", XDG_RUNTIME_DIR=os.environ["XDG_RUNTIME_DIR"]),
            start_new_session=True,
        )  # fmt: skip
        self._drawn = b""
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        while True:
            try:
                data = os.read(self._leader, 65536)
            except OSError:
                return
            if not data:
                return
            self._drawn += data

    @property
    def text(self) -> str:
        return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", self._drawn.decode(errors="replace"))

    def press(self, keys: bytes) -> None:
        os.write(self._leader, keys)

    def modes(self) -> list[object]:
        return list(termios.tcgetattr(self._follower))

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        os.close(self._follower)
        self._reader.join()
        os.close(self._leader)


@contextmanager
def screen(*words: str, **size: int) -> Iterator[Screen]:
    shown = Screen(*words, **size)
    try:
        yield shown
    finally:
        shown.close()


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


def test_a_run_that_was_diagnosed_and_is_well_has_no_open_findings(
    growing: RunBuilder, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["top", "--once"])
    assert "not diagnosed" in capsys.readouterr().out
    with open_run(growing.path) as run:
        assert not diagnose(run, keep=True).findings
    main(["top", "--once"])
    assert "no open findings" in capsys.readouterr().out


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


def until(shown: Screen, condition: Callable[[], object], what: str) -> None:
    try:
        wait_until(condition, what)
    except AssertionError as error:
        raise AssertionError(f"{error}\n{shown.text[-2000:]}") from None


def test_in_a_terminal_it_follows_the_run_and_q_ends_it(growing: RunBuilder) -> None:
    process = growing._processes[0]
    with screen("top", "-t", str(growing.path), "--interval", "0.1", columns=50) as shown:
        until(shown, lambda: "steps 20" in shown.text, "the first frame")
        process.steps(7)
        process.drain()
        until(shown, lambda: "steps 27" in shown.text, "the steps that came since")
        process.finish()
        until(shown, lambda: "demo  ended" in shown.text, "the end of the run")
        assert shown.process.poll() is None
        shown.press(b"xq")
        assert shown.process.wait(DEADLINE_S) == 0
        assert shown.modes()[:4] == shown.before[:4]


def test_it_ends_when_the_run_is_deleted_and_with_ctrl_c(growing: RunBuilder, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(growing.path, tmp_path / "copy"))
    with (
        screen("top", "-t", str(copy), "--interval", "0.1") as shown,
        screen("top", "-t", str(growing.path), "--interval", "0.1") as other,
    ):
        until(shown, lambda: "steps 20" in shown.text, "the first frame")
        shutil.rmtree(copy.rename(tmp_path / "doomed"))  # its drainer may be just about to make a file
        assert shown.process.wait(DEADLINE_S) == 0
        until(shown, lambda: "has been deleted" in shown.text, "a word on the deletion")
        until(other, lambda: "steps 20" in other.text, "the other's first frame")
        os.kill(other.process.pid, signal.SIGINT)
        assert other.process.wait(DEADLINE_S) == 0 and "Traceback" not in other.text
        assert other.modes()[:4] == other.before[:4]


def test_a_run_ended_as_its_command_did_whatever_became_of_a_child(run: RunBuilder) -> None:
    """As `ls` and `doctor` say it."""
    first, child = run.process(is_alive=False), run.process(is_alive=False)
    run.launcher(first.pid, 0, pid=first.pid)
    first.finish()
    child.finish(None)
    with open_run(run.path) as opened:
        assert opened.summary()["state"] == "ended" == Monitor(opened).look().state
