"""Collect rows from clients on other machines into local runs.

    stethos collect --dir runs                            on this machine only, port 7468
    stethos collect --dir runs --listen 0.0.0.0:7468      for other machines
    stethos collect --dir runs --run digits               everything into the run `digits`
    stethos collect --upstream SITE --listen 0.0.0.0:7468   a relay: send everything on to the collector of SITE
    stethos collect --send SITE                           at a client: send what still waits there, then end

Every client needs a name and a key: see `stethos enroll`. Connections use TLS 1.3, every batch is signed, and a batch
is acknowledged once it is on disk. The result is an ordinary run directory: every command reads it while it grows, and
the printed address shows it in a browser.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from stethos.cli.screen.text import clean, plural_text
from stethos.errors import LiveError, UsageError
from stethos.settings import config_dir, default_runs_dir

if TYPE_CHECKING:
    from stethos.collect.enrolment import Enrolment
    from stethos.collect.receiver import Receiver
    from stethos.collect.relay import Relay

DEFAULT_PORT = 7468


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--dir", metavar="DIR", type=Path, help="where the runs are (default: ./runs)")
    parser.add_argument(
        "--listen",
        metavar="HOST:PORT",
        default=f"127.0.0.1:{DEFAULT_PORT}",
        help=f"address (default: 127.0.0.1:{DEFAULT_PORT}; port 0: any free one)",
    )
    parser.add_argument("--run", metavar="NAME", help="put everything into this run (default: as clients call theirs)")
    add_keys(parser)
    parser.add_argument("--upstream", metavar="SITE", type=Path, help="be a relay: send everything on, as this site")
    parser.add_argument("--send", metavar="SITE", type=Path, help="at a client: send what waits in this site, and end")


def add_keys(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--keys",
        metavar="DIR",
        type=Path,
        help="directory for the certificate and clients' keys (default: ~/.config/stethos/collector)",
    )


def keys_dir(given: Path | None) -> Path:
    return (given or config_dir() / "collector").absolute()


def run(arguments: argparse.Namespace) -> int:
    if arguments.send is not None:
        return _send(arguments.send)
    from stethos.collect.enrolment import Enrolment
    from stethos.collect.routes import CollectRoutes
    from stethos.collect.site import open_site
    from stethos.web.keys import open_keys
    from stethos.web.serve import listen, serve

    host, _, port = arguments.listen.rpartition(":")
    if not host or not port.isdecimal() or int(port) > 65535:
        raise UsageError(f"--listen {arguments.listen}", hint=f"write HOST:PORT, as in 127.0.0.1:{DEFAULT_PORT}")
    keys = open_keys(keys_dir(arguments.keys))
    directory = (arguments.dir or default_runs_dir()).absolute()
    listener = listen(host.strip("[]"), int(port), most_unknown=2048, option="--listen")
    enrolment = Enrolment(keys.directory)
    try:
        receiver = _receiver(arguments, directory, enrolment, keys.fingerprint)
    except BaseException:
        listener.close()
        raise

    def ready(url: str) -> None:
        address = f"{host}:{listener.getsockname()[1]}"
        onward = f" for {open_site(arguments.upstream).address}" if arguments.upstream is not None else ""
        sys.stderr.write(f"stethos: collecting on {address}{onward}, certificate {keys.fingerprint[:16]}...\n")
        clients = plural_text(len(enrolment.clients()), "client")
        sys.stderr.write(f"stethos: {clients}; the runs of {clean(str(directory))} at {url}\n")
        sys.stderr.flush()

    try:
        routes = CollectRoutes(receiver, enrolment, listener.renew).routes()
        serve(directory, listener, keys=keys, ready=ready, routes=routes)
    finally:
        receiver.close()
    return 0


def _receiver(
    arguments: argparse.Namespace, directory: Path, enrolment: Enrolment, fingerprint: str
) -> Receiver | Relay:
    from stethos.collect.receiver import Receiver
    from stethos.collect.relay import Relay
    from stethos.collect.site import open_site
    from stethos.record.place import check_name

    if arguments.upstream is None:
        try:
            return Receiver(directory, enrolment, check_name(arguments.run) if arguments.run else None)
        except OSError as error:
            raise LiveError(f"cannot collect into {directory}: {error.strerror}", hint="choose another --dir") from None
    site = open_site(arguments.upstream)
    if not site.address:
        raise UsageError(f"{arguments.upstream} has no collector", hint="enrol it: `stethos enroll HOST:PORT`")
    if site.fingerprint == fingerprint:
        raise UsageError("this relay has the keys of its own upstream", hint="give it others: --keys DIR")
    return Relay(site, enrolment)


def _send(directory: Path) -> int:
    from stethos.collect.forward import Forwarder
    from stethos.collect.site import open_site
    from stethos.collect.spool import spools_in
    from stethos.record.place import RunPlace

    site = open_site(directory)
    if not site.address:
        raise UsageError(f"{directory} has no collector", hint="its rows leave with the federation's messages")
    forwarder = Forwarder(RunPlace(site.runs / "none"), site)
    sender = forwarder.sender
    assert sender is not None
    forwarder.visit(0.0)
    sender.leave(30.0, 3600.0)
    forwarder.leave()
    left = len(spools_in(site.spool))
    if left:
        why = f": {clean(sender.failure)}" if sender.failure else ""
        raise LiveError(
            f"rows of {plural_text(left, 'recording')} could not be sent{why}", hint="they stay in the site's spool"
        )
    sys.stdout.write("everything is sent\n")
    return 0
