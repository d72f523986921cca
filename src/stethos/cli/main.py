"""Record PyTorch training and find out what is wrong with it.

    stethos run train.py            record a training, its code unchanged
    stethos diagnose                find out what is wrong with it
    stethos query "SELECT * FROM steps ORDER BY step DESC LIMIT 5"
    stethos live backtrace          see where a running one is

A TARGET is a run's name, its directory, the pid of one of its processes, or the address of an archived run
(s3://BUCKET/PATH/RUN); RUN/rank:3 is one rank of a run and RUN/all every one. Without a target, a command takes the
newest live run in ./runs, else the newest there. The target can stand anywhere: `stethos rounds RUN`, `stethos rounds
-t RUN`, `stethos -t RUN rounds` or `stethos RUN rounds`.
"""

from __future__ import annotations

import argparse
import errno
import io
import os
import sys
from collections.abc import Iterable, Sequence
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import NoReturn

from stethos.cli.task.interrupt import INTERRUPTED, end_on_interrupt
from stethos.errors import StethosError, UsageError
from stethos.nearest import did_you_mean, nearest

# Every command and the module that has its `add_arguments(parser)` and `run(arguments) -> exit status`; the module's
# docstring is the command's help. The first group is the front page; the others are also prefixes: `stethos live eval`
# is `stethos eval`.
GROUPS: dict[str, dict[str, str]] = {
    "": {
        "run": "stethos.cli.run",
        "diagnose": "stethos.cli.diagnose",
        "ls": "stethos.cli.ls",
        "serve": "stethos.cli.serve",
        "top": "stethos.cli.top",
        "report": "stethos.cli.report",
        "compare": "stethos.cli.compare",
        "profile": "stethos.cli.profile",
        "query": "stethos.cli.query",
    },
    "live": {
        "attach": "stethos.cli.attach",
        "detach": "stethos.cli.detach",
        "backtrace": "stethos.cli.backtrace",
        "flame": "stethos.cli.flame",
        "eval": "stethos.cli.evaluate",
        "repl": "stethos.cli.repl",
        "lr": "stethos.cli.lr",
        "clip": "stethos.cli.clip",
        "gc": "stethos.cli.gc",
        "checkpoint": "stethos.cli.checkpoint",
        "collectives": "stethos.cli.collectives",
        "sync": "stethos.cli.sync",
        "gateway": "stethos.cli.gateway",
    },
    "fed": {
        "rounds": "stethos.cli.rounds",
        "clients": "stethos.cli.clients",
        "compare-clients": "stethos.cli.compare_clients",
    },
    "proof": {
        "prove": "stethos.cli.prove",
        "replay": "stethos.cli.replay",
        "debug": "stethos.cli.debug",
        "bisect": "stethos.cli.bisect",
        "blame": "stethos.cli.blame",
        "actions": "stethos.cli.actions",
    },
    "data": {
        "tables": "stethos.cli.tables",
        "export": "stethos.cli.export",
        "import": "stethos.cli.importing",
        "inspect": "stethos.cli.inspect",
        "doctor": "stethos.cli.doctor",
        "diverge": "stethos.cli.diverge",
        "archive": "stethos.cli.archive",
        "rm": "stethos.cli.rm",
    },
    "sites": {
        "collect": "stethos.cli.collect",
        "enroll": "stethos.cli.enroll",
        "policy": "stethos.cli.policy",
    },
    "more": {
        "demo": "stethos.cli.demo",
        "alert": "stethos.cli.alert",
        "completion": "stethos.cli.completion",
        "mcp": "stethos.cli.mcp",
        "link": "stethos.cli.link",
    },
}
GROUP_TITLES = {
    "": "the commands for every day",
    "live": "look into a running training, and change it",
    "fed": "rounds and clients of a federated training",
    "proof": "replay a federation: prove a finding, or look for its cause",
    "data": "tables and files of runs",
    "sites": "clients on other machines",
    "more": "everything else",
}
COMMANDS: dict[str, str] = {name: module for group in GROUPS.values() for name, module in group.items()}

ALIASES = {"diff": "compare-clients"}  # under a group
# Commands that leave nothing to tidy up. Arrow's threads may still let go of Python's buffers when an archive was read:
# an interpreter that is taken down meanwhile would abort.
_AT_ONCE = ("query", "ls", "tables", "clients", "rounds", "doctor", "backtrace", "collectives", "archive", "rm")
_OWN_WORDS = ("run", "gateway", "attach")  # commands whose words may be anything
# Commands with a word of their own, which is not meant where it is the name of a run: `stethos tables RUN`.
_WORDS = {"tables": "table", "query": "sql", "prove": "finding", "lr": "change", "clip": "norm"}
_HELP = ("-h", "--help", "help")
_BROKEN_PIPE = 141
_NO_SPACE = 74


