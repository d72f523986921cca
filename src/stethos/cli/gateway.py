"""Serve this machine's processes to other machines, over TLS and with a token for every request.

    stethos gateway                             on this machine only, port 7467
    stethos gateway --listen 0.0.0.0:7467       for other machines

The first start makes a certificate and two token files: read.token (ls, query, backtrace, collectives, sync, and the
dashboard) and act.token (also eval, lr, clip, gc, checkpoint). Copy one to your machine and ask:

    stethos -t HOST:7467 --token-file read.token backtrace
    stethos -t HOST:7467/RUN/all --token-file read.token backtrace

Each request is written to audit.jsonl beside the keys before it is done. This is `stethos serve --tls` on another port.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from stethos.cli.screen.text import clean
from stethos.cli.serve import add_keys, keys_in
from stethos.errors import UsageError
from stethos.settings import default_runs_dir

DEFAULT_PORT = 7467


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--listen",
        metavar="HOST:PORT",
        default=f"127.0.0.1:{DEFAULT_PORT}",
        help=f"address (default: 127.0.0.1:{DEFAULT_PORT}; port 0: any free one)",
    )
    add_keys(parser)
    parser.add_argument("--dir", metavar="DIR", type=Path, help="the runs to serve beside live ones (default: ./runs)")


def run(arguments: argparse.Namespace) -> int:
    from stethos.web.serve import listen, serve

    host, _, port = arguments.listen.rpartition(":")
    if not host or not port.isdecimal() or int(port) > 65535:
        raise UsageError(f"--listen {arguments.listen}", hint="write HOST:PORT, as in 127.0.0.1:7467")
    keys = keys_in(arguments.keys)
    listener = listen(host.strip("[]"), int(port), option="--listen")

    def ready(url: str) -> None:
        address = f"{host}:{listener.getsockname()[1]}"
        sys.stderr.write(f"stethos: gateway on {address}, certificate {keys.fingerprint[:16]}...\n")
        read, act = keys.token_path("read"), keys.token_path("act")
        sys.stderr.write(f"stethos: to read: {clean(str(read))}; to act: {act.name}\n")
        sys.stderr.flush()

    serve(arguments.dir or default_runs_dir(), listener, keys=keys, ready=ready)
    return 0
