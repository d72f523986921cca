"""`make demo`: a federated training with one faulty client, hidden among ten, and the commands that find it.

Every command is shown before it runs; all of them can be typed by hand. Another fault: make demo SEED=7
"""

from __future__ import annotations

import argparse
import shlex
import shutil
import subprocess
import sys
from itertools import count
from pathlib import Path

from hidden_fault import START, fault_of

import stethos

ROOT = Path(__file__).resolve().parents[1]
PROGRAM = "examples/hidden_fault.py"
DEFAULT_SEED = 49


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=DEFAULT_SEED, help="which client, and what is wrong with it")
    parser.add_argument("--dir", type=Path, default=Path("runs"), help="directory for the run (default: runs)")
    choice = parser.parse_args()
    seed, runs = choice.seed, choice.dir
    name = next(name for number in count(1) if not (ROOT / runs / (name := f"hidden-{number}")).exists())
    target = ("-t", str(runs / name))

    title("1. Ten clients learn handwritten digits together; one of them is faulty")
    command(sys.executable, PROGRAM, "--dir", str(runs), "--name", name, "--seed", str(seed), shown="python")
    title("2. What happened, round by round")
    cli("rounds", *target, "--last", "8")
    title("3. What is wrong?")
    status = cli("diagnose", *target)
    wrong = [one for one in stethos.diagnose(ROOT / runs / name).findings if one.severity.word != "info"]
    accused = [client for one in wrong for client in one.subject.clients]
    for client in accused[:1]:
        title(f"4. Look closer at {client}")
        cli("diagnose", *target, "--client", client)
        title(f"5. Prove it: the training again without {client}, and without somebody else")
        cli("prove", *target)
    title("The truth")
    fault = fault_of(seed)
    (guilty,) = fault.names
    print(f"client {guilty}, from round {START} on: {fault.kind}.")
    verdict = "the diagnosis named it" if guilty in accused else "the diagnosis did not name it"
    print(f"{verdict} (exit status {status}).\n")
    print(f"The run is kept in {runs / name}. Ask it something yourself:\n")
    print(f'  .venv/bin/stethos query -t {name} "SELECT * FROM findings"')
    print(f"  .venv/bin/stethos clients -t {name}\n")
    print("Other faults: make demo SEED=7. A training of one machine that goes wrong: make traindemo\n")
    return 0


def cli(*words: str) -> int:
    """Show a command of Stethos as it would be typed, then run it; its exit status, of which 1 is an answer."""
    return command(sys.executable, "-m", "stethos.cli.main", *words, shown="stethos", hidden=3)


def command(*words: str, shown: str, hidden: int = 1) -> int:
    say(f"\n$ {shown} {shlex.join(words[hidden:])}", "2")
    status = subprocess.run(words, cwd=ROOT, check=False).returncode
    if status not in (0, 1):
        sys.exit(status)
    return status


def title(text: str) -> None:
    width = min(shutil.get_terminal_size().columns, 100)
    say(f"\n=== {text} {'=' * (width - len(text) - 5)}", "1")


def say(text: str, style: str) -> None:
    """A line of our own, in a style where there is a terminal, before the next command writes."""
    is_terminal = sys.stdout.isatty()
    print(f"\x1b[{style}m{text}\x1b[0m" if is_terminal else text, flush=True)


if __name__ == "__main__":
    sys.exit(main())
