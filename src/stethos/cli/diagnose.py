"""Find what is wrong with a run, its cause, and what to do.

    stethos diagnose
    stethos diagnose --live                  follow a live run
    stethos diagnose -t fed-1 --client c3    what is known about one client
    stethos diagnose --brief                 the verdict in one line
    stethos diagnose --prove                 try accusations that are not sure, before they are shown
    stethos diagnose --explain straggler     what a detector looks at
    stethos diagnose --set straggler.times=4 --silence label-skew

Every finding says when the problem began and how sure the verdict is. The exit status is 0 if nothing is wrong, 1 if a
problem of severity warning or above is open, 2 or more after an error. Findings are kept in the run:
`stethos query "SELECT * FROM findings"`. Thresholds and silenced detectors can also stand in the nearest
`stethos.toml`.
"""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING, Any

from stethos.cli.screen.jsontext import print_json, print_json_rows
from stethos.cli.screen.text import clean
from stethos.cli.task.target import add_target, open_target
from stethos.cli.task.trainer import add_cluster_arguments
from stethos.cli.task.value import seconds
from stethos.errors import RecordingError, UsageError

if TYPE_CHECKING:
    from stethos.diagnose.diagnosis import Diagnosis
    from stethos.store.run import Run


_PROOF_S = 60.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_target(parser)
    parser.add_argument("--live", action="store_true", help="look again as rows arrive, until the run ends or Ctrl-C")
    parser.add_argument("--brief", action="store_true", help="print the verdict in one line")
    parser.add_argument("--client", metavar="CLIENT", help="what is known about this client")
    parser.add_argument("--explain", metavar="CODE", help="what a detector looks at, by code or name")
    parser.add_argument("--list", action="store_true", help="list the detectors")
    parser.add_argument(
        "--set",
        metavar="NAME.THRESHOLD=VALUE",
        action="append",
        default=[],
        help="set a threshold of a detector; can be given again",
    )
    parser.add_argument(
        "--silence", metavar="NAME", action="append", default=[], help="leave a detector out; can be given again"
    )
    parser.add_argument(
        "--alarm-rate",
        metavar="SHARE",
        help="accepted rate of false accusations in a healthy federation: 0.01 or 1%% (the default)",
    )
    parser.add_argument(
        "--prove",
        action="store_true",
        help='first prove or refute unsure accusations from captured updates (all of them: `capture="all"`)',
    )
    parser.add_argument(
        "--below", metavar="SHARE", default="90%", help="with --prove: those less sure than this (default: 90%%)"
    )
    parser.add_argument(
        "--evaluator", metavar="MODULE:FUNCTION", help="with --prove, for your own loop: f(state) returns numbers"
    )
    parser.add_argument(
        "--timeout",
        metavar="SECONDS",
        type=seconds,
        default=_PROOF_S,
        help="with --prove: try no further accusation after this (default: 60)",
    )
    parser.add_argument("--no-keep", action="store_true", help="do not write the findings into the run")
    parser.add_argument("--over", metavar="ADDRESS", help="every run of an archive: s3://BUCKET/PATH or a directory")
    add_cluster_arguments(parser, "with --over, each run a task of Ray")
    parser.add_argument("--json", action="store_true", help="print one object")


def run(arguments: argparse.Namespace) -> int:
    if arguments.list:
        return _list(as_json=arguments.json)
    if arguments.explain is not None:
        return _explain(arguments.explain, as_json=arguments.json)
    if arguments.over is not None:
        from stethos.cli.screen.fleet import show_fleet

        return show_fleet(arguments.over, arguments.on, arguments.task_timeout, as_json=arguments.json)
    _check(arguments)
    from stethos.diagnose.api import configured_detectors, look

    settings = [*arguments.set]
    if arguments.alarm_rate is not None:
        for name in ("faulty-client", "unlike-client", "over-filtered"):
            settings.append(f"{name}.alarm_rate={share_in(arguments.alarm_rate)}")
    detectors = configured_detectors(thresholds_of(settings), arguments.silence)
    with open_target(arguments) as one:
        if arguments.live:
            from stethos.cli.screen.follow import Follower, follow
            from stethos.cli.screen.verdict import show_lines

            def say(line: Any) -> None:
                if not arguments.json:
                    show_lines([line])
                    sys.stdout.flush()

            if not arguments.json and one.is_live:
                print(f"following run {clean(one.name)}; Ctrl-C ends it with a report", flush=True)
            diagnosis = follow(one, Follower(one, detectors, say), lambda found: _keep(found, one))
            if not arguments.json:
                print()
        else:
            diagnosis = look(one, detectors)
            if not arguments.no_keep:
                _keep(diagnosis, one)
                if arguments.prove:
                    from stethos.cli.task.unsure import prove_unsure

                    prove_unsure(one, diagnosis, arguments, below=share_in(arguments.below))
        return _show(diagnosis, one, arguments)