class Parser(argparse.ArgumentParser):
    """An argument parser whose complaints are UsageErrors."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(message, hint=f"see `{self.prog} --help`")

    def unknown(self, words: Sequence[str]) -> UsageError:
        """The complaint about words that no argument takes, with the option that was probably meant."""
        option, see = words[0].partition("=")[0], f"see `{self.prog} --help`"
        known = nearest(option, self._option_string_actions, 1) if option[:1] == "-" else []
        hint = did_you_mean(option, known, see, see)
        return UsageError(f"unrecognized arguments: {' '.join(words)}", hint=hint)


def console() -> NoReturn:
    """The command `stethos`: run what `sys.argv` says and end the process.

    Commands that succeed and leave nothing to tidy up end at once: to take DuckDB and pyarrow down again would be a
    tenth of a query.
    """
    command = _command_in(sys.argv[1:])
    if command != ["run"] and any("s3://" in word for word in sys.argv[1:]):
        end_on_interrupt()
    _open_streams()
    status = main()
    if status == 0 and command in ([name] for name in _AT_ONCE):
        sys.stderr.flush()
        os._exit(status)
    sys.exit(status)


def _open_streams() -> None:
    """Where a standard stream was closed open one of nothing, before some file of ours takes its number."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_RDWR), mode))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command line; return its exit status."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    if isinstance(sys.stdout, io.TextIOWrapper) and not sys.stdout.encoding.lower().startswith("utf"):
        sys.stdout.reconfigure(errors="replace")  # a question mark instead of a bar, and no traceback
    try:
        status = _dispatch(words)
        sys.stdout.flush()
        return status
    except StethosError as error:
        from stethos.cli.screen.text import clean

        sys.stderr.write(clean(str(error), keep_lines=True) + "\n")
        return error.exit_code
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # nothing more at exit
        return _BROKEN_PIPE
    except OSError as error:
        if error.errno == errno.ENOENT and error.filename is None:  # nothing else has no name
            sys.stderr.write("the working directory was deleted\nhint: go to another one\n")
            return StethosError.exit_code
        if error.errno == errno.ENAMETOOLONG:
            sys.stderr.write("a name or path in the command is too long\n")
            return StethosError.exit_code
        if error.errno != errno.ENOSPC or error.filename is not None:
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.stderr.write("the output cannot be written: no space left\n")
        return _NO_SPACE


def _taken_apart(words: list[str]) -> tuple[str | None, list[str]]:
    """A target that stands before the command, then the command with its own words."""
    target, words = take_target(words)
    if words and words[0] in GROUP_TITLES:
        return target, words
    if words and words[0].startswith("--token-file"):  # between target and command, as in the docs
        size = 1 if "=" in words[0] else 2
        words = [*words[size : size + 1], *words[:size], *words[size + 1 :]]
    is_target = len(words) > 1 and words[0] not in (*COMMANDS, *_HELP) and words[1] in COMMANDS
    return (words[0], words[1:]) if is_target and target is None else (target, words)


def _command_in(words: list[str]) -> list[str]:
    """The command in these words; nothing where `main` will complain of them."""
    try:
        return _taken_apart(words)[1][:1]
    except UsageError:
        return []


def _dispatch(words: list[str]) -> int:
    target, words = _taken_apart(words)
    if target is None and len(words) > 1 and words[0] not in _HELP and words[1] in COMMANDS:
        _check_meaning(words)
    if words and words[0] in GROUP_TITLES:
        words = _in_group(words)
    if not words or words[0] in _HELP:
        return _help(words[1:])
    if words[0] in ("-V", "--version"):
        from stethos import __version__

        sys.stdout.write(f"stethos {__version__}\n")
        return 0
    name, rest = words[0], words[1:]
    if name not in COMMANDS:
        raise _unknown(name)
    if name not in _OWN_WORDS:
        answered = _ask_gateway(name, target, rest)
        if answered is not None:
            return answered
    command = import_module(COMMANDS[name])
    parser = parser_of(name, command)
    parsed, left = parser.parse_known_args(rest)
    if left:
        if len(left) > 1 or left[0].startswith("-") or target is not None or getattr(parsed, "target", "") is not None:
            raise parser.unknown(left)
        target = _checked_target(left[0], parsed.dir)
    elif target is None and _is_run(name, word := getattr(parsed, _WORDS.get(name, ""), None), parsed):
        target = word
        setattr(parsed, _WORDS[name], parser.get_default(_WORDS[name]))
    if target is not None:
        if not hasattr(parsed, "target"):
            raise UsageError(f"`stethos {name}` takes no target", hint=f"see `stethos {name} --help`")
        parsed.target = parsed.target or target
    status: int = command.run(parsed)
    return status


def _checked_target(word: str, directory: Path | None) -> str:
    """The target that stands after the command, as in `stethos rounds RUN`; complains with the nearest names."""
    from stethos.live.target import take_apart
    from stethos.store.find import find_run

    find_run(take_apart(word).run, directory)
    return word


