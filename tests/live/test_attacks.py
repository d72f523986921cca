"""Bad input, hostile code and broken circumstances: every command says what is wrong, and the training goes on."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import stat
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from living import Living
from processes import DEADLINE_S, environment, finish, start, start_command, wait_until

from stethos.errors import LiveError
from stethos.live import stack
from stethos.live.ask import ask
from stethos.live.evaluate import check_allowed
from stethos.live.registry import live_process, live_processes
from stethos.live.stack import thread_stacks
from stethos.record.place import start_ticks

NOBODY = 65534


@pytest.fixture
def goes_on(with_main: Living) -> Iterator[Living]:
    """A training that has gone on by the end of the test, in the same process."""
    pid = with_main.process().pid
    yield with_main
    with_main.wait_for_steps(2)
    assert with_main.process().pid == pid and with_main.value("1 + 1") == "2"


def dead_pid() -> int:
    process = subprocess.Popen(["true"])
    process.wait()
    return process.pid


# Targets --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "words", [["backtrace"], ["eval", "1"], ["lr"], ["repl"], ["query", "SELECT 1 FROM python.backtrace"]]
)
def test_a_dead_pid_is_named(with_main: Living, words: list[str]) -> None:
    pid = dead_pid()
    said = with_main.say(str(pid), *words)
    assert said.status == 3 and str(pid) in said.err and "hint: " in said.err


@pytest.mark.parametrize("words", [["attach"], ["detach"]])
def test_a_dead_pid_is_not_attached(with_main: Living, words: list[str]) -> None:
    said = with_main.say(*words, str(dead_pid()))
    assert said.status == 3 and "no process with pid" in said.err


def test_a_process_without_agent_is_seen_but_not_asked(with_main: Living) -> None:
    process = start("-c", "import time\ndef idle(): print(flush=True); time.sleep(600)\nidle()")
    try:
        assert process.stdout is not None
        process.stdout.readline()
        assert "idle" in with_main.ok(str(process.pid), "backtrace")
        said = with_main.say(str(process.pid), "eval", "1")
        assert said.status == 6 and "is not observed" in said.err and f"stethos attach {process.pid}" in said.err
        said = with_main.say("detach", str(process.pid))
        assert said.status == 6 and "is not observed" in said.err
    finally:
        process.kill()
        process.communicate()


def test_what_is_no_python_says_so(with_main: Living) -> None:
    process = subprocess.Popen(["sleep", "600"])
    try:
        assert with_main.say(str(process.pid), "backtrace").status == 6
        said = with_main.say("attach", str(process.pid))
        assert said.status == 6 and "is not a Python process" in said.err
    finally:
        process.kill()
        process.wait()


def test_a_run_that_is_over_has_nobody_to_ask(with_main: Living, tmp_path: Path) -> None:
    for words in (["eval", "1"], ["backtrace"], ["lr"], ["checkpoint", "x"]):
        said = with_main.say(*words, "-t", "nothing-of-this-name")
        assert said.status == 3 and "hint: " in said.err


def test_wrong_sql_is_explained_also_about_stacks(with_main: Living) -> None:
    said = with_main.say("query", "SELECT no_such_column FROM python.backtrace")
    assert said.status == 4 and "lineno" in said.err


# Code -----------------------------------------------------------------------------------------------------------


def test_code_that_raises_or_is_none(goes_on: Living) -> None:
    said = goes_on.say("eval", "import json\njson.loads('{')")
    assert (
        said.status == 1
        and 'File "<eval' in said.err
        and "json.loads('{')" in said.err
        and "JSONDecodeError" in said.err
    )
    assert "src/stethos/" not in said.err
    said = goes_on.say("eval", "if True print(1)")
    assert said.status == 1 and "SyntaxError" in said.err
    assert goes_on.say("eval", "   \n").status == 2
    said = goes_on.say("eval", "class Odd(Exception):\n    def __str__(self): raise ValueError\nraise Odd")
    assert said.status == 1 and "Odd" in said.err
    said = goes_on.say("eval", "class Odd:\n    def __repr__(self): raise ValueError\nOdd()")
    assert said.status == 0 and "cannot be put into words" in said.out


def test_an_endless_loop_is_interrupted(goes_on: Living) -> None:
    said = goes_on.say("eval", "--timeout", "0.3", "while True: pass")
    assert said.status == 1 and "was interrupted" in said.err and "while True: pass" in said.err
    said = goes_on.say("eval", "--timeout", "0.3", "--now", "while True: pass")
    assert said.status == 1 and "was interrupted" in said.err


def test_code_that_catches_the_interrupt_is_interrupted_again(goes_on: Living) -> None:
    stubborn = (
        "n = 0\nwhile n < 60:\n    try:\n        x = 1\n        while True: x += 1\n    except BaseException: n += 1"
    )
    said = goes_on.say("eval", "--timeout", "0.2", stubborn)
    assert said.status == 1 and "cannot be interrupted" in said.err
    code = (
        "n = 0\nwhile n < 2:\n    try:\n        x = 1\n        while True: x += 1\n    except BaseException: n += 1\nn"
    )
    said = goes_on.say("eval", "--timeout", "0.2", code)
    assert (said.status, said.out) == (0, "2\n")


def test_waits_and_deadlocks_at_a_step_are_ended(goes_on: Living) -> None:
    said = goes_on.say("eval", "--timeout", "0.3", "import time; time.sleep(600)")
    assert said.status == 1 and "was interrupted" in said.err
    deadlock = "import threading; lock = threading.Lock(); lock.acquire(); lock.acquire()"
    said = goes_on.say("eval", "--timeout", "0.3", deadlock)
    assert said.status == 1 and "was interrupted" in said.err


def test_a_wait_in_c_beside_the_training_is_reported(goes_on: Living) -> None:
    said = goes_on.say("eval", "--now", "--timeout", "0.2", "import time; time.sleep(15)")
    assert said.status == 1 and "cannot be interrupted" in said.err and "time.sleep(15)" in said.err


def test_no_signal_handler_and_no_thread_stays_behind(goes_on: Living) -> None:
    goes_on.say("eval", "--timeout", "0.2", "while True: pass")
    code = (
        "import signal; [n for n in range(signal.SIGRTMIN, signal.SIGRTMAX) if signal.getsignal(n) != signal.SIG_DFL]"
    )
    assert goes_on.ok("eval", "--now", code) == "[]\n"
    assert goes_on.value("import sys; type(sys.__stdout__) is type(sys.stdout.original)") == "True"
    assert goes_on.value("import sys, time; getattr(sys.stdout, 'original') is sys.__stdout__") == "True"


def test_a_gigabyte_of_output_is_cut(goes_on: Living) -> None:
    said = goes_on.say("eval", "text = 'x' * 1_000_000\nfor _ in range(1000): print(text)")
    assert said.status == 0 and len(said.out) == 1_000_001 and "the output was cut: 999,00" in said.err
    said = goes_on.say("eval", "'y' * 10_000_000")
    assert said.status == 0 and "9,900,002 more characters" in said.out


def test_exit_ends_nothing(goes_on: Living) -> None:
    for code in ("import sys; sys.exit(3)", "exit()", "raise SystemExit", "raise GeneratorExit"):
        said = goes_on.say("eval", code)
        assert said.status == 1, said
    assert "which has no effect here" in goes_on.say("eval", "quit(5)").err


def test_escapes_do_not_reach_the_terminal(goes_on: Living) -> None:
    said = goes_on.say("eval", "print('\\x1b[31mred\\x1b]0;title\\x07')\n'\\x9b2J'")
    assert "\x1b" not in said.out + said.err and "red" in said.out


# Many at once ---------------------------------------------------------------------------------------------------


def test_fifty_commands_at_once_are_all_answered(goes_on: Living, here: Path) -> None:
    import threading

    process = goes_on.process()
    answers: list[dict[str, Any]] = []

    def one(number: int) -> None:
        reply = ask(process, "eval", code=f"print({number}); {number} * 2", wait_s=30.0, timeout_s=DEADLINE_S)
        answers.append({**reply, "number": number})

    threads = [threading.Thread(target=one, args=(number,)) for number in range(50)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    wrong = [one for one in answers if (one["output"], one["value"]) != (f"{one['number']}\n", str(one["number"] * 2))]
    assert not wrong, str(wrong)
    assert len(answers) == 50


def test_a_caller_who_gives_up_does_not_leave_his_code_behind(with_main: Living, here: Path) -> None:
    process = with_main.process()
    (with_main.directory / "stall").touch()
    try:
        wait_until(lambda: "wait_for_disk" in with_main.ok("backtrace"), "the stall")
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(str(process.socket))
            body = json.dumps({"op": "eval", "code": "open('given_up', 'w')", "wait_s": 30}).encode()
            connection.sendall(struct.pack(">I", len(body)) + body)
        wait_until(lambda: with_main.rows("SELECT 1 FROM audit WHERE outcome LIKE '%given up%'"), "its being given up")
    finally:
        (with_main.directory / "stall").unlink()
    with_main.wait_for_steps(3)
    assert not (with_main.directory / "given_up").exists()


# The socket -----------------------------------------------------------------------------------------------------


def test_the_socket_is_the_users_alone_and_there_is_no_port(with_main: Living, here: Path) -> None:
    process = with_main.process()
    assert stat.S_IMODE(process.socket.stat().st_mode) == 0o600
    assert stat.S_IMODE(process.socket.parent.stat().st_mode) == 0o700
    inodes = {
        os.readlink(path)
        for path in Path(f"/proc/{process.pid}/fd").iterdir()
        if os.path.islink(path) and os.readlink(path).startswith("socket:")
    }
    for table in ("tcp", "tcp6", "udp", "udp6"):
        for line in Path(f"/proc/{process.pid}/net/{table}").read_text().splitlines()[1:]:
            assert f"socket:[{line.split()[9]}]" not in inodes


@pytest.mark.parametrize(
    "sent",
    [b"", b"\x00", b"\xff\xff\xff\xff", struct.pack(">I", 4) + b"null", struct.pack(">I", 3) + b"{{{",
     struct.pack(">I", 1 << 30), struct.pack(">I", 13) + b'{"op": "nope"', b"GET / HTTP/1.1\r\n\r\n"],
)  # fmt: skip
def test_nonsense_on_the_socket_harms_nothing(with_main: Living, here: Path, sent: bytes) -> None:
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(DEADLINE_S)
        connection.connect(str(with_main.process().socket))
        connection.sendall(sent)
        connection.shutdown(socket.SHUT_WR)
        with contextlib.suppress(ConnectionResetError):  # it does not read what is too long
            while connection.recv(4096):
                pass
    assert ask(with_main.process(), "about")["pid"] == with_main.process().pid


@pytest.mark.parametrize(
    "content",
    [
        {"op": "eval", "code": 3},
        {"op": "eval", "code": "1", "limit_s": -1},
        {"op": "lr", "change": [1]},
        {"op": "clip", "norm": "much"},
        {"op": "checkpoint", "path": "relative"},
        {"op": "rm"},
    ],
)
def test_requests_that_make_no_sense_are_refused(with_main: Living, here: Path, content: dict[str, object]) -> None:
    from stethos.errors import UsageError

    op = str(content.pop("op"))
    with pytest.raises(UsageError):
        ask(with_main.process(), op, **content)  # type: ignore[arg-type]


_AS_NOBODY = """
import os, socket, sys
os.setgroups([]); os.setgid({nobody}); os.setuid({nobody})
connection = socket.socket(socket.AF_UNIX)
try:
    connection.connect({path!r})
    connection.settimeout(30)
    print(connection.recv(4096))
