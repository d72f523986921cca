"""Run the demo: ten clients train together, one is faulty, and a few commands find it.

    stethos demo
    stethos demo --seed 7        another client, another fault
    stethos demo --serve         watch it in the browser while it trains

Each command is shown before it runs, so that you can type it yourself. Needs torch and scikit-learn.
"""

from __future__ import annotations

import argparse
import json
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

from stethos.cli.screen.jsontext import print_json
from stethos.cli.task.value import port
from stethos.errors import UsageError
from stethos.wiring import PYTHON, command_line

DEFAULT_SEED = 49
_PAUSE_S = 1.0
_TRAINING = (*PYTHON, "-m", "stethos.lab.demo")
_PACKAGES = ("torch", "sklearn")


@dataclass(slots=True)
class DemoState:
    """What the steps of the demo share: where the run is, and what has come out so far."""

    runs: Path
    name: str
    seed: int
    pause_s: float = 0.0
    is_quiet: bool = False
    status: int = 0
    accused: list[str] = field(default_factory=list)

    @property
    def target(self) -> tuple[str, str]:
        return "-t", str(self.runs / self.name)

    def title(self, text: str) -> None:
        width = min(shutil.get_terminal_size().columns, 100)
        self.say(f"\n=== {text} {'=' * (width - len(text) - 5)}", "1")

    def say(self, text: str, style: str = "0") -> None:
        """A line of our own, in a style where there is a terminal, before the next command writes."""
        if not self.is_quiet:
            sys.stdout.write(f"\x1b[{style}m{text}\x1b[0m\n" if sys.stdout.isatty() else f"{text}\n")
            sys.stdout.flush()

    def stethos(self, *words: str) -> int:
        """Show a command of Stethos as it would be typed, then run it; its exit status, of which 1 is an answer."""
        return self.command(command_line(), words, "stethos")

    def command(self, program: tuple[str, ...], words: tuple[str, ...], shown: str) -> int:
        self.say(f"\n$ {shown} {shlex.join(words)}", "2")
        out = subprocess.DEVNULL if self.is_quiet else None
        status = subprocess.run([*program, *words], check=False, stdout=out, stderr=out).returncode
        if status not in (0, 1):
            raise UsageError(f"the demo stopped: `{shown} {words[0]}` ended with status {status}")
        return status


def _train(stage: DemoState) -> None:
    stage.title("1. Ten clients learn handwritten digits together; one of them is faulty")
    words = ("--dir", str(stage.runs), "--name", stage.name, "--seed", str(stage.seed))
    paused = ("--pause", f"{stage.pause_s:g}") if stage.pause_s else ()
    stage.command(_TRAINING, (*words, *paused), "python -m stethos.lab.demo")


def _rounds(stage: DemoState) -> None:
    stage.title("2. What happened, round by round")
    stage.stethos("rounds", *stage.target, "--last", "8")


def _diagnose(stage: DemoState) -> None:
    from stethos import diagnose

    stage.title("3. What is wrong?")
    stage.status = stage.stethos("diagnose", *stage.target)
    wrong = [one for one in diagnose(stage.runs / stage.name).findings if one.severity.word != "info"]
    stage.accused = [client for one in wrong for client in one.subject.clients]


def _look_closer(stage: DemoState) -> None:
    for client in stage.accused[:1]:
        stage.title(f"4. Look closer at {client}")
        stage.stethos("diagnose", *stage.target, "--client", client)


def _prove(stage: DemoState) -> None:
    for client in stage.accused[:1]:
        stage.title(f"5. Prove it: the training again without {client}, and without another client")
        stage.stethos("prove", *stage.target)


def _tell_the_truth(stage: DemoState) -> None:
    stage.title("The truth")
    guilty, kind, start = truth_of(stage.seed)
    verdict = "the diagnosis named it" if guilty in stage.accused else "the diagnosis did not name it"
    stage.say(f"client {guilty}, from round {start} on: {kind}.\n{verdict} (exit status {stage.status}).")