def _check(arguments: argparse.Namespace) -> None:
    if arguments.prove and (arguments.live or arguments.no_keep):
        other = "--live" if arguments.live else "--no-keep"
        raise UsageError(f"--prove does not go with {other}", hint="proofs are kept in the run, once it is read whole")


def share_in(text: str) -> float:
    """`1%` or `0.01` as a share between 0 and 1."""
    try:
        share = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        share = -1.0
    if not 0 < share < 1:
        raise UsageError(f"{text} is not a share", hint="give 1% or 0.01")
    return share


def thresholds_of(settings: list[str]) -> dict[str, dict[str, float]]:
    """`["straggler.times=4"]` as thresholds by detector."""
    found: dict[str, dict[str, float]] = {}
    for setting in settings:
        place, equals, value = setting.partition("=")
        name, dot, threshold = place.strip().rpartition(".")
        if not (equals and dot):
            raise UsageError(f"--set {setting}", hint="write --set NAME.THRESHOLD=VALUE, as in straggler.times=4")
        try:
            number = float(value) if not value.strip().lstrip("-").isdecimal() else int(value)
        except ValueError:
            raise UsageError(f"--set {setting}: {value!r} is not a number", hint="a threshold is a number") from None
        found.setdefault(name, {})[threshold] = number
    return found


def _show(diagnosis: Diagnosis, one: Run, arguments: argparse.Namespace) -> int:
    from stethos.diagnose.followup import completed

    diagnosis = completed(diagnosis, one)
    target = str(one.path) if arguments.dir else arguments.target or one.name
    if arguments.client is not None:
        from stethos.cli.screen.client_report import show_client

        return show_client(diagnosis, one, arguments.client, target, as_json=arguments.json)
    if arguments.brief and not arguments.json:
        from stethos.cli.screen.verdict import brief_text

        print(brief_text(diagnosis))
        return diagnosis.exit_code
    if arguments.json:
        print_json({"run": one.name, "state": one.state, **diagnosis.as_dict()})
    else:
        from stethos.cli.screen.verdict import show_report

        show_report(diagnosis, one.name, one.state, target)
    return diagnosis.exit_code


def _keep(diagnosis: Diagnosis, one: Run) -> None:
    """Write the findings into the run; where that is not possible, say so and go on."""
    from stethos.diagnose.life import keep

    try:
        keep(diagnosis, one.path)
    except RecordingError as error:
        if "archived" not in one.place.facts():  # which is read only, as everybody knows
            sys.stderr.write(f"note: {clean(error.message)}\n")


def _list(*, as_json: bool) -> int:
    from stethos.cli.screen.grid import Heading, show_grid
    from stethos.diagnose.detectors import DETECTORS
    from stethos.diagnose.page import page_of

    pages = [page_of(detector) for detector in DETECTORS.values()]
    if as_json:
        print_json_rows(page.as_dict() for page in pages)
        return 0
    headings = [Heading("code"), Heading("name"), Heading("severity"), Heading("what is wrong")]
    show_grid(headings, [[page.code, page.name, page.severity, page.summary] for page in pages])
    return 0


def _explain(key: str, *, as_json: bool) -> int:
    import textwrap

    from stethos.cli.screen.verdict import screen_width
    from stethos.diagnose.page import page_named

    page = page_named(key)
    if as_json:
        print_json(page.as_dict())
        return 0
    width = screen_width()
    print(f"{page.code} {page.name} ({page.severity})\n")
    for paragraph in (page.summary, *page.paragraphs):
        print(textwrap.fill(paragraph, width, break_on_hyphens=False) + "\n")
    needs = [f"{table} ({', '.join(columns)})" for table, columns in page.needs.items()]
    print(textwrap.fill(f"Needs: {'; '.join(needs) or 'nothing'}.", width, break_on_hyphens=False))
    if page.thresholds:
        print(f"Thresholds; set one with --set {page.name}.NAME=VALUE:")
        for name, value in page.thresholds.items():
            line = f"  {name}={value:g}  {page.meanings.get(name, '')}".rstrip()
            print(textwrap.fill(line, width, subsequent_indent="    ", break_on_hyphens=False))
    return 0
