"""The small parts: targets as typed, the wire, names that code sees, interrupts, kept stacks."""

from __future__ import annotations

import ast
import contextlib
import gc
import socket
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from builders import RunBuilder

from stethos.cli.evaluate import show_reply
from stethos.errors import LiveError, QueryError, StethosError
from stethos.live.all_ranks import meeting_step
from stethos.live.interrupt import Interruptible, TimeLimitError
from stethos.live.namespace import Namespace, frames_from, parsed, private_names
from stethos.live.output import CaughtOutput, OutputCatcher
from stethos.live.stack import spoken
from stethos.live.target import ParsedTarget, take_apart
from stethos.live.wire import error_from, error_reply, receive, send
from stethos.record.layout import HeaderWord
from stethos.store.run import Run
from stethos.store.stack_file import keep_stacks, read_stacks


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        (None, ParsedTarget()), ("digits", ParsedTarget("digits")), ("runs/digits", ParsedTarget("runs/digits")),
        ("4711", ParsedTarget("4711")),
        ("all", ParsedTarget(is_all=True)), ("rank:3", ParsedTarget(rank=3)),
        ("digits/all", ParsedTarget("digits", is_all=True)),
        ("runs/digits/rank:12", ParsedTarget("runs/digits", rank=12)),
        ("/abs/run/all", ParsedTarget("/abs/run", is_all=True)),
        ("node1:8080", ParsedTarget(gateway="node1:8080")),
        ("10.0.0.1:8080/digits", ParsedTarget("digits", gateway="10.0.0.1:8080")),
        ("node1:8080/digits/rank:1", ParsedTarget("digits", rank=1, gateway="node1:8080")),
        ("node1:8080/all", ParsedTarget(is_all=True, gateway="node1:8080")),
        ("[::1]:90", ParsedTarget(gateway="[::1]:90")),
        ("rank:x", ParsedTarget("rank:x")), ("overall", ParsedTarget("overall")),
    ],
)  # fmt: skip
def test_a_target_is_taken_apart(typed: str | None, meant: ParsedTarget) -> None:
    assert take_apart(typed) == meant


def test_a_run_may_be_called_all(tmp_path: Path) -> None:
    (tmp_path / "all").mkdir()
    assert take_apart(f"{tmp_path}/all") == ParsedTarget(f"{tmp_path}/all")
    assert take_apart(f"{tmp_path}/all/all") == ParsedTarget(f"{tmp_path}/all", is_all=True)


def test_messages_have_a_limit_and_errors_keep_their_class() -> None:
    one, other = socket.socketpair()
    with one, other:
        send(one, {"op": "x", "text": "ü\ud800"}, 1000)
        assert (receive(other, 1000) or {})["op"] == "x"
        with pytest.raises(LiveError, match="more than the 10 allowed"):
            send(one, {"text": "y" * 100}, 10)
        send(one, {"text": "y" * 100}, 1000)
        with pytest.raises(LiveError):
            receive(other, 50)
    error = error_from(error_reply(QueryError("wrong", hint="right")))
    assert type(error) is QueryError and (error.message, error.hint) == ("wrong", "right")
    for odd in ({}, {"error": 3}, {"error": {"kind": "annotations"}}, {"error": {"kind": "__loader__"}}):
        assert type(error_from(odd)) is LiveError and isinstance(error_from(odd), StethosError)


# Names ----------------------------------------------------------------------------------------------------------


def run_in(code: str, frames: list[object] | None = None, *, is_still: bool = True) -> dict[str, object]:
    made: dict[str, object] = {}
    tree = ast.parse(code)
    names = Namespace(tree, frames or [], made, {"optimizer": "known"}, is_still=is_still)  # type: ignore[arg-type]
    exec(compile(tree, "<test>", "exec"), names, names)
    names.finish()
    return {**made, "notes": names.notes}


def training(code: str, *, is_still: bool = True) -> tuple[object, object]:
    weight, count = 1.5, 3

    def step() -> object:
        return run_in(code, list(frames_from(sys._getframe())), is_still=is_still)

    made = step()
    return made, (weight, count)


def test_locals_are_read_and_set_where_the_training_waits() -> None:
    made, (weight, count) = training("count = count + 1\nweight += 1")  # type: ignore[misc]
    assert (weight, count) == (2.5, 4) and made["notes"] == []  # type: ignore[index]
    made, (weight, count) = training("count = 9", is_still=False)  # type: ignore[misc]
    assert count == 3 and "keeps its value" in made["notes"][0]  # type: ignore[index]


def test_names_bound_by_anything_but_an_assignment_are_private() -> None:
    code = "import a.b, c as d\nfor e, (f, *g) in x: pass\nwith y as h: pass\n"
    code += "def i(): pass\nclass j: pass\n(k := 1)\nl = m = 2"
    assert private_names(ast.parse(code)) == {"a", "d", "e", "f", "g", "h", "i", "j", "k"}
    _, (weight, count) = training("for count in range(10): pass\nimport os as weight")  # type: ignore[misc]
    assert (weight, count) == (1.5, 3)


def test_functions_see_private_names_and_the_last_resort() -> None:
    made = run_in("a = 2\ndef f(): return a * 3\nb = [f() for _ in range(a)]\nc = optimizer")
    assert made["b"] == [6, 6] and made["c"] == "known"
    with pytest.raises(NameError):
        run_in("nothing_of_this_name")


# Interrupts -----------------------------------------------------------------------------------------------------


