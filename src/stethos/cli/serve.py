"""Show runs in the browser, live and finished.

    stethos serve
    stethos serve --dir /data/runs --port 9000
    stethos serve --edit --token-file ~/.stethos-token    tags, notes, panels of your own; an address that lasts
    stethos serve --alerts alerts.toml      and send alerts about live runs, see `stethos alert`
    ssh -L 8780:localhost:8780 machine      then open the printed address at home
    stethos serve --tls --host 0.0.0.0      over TLS, for browsers and other machines, see `stethos gateway`

The printed address holds a token; without it the page shows nothing. It is new at every start unless --token-file
keeps it. For read-only links that last, see `stethos link`. The page changes a run only with --edit. Every panel shows
the SQL behind it.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from stethos.cli.screen.jsontext import print_json
from stethos.cli.task.target import add_directory
from stethos.cli.task.value import port
from stethos.wiring import command_line

if TYPE_CHECKING:
    from stethos.web.keys import Keys


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "-t", "--target", metavar="TARGET", help="a run, also one in an archive; the runs beside it are shown too"
    )
    add_directory(parser)
    parser.add_argument("--port", type=port, metavar="P", help="port (default: 8780, or any free one)")
    parser.add_argument(
        "--host",
        default="127.0.0.1",
        metavar="ADDRESS",
        help="address to listen on (default: 127.0.0.1, this machine only)",
    )
    parser.add_argument(
        "--name",
        action="append",
        default=[],
        metavar="NAME",
        help="another name of this machine that browsers use; repeatable",
    )
    parser.add_argument("--alerts", type=Path, metavar="FILE", help="send alerts about live runs, as this file says")
    parser.add_argument("--tls", action="store_true", help="encrypt, and let other machines run commands")
    add_keys(parser)
    parser.add_argument(
        "--edit",
        action="store_true",
        help="let the page label and delete runs, silence findings, save panels and links",
    )
    parser.add_argument(
        "--panels", type=Path, metavar="FILE", help="your own panels and views (default: the nearest stethos.toml)"
    )
    parser.add_argument(
        "--token-file", type=Path, metavar="FILE", help="keep the token in this file, so that addresses last"
    )
    parser.add_argument("--open", action="store_true", help="open a browser")
    parser.add_argument("--json", action="store_true", help="print the address as one object")


def add_keys(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--keys",
        metavar="DIR",
        type=Path,
        help="directory for the certificate, tokens and audit log (default: ~/.config/stethos/gateway)",
    )


def keys_in(directory: Path | None) -> Keys:
    """The keys of this machine's server, made on the first start."""
    from stethos.settings import config_dir
    from stethos.web.keys import open_keys

    return open_keys((directory or config_dir() / "gateway").absolute())


def run(arguments: argparse.Namespace) -> int:
    from stethos.settings import default_runs_dir
    from stethos.store.find import find_run, list_runs
    from stethos.web.links import token_in
    from stethos.web.serve import is_open_to_others, listen, serve

    directory = arguments.dir or default_runs_dir()
    if arguments.target is not None:
        directory = find_run(arguments.target, arguments.dir).path.parent
    keys = keys_in(arguments.keys) if arguments.tls else None

    def ready(url: str) -> None:
        if arguments.json:
            print_json({"url": url, "directory": str(directory.resolve())})
        else:
            sys.stdout.write(f"Serving {directory} at\n\n  {url}\n\nPress Ctrl-C to stop.\n")
            if not any(list_runs(directory)):
                sys.stdout.write("there are none yet; they appear on the page as they are recorded\n")
            if is_open_to_others(arguments.host) and keys is None:
                sys.stdout.write("other machines can connect, without encryption: prefer --tls or `ssh -L`\n")
        sys.stdout.flush()

    with _alerting(arguments.alerts, directory):
        listener = listen(arguments.host, arguments.port)
        serve(
            directory,
            listener,
            keys=keys,
            names=tuple(arguments.name),
            ready=ready,
            opens=arguments.open,
            edits=arguments.edit,
            own_file=own_file(arguments.panels),
            token=token_in(arguments.token_file.absolute()) if arguments.token_file else None,
        )
    return 0


def own_file(given: Path | None) -> Path | None:
    """The file of the user's own panels: the given one, or the nearest `stethos.toml`, here or above."""
    from stethos.diagnose.configuration import FILE
    from stethos.errors import UsageError

    if given is not None and not given.is_file():
        raise UsageError(f"no file {given}", hint="see docs/dashboard.md for what it holds")
    here = Path.cwd()
    nearest = next((place / FILE for place in (here, *here.parents) if (place / FILE).is_file()), here / FILE)
    return (given or nearest).absolute()


@contextmanager
def _alerting(file: Path | None, directory: Path) -> Iterator[None]:
    """A process beside the server that looks at the live runs and sends alerts; it ends with the server."""
    if file is None:
        yield
        return
    from stethos.act.alert_rule import read_alerts

    read_alerts(file)  # a mistake in it is better known now
    words = ["alert", "watch", str(file.absolute()), "--all", "--dir", str(directory)]
    process = subprocess.Popen([*command_line(), *words], stdin=subprocess.DEVNULL)
    try:
        yield
    finally:
        process.terminate()
        process.wait()