# What the demo does, in order.
STEPS: tuple[Callable[[DemoState], None], ...] = (_train, _rounds, _diagnose, _look_closer, _prove, _tell_the_truth)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--seed",
        type=int,
        default=DEFAULT_SEED,
        metavar="N",
        help="which client, and what is wrong with it (default: 49)",
    )
    parser.add_argument(
        "--dir", type=Path, default=Path("runs"), metavar="DIR", help="directory for the run (default: runs)"
    )
    parser.add_argument(
        "--serve",
        action="store_true",
        help="show the run in the browser while it trains, a second per round, until Ctrl-C",
    )
    parser.add_argument("--port", type=port, metavar="P", help="with --serve: where to listen")
    parser.add_argument("--open", action="store_true", help="with --serve: open a browser")
    parser.add_argument("--json", action="store_true", help="print only the result, as one object")


def run(arguments: argparse.Namespace) -> int:
    from importlib.util import find_spec

    missing = [package for package in _PACKAGES if find_spec(package) is None]
    if missing:
        raise UsageError(f"{missing[0]} is not installed", hint="pip install torch scikit-learn")
    runs: Path = arguments.dir
    name = next(name for number in count(1) if not (runs / (name := f"hidden-{number}")).exists())
    stage = DemoState(runs, name, arguments.seed, _PAUSE_S if arguments.serve else 0.0, arguments.json)
    if not arguments.serve:
        _play(stage)
        return 0
    with _served(stage, arguments.port, arguments.open) as server:
        _play(stage)
        stage.say("The dashboard stays up until you press Ctrl-C.")
        server.wait()
    return 0


def _play(stage: DemoState) -> None:
    for step in STEPS:
        step(stage)
    stethos = _typed()
    if stage.is_quiet:
        guilty, kind, start = truth_of(stage.seed)
        found = {"accused": stage.accused, "status": stage.status}
        truth = {"guilty": guilty, "kind": kind, "start": start}
        print_json({"run": stage.name, "path": str((stage.runs / stage.name).resolve()), **found, **truth})
    stage.say(
        f"\nThe run is kept in {stage.runs / stage.name}. Look at it in the browser:\n\n"
        f"  {stethos} serve --dir {stage.runs}\n\n"
        "or ask it something yourself:\n\n"
        f'  {stethos} query --dir {stage.runs} -t {stage.name} "SELECT * FROM findings"\n'
        f"  {stethos} clients --dir {stage.runs} -t {stage.name}\n\n"
        f"Another fault: {stethos} demo --seed 7. While it trains: {stethos} demo --serve\n"
    )


def truth_of(seed: int) -> tuple[str, str, int]:
    """Who is faulty, how, and since which round."""
    from stethos.lab.demo import START, fault_of

    fault = fault_of(seed)
    (guilty,) = fault.names
    return guilty, fault.kind, START


def _typed() -> str:
    """How a reader can call us from here."""
    beside = Path(sys.executable).parent / "stethos"
    if shutil.which("stethos") or not beside.exists():
        return "stethos"
    here = Path.cwd()
    return str(beside.relative_to(here)) if beside.is_relative_to(here) else str(beside)


@contextmanager
def _served(stage: DemoState, port: int | None, opens: bool) -> Iterator[subprocess.Popen[str]]:
    """A dashboard in a process of its own; its address is said first."""
    words = [*command_line(), "serve", "--dir", str(stage.runs), "--json"]
    words += [] if port is None else ["--port", str(port)]
    words += ["--open"] if opens else []
    stage.runs.mkdir(parents=True, exist_ok=True)
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        text = ""
        while not text.rstrip().endswith("}"):
            line = server.stdout.readline()
            if not line:
                raise UsageError("the dashboard did not start", hint="see what it said above")
            text += line
        try:
            url = json.loads(text)["url"]
            stage.say(f"\nWatch it train:\n\n  {url}&to=/run/{stage.name}/overview", "1")
            yield server
        finally:
            server.terminate()
