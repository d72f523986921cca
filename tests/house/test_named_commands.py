"""Every `stethos ...` that a page, a hint, a help text or an example names can be typed: commands and options exist."""

from __future__ import annotations

import ast
import contextlib
import io
import re
import shlex
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest

from stethos.cli.main import COMMANDS, GROUPS, _taken_apart, parser_of
from stethos.cli.task.remote import take_token_file
from stethos.errors import UsageError

PROJECT = Path(__file__).resolve().parents[2]
_QUOTED = re.compile(r"(?<!`)`stethos ([^`\n]+)`(?!`)")
_LINE = re.compile(r"^ *(?:\$ )?stethos (.+)$", re.MULTILINE)
_ENDS = ("|", "||", "&&", ">", ">>", "<", "&", "...")  # behind them the command is over
_PLACEHOLDERS = ("COMMAND", "WORD", "--help", "help")
_UNFINISHED = ("expected one argument", "unrecognized arguments: WORD")  # an option named alone; what may be empty


def texts() -> Iterator[tuple[str, str]]:
    """Everything that users read, with its file: pages, and strings in the code; what is filled in is a word."""
    for page in (PROJECT / "README.md", *sorted((PROJECT / "docs").rglob("*.md"))):
        yield page.name, page.read_text(encoding="utf-8")
    for folder in ("src", "examples"):
        for path in sorted((PROJECT / folder).rglob("*.py")):
            tree = ast.parse(path.read_text(encoding="utf-8"))
            inside = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values}
            for node in ast.walk(tree):
                if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in inside:
                    yield path.name, node.value
                elif isinstance(node, ast.JoinedStr):
                    parts = (part.value if isinstance(part, ast.Constant) else "WORD" for part in node.values)
                    yield path.name, "".join(map(str, parts))


def named_commands() -> dict[str, list[str]]:
    """The files in which each command line stands."""
    found: dict[str, list[str]] = {}
    for file, text in texts():
        for line in (*_QUOTED.findall(text), *_LINE.findall(text)):
            found.setdefault(line, []).append(file)
    return found


def words_of(line: str) -> list[str]:
    line = line.partition("  ")[0].partition(" # ")[0]  # what follows explains it
    try:
        words = shlex.split(line)
    except ValueError:  # the line goes on below
        words = shlex.split(line + '"')
    ends = [place for place, word in enumerate(words) if word in _ENDS]
    return words[: ends[0]] if ends else words


def complaint_about(words: list[str]) -> str:
    """What the command line has against these words, but for missing and made up values."""
    _, (name, *rest) = _taken_apart(words)
    if name in GROUPS and rest:
        name, *rest = rest
    if name in _PLACEHOLDERS or rest[:1] == ["COMMAND"] or name.endswith(","):  # any command; a line of prose
        return ""
    if name not in COMMANDS:
        return f"no command {name!r}"
    _, rest = take_token_file(rest)
    parser = parser_of(name, import_module(COMMANDS[name]))
    for action in parser._actions:
        action.type, action.choices = None, None
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            parsed, left = parser.parse_known_args(rest)
            is_target = len(left) == 1 and hasattr(parsed, "target") and not left[0].startswith("-")
            if left and not is_target:  # a target may stand after the command
                return f"unrecognized arguments: {' '.join(left)}"
    except UsageError as error:
        said = str(error).partition("\n")[0]
        return "" if any(said.endswith(end) for end in _UNFINISHED) or "are required" in said else said
    except SystemExit:  # --help
        pass
    return ""


def test_every_command_that_is_named_can_be_typed() -> None:
    named = named_commands()
    assert len(named) > 200
    wrong = {
        line: (said, files)
        for line, files in named.items()
        if (words := words_of(line)) and (said := complaint_about(words))
    }
    assert wrong == {}


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("diagnos", "no command 'diagnos'"),
        ("query --jsn 'SELECT 1'", "unrecognized arguments: --jsn"),
        ("ls --limit", "unrecognized arguments: --limit"),
        ("-t RUN profile --bye client", "unrecognized arguments: --bye client"),
    ],
)
def test_a_wrong_one_is_noticed(line: str, said: str) -> None:
    assert said in complaint_about(words_of(line))
