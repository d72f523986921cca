"""`stethos run` stays out of the program's way: same output, same exit status, same signals."""

from __future__ import annotations

import json
import os
import shutil
import signal
import stat
import subprocess
import sys
import time
import venv
from pathlib import Path

import pytest
from processes import (
    SOURCE,
    collected,
    command,
    environment,
    finish,
    metric_values,
    only_process,
    start,
    start_command,
    wait_for_rest,
    wait_until,
)
from terminal import Terminal

from stethos.cli.task.launch import is_sent
from stethos.record.place import RunPlace, start_ticks
from stethos.store.run import Run, open_run


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working directory; runs go to `runs` in it."""
    directory = tmp_path / "here"
    directory.mkdir()
    monkeypatch.chdir(directory)
    return directory


def script(code: str, name: str = "train.py") -> str:
    Path(name).write_text(code)
    return name


def only_run(here: Path) -> Run:
    """The only run below the working directory, collected to its end."""
    (path,) = (here / "runs").iterdir()
    return collected(path)[0]


# Output and exit status -----------------------------------------------------------------------------


def test_output_is_the_same_byte_by_byte(here: Path) -> None:
    name = script(
        "import os, sys\n"
        "os.write(1, bytes(range(256)))\n"
        "print('später', flush=True)\n"
        "sys.stdout.buffer.write(b'\\xff\\r\\n')\n"
        "print('to stderr', file=sys.stderr)\n"
    )
    bare = subprocess.run([sys.executable, name], capture_output=True, env=environment(), check=False)
    words = [sys.executable, "-m", "stethos.cli.main", "run", name]
    observed = subprocess.run(words, capture_output=True, env=environment(), check=False)
    assert (observed.stdout, observed.returncode) == (bare.stdout, bare.returncode)
    assert [line for line in observed.stderr.splitlines() if not line.startswith(b"stethos: ")] == [b"to stderr"]
    quiet = subprocess.run([*words[:4], "--quiet", name], capture_output=True, env=environment(), check=False)
    assert (quiet.stdout, quiet.stderr) == (bare.stdout, bare.stderr)
    for path in (here / "runs").iterdir():
        wait_for_rest(path)


@pytest.mark.parametrize(
    ("code", "status", "ending"),
    [
        ("pass", 0, "ended"),
        ("raise SystemExit(0)", 0, "ended"),
        ("import sys; sys.exit(3)", 3, "exit status 3"),
        ("import sys; sys.exit(7)", 7, "exit status 7"),
        ("import sys; sys.exit('words')", 1, "exit status 1"),
        ("import os; os._exit(5)", 5, "exit status 5"),
        ("import os; os.kill(os.getpid(), 11)", -11, "killed by SIGSEGV"),
        ("import os; os.kill(os.getpid(), 9)", -9, "killed by SIGKILL"),
        ("import os; os.abort()", -6, "killed by SIGABRT"),
    ],
)
def test_the_exit_status_is_the_programs_own_and_recorded(here: Path, code: str, status: int, ending: str) -> None:
    assert command("run", script(code)).returncode == status
    run = only_run(here)
    process = only_process(run)
    assert (process["exit_code"], process["ending"], process["traceback"]) == (status, ending, None)
    assert run.summary()["exit_code"] == status
    assert run.summary()["state"] == ("killed" if status < 0 else "failed" if status else "ended")
    assert process["state"] == run.summary()["state"]


def test_an_uncaught_exception_is_recorded_with_its_traceback(here: Path) -> None:
    name = script("def deep():\n    raise ValueError('went wrong: später')\n\ndeep()\n")
    bare = finish(start(name))
    observed = command("run", name)
    assert observed.returncode == bare.returncode == 1
    assert bare.stderr in observed.stderr  # its own traceback, untouched
    process = only_process(only_run(here))
    assert process["state"] == "failed" and process["ending"] == "uncaught ValueError: went wrong: später"
    assert process["traceback"] == bare.stderr.replace(
        bare.stderr.splitlines()[1], process["traceback"].splitlines()[1]
    )
    assert "deep" in process["traceback"] and process["exit_code"] == 1


@pytest.mark.parametrize("before", [[sys.executable], ["sh", "-c", 'exec "$@"', "sh", sys.executable]])
def test_a_crash_before_the_first_step_is_diagnosed(here: Path, before: list[str]) -> None:
    name = script("import torch\ntorch.nn.Linear(3, 2)(torch.ones(2, 4))\n")
    assert command("run", *before, name).returncode == 1
    only_run(here)
    diagnosed = command("diagnose", "--json")
    (finding,) = json.loads(diagnosed.stdout)["findings"]
    assert diagnosed.returncode == 1 and finding["name"] == "process-failure" and "shapes" in finding["title"]


def test_an_exception_is_recorded_though_the_program_has_a_hook_of_its_own(here: Path) -> None:
    name = script("import sys\nsys.excepthook = lambda *_: print('mine')\nraise ValueError('17 apples')")
    done = command("run", name)
    assert (done.stdout, done.returncode) == ("mine\n", 1)
    process = only_process(only_run(here))
    assert (process["state"], process["ending"]) == ("failed", "uncaught ValueError: 17 apples")
    assert "raise ValueError('17 apples')" in process["traceback"]


@pytest.mark.parametrize("place", ["elsewhere", "runs"])
def test_a_program_that_deletes_where_it_runs_keeps_its_status(here: Path, place: str) -> None:
    runs = here.parent / "elsewhere" if place == "elsewhere" else here / "runs"
    deleting = "import os, shutil, stethos; stethos.log(x=1); shutil.rmtree(os.getcwd())"
    name = script(f"{deleting}\nprint('done', flush=True)\nos._exit(5)")
    done = command("run", "--dir", runs, "--name", "one", name)
    assert (done.stdout, done.returncode) == ("done\n", 5) and "Traceback" not in done.stderr
    assert (runs / "one").exists() == (place == "elsewhere")


SHELL = """
import sys
def run_cell(text):
    try:
        exec(text)
    except Exception as error:
        sys.last_type, sys.last_value, sys.last_traceback = type(error), error, error.__traceback__
        print("Traceback", error)
