"""A command whose target lies behind a gateway: asked there, shown here."""

from __future__ import annotations

import sys
from pathlib import Path

from stethos.cli.text import clean
from stethos.errors import UsageError
from stethos.live.keys import read_token
from stethos.live.remote import Remote
from stethos.live.routes import ROUTES, asked
from stethos.settings import token_file


def run_remote(gateway: str, target: str | None, name: str, words: list[str], token: Path | None) -> int:
    """Ask a gateway to run a command; its output and exit status become ours."""
    path = token or token_file()
    if path is None:
        raise UsageError(
            f"{gateway} is a gateway, and there is no token for it",
            hint="give its read.token or act.token with --token-file FILE, or in STETHOS_TOKEN_FILE",
        )
    text = None
    if name in ROUTES and ROUTES[name].words == "text" and not _has_text(name, words):
        if sys.stdin.isatty():
            raise UsageError(f"`stethos {name}` needs a text", hint=f"see `stethos {name} --help`")
        text = sys.stdin.read()
    one = asked(name, target, words, text)
    with Remote(gateway, read_token(path)) as remote:
        reply = remote.ask(one.name, one.target, list(one.options), one.text)
    sys.stdout.write(clean(str(reply.get("out") or ""), keep_lines=True))
    sys.stdout.flush()
    sys.stderr.write(clean(str(reply.get("err") or ""), keep_lines=True))
    if reply.get("is_cut"):
        sys.stderr.write("the rest was too large for a gateway\n")
    status = reply.get("status")
    return status if isinstance(status, int) else 1


def _has_text(name: str, words: list[str]) -> bool:
    return bool(asked(name, None, words).text)


def take_token_file(words: list[str]) -> tuple[Path | None, list[str]]:
    """The option `--token-file FILE`, wherever it stands, and the words without it."""
    for place, word in enumerate(words):
        if word == "--token-file":
            if place + 1 == len(words):
                raise UsageError("--token-file needs a file")
            return Path(words[place + 1]), [*words[:place], *words[place + 2 :]]
        if word.startswith("--token-file="):
            return Path(word.partition("=")[2]), [*words[:place], *words[place + 1 :]]
    return None, words
