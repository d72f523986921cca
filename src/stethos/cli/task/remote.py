"""A command whose target is on another machine: run there, shown here."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

from stethos.cli.screen.jsontext import print_json
from stethos.cli.screen.text import clean
from stethos.errors import StethosError, UsageError
from stethos.settings import token_file
from stethos.web.keys import read_token
from stethos.web.remote import call_remote
from stethos.web.remote_command import REMOTE_COMMANDS, checked_call

_AT_ONCE = 16
Row = dict[str, Any]
Place = tuple[str, str | None]  # a gateway's address, and the target behind it


def run_remote(gateways: Sequence[Place], name: str, words: list[str], token: str | None) -> int:
    """Run a command on each of these machines; return the worst exit status.

    With several, each output stands under its address; with --json lists are joined, and other answers stand under
    their addresses in one object. A machine that does not answer is named on stderr, and the others are shown.
    """
    tokens = _tokens(token, [address for address, _ in gateways])
    text = None
    if name in REMOTE_COMMANDS and REMOTE_COMMANDS[name].words == "text" and not checked_call(name, None, words).text:
        if sys.stdin.isatty():
            raise UsageError(f"`stethos {name}` needs a text", hint=f"see `stethos {name} --help`")
        text = sys.stdin.read()

    def reply(one: Place, token: Path) -> Row:
        return call_remote(one[0], read_token(token), checked_call(name, one[1], words, text))

    if len(gateways) == 1:
        return _show(reply(gateways[0], tokens[0]))
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        asking = [pool.submit(reply, one, token) for one, token in zip(gateways, tokens, strict=True)]
        replies = [_result(one) for one in asking]
    addresses = [address for address, _ in gateways]
    if "--json" in words:
        return _show_json(addresses, replies)
    for place, (address, answer) in enumerate(zip(addresses, replies, strict=True)):
        sys.stdout.write(f"{chr(10) if place else ''}{address}\n")
        _show(answer)
    return max(_status(answer) for answer in replies)


def _result(one: Future[Row]) -> Row:
    """A reply, or what went wrong in its place."""
    try:
        return one.result()
    except StethosError as error:
        return {"status": error.exit_code, "err": f"{error}\n"}


def _show(reply: Row) -> int:
    sys.stdout.write(clean(str(reply.get("out") or ""), keep_lines=True))
    sys.stdout.flush()
    sys.stderr.write(clean(str(reply.get("err") or ""), keep_lines=True))
    if reply.get("is_cut"):
        sys.stderr.write("the output was cut: it is too large for a gateway\n")
    return _status(reply)


def _show_json(addresses: Sequence[str], replies: Sequence[Row]) -> int:
    answers: dict[str, object] = {}
    for address, reply in zip(addresses, replies, strict=True):
        try:
            answers[address] = json.loads(str(reply.get("out") or "null"))
        except (ValueError, RecursionError):
            answers[address] = None
    lists = [answer for answer in answers.values() if answer is not None]
    if lists and all(isinstance(answer, list) for answer in lists):
        print_json([row for answer in lists if isinstance(answer, list) for row in answer])
    else:
        print_json(answers)
    for address, reply in zip(addresses, replies, strict=True):
        if reply.get("err"):
            sys.stderr.write(f"{address}: {clean(str(reply['err']), keep_lines=True)}")
    return max(_status(reply) for reply in replies)


def _status(reply: Row) -> int:
    status = reply.get("status")
    return status if isinstance(status, int) and 0 <= status < 256 else 1


def _tokens(given: str | None, addresses: Sequence[str]) -> list[Path]:
    """A token file for each gateway; one alone is for all, as where they share a home directory."""
    files = [Path(one) for one in given.split(",")] if given else [path for path in [token_file()] if path is not None]
    if not files:
        raise UsageError(
            f"{addresses[0]} is a gateway, but no token was given for it",
            hint="give its read.token or act.token with --token-file FILE, or in STETHOS_TOKEN_FILE",
        )
    if len(files) not in (1, len(addresses)):
        raise UsageError(
            f"{len(files)} token files for {len(addresses)} gateways", hint="give one for all, or one for each"
        )
    return files if len(files) == len(addresses) else files * len(addresses)


def take_token_file(words: list[str]) -> tuple[str | None, list[str]]:
    """The option `--token-file FILE`, wherever it stands, and the words without it."""
    for place, word in enumerate(words):
        if word == "--token-file":
            if place + 1 == len(words):
                raise UsageError("--token-file needs a file")
            return words[place + 1], [*words[:place], *words[place + 2 :]]
        if word.startswith("--token-file="):
            return word.partition("=")[2], [*words[:place], *words[place + 1 :]]
    return None, words