except PermissionError as error:
    print("PermissionError")
"""


def as_nobody(path: Path) -> str:
    result = subprocess.run([sys.executable, "-c", _AS_NOBODY.format(path=str(path), nobody=NOBODY)],
                            capture_output=True, text=True, check=True)  # fmt: skip
    return result.stdout


def test_another_uid_is_refused_by_the_file_and_by_the_agent(with_main: Living, here: Path) -> None:
    process = with_main.process()
    if os.geteuid() != 0:  # nobody else to be: a socket whose owner we are not cannot even be reached
        assert stat.S_IMODE(process.socket.parent.stat().st_mode) == 0o700
        return
    assert as_nobody(process.socket) == "PermissionError\n"
    doors = [process.socket, *(path for path in process.socket.parents if path != Path("/") and path != Path("/tmp"))]
    modes = {path: stat.S_IMODE(path.stat().st_mode) for path in doors}
    try:
        for path in doors:
            path.chmod(0o777)
        for _ in range(3):
            assert f"uid {NOBODY} is not the owner" in as_nobody(process.socket)
    finally:
        for path, mode in modes.items():
            path.chmod(mode)
    sql = f"SELECT event, op, detail FROM audit WHERE uid = {NOBODY} ORDER BY t_ns"
    rows = wait_until(lambda: len(found := with_main.rows(sql)) > 1 and found, "the rows of the audit")
    assert [tuple(row.values()) for row in rows] == [("refused", "connect", f"time {n}") for n in (1, 2)]


def test_another_users_process_is_not_read_and_the_hint_says_why(with_main: Living) -> None:
    code = (
        "import os, sys\n"
        f"sys.path.insert(0, {str(Path(__file__).resolve().parents[2] / 'src')!r})\n"
        "from pathlib import Path\nfrom stethos.errors import StethosError\n"
        "from stethos.live.attach import attach\nfrom stethos.live.stack import thread_stacks\n"
        f"if os.geteuid() == 0: os.setgroups([]); os.setgid({NOBODY}); os.setuid({NOBODY})\n"
        "pid = int(sys.argv[1])\n"
        "for act in (lambda: thread_stacks(pid), lambda: attach(pid, Path('/tmp/none'), 'light', 0.01)):\n"
        "    try: act(); print('got in')\n"
        "    except StethosError as error: print(str(error).replace(chr(10), ' '))\n"
    )
    target = with_main.process().pid if os.geteuid() == 0 else 1
    result = subprocess.run([sys.executable, "-c", code, str(target)], capture_output=True, text=True, check=False)
    assert result.stdout.count("uid 0") >= 2 and "got in" not in result.stdout, result


# An agent that is gone ------------------------------------------------------------------------------------------


def test_a_killed_process_leaves_a_stale_entry_that_is_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runtime = tmp_path / "runtime"
    runtime.mkdir(mode=0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(runtime))
    script = (
        "import stethos, time, sys\nw = stethos.watch(name='n', dir=sys.argv[1])\nprint(flush=True)\ntime.sleep(600)"
    )
    process = start("-c", script, tmp_path / "runs", env=environment(XDG_RUNTIME_DIR=str(runtime)))
    assert process.stdout is not None
    process.stdout.readline()
    found = live_process(process.pid)
    assert found is not None and found.has_agent and ask(found, "about")["is_watching"] is False
    (found,) = live_processes()
    os.kill(process.pid, signal.SIGSTOP)
    try:
        with pytest.raises(LiveError, match="did not answer within"):
            ask(found, "about", timeout_s=0.2)
    finally:
        os.kill(process.pid, signal.SIGCONT)
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    wait_until(lambda: start_ticks(process.pid) is None, "its end")
    assert found.socket.exists() and live_processes() == [] and live_process(process.pid) is None
    with pytest.raises(LiveError, match="nothing is listening"):
        ask(found, "about")
    found.socket.unlink()
    with pytest.raises(LiveError, match="has no agent"):
        ask(found, "about")


def test_an_agent_that_ended_is_missed_only_by_those_who_ask(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    script = "import stethos, sys\nw = stethos.watch(name='n', dir=sys.argv[1])\nprint(flush=True)\nprint(input())"
    process = start("-c", script, tmp_path / "runs", env=environment(XDG_RUNTIME_DIR=str(tmp_path)))
    assert process.stdout is not None
    process.stdout.readline()
    found = live_process(process.pid)
    assert found is not None
    reply = ask(found, "eval", code="from stethos.observe import boot; boot.current().session.agent.stop()")
    assert reply["error"] is None and reply["where"] == "thread" and "no optimizer step can be seen" in reply["why"]
    with pytest.raises(LiveError, match="has no agent"):
        ask(found, "about")
    assert thread_stacks(process.pid)[0].frames[-1].func == "<module>"
    told = finish(process, "goes on\n")
    assert (told.returncode, told.stdout) == (0, "goes on\n")


@pytest.mark.parametrize(
    ("variables", "reason"),
    [({"STETHOS_EVAL": "0"}, "not allowed"), ({"PYTHON_DISABLE_REMOTE_DEBUG": "1"}, "not allowed"),
     ({"STETHOS_AGENT": "0"}, "has no agent")],
)  # fmt: skip
def test_the_owner_can_forbid_it(tmp_path: Path, variables: dict[str, str], reason: str) -> None:
    script = "import stethos, sys\nw = stethos.watch(name='n', dir=sys.argv[1])\nprint(flush=True)\nsys.stdin.read()"
    seen = environment(XDG_RUNTIME_DIR=str(tmp_path), **variables)
    process = start("-c", script, tmp_path / "runs", env=seen)
    assert process.stdout is not None
    process.stdout.readline()
    told = finish(start_command("-t", str(process.pid), "eval", "1", env=environment(XDG_RUNTIME_DIR=str(tmp_path))))
    assert told.returncode == 6 and reason in told.stderr
    assert finish(process).returncode == 0
    assert list((tmp_path / "stethos").iterdir()) == [], "nothing stays in the registry"


def test_a_forked_child_has_an_agent_of_its_own_once_it_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    script = (
        "import os, stethos, sys\nw = stethos.watch(name='n', dir=sys.argv[1])\nchildren = [os.fork()]\n"
        "if children[0]:\n    children.append(os.fork())\n"
        "if children[0] == 0:\n    stethos.log(child=1.0)\n"
        "os.write(1, b'%d\\n' % os.getpid())\nsys.stdin.read()\n"
        "if all(children): [os.waitpid(child, 0) for child in children]"
    )
    process = start("-c", script, tmp_path / "runs", env=environment(XDG_RUNTIME_DIR=str(tmp_path)))
    assert process.stdout is not None
    pids = {int(process.stdout.readline()) for _ in range(3)}
    found = live_processes()
    assert len(found) == 2 and {one.pid for one in found} < pids, "the child that records nothing has none"
    for one in found:
        assert one.has_agent and ask(one, "about")["pid"] == one.pid
    assert finish(process, "").returncode == 0
    assert list((tmp_path / "stethos").iterdir()) == []


def test_a_federated_client_runs_no_code_unless_its_owner_allows_it(tmp_path: Path) -> None:
    script = (
        "import stethos, sys\nfrom stethos.federate.invitation import Invitation\n"
        "from stethos.federate.site import Site\nw = stethos.watch(name='n', dir=sys.argv[1])\n"
        "with Site(Invitation('fed', 'c1', 1), side='client'):\n    print(flush=True)\n    sys.stdin.read()"
    )
    seen = environment(XDG_RUNTIME_DIR=str(tmp_path))
    process = start("-c", script, tmp_path / "runs", env=seen)
    assert process.stdout is not None
    process.stdout.readline()
    told = finish(start_command("-t", str(process.pid), "eval", "6 * 7", env=seen))
    assert finish(process).returncode == 0
    assert told.returncode == 6 and "federated client" in told.stderr and "STETHOS_EVAL=1" in told.stderr
    session = SimpleNamespace(settings=SimpleNamespace(evaluation=True), is_federated_client=True)
    check_allowed(SimpleNamespace(session=session))  # type: ignore[arg-type]


def test_where_nobody_may_look_from_outside_the_agent_is_asked(
    with_main: Living, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stack, "find_spy", lambda: None)
    threads = json.loads(with_main.ok("backtrace", "--json"))
    assert {thread["source"] for thread in threads} == {"agent"} and threads[0]["is_main"]
    assert threads[0]["frames"][-1]["func"] == "<module>"
    assert not any("src/stethos/" in frame["file"] for thread in threads for frame in thread["frames"])
    assert "as seen by the agent" in with_main.ok("backtrace")


# What holds the GIL ---------------------------------------------------------------------------------------------


def test_a_process_that_holds_the_gil_in_c_is_read_and_not_woken(with_main: Living) -> None:
    stuck = "def stuck_in_c():\n    return ctypes.PyDLL(None).sleep(600)\n"
    script = f"import ctypes\n{stuck}print(flush=True)\nprint(stuck_in_c())"
    process = start("-c", script)
    assert process.stdout is not None
    process.stdout.readline()

    def innermost() -> tuple[str, int]:
        (thread,) = json.loads(with_main.ok(str(process.pid), "backtrace", "--json"))
        return thread["frames"][0]["func"], thread["frames"][0]["lineno"]

    try:
        wait_until(lambda: innermost()[0] == "stuck_in_c", "its coming there")
        for _ in range(5):
            assert innermost() == ("stuck_in_c", 3)
        time.sleep(0.05)
        assert process.poll() is None, "looking at it has not ended its sleep"
    finally:
        process.kill()
        out, _ = process.communicate()
    assert out == "", "`sleep` did not return early"
