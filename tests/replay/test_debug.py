"""`stethos debug`, driven through a pipe and in a real terminal."""

from __future__ import annotations

import codecs
import os
import pty
import re
import select
import subprocess
import sys
import time
from pathlib import Path

import own_loop
import pytest
from own_loop import GUILTY
from processes import DEADLINE_S, environment, start, start_command, wait_until

_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]")


def command(*words: str | Path, stdin: str = "") -> subprocess.CompletedProcess[str]:
    """Run `stethos WORDS` to its end, with patience: it trains."""
    process = start_command(*words)
    out, err = process.communicate(stdin, timeout=240)
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


class Terminal:
    """A program at a terminal of its own."""

    def __init__(self, *words: str | Path) -> None:
        self.pid, self._descriptor = pty.fork()
        if not self.pid:
            own = environment(TERM="dumb", XDG_CACHE_HOME=str(Path(words[2]).parent))
            os.execve(sys.executable, [sys.executable, "-m", "stethos.cli.main", *map(str, words)], own)
        self.shown = ""
        self._decoder = codecs.getincrementaldecoder("utf-8")()  # a letter may come in two parts

    def expect(self, pattern: str, deadline_s: float = 240.0) -> str:
        """What it shows up to this pattern."""
        deadline = time.monotonic() + deadline_s
        while (found := re.search(pattern, self.shown)) is None:
            if time.monotonic() > deadline:
                raise AssertionError(f"no {pattern!r} in {self.shown!r}")
            if select.select([self._descriptor], [], [], 0.2)[0]:
                try:
                    self.shown += _ESCAPES.sub("", self._decoder.decode(os.read(self._descriptor, 65_536)))
                except OSError:
                    raise AssertionError(f"it ended before {pattern!r}: {self.shown!r}") from None
        before, self.shown = self.shown[: found.end()], self.shown[found.end() :]
        return before

    def send(self, text: str) -> None:
        os.write(self._descriptor, text.encode())

    def say(self, line: str, prompt: str) -> str:
        """A command, and what it answers before the next prompt."""
        self.send(line + "\n")
        return self.expect(re.escape(prompt))

    def close(self) -> int:
        try:
            while os.read(self._descriptor, 65_536):
                pass
        except OSError:
            pass
        os.close(self._descriptor)
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


def test_break_step_back_remove_a_client_carry_on_and_see_accuracy_recover(lab_path: Path) -> None:
    terminal = Terminal("debug", "-t", lab_path)
    terminal.expect(r"\(round 1\) ")
    assert "break 1: if accuracy < 0.6" in terminal.say("break if accuracy < 0.6", "(round 1) ")
    stopped = terminal.say("continue", "(round 4) ")
    assert "break: if accuracy < 0.6" in stopped
    assert "accuracy" in terminal.say("back", "(round 3) ")
    listed = terminal.say("list", "(round 3) ")
    assert re.search(rf"{GUILTY}\s+ok.*-0\.\d+\s+suspect", listed), listed
    terminal.send(f"in {GUILTY[0]}\t\t")  # completion shows the clients
    assert "c5" in terminal.expect(r"c5")
    terminal.say(GUILTY[1:], f"(round 3 {GUILTY}) ")
    assert "step 2 of" in terminal.say("in 2", f"(round 3 {GUILTY} step 2) ")
    assert "hidden.weight" in terminal.say("inspect", "step 2) ")
    terminal.say("out", f"(round 3 {GUILTY}) ")
    assert f"without {GUILTY}" in terminal.say(f"remove {GUILTY}", "(round 3) ")
    carried = terminal.say("continue", "(round 3) ")
    recorded, recovered = map(float, re.findall(r"accuracy ([\d.]+) -> ([\d.]+)", carried)[0])
    assert recovered > recorded + 0.2 and recovered > 0.8, carried
    terminal.send("\x1b[A")  # history: the last command again
    terminal.send("\n")
    assert f"-> {recovered:.4f}" in terminal.expect(r"without c3\r?\n")
    terminal.say("", "(round 3) ")
    terminal.send("quit\n")
    assert terminal.close() == 0


SCRIPT = """
list
rounds
in 2
list
eval float((update['out.bias'] - model['out.bias']).norm())
pdb
next
p turn.number
q
out
aggregate 0 1 2
edit c3 scale -0.1
changes
continue
restore c3
changes
eval sorted(updates)
help edit
"""


