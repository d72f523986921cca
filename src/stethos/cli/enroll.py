"""Give a client a name and a key, so that it may send rows to a collector.

    stethos enroll --new hospital-a                    at the collector: writes hospital-a.token; take it to the client
    stethos enroll HOST:7468 --token-file hospital-a.token --site SITE    at the client, once
    stethos enroll --local hospital-a --site SITE      a site whose rows leave in the federation's own messages
    stethos enroll --new site-1 --authority rootCA.pem    only for the NVFlare kit of that name (--own-key, --own-cert)
    stethos enroll --new hospital-a --key KEY.pub      only for the holder of that key, as a SuperNode (--own-key)
    stethos enroll --through hospital-a.token          at a relay: makes it a token for enrolling through this relay
    stethos enroll --list                              at the collector: who may send, and which tokens wait
    stethos enroll --revoke hospital-a                 at the collector: accept nothing more from it, nor its token

The token works once, within a week. The client's key is made in its own directory and never leaves it. Afterwards
`stethos run --site SITE train.py`, or STETHOS_SITE=SITE before any program, records there and sends what
SITE/policy.toml lets through; see `stethos policy`.
"""

from __future__ import annotations

import argparse
import shlex
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from stethos.cli.collect import add_keys, keys_dir
from stethos.cli.screen.jsontext import print_json
from stethos.errors import UsageError

if TYPE_CHECKING:
    from stethos.collect.enrolment import EnrolmentToken


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("address", nargs="?", metavar="HOST:PORT", help="at a client: the collector")
    parser.add_argument("--token-file", type=Path, metavar="FILE", help="at a client: the token, which works once")
    parser.add_argument("--site", type=Path, metavar="DIR", help="at a client: where its key and policy are kept")
    parser.add_argument("--local", metavar="NAME", help="at a client: make a site without a collector")
    parser.add_argument("--new", metavar="NAME", help="at the collector: a token for a client of this name")
    parser.add_argument(
        "--as",
        dest="aliases",
        action="append",
        default=[],
        metavar="NAME",
        help="with --new: another name; repeatable",
    )
    parser.add_argument(
        "--key", type=Path, metavar="FILE", help="with --new: only for the holder of the matching private key"
    )
    parser.add_argument("--authority", type=Path, metavar="FILE", help="with --new: only for a certificate of this CA")
    parser.add_argument("--own-key", type=Path, metavar="FILE", help="at a client: the private key that a token needs")
    parser.add_argument("--own-cert", type=Path, metavar="FILE", help="at a client: its certificate")
    parser.add_argument("--through", type=Path, metavar="FILE", help="at a relay: a collector's token, for its clients")
    parser.add_argument("--list", action="store_true", help="at the collector: its clients")
    parser.add_argument("--revoke", metavar="NAME", help="at the collector: accept nothing more from a client")
    add_keys(parser)
    parser.add_argument("--json", action="store_true", help="with --list: print JSON objects")


def run(arguments: argparse.Namespace) -> int:
    at_client = arguments.address is not None or arguments.local is not None
    chosen = (at_client, arguments.new is not None, arguments.through is not None, arguments.list, arguments.revoke)
    if sum(map(bool, chosen)) != 1:
        raise UsageError("say what to do", hint="--new NAME, --list or --revoke NAME; at a client HOST:PORT or --local")
    return _enrol_here(arguments) if at_client else _at_collector(arguments)


