"""Show the runs of a directory in the browser, live and finished.

    stethos serve
    stethos serve --dir /data/runs --port 9000
    stethos serve --alerts alerts.toml      and tell somebody what is wrong, see `stethos alert`
    ssh -L 8780:localhost:8780 machine      then open the printed address at home

The page is only for whoever has the printed address: it holds a token that is new at every start. Nobody can change
a run through it. Every panel shows the SQL behind it. Needs the extra `web`: pip install 'stethos[web]'.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from stethos.cli.target import add_directory
from stethos.errors import UsageError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_directory(parser)
    parser.add_argument("--port", type=_port, metavar="P", help="where to listen (default: 8780, or any that is free)")
    parser.add_argument(
        "--host",
        default="127.0.0.1",
        metavar="ADDRESS",
        help="which address to listen at (default: 127.0.0.1, this machine only)",
    )
    parser.add_argument(
        "--name",
        action="append",
        default=[],
        metavar="NAME",
        help="a further name by which browsers call this machine; can be given again",
    )
    parser.add_argument(
        "--alerts", type=Path, metavar="FILE", help="tell somebody about findings of live runs, as this file says"
    )
    parser.add_argument("--open", action="store_true", help="open a browser")
    parser.add_argument("--json", action="store_true", help="print the address as one object")


def run(arguments: argparse.Namespace) -> int:
    from stethos.settings import default_runs_dir

    directory = arguments.dir or default_runs_dir()
    with _alerting(arguments.alerts, directory):
        serve_directory(
            directory, arguments.host, arguments.port, names=tuple(arguments.name), opens=arguments.open,
            as_json=arguments.json,
        )  # fmt: skip
    return 0


@contextmanager
def _alerting(file: Path | None, directory: Path) -> Iterator[None]:
    """A process beside the server that looks at the live runs and tells; it ends with the server."""
    if file is None:
        yield
        return
    from stethos.act.alert_rule import read_alerts

    read_alerts(file)  # a mistake in it is better known now
    words = ["alert", "watch", str(file.absolute()), "--all", "--dir", str(directory)]
    process = subprocess.Popen([sys.executable, "-m", "stethos.cli.main", *words], stdin=subprocess.DEVNULL)
    try:
        yield
    finally:
        process.terminate()
        process.wait()


def serve_directory(
    directory: Path, host: str, port: int | None, *, names: tuple[str, ...] = (), opens: bool = False,
    as_json: bool = False,
) -> None:  # fmt: skip
    """Serve until Ctrl-C."""
    from stethos.store.find import list_runs

    try:
        from stethos.web.serve import is_open_to_others, listen, serve
    except ModuleNotFoundError as error:
        if error.name not in ("starlette", "uvicorn", "anyio"):
            raise
        raise UsageError(f"{error.name} is not installed", hint="pip install 'stethos[web]'") from None

    def ready(url: str) -> None:
        if as_json:
            from stethos.cli.jsontext import print_json

            print_json({"url": url, "directory": str(directory.resolve())})
        else:
            sys.stdout.write(f"the runs of {directory} are at\n\n  {url}\n\nCtrl-C ends it.\n")
            if not any(list_runs(directory)):
                sys.stdout.write("there are none yet; they appear on the page as they are recorded\n")
            if is_open_to_others(host):
                sys.stdout.write("other machines can connect, without encryption: prefer `ssh -L`\n")
        sys.stdout.flush()

    serve(directory, listen(host, port), names=names, ready=ready, opens=opens)


def _port(text: str) -> int:
    value = int(text)
    if not 0 <= value < 65536:
        raise argparse.ArgumentTypeError("a port is between 0 and 65535")
    return value
