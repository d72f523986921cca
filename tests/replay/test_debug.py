"""`stethos debug`, driven through a pipe and in a real terminal."""

from __future__ import annotations

import re
from pathlib import Path

import own_loop
from own_loop import GUILTY
from processes import DEADLINE_S, command, environment, start, wait_until
from terminal import Terminal


def at_a_terminal(path: Path) -> Terminal:
    return Terminal("debug", "-t", path, columns=200, TERM="dumb", XDG_CACHE_HOME=str(path.parent))


def test_break_step_back_remove_a_client_carry_on_and_see_accuracy_recover(lab_path: Path) -> None:
    with at_a_terminal(lab_path) as terminal:
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
        assert terminal.wait() == 0


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
    with at_a_terminal(tmp_path / "live") as terminal:
        assert "the run is still going" in terminal.expect(r"\(round 1\) ")
        assert "the run is still going: try again" in terminal.say("next 5", "(round 1) ")
        terminal.say("break 3", "(round 1) ")
        terminal.send("continue\n")
        play_a_round()
        play_a_round()  # the training goes on while the debugger waits for round 3
        assert "break: round 3" in terminal.expect(r"\(round 3\) ")
        play_a_round()
        terminal.send("quit\n")
        assert terminal.wait() == 0
    process.stdin.close()
    assert process.wait(DEADLINE_S) == 0
    process.stdout.close()
    assert process.stderr is not None
    process.stderr.close()


def test_without_captures_it_says_how_to_get_them(tmp_path: Path) -> None:
    result = command("debug", "-t", own_loop.federate(tmp_path, "plain", 1))
    assert result.returncode == 7 and "has no captures" in result.stderr and "--capture all" in result.stderr


def test_a_round_that_was_not_captured_is_named(own_path: Path) -> None:
    result = command("debug", "-t", own_path, "--round", "99")
    assert result.returncode == 7 and "round 99 was not captured" in result.stderr
