"""Serve this machine's processes to others, over TLS and with a token for every request.

    stethos gateway                             on this machine only, port 7467
    stethos gateway --listen 0.0.0.0:7467       for other machines

The first start makes a certificate and two token files: read.token (ls, query, backtrace, collectives, sync) and
act.token (also eval, lr, clip, gc, checkpoint). Copy one to where you sit and ask:

    stethos -t HOST:7467 --token-file read.token backtrace
    stethos -t HOST:7467/RUN/all --token-file read.token backtrace

Who asked what is written to audit.jsonl beside the keys, before it is done.
"""

from __future__ import annotations

import argparse
import signal
import sys
from pathlib import Path

from stethos.cli.text import clean
from stethos.errors import UsageError
from stethos.settings import config_dir, default_runs_dir

DEFAULT_PORT = 7467


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--listen",
        metavar="HOST:PORT",
        default=f"127.0.0.1:{DEFAULT_PORT}",
        help=f"address (default: 127.0.0.1:{DEFAULT_PORT}; port 0: a free one)",
    )
    parser.add_argument(
        "--keys",
        metavar="DIR",
        type=Path,
        help="where certificate, tokens and audit are (default: ~/.config/stethos/gateway)",
    )
    parser.add_argument(
        "--dir", metavar="DIR", type=Path, help="runs that can be asked beside the live ones (default: ./runs)"
    )


def run(arguments: argparse.Namespace) -> int:
    from stethos.live.gateway import Gateway
    from stethos.live.keys import open_keys

    host, _, port = arguments.listen.rpartition(":")
    if not host or not port.isdigit() or int(port) > 65535:
        raise UsageError(f"--listen {arguments.listen}", hint="write HOST:PORT, as in 127.0.0.1:7467")
    keys = open_keys((arguments.keys or config_dir() / "gateway").absolute())
    gateway = Gateway(keys, arguments.dir or default_runs_dir())
    address, number = gateway.listen(host.strip("[]"), int(port))
    shown = f"[{address}]" if ":" in address else address
    sys.stderr.write(f"stethos: gateway on {shown}:{number}, certificate {keys.fingerprint[:16]}...\n")
    sys.stderr.write(
        f"stethos: to read: {clean(str(keys.token_path('read')))}; to act: {keys.token_path('act').name}\n"
    )
    sys.stderr.flush()
    signal.signal(signal.SIGTERM, lambda *_: gateway.stop())
    try:
        gateway.serve()
    except KeyboardInterrupt:
        gateway.stop()
    return 0