run_cell("1 / 0")
run_cell("print('next cell')")
"""


@pytest.mark.parametrize("start", ["", "sys.ps1 = '> '\nsys.excepthook(ValueError, ValueError('typed'), None)\n"])
def test_an_error_in_a_cell_of_a_notebook_is_not_the_end_of_the_process(here: Path, start: str) -> None:
    """Shells keep the last exception where the interpreter does, and go on."""
    assert command("run", script(SHELL + start)).returncode == 0
    process = only_process(only_run(here))
    assert (process["state"], process["ending"], process["traceback"]) == ("ended", "ended", None)


SPAWNED = """
import multiprocessing, sys, stethos
def work(number):
    stethos.log(number=number)
    try:
        if number == 1:
            raise ValueError("bad batch")
    except ValueError:
        sys.exit(1)
    sys.exit(number)
if __name__ == "__main__":
    context = multiprocessing.get_context("fork")
    for number in range(3):
        worker = context.Process(target=work, args=(number,))
        worker.start()
        worker.join()
"""


def test_a_child_that_leaves_with_a_status_has_failed(here: Path) -> None:
    """`torch.multiprocessing.spawn` catches what a rank raises, and leaves with 1."""
    assert command("run", script(SPAWNED)).returncode == 0
    _, *workers = sorted(only_run(here).processes(), key=lambda row: row["started_ns"])
    assert [(worker["state"], worker["ending"]) for worker in workers] == [
        ("ended", "ended"),
        ("failed", "uncaught ValueError: bad batch"),
        ("failed", "uncaught SystemExit: 2"),
    ]


STOPPED = """
import multiprocessing, signal, sys, stethos
def work(is_done):
    stethos.log(number=1)
    is_done.set()
    signal.pause()
if __name__ == "__main__":
    context = multiprocessing.get_context("fork")
    is_done = context.Event()
    worker = context.Process(target=work, args=(is_done,), daemon=True)
    worker.start()
    is_done.wait()
    worker.terminate()
    worker.join()
    sys.exit(int(sys.argv[1]))
