"""Open an interactive prompt inside a live training; names are kept between statements.

    stethos repl
    echo 'loss.item()' | stethos repl

Each statement runs at the training's next step, as with `stethos eval`. Ctrl-D leaves. On a pipe the exit
status is 1 if a statement raised.
"""

from __future__ import annotations

import argparse
import codeop
import sys
import warnings

from stethos.cli.evaluate import add_waiting, request_for, show_reply
from stethos.cli.task.target import add_live_target, live_target
from stethos.errors import StethosError
from stethos.live.ask import AgentConnection


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_live_target(parser)
    add_waiting(parser)


def run(arguments: argparse.Namespace) -> int:
    process = live_target(arguments).one()
    is_terminal = sys.stdin.isatty()
    failures = 0
    with AgentConnection(process) as conversation:
        if is_terminal:
            import readline  # noqa: F401  (editing and history for `input`)

            print(f"{process.title} of {process.run}; each statement runs at its next step, Ctrl-D leaves")
        while True:
            try:
                code = _statement(is_terminal)
            except EOFError:
                break
            except KeyboardInterrupt:
                print()
                continue
            if code.strip() in ("exit", "quit", "exit()", "quit()"):
                break
            if not code.strip():
                continue
            try:
                reply = conversation.ask("eval", **request_for(arguments, code))
            except StethosError as error:
                if "hung up" in error.message or not is_terminal:
                    raise
                sys.stderr.write(f"{error}\n")
                continue
            show_reply(reply, is_terse=True)
            failures += bool(reply["error"])
    if is_terminal:
        print()
    return 1 if failures and not is_terminal else 0


def _statement(is_terminal: bool) -> str:
    """Lines up to a complete statement; EOFError at the end of the input."""
    lines: list[str] = []
    while True:
        prompt = ("... " if lines else ">>> ") if is_terminal else ""
        try:
            lines.append(input(prompt) if is_terminal else _line())
        except EOFError:
            if any(line.strip() for line in lines):
                return "\n".join(lines)
            raise
        if _is_complete("\n".join(lines)):
            return "\n".join(lines)


def _line() -> str:
    line = sys.stdin.readline()
    if not line:
        raise EOFError
    return line.rstrip("\n")


def _is_complete(code: str) -> bool:
    """Whether the code can run, or is wrong whatever follows."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return codeop.compile_command(code) is not None
    except (SyntaxError, ValueError, OverflowError):
        return True