def test_commands_come_from_a_pipe(lab_path: Path) -> None:
    result = command("debug", "-t", lab_path, "--round", "3", stdin=SCRIPT)
    out = result.stdout
    assert result.returncode == 0, result.stderr + out
    assert "(round 3) list" in out and "->     3" in out and "step    1  loss" in out
    assert "local.py" in out and "(Pdb) 3" in out and "left the training" in out
    assert "recorded  accuracy" in out and "these     accuracy" in out
    assert "c3: update times -0.1" in out and "accuracy" in out and "no changes" in out
    assert "['c0', 'c1', 'c2', 'c3', 'c4', 'c5']" in out and "edit CLIENT scale FACTOR" in out


def test_mistakes_are_explained_and_the_next_command_is_read(lab_path: Path) -> None:
    lines = [
        "nonsense", "break", "break c99", "break 1 2 3", "break if", "break if no_such_column > 1", "in c99", "out",
        "back", "goto 77", "goto x", "remove", "edit c1", "edit c1 scale x", "edit c1 melt", "clear 9",
        "inspect nothing", "eval 1 / 0", "eval", "pdb", "help nonsense", "in c1", "in 99", "in 1", "in 1", "where",
    ]  # fmt: skip
    result = command("debug", "-t", lab_path, stdin="\n".join(lines) + "\n")
    out = result.stdout
    assert result.returncode == 1 and result.stderr == "" and "Traceback" not in out
    for text in (
        "no command 'nonsense'", "no client 'c99'", "no place to break", "a condition is missing", "not a condition",
        "as far out as it goes", "the first one that there is", "round 77 was not captured", "not a number: 'x'",
        "a client is missing", "what of c1?", "no edit 'melt'", "no break 9", "no layer 'nothing'", "ZeroDivisionError",
        "an expression is missing", "pdb goes into a client's training", "no step 99", "as far in as it goes",
        "step 1 of 8",
    ):  # fmt: skip
        assert text in out, text


def test_a_loop_of_ones_own_is_carried_on_with_its_functions(own_path: Path) -> None:
    words = [
        "debug",
        "-t",
        own_path,
        "--trainer",
        f"{own_loop.__file__}:train",
        "--evaluator",
        f"{own_loop.__file__}:evaluate",
    ]
    result = command(*words, stdin="remove w2\ncontinue\nin w0\nin 3\neval gradients['0.weight'].shape\n")
    assert result.returncode == 0, result.stdout + result.stderr
    assert "without w2" in result.stdout and "trained again" in result.stdout and "torch.Size([16, 8])" in result.stdout


def test_it_runs_beside_a_live_run_without_stopping_it(tmp_path: Path) -> None:
    process = start(own_loop.__file__, tmp_path, "live", "--wait", env=environment(STETHOS_DIR=str(tmp_path)))
    assert process.stdin is not None and process.stdout is not None

    def play_a_round() -> None:
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write("\n")
        process.stdin.flush()
        assert process.stdout.readline()

    for _ in range(2):
        play_a_round()  # the first is captured when the second begins
    wait_until((tmp_path / "live" / "capture" / "000" / "rounds" / "000001.json").exists, "its capture")
    terminal = Terminal("debug", "-t", tmp_path / "live")
    assert "the run goes on" in terminal.expect(r"\(round 1\) ")
    assert "the run goes on: try again" in terminal.say("next 5", "(round 1) ")
    terminal.say("break 3", "(round 1) ")
    terminal.send("continue\n")
    play_a_round()
    play_a_round()  # the training goes on while the debugger waits for round 3
    assert "break: round 3" in terminal.expect(r"\(round 3\) ")
    play_a_round()
    terminal.send("quit\n")
    assert terminal.close() == 0
    process.stdin.close()
    assert process.wait(DEADLINE_S) == 0
    process.stdout.close()
    assert process.stderr is not None
    process.stderr.close()


@pytest.mark.parametrize("words", [[], ["--round", "99"]])
def test_without_captures_it_says_how_to_get_them(tmp_path: Path, own_path: Path, words: list[str]) -> None:
    if not words:
        path = own_loop.federate(tmp_path, "plain", 1)
        result = command("debug", "-t", path)
        assert result.returncode == 7 and "has no captures" in result.stderr and "--capture all" in result.stderr
        return
    result = command("debug", "-t", own_path, *words)
    assert result.returncode == 7 and "round 99 was not captured" in result.stderr
