"""Make a read-only link to the dashboard, list the links, or revoke one.

    stethos link                      list the links
    stethos link --new "for Ann"      print a token to put behind the address of `stethos serve`
    stethos link --revoke ID

A link only reads. It holds for this directory of runs until it is revoked, also after a restart of `stethos serve`; a
running server refuses a revoked link at once. The page of `stethos serve --edit` can do the same.
"""

from __future__ import annotations

import argparse
import sys
import time

from stethos.cli.screen.jsontext import print_json
from stethos.cli.task.target import add_directory


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_directory(parser)
    one = parser.add_mutually_exclusive_group()
    one.add_argument("--new", metavar="NOTE", help="make a link; the note says for whom")
    one.add_argument("--revoke", metavar="ID", help="revoke a link")
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(arguments: argparse.Namespace) -> int:
    from stethos.cli.screen.text import clean
    from stethos.settings import default_runs_dir
    from stethos.web.links import Links

    links = Links.of(arguments.dir or default_runs_dir())
    if arguments.new is not None:
        link, token = links.add(arguments.new)
        if arguments.json:
            print_json({**link.as_dict(), "token": token})
        else:
            sys.stdout.write(f"link {link.id}: open the dashboard's address with\n\n  #token={token}\n\n")
            sys.stdout.write("behind it. The token is shown only now.\n")
    elif arguments.revoke is not None:
        link = links.revoke(arguments.revoke)
        if arguments.json:
            print_json(link.as_dict())
        else:
            sys.stdout.write(f"link {link.id} ({clean(link.note)}) is revoked\n")
    elif arguments.json:
        print_json([one.as_dict() for one in links.all()])
    else:
        for one in links.all():
            made = time.strftime("%Y-%m-%d %H:%M", time.localtime(one.made_ns / 1e9))
            sys.stdout.write(f"{one.id}  {made}  {clean(one.note)}\n")
        if not links.all():
            sys.stdout.write("no links; make one with `stethos link --new NOTE`\n")
    return 0