"""


@pytest.mark.parametrize(("status", "state"), [(0, "ended"), (3, "killed")])
def test_a_daemon_that_is_stopped_by_its_parent_has_not_failed(here: Path, status: int, state: str) -> None:
    """Pools end their workers by a signal; only where the parent failed too that may be a trace of trouble."""
    assert command("run", script(STOPPED), str(status)).returncode == status
    main, worker = sorted(only_run(here).processes(), key=lambda row: row["started_ns"])
    assert (main["exit_code"], worker["exit_code"], worker["state"]) == (status, None, state)


def test_a_long_traceback_in_any_script_is_cut_and_still_recorded(here: Path) -> None:
    name = script("raise ValueError('漢' * 100_000)")
    assert command("run", name).returncode == 1
    process = only_process(only_run(here))
    assert process["state"] == "failed" and process["traceback"].rstrip().endswith("漢" * 1000)
    assert process["ending"].startswith("uncaught ValueError: 漢")


def test_the_status_survives_a_caller_that_ignores_its_children(here: Path) -> None:
    """Where SIGCHLD is ignored the kernel throws exit statuses away."""
    name = script("import signal; print(signal.getsignal(signal.SIGCHLD)); raise SystemExit(4)")
    ended = finish(start_command("run", name, preexec_fn=lambda: signal.signal(signal.SIGCHLD, signal.SIG_IGN)))
    assert (ended.returncode, ended.stdout) == (4, "1\n")
    only_run(here)


# Signals ------------------------------------------------------------------------------------------------

COUNTING = """
import signal, sys, time
counts = {}
def count(number, frame):
    counts[number] = counts.get(number, 0) + 1
    print("got", number, flush=True)
for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGHUP):
    signal.signal(number, count)
print("ready", flush=True)
for line in sys.stdin:
    break
