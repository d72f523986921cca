"""Send alerts about findings and numbers: by webhook, mail, command or file.

    stethos alert test alerts.toml              send a test message to every sink
    stethos alert watch alerts.toml -t RUN      watch a run until it ends
    stethos alert watch alerts.toml --all       every run of the directory that is or becomes live, until Ctrl-C
    stethos alert once alerts.toml -t RUN       look once
    stethos alert status -t RUN                 what is open, what waits, what was delivered

`stethos run --alerts FILE` does the same while it records. The state is kept in the run: a restart neither
repeats what was sent nor forgets what could not be delivered.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from stethos.cli.screen.jsontext import print_json
from stethos.cli.screen.text import clean
from stethos.cli.task.target import add_target, open_target
from stethos.errors import StethosError, UsageError

_PATIENCE = 4  # so many times as long as a look takes is waited before the next one
_LAST_TRIES = 3
_WHAT = ("test", "watch", "once", "status")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("what", choices=_WHAT, metavar=f"{{{','.join(_WHAT)}}}")
    parser.add_argument("file", nargs="?", type=Path, help="the file of rules and sinks, in TOML")
    parser.add_argument("--all", action="store_true", help="watch every live run of the directory, and those to come")
    parser.add_argument("--sink", help="test only this sink")
    parser.add_argument("--json", action="store_true", help="print JSON")
    add_target(parser)


def run(arguments: argparse.Namespace) -> int:
    if arguments.what == "status":
        return _status(arguments)
    if arguments.file is None:
        raise UsageError(f"`stethos alert {arguments.what}` needs a file", hint="stethos alert test alerts.toml")
    if arguments.what == "test":
        return _test(arguments.file, arguments.sink, is_json=arguments.json)
    return _watch_all(arguments) if arguments.all else _watch(arguments)


def _test(path: Path, only: str | None, *, is_json: bool) -> int:
    from stethos.act.alert_rule import read_alerts
    from stethos.act.alert_sink import AlertItem, AlertMessage, deliver

    alerts = read_alerts(path)
    if only is not None and only not in alerts.sinks:
        raise UsageError(f"no sink {only!r}", hint=f"sinks: {', '.join(alerts.sinks)}")
    item = AlertItem("test", "test", "new", "info", "a test message: alerts work", "nothing to do")
    results: dict[str, str | None] = {}
    for name, sink in alerts.sinks.items():
        if only in (None, name):
            try:
                deliver(sink, AlertMessage("test", (item,)))
                results[name] = None
            except StethosError as error:
                results[name] = str(error)
    if is_json:
        print_json({name: failure or "delivered" for name, failure in results.items()})
    else:
        for name, failure in results.items():
            sys.stdout.write(f"{name}: {'delivered' if failure is None else clean(failure, keep_lines=True)}\n")
    return 1 if any(results.values()) else 0


def _watch(arguments: argparse.Namespace) -> int:
    from stethos.act.alert_rule import read_alerts
    from stethos.act.alerter import Alerter
    from stethos.diagnose.api import configured_detectors, look

    alerts, detectors = read_alerts(arguments.file), configured_detectors()
    with open_target(arguments) as opened:
        alerter = Alerter(alerts, opened, say=_say)
        while True:
            is_over = arguments.what == "once" or not opened.is_live
            began = time.monotonic()
            alerter.look(look(opened, detectors))
            left = alerter.send(is_last=is_over)
            if is_over:
                break
            next_s = began + max(alerts.every_s, _PATIENCE * (time.monotonic() - began))
            while time.monotonic() < next_s and opened.is_live:
                time.sleep(min(0.5, alerts.every_s))
                alerter.send()
        for number in range(_LAST_TRIES):
            if not left:
                break
            time.sleep(2.0**number)
            left = alerter.send(is_last=True)
    if left:
        _say(f"alerts: {left} could not be delivered; `stethos alert once` tries again")
    return 1 if left else 0


def _watch_all(arguments: argparse.Namespace) -> int:
    """Look at each live run in turn, and once more at those that have ended meanwhile."""
    from stethos.act.alert_rule import read_alerts
    from stethos.act.alerter import Alerter
    from stethos.diagnose.api import configured_detectors, look
    from stethos.record.place import RunPlace
    from stethos.settings import default_runs_dir
    from stethos.store.find import is_live, list_runs
    from stethos.store.run import Run

    alerts, detectors = read_alerts(arguments.file), configured_detectors()
    directory = arguments.dir or default_runs_dir()
    known: dict[str, RunPlace] = {}
    while True:
        began = time.monotonic()
        live = {place.name: place for place in list_runs(directory) if is_live(place)}
        for name, place in {**known, **live}.items():
            try:
                with Run(place) as opened:
                    alerter = Alerter(alerts, opened, say=_say)
                    alerter.look(look(opened, detectors))
                    alerter.send(is_last=name not in live)
            except StethosError as error:  # it was deleted, or cannot be read: the others go on
                _say(f"alerts: {name}: {error.message}")
        known = live
        time.sleep(max(alerts.every_s, _PATIENCE * (time.monotonic() - began)))


def _status(arguments: argparse.Namespace) -> int:
    from stethos.act.alert_state import AlertState

    with open_target(arguments) as opened:
        state = AlertState(opened.path)
        told, waiting, delivered = list(state.told().values()), state.waiting(), state.delivered()
    if arguments.json:
        value = {
            "open": [one._asdict() for one in told],
            "waiting": [one._asdict() for one in waiting],
            "delivered": [{"sink": sink, "subject": subject} for sink, subject in delivered],
        }
        print_json(value)
        return 0
    for one in told:
        sys.stdout.write(clean(f"open       {one.rule}: {one.title}") + "\n")
    for late in waiting:
        sys.stdout.write(clean(f"waiting    {late.sink}: {late.tries} tries, {late.error or 'not yet tried'}") + "\n")
    for sink, subject in delivered:
        sys.stdout.write(clean(f"delivered  {sink}: {subject}") + "\n")
    if not (told or waiting or delivered):
        sys.stdout.write("nothing was sent\n")
    return 0


def _say(text: str) -> None:
    sys.stderr.write(f"stethos: {clean(text)}\n")