def test_a_thread_is_interrupted_in_its_code_and_never_after() -> None:
    for _ in range(20):
        stopper, seen, ready = Interruptible(), [], threading.Event()

        def work(stopper: Interruptible = stopper, seen: list[str] = seen, ready: threading.Event = ready) -> None:
            while not seen:
                with contextlib.suppress(TimeLimitError):  # which may come more than once before it has left
                    if not ready.is_set():
                        stopper.enter()
                        ready.set()
                        while True:
                            pass
                    stopper.leave()
                    seen.append("left")
            try:
                for _ in range(20_000):
                    pass
                seen.append("went on")
            except TimeLimitError:
                seen.append("hit afterwards")

        thread = threading.Thread(target=work)
        thread.start()
        ready.wait()
        while not seen:
            stopper.interrupt()
        for _ in range(50):
            stopper.interrupt()
        thread.join()
        assert seen == ["left", "went on"]


def test_the_main_thread_is_woken_from_a_sleep() -> None:
    stopper, is_over, is_woken = Interruptible(__file__), threading.Event(), False
    code = compile("import time; time.sleep(60)", "<test>", "exec")

    def wake() -> None:
        while not is_over.wait(0.02):
            stopper.interrupt()

    waker = threading.Thread(target=wake)
    waker.start()
    try:
        stopper.enter()
        exec(code)
    except TimeLimitError:
        is_woken = True
    finally:
        stopper.leave()
    is_over.set()
    waker.join()
    assert is_woken
    stopper.interrupt()  # nobody there: nothing happens


def test_output_is_caught_by_thread(capsys: pytest.CaptureFixture[str]) -> None:
    catcher, caught = OutputCatcher(), CaughtOutput(limit=10)
    original = sys.stdout
    catcher.begin(caught)
    other = threading.Thread(target=lambda: print("from elsewhere"))
    other.start()
    other.join()
    print("12345678901234567890")
    catcher.end()
    assert sys.stdout is original and (caught.text(), caught.dropped) == ("1234567890", 11)
    assert capsys.readouterr().out == "from elsewhere\n"


# Meeting ranks --------------------------------------------------------------------------------------------------


def test_a_rank_whose_steps_take_long_is_waited_for_and_one_that_stands_is_not(run: RunBuilder) -> None:
    process = run.process()
    rank: Any = SimpleNamespace(place=process.place)
    now_ns = time.time_ns()
    for word, value in (
        (HeaderWord.STARTED_NS, now_ns - 10**10),
        (HeaderWord.LAST_STEP_NS, now_ns),
        (HeaderWord.STEPS, 10),
    ):
        process.ring.set_word(word, value)
    following = threading.Timer(0.6, process.ring.set_word, (HeaderWord.STEPS, 11))
    following.start()
    step = meeting_step([rank])
    following.join()
    assert step is not None and step >= 13
    process.ring.set_word(HeaderWord.LAST_STEP_NS, now_ns - 60 * 10**9)
    assert meeting_step([rank]) is None


# Kept stacks ----------------------------------------------------------------------------------------------------


def test_kept_stacks_are_rows(run: RunBuilder, tmp_path: Path) -> None:
    process = run.process()
    process.steps(3)
    frame = {"t_ns": 5, "reason": "hang", "thread": "ghp_" + "a1" * 18, "depth": 0, "func": "f", "lineno": 3}
    keep_stacks(run.path, [frame])
    with (run.path / "stacks.jsonl").open("ab") as file:
        file.write(b'{"torn')
    assert len(read_stacks(run.path)) == 1
    with Run(run.place) as reader:
        found = reader.rows("SELECT reason, thread, func, lineno, rank FROM stacks").values
        assert found == [("hang", "[redacted]", "f", 3, None)]
        assert reader.rows("SELECT count(*) FROM python.backtrace").values == [(0,)]
        assert reader.tables()["stacks"] == 1


def test_code_that_says_nothing_is_said_to_have_run_on_a_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    quiet = {"output": "", "value": None, "error": None, "dropped_chars": 0, "where": "step", "step": 41, "notes": []}
    show_reply(quiet)
    assert capsys.readouterr() == ("", "")
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    show_reply(quiet)
    show_reply({**quiet, "value": "3"})
    assert capsys.readouterr() == ("3\n", "stethos: it ran at step 41, printed nothing and has no value\n")


def test_what_py_spy_says_is_one_line_without_its_own_stack() -> None:
    lost = "Error: Failed to find python version from target process\nStack backtrace:\n   0: anyhow::msg\n"
    assert spoken(lost) == "Failed to find python version from target process"
    denied = "Error: Failed to get it. Is it there?\n\nCaused by:\n    0: Permission denied\n    1: Permission denied\n"
    assert spoken(denied) == "Failed to get it. Is it there?: Permission denied"


def test_threads_that_parse_at_once_do_not_disturb_each_other() -> None:
    """Python 3.11 gives up the lock in the middle of a tree where garbage is collected; `ast.parse` fails here."""
    code = "\n".join(f"def f{n}(a, b={n}): return [x + y for x in a if x > {n}]" for n in range(20))
    wrong: list[BaseException] = []

    def parse_often() -> None:
        for _ in range(30):
            try:
                parsed(code, "<code>")
            except SystemError as error:
                wrong.append(error)

    def give_way(phase: str, info: dict[str, int]) -> None:
        time.sleep(0)

    usual = gc.get_threshold()
    gc.callbacks.append(give_way)
    gc.set_threshold(50)
    try:
        threads = [threading.Thread(target=parse_often) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        gc.callbacks.remove(give_way)
        gc.set_threshold(*usual)
    assert not wrong