def _is_run(name: str, word: str | None, parsed: argparse.Namespace) -> bool:
    """Whether a command's own word is a run's name or directory, and nothing that the command takes for itself."""
    from stethos.record.place import RunPlace
    from stethos.schema import TABLES
    from stethos.settings import default_runs_dir

    if not word or len(word) > 255 or any(map(str.isspace, word)) or parsed.target is not None:
        return False
    if "/" in word:
        return "://" in word or RunPlace(Path(word)).exists()
    is_number = word.lstrip("x*").replace(".", "", 1).isdecimal()  # a rate, a norm, a finding
    if is_number or word in ("undo", "off") or (name == "tables" and word.lower() in TABLES):
        return False
    return RunPlace((parsed.dir or default_runs_dir()) / word).exists()


def _check_meaning(words: list[str]) -> None:
    """UsageError if a command follows a command or a group that is also the name of a run."""
    from stethos.record.place import RunPlace
    from stethos.settings import default_runs_dir

    name, command = words[:2]
    if name not in _OWN_WORDS and RunPlace(default_runs_dir() / name).exists():
        other = f"say `stethos {command}`" if name in GROUP_TITLES else "give its target with -t RUN"
        raise UsageError(
            f"{name!r} is a command, and also the name of a run",
            hint=f"for the run say `stethos -t {name} {command}`; for the command {other}",
        )


def _ask_gateway(name: str, target: str | None, rest: list[str]) -> int | None:
    """The exit status of a command whose target lies behind a gateway, or several; None if it does not."""
    if target is None:
        place = next((place for place, word in enumerate(rest) if word.split("=")[0] in ("-t", "--target")), None)
        if place is not None:
            target, after = take_target(rest[place:])
            rest = [*rest[:place], *after]
    if target is None or ":" not in target:
        return None
    from stethos.cli.task.remote import run_remote, take_token_file
    from stethos.live.target import gateway_of

    gateways = [(address, inner) for address, inner in map(gateway_of, target.split(",")) if address is not None]
    if len(gateways) <= target.count(","):
        return None
    token, rest = take_token_file(rest)
    return run_remote(gateways, name, rest, token)


def take_target(words: list[str]) -> tuple[str | None, list[str]]:
    """A target that stands before the command, and the words without it."""
    if words and words[0] in ("-t", "--target"):
        if len(words) < 2:
            raise UsageError(f"{words[0]} needs a target", hint="list runs with `stethos ls`")
        return words[1], words[2:]
    if words and words[0].startswith("--target="):
        return words[0].partition("=")[2], words[1:]
    return None, words


def parser_of(name: str, command: ModuleType) -> Parser:
    """The argument parser of a command."""
    from stethos.cli.screen.help_page import FittedHelp

    parser = Parser(prog=f"stethos {name}", description=command.__doc__, formatter_class=FittedHelp)
    command.add_arguments(parser)
    return parser


def _in_group(words: list[str]) -> list[str]:
    """`live eval ...` as `eval ...`; UsageError for a command of another group."""
    group, rest = words[0], words[1:]
    if not rest or rest[0] in _HELP:
        return ["help", group]
    name = ALIASES.get(rest[0], rest[0])
    if name in GROUPS[group]:
        return [name, *rest[1:]]
    if name in COMMANDS:
        raise UsageError(f"`{name}` is not one of the `{group}` commands", hint=f"say `stethos {name}`")
    raise _unknown(rest[0], GROUPS[group])


def _help(words: list[str]) -> int:
    from stethos.cli.screen.help_page import command_lines, paragraphs

    if words and words[0] in COMMANDS:
        parser_of(words[0], import_module(COMMANDS[words[0]])).print_help()
        return 0
    lines: list[str] = []
    if words and words[0] in GROUP_TITLES:
        lines += [f"usage: stethos {words[0]} COMMAND ...", "", *command_lines(words[:1])]
    else:
        lines += ["usage: stethos [-t TARGET] COMMAND ...", "", *paragraphs(__doc__ or "")]
        if words and words[0] != "--all":
            raise _unknown(words[0])
        lines += ["", *command_lines(list(GROUPS) if words else [""])]
        if not words:
            lines += ["", *(f"  {f'{name} ...':10} {GROUP_TITLES[name]}" for name in GROUPS if name)]
            lines += ["", "`stethos help --all` lists every command."]
    lines += ["", "`stethos COMMAND --help` says more about one of them."]
    sys.stdout.write("\n".join(lines) + "\n")
    return 0


def _unknown(name: str, commands: Iterable[str] = COMMANDS) -> UsageError:
    listed = "`stethos help --all` lists the commands"
    return UsageError(f"no command {name!r}", hint=did_you_mean(name, commands, listed, listed))


if __name__ == "__main__":
    console()