def _enrol_here(arguments: argparse.Namespace) -> int:
    from stethos.collect.enrol_client import enrol_site
    from stethos.collect.site import known_site, make_site, own_key, public_hex

    if arguments.site is None:
        raise UsageError("a client needs a directory", hint="say where with --site DIR")
    path = arguments.site.absolute()
    if arguments.local is not None:
        known = known_site(path)
        if known is not None and (known.address or known.name != arguments.local):
            raise UsageError(f"{path} is the site of {known.name} already", hint="choose another directory")
        site = make_site(path, arguments.local)
        own_key(path)
    else:
        if arguments.token_file is None:
            raise UsageError("an enrolment needs a token", hint="--token-file FILE, from `stethos enroll --new NAME`")
        own = (arguments.own_key, arguments.own_cert) if arguments.own_key is not None else None
        site = enrol_site(path, arguments.address, _token_of(arguments.token_file), own)
    sys.stdout.write(f"this site is {site.name}; what leaves is decided by {site.policy_path}\n")
    if site.address:  # a relay on the way could have shown another
        said = f"its key is {public_hex(own_key(path))[:16]}...; `stethos enroll --list` at the collector has to say so"
        sys.stdout.write(f"{said}\n")
    sys.stdout.write(f"record with: stethos run --site {shlex.quote(str(arguments.site))} train.py\n")
    return 0


def _token_of(path: Path) -> EnrolmentToken:
    from stethos.collect.enrolment import token_in
    from stethos.record.border import read_file

    try:
        return token_in(read_file(path, 4096).decode("ascii", "replace"))
    except OSError as error:
        raise UsageError(f"no token in {path}: {error.strerror}") from None


def _at_collector(arguments: argparse.Namespace) -> int:
    from stethos.collect.enrolment import Enrolment, EnrolmentToken
    from stethos.record.whole_file import whole_file
    from stethos.web.keys import open_keys

    keys = open_keys(keys_dir(arguments.keys))
    enrolment = Enrolment(keys.directory)
    if arguments.new is not None:
        known = enrolment.clients().get(arguments.new)
        if known is not None and not known.is_revoked:
            sys.stdout.write(f"{known.name} is enrolled already: whoever uses this token takes its place\n")
        token = enrolment.invite(arguments.new, keys.fingerprint, tuple(arguments.aliases), _bound(arguments))
        path = Path(f"{arguments.new}.token").absolute()
        with whole_file(path) as file:
            file.write(token.line().encode())
        sys.stdout.write(f"carry {path.name} to the client over a way you trust; it works once, within a week\n")
        sys.stdout.write(f"there: stethos enroll HOST:PORT --token-file {path.name} --site SITE\n")
    elif arguments.through is not None:
        token = EnrolmentToken(keys.fingerprint, _token_of(arguments.through).secret)
        path = arguments.through.absolute().with_suffix(".relay.token")
        with whole_file(path) as file:
            file.write(token.line().encode())
        sys.stdout.write(f"carry {path.name} to the client, which enrols at the address of this relay\n")
    elif arguments.revoke is not None:
        enrolment.revoke(arguments.revoke)
        sys.stdout.write(f"nothing more is taken from {arguments.revoke}\n")
    else:
        _list(enrolment, is_json=arguments.json)
    return 0


def _bound(arguments: argparse.Namespace) -> dict[str, str]:
    from stethos.collect.proof import bound_to_authority, bound_to_key

    if arguments.key is not None and arguments.authority is not None:
        raise UsageError("a token is bound to a key or to an authority", hint="say one of --key and --authority")
    if arguments.key is not None:
        return bound_to_key(arguments.key)
    return bound_to_authority(arguments.authority) if arguments.authority is not None else {}


def _list(enrolment: object, *, is_json: bool) -> None:
    from stethos.collect.enrolment import Enrolment

    assert isinstance(enrolment, Enrolment)
    clients = [
        {"name": one.name, "key": one.key, "aliases": list(one.aliases), "revoked": one.is_revoked}
        for one in enrolment.clients().values()
    ]
    invited = {name: time.strftime("%Y-%m-%d %H:%M", time.localtime(at)) for name, at in enrolment.invited().items()}
    if is_json:
        print_json({"clients": clients, "invited": invited})
        return
    for one in clients:
        state = "revoked" if one["revoked"] else "may send"
        sys.stdout.write(f"{one['name']}  {state}  key {str(one['key'])[:16]}...\n")
    for name, until in invited.items():
        sys.stdout.write(f"{name}  has a token that is not used yet, until {until}\n")
    if not clients and not invited:
        sys.stdout.write("no clients yet; `stethos enroll --new NAME` makes a token for one\n")