print(sorted(counts.items()))
"""


def test_a_signal_to_the_command_reaches_the_program_exactly_once(here: Path) -> None:
    launcher = start_command("run", script(COUNTING))
    assert launcher.stdout is not None and launcher.stdout.readline() == "ready\n"
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGHUP):
        launcher.send_signal(number)
        assert launcher.stdout.readline() == f"got {number:d}\n"
    ended = finish(launcher, "end\n")
    assert (ended.returncode, ended.stdout) == (0, "[(1, 1), (2, 1), (10, 1), (15, 1)]\n")
    assert only_process(only_run(here))["state"] == "ended"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGUSR1], ids=lambda number: number.name)
def test_a_program_killed_by_a_signal_takes_the_command_along(here: Path, number: signal.Signals) -> None:
    name = script("import time; print('ready', flush=True); time.sleep(600)")
    statuses = []
    for words in ([name], ["-m", "stethos.cli.main", "run", name]):
        process = start(*words)
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
        process.send_signal(number)
        statuses.append(finish(process).returncode)
    assert statuses == [-number, -number]
    process_row = only_process(only_run(here))
    assert (process_row["state"], process_row["ending"]) == ("killed", f"killed by {number.name}")


def test_ctrl_c_in_a_terminal_reaches_the_program_once(here: Path) -> None:
    name = script(
        "import signal, sys\n"
        "count = 0\n"
        "def interrupted(number, frame):\n"
        "    global count\n"
        "    count += 1\n"
        "    print('interrupted', count, flush=True)\n"
        "signal.signal(signal.SIGINT, interrupted)\n"
        "print('ready', flush=True)\n"
        "sys.stdin.readline()\n"
        "print('end after', count, flush=True)\n"
    )
    with Terminal("run", name) as terminal:
        terminal.expect("ready")
        for turn in (1, 2):
            terminal.send("\x03")
            terminal.expect(f"interrupted {turn}")
        terminal.send("\n")
        terminal.expect("end after 2")
        assert terminal.wait() == 0
    assert terminal.text.count("interrupted") == 2 and "Traceback" not in terminal.text
    assert only_process(only_run(here))["state"] == "ended"


def test_ctrl_c_in_a_terminal_ends_a_program_that_does_not_expect_it(here: Path) -> None:
    name = script("import sys\nprint('ready', flush=True)\nsys.stdin.readline()\n")
    with Terminal("run", name) as terminal:
        terminal.expect("ready")
        terminal.send("\x03")
        assert terminal.wait() == -signal.SIGINT
    process = only_process(only_run(here))
    assert (process["state"], process["ending"]) == ("killed", "killed by SIGINT")
    assert process["traceback"].endswith("KeyboardInterrupt\n")


def test_a_signal_that_comes_after_the_program_has_ended_changes_nothing(here: Path) -> None:
    """The command is stopped meanwhile, and finds all of it when it goes on: the end and two signals."""
    launcher = start_command("run", "--name", "late", script("print('ready', flush=True); input()"))
    assert launcher.stdin is not None and launcher.stdout is not None and launcher.stdout.readline() == "ready\n"
    place = RunPlace(here / "runs" / "late")
    child = wait_until(lambda: place.launchers()[0].get("child_pid"), "the pid in the launcher's file")
    launcher.send_signal(signal.SIGSTOP)
    launcher.stdin.write("end\n")
    launcher.stdin.flush()
    wait_until(lambda: start_ticks(child) is None, "the end of the program")
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGCONT):
        launcher.send_signal(number)
    assert finish(launcher).returncode == 0
    only_run(here)


def test_a_command_that_is_stopped_for_long_goes_on_with_its_program(here: Path) -> None:
    """As by Ctrl-Z and `fg`, or by a machine that sleeps: the wait for signals ends without any."""
    launcher = start_command("run", script("print('ready', flush=True); print(input())"))
    assert launcher.stdout is not None and launcher.stdout.readline() == "ready\n"
    for _ in range(3):
        launcher.send_signal(signal.SIGSTOP)
        time.sleep(0.6)  # longer than it waits for a signal
        launcher.send_signal(signal.SIGCONT)
    ended = finish(launcher, "end\n")
    assert (ended.returncode, ended.stdout) == (0, "end\n")
    assert only_process(only_run(here))["state"] == "ended"


# What is run ----------------------------------------------------------------------------------------------


def test_stdin_is_the_programs(here: Path) -> None:
    ended = command("run", script("import sys; print(sys.stdin.read().upper())"), stdin="through\n")
    assert ended.stdout == "THROUGH\n\n"
    only_run(here)


def test_a_module_is_run_as_python_does(here: Path) -> None:
    script("import sys; print(__name__, sys.argv[1:], sys.argv[0].endswith('train.py'))")
    ended = command("run", "--name", "module", "-m", "train", "--name", "x", "-t", "y")
    assert (ended.returncode, ended.stdout) == (0, "__main__ ['--name', 'x', '-t', 'y'] True\n")
    only_run(here)


@pytest.mark.parametrize("before", [[], ["--"], ["--name", "ours"]], ids=str)
def test_words_after_the_script_are_its_own_even_if_they_look_like_ours(here: Path, before: list[str]) -> None:
    name = script("import sys; print(sys.argv[1:])")
    words = ["--name", "x", "-t", "y", "--dir", "/nowhere", "--resume", "z", "-m", "--", "--help"]
    ended = command("run", *before, name, *words)
    assert (ended.returncode, ended.stdout) == (0, f"{words}\n")
    assert only_process(only_run(here))["command"].endswith(
        "train.py --name x -t y --dir /nowhere --resume z -m -- --help"
    )


def test_python_children_of_a_shell_command_are_observed(here: Path) -> None:
    for name in ("a", "b"):
        script(f"import logging; logging.warning('from {name}')", f"{name}.py")
    ended = command("run", "bash", "-c", f"'{sys.executable}' a.py; '{sys.executable}' b.py; exit 6")
    assert ended.returncode == 6
    run = only_run(here)
    rows = run.rows("SELECT p.command, message FROM logs JOIN processes p USING (process) ORDER BY t_ns").values
    assert [(line.split()[-1], message) for line, message in rows] == [("a.py", "from a"), ("b.py", "from b")]
    assert [process["state"] for process in run.processes()] == ["ended", "ended"]
    assert (run.summary()["state"], run.summary()["exit_code"]) == ("failed", 6)


def test_a_child_that_goes_on_after_the_command_is_drained_to_its_end(here: Path) -> None:
    script(
        "import logging, pathlib, time\n"
        "logging.warning('one')\n"
        "while not pathlib.Path('stop').exists():\n"
        "    time.sleep(0.01)\n"
        "logging.warning('two')\n"
    )
    ended = command(
        "run", "--name", "daemon", "bash", "-c", f"'{sys.executable}' train.py >/dev/null 2>&1 & echo begun"
    )
    assert (ended.returncode, ended.stdout) == (0, "begun\n")
    with open_run(here / "runs" / "daemon") as live:
        wait_until(lambda: live.tables()["logs"] == 1, "its first row")
        assert only_process(live)["state"] == "running"
    Path("stop").touch()
    run = only_run(here)
    assert [message for (message,) in run.rows("SELECT message FROM logs ORDER BY t_ns").values] == ["one", "two"]


def test_a_program_that_replaces_itself_is_recorded_before_and_after(here: Path) -> None:
    name = script(
        "import os, sys\n"
        "import stethos\n"
        "stethos.log(i=len(sys.argv))\n"
        "if len(sys.argv) == 1:\n"
        "    os.execv(sys.executable, [sys.executable, *sys.argv, 'again'])\n"
        "raise SystemExit(2)\n"
    )
    ended = command("run", name)
    assert ended.returncode == 2 and "not recording" not in ended.stderr
    run = only_run(here)
    assert metric_values(run) == [1, 2] and len(run.processes()) == 2
    assert run.rows("SELECT count(DISTINCT pid) FROM processes").values == [(1,)]


def test_a_file_without_a_format_goes_to_the_shell(here: Path) -> None:
    Path("job").write_text("echo from the shell $1\nexit 9\n")
    Path("job").chmod(0o755)
    ended = command("run", "./job", "word")
    assert (ended.returncode, ended.stdout) == (9, "from the shell word\n")
    assert "no Python process was observed" in ended.stderr


def test_resume_adds_a_process_to_the_same_run(here: Path) -> None:
    name = script("import stethos, sys; stethos.log(i=int(sys.argv[1])); sys.exit(int(sys.argv[1]))")
    assert command("run", "--name", "long", name, "0").returncode == 0
    assert command("run", "--resume", "long", name, "1").returncode == 1
    run = only_run(here)
    assert metric_values(run) == [0, 1]
    assert [process["exit_code"] for process in sorted(run.processes(), key=lambda p: p["started_ns"])] == [0, 1]
    assert (run.summary()["exit_code"], run.summary()["state"]) == (1, "failed")


# What the program sees ---------------------------------------------------------------------------------------


def test_a_sitecustomize_of_the_users_own_still_runs_and_the_path_is_kept(here: Path) -> None:
    Path("mine").mkdir()
    script("import sys; sys.from_users_sitecustomize = True", "mine/sitecustomize.py")
    script("value = 'from the users path'", "mine/helper.py")
    name = script(
        "import sys, helper, sitecustomize\n"
        "print(sys.from_users_sitecustomize, helper.value, sitecustomize.__file__.split('/')[-2:])\n"
        "print(sys.path)\n"
    )
    outputs = []
    for words in ([name], ["-m", "stethos.cli.main", "run", name]):
        given = environment()
        outputs.append(finish(start(*words, env={**given, "PYTHONPATH": f"mine:{given['PYTHONPATH']}"})).stdout)
    assert outputs[0] == outputs[1] and "True from the users path ['mine', 'sitecustomize.py']" in outputs[0]
    only_run(here)


def test_nothing_heavy_is_imported_into_the_program(here: Path) -> None:
    name = script(
        "import logging, sys\n"
        "import stethos\n"
        "logging.warning('x'); stethos.log(i=1)\n"
        "with stethos.span('s'): pass\n"
        "print([name for name in ('numpy', 'pyarrow', 'duckdb', 'psutil', 'rich', 'torch') if name in sys.modules])\n"
        "import torch\n"
        "model = torch.nn.Linear(2, 2)\n"
        "optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
        "for _ in range(3):\n"
        "    model(torch.ones(1, 2)).sum().backward(); optimizer.step()\n"
        "print([name for name in ('pyarrow', 'duckdb', 'psutil', 'rich') if name in sys.modules])\n"
    )
    ended = command("run", name)
    assert ended.stdout == "[]\n[]\n"
    run = only_run(here)
    assert run.tables()["steps"] == 3 and run.tables()["logs"] == 1 and run.tables()["spans"] == 1


def test_another_interpreter_without_our_packages_is_observed(here: Path) -> None:
    venv.create("other", with_pip=False)
    name = script(
        "import importlib.util, logging, sys\n"
        "logging.warning('from afar', extra={'answer': 42})\n"
        "print([name for name in ('numpy', 'pyarrow', 'duckdb') if importlib.util.find_spec(name)])\n"
        "print(any('site-packages' in (getattr(m, '__file__', None) or '') for m in list(sys.modules.values())))\n"
    )
    start_from_source = (
        "import sys; sys.path.insert(0, sys.argv.pop(1)); from stethos.cli.main import main; sys.exit(main())"
    )
    given = {key: value for key, value in environment().items() if key != "PYTHONPATH"}
    launcher = start("-c", start_from_source, SOURCE, "run", "other/bin/python", name, env=given)
    ended = finish(launcher)
    assert (ended.returncode, ended.stdout) == (0, "[]\nFalse\n")
    run = only_run(here)
    ((message, fields),) = run.rows("SELECT message, fields FROM logs").values
    assert message == "from afar" and json.loads(fields) == {"answer": 42}
    assert only_process(run)["torch"] is None and only_process(run)["state"] == "ended"


def test_a_federation_without_steps_is_summed_up_by_its_rounds(here: Path) -> None:
    """Its rows are on disk when it ends; whether its drainer gets to seal them before the command ends is open."""
    name = script(
        "import time\n"
        "import stethos\n"
        "with stethos.federation('f', progress=False) as federation:\n"
        "    for one in federation.rounds(2):\n"
        "        one.evaluate(loss=1.0)\n"
        "with stethos.open_run('runs/fed') as run:\n"
        "    while run.tables()['rounds'] < 2:\n"
        "        time.sleep(0.01)\n"
    )
    ended = command("run", "--name", "fed", name)
    assert ended.returncode == 0
    assert "stethos: 2 rounds recorded" in ended.stderr


def test_an_isolated_interpreter_runs_unobserved_and_we_say_so(here: Path) -> None:
    name = script("import sys; print('stethos' in sys.modules)")
    ended = command("run", sys.executable, "-I", name)
    assert (ended.returncode, ended.stdout) == (0, "False\n")
    assert "no Python process was observed" in ended.stderr


def test_a_command_beside_our_python_needs_no_path(here: Path) -> None:
    """As `torchrun` of an environment that is not activated."""
    beside = Path(sys.executable).parent / "stethos"
    assert beside.is_file() and shutil.which("stethos", path="/usr/bin:/bin") is None
    ended = command("run", "stethos", "--version", cwd=here, env=environment(PATH="/usr/bin:/bin"))
    assert ended.returncode == 0 and ended.stdout.startswith("stethos ")


# Mistakes ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "status", "said"),
    [
        ([], 2, "nothing to run"),
        (["-m"], 2, "-m needs a module"),
        (["missing.py"], 2, "no script at missing.py"),
        (["no-such-command", "x"], 127, "no command 'no-such-command'"),
        (["./not-executable"], 127, "no command './not-executable'"),
        (["./bad-interpreter"], 127, "cannot execute './bad-interpreter'"),
        (["--preset", "huge", "train.py"], 2, "unknown preset 'huge'"),
        (["--overhead", "much", "train.py"], 2, "not a share: 'much'"),
        (["--overhead", "200%", "train.py"], 2, "outside 0 to 100%"),
        (["--overhead", "nan", "train.py"], 2, "outside 0 to 100%"),
        (["--max-size", "big", "train.py"], 2, "not a size: 'big'"),
        (["--name", "../x", "train.py"], 2, "not a usable run name: '../x'"),
        (["--resume", "gone", "train.py"], 3, "no run to resume at"),
        (["--no-such-option", "train.py"], 2, "--no-such-option"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_mistake_is_said_in_words_and_leaves_nothing_behind(
    here: Path, words: list[str], status: int, said: str
) -> None:
    script("raise SystemExit('must not run')")
    script("text", "not-executable")
    Path(script("#!/no/such/interpreter\n", "bad-interpreter")).chmod(0o755)
    before = sorted(here.rglob("*"))
    ended = command("run", *words)
    assert (ended.returncode, ended.stdout) == (status, "")
    (first,) = [line for line in ended.stderr.splitlines() if said in line]
    assert "Traceback" not in ended.stderr and "must not run" not in ended.stderr
    assert sorted(here.rglob("*")) == before, first


def test_a_name_that_is_taken_is_refused_with_the_way_to_add_to_it(here: Path) -> None:
    name = script("print('ran')")
    assert command("run", "--name", "taken", name).returncode == 0
    wait_for_rest(here / "runs" / "taken")
    before = {path: path.stat().st_mtime_ns for path in here.rglob("*") if path.is_file()}
    ended = command("run", "--name", "taken", name)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert "run taken exists" in ended.stderr and "hint: add to it with --resume taken" in ended.stderr
    assert {path: path.stat().st_mtime_ns for path in here.rglob("*") if path.is_file()} == before


# Secrets and permissions --------------------------------------------------------------------------------------


def test_secrets_appear_nowhere_in_the_run(here: Path) -> None:
    name = script(
        "import logging, os, sys\n"
        "import stethos\n"
        "stethos.watch(config={'lr': 0.1, 'db': {'password': 'SECRET-C'}, 'url': 'https://me:SECRET-D@host/x'})\n"
        "logging.warning('connecting with password=%s', 'SECRET-E', extra={'api_key': 'SECRET-F'})\n"
        "with stethos.span('fetch', token='SECRET-G'): pass\n"
        "logging.getLogger('token=SECRET-H').error('x')\n"
        "print('ready', flush=True)\n"
        "sys.stdin.readline()\n"
        "raise ValueError('auth_token=SECRET-I')\n"
    )
    launcher = start_command("run", "--name", "secret", name, "--api-key", "SECRET-A", "postgres://me:SECRET-B@host/db")
    assert launcher.stdout is not None and launcher.stdout.readline() == "ready\n"
    path = here / "runs" / "secret"
    with open_run(path) as live:
        wait_until(lambda: live.tables()["logs"] == 2, "its rows")
    found = {file.name: _secrets_in(file) for file in path.rglob("*") if file.is_file() and file.name != "ring"}
    assert not any(found.values()), found
    assert not _secrets_in(next(path.rglob("ring"))) & {"A", "B", "C", "D"}  # texts pass through it on their way
    finish(launcher, "end\n")
    run, _ = collected(path)
    assert not any(_secrets_in(file) for file in path.rglob("*") if file.is_file())
    for table in ("processes", "runs", "logs", "spans", "gaps"):
        shown = json.dumps(run.sql(f"SELECT * FROM {table}").to_pylist(), default=str)
        assert "SECRET" not in shown and (table == "gaps" or "[redacted]" in shown), shown
    process = only_process(run)
    assert process["command"].endswith("train.py --api-key '[redacted]' 'postgres://[redacted]@host/db'")
    assert json.loads(process["config"])["lr"] == 0.1 and json.loads(process["config"])["db"] == {
        "password": "[redacted]"
    }
    assert process["state"] == "failed" and "[redacted]" in process["ending"] and "[redacted]" in process["traceback"]


def _secrets_in(path: Path) -> set[str]:
    return {chr(part[0]) for part in path.read_bytes().split(b"SECRET-")[1:]}


def test_only_the_user_may_read_a_run(here: Path) -> None:
    name = script("import logging, sys; logging.warning('x'); print('ready', flush=True); sys.stdin.readline()")
    launcher = start_command("run", "--scratch", "scratch", name, preexec_fn=lambda: os.umask(0))
    assert launcher.stdout is not None and launcher.stdout.readline() == "ready\n"
    (path,) = (here / "runs").iterdir()
    with open_run(path) as live:
        wait_until(lambda: live.tables()["logs"] == 1, "its row")
    _check_modes(path)
    (scratch,) = (here / "scratch").iterdir()
    _check_modes(scratch)
    finish(launcher, "end\n")
    wait_for_rest(path)
    _check_modes(path)


def _check_modes(top: Path) -> None:
    for path in (top, *top.rglob("*")):
        mode = stat.S_IMODE(path.stat().st_mode)
        assert mode == (0o700 if path.is_dir() else 0o600), f"{path}: {mode:o}"


def test_any_configuration_is_taken(here: Path) -> None:
    """What JSON cannot hold is written as text; what is too large is left out, and the run says so."""
    name = script(
        "import pathlib, stethos\n"
        "stethos.watch(config={(1, 2): pathlib.Path('/x'), 'nan': float('nan'), 'set': {1}, 'kept': 'yes'})\n"
        "stethos.log(i=0)\n"
        "stethos.watch(config={'huge': 'x' * 100_000})\n"
        "stethos.log(i=1)\n"
    )
    ended = command("run", name)
    assert ended.returncode == 0 and not [line for line in ended.stderr.splitlines() if "stethos: " not in line]
    run = only_run(here)
    assert metric_values(run) == [0, 1]
    assert json.loads(only_process(run)["config"])["kept"] == "yes"
    ((what, reason),) = run.rows("SELECT what, reason FROM gaps").values
    assert what == "config" and "characters" in reason
    script(
        "import pathlib, stethos\n"
        "stethos.watch(dir='runs', name='own', config={'p': pathlib.Path('/x')})\n"
        "stethos.log(i=0)\n"
    )
    ended = finish(start("train.py"))
    assert (ended.returncode, ended.stderr) == (0, "")
    run, _ = collected(here / "runs" / "own")
    assert json.loads(only_process(run)["config"]) == {"p": "/x"} and metric_values(run) == [0]


def test_a_run_ends_with_its_verdict_in_one_line(here: Path) -> None:
    trains = (
        "import torch\ntorch.manual_seed(0)\nmodel = torch.nn.Linear(2, 1)\n"
        "optimizer = torch.optim.SGD(model.parameters(), lr=LR)\n"
        "for _ in range(200):\n    x = torch.randn(32, 2)\n    optimizer.zero_grad()\n"
        "    (model(x)[:, 0] - x.sum(1)).square().mean().backward()\n    optimizer.step()\n"
    )
    for rate, verdict in (("0.01", "stethos: nothing found by "), ("50", "stethos: 1 problem")):
        name = script(trains.replace("LR", rate))
        ended = finish(start_command("run", "--name", f"lr-{rate}", name, env=environment(STETHOS_VERDICT="1")))
        assert ended.returncode == 0
        assert f"200 steps recorded; look: stethos diagnose -t lr-{rate}" in ended.stderr
        assert ended.stderr.splitlines()[-1].startswith(verdict)


@pytest.mark.parametrize(
    ("number", "code", "is_relayed"),
    [
        (signal.SIGTERM, 0, True), (signal.SIGINT, -6, True), (signal.SIGINT, 128, False), (signal.SIGCHLD, 0, False),
        (-1035617312, -1042191680, False), (2, -1042191680, False),  # what Python told after a stop
    ],
)  # fmt: skip
def test_a_signal_that_never_came_is_not_relayed(number: int, code: int, is_relayed: bool) -> None:
    assert is_sent(signal.struct_siginfo((number, code, 0, 0, 0, 0, 0))) is is_relayed
