"""Write a run's report into one file, to send or to keep.

    stethos report -o report.html
    stethos report --format md          text for an issue
    stethos report -o report.md
    stethos report --text words.md --panel round-accuracy -o for-ann.html    your words, one panel

It holds the verdict, findings, rounds, clients, layers, time and memory. The HTML file is the page of `stethos
serve` with its numbers in it: it opens offline, makes no requests, and shows the SQL behind every panel. What
does not fit into --limit-bytes is thinned or left out, and the report says so. An existing file is kept unless
--force is given; a new one appears only when it is complete.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from stethos.cli.screen.jsontext import print_json
from stethos.cli.screen.progress import progress_bar
from stethos.cli.screen.text import bytes_text, clean, count_text
from stethos.cli.task.target import add_target, open_target
from stethos.cli.task.value import size_bytes
from stethos.errors import UsageError
from stethos.record.border import open_named

if TYPE_CHECKING:
    from stethos.diagnose.diagnosis import Diagnosis
    from stethos.store.run import Run

DEFAULT_LIMIT_BYTES = 5_000_000
_LEAST_ROOM_BYTES = 120_000
_MOST_WORDS = 50_000


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_target(parser)
    parser.add_argument(
        "-o", "--output", metavar="FILE", help="the file; `-` for the terminal (default: report.html; `-` for md)"
    )
    parser.add_argument(
        "--format", choices=("html", "md"), help="html: a page; md: Markdown (default: html, or as FILE ends)"
    )
    parser.add_argument(
        "--limit-bytes",
        type=size_bytes,
        default=DEFAULT_LIMIT_BYTES,
        metavar="SIZE",
        help=f"size limit of the page, such as 2MB (default: {DEFAULT_LIMIT_BYTES:,} bytes)",
    )
    parser.add_argument("--text", type=Path, metavar="FILE", help="your own words, below the verdict (html)")
    parser.add_argument(
        "--panel", action="append", default=[], metavar="NAME", help="only this panel; repeatable, in order (html)"
    )
    parser.add_argument("--force", action="store_true", help="replace a file that exists")
    parser.add_argument("--json", action="store_true", help="print what was written as JSON")


def run(arguments: argparse.Namespace) -> int:
    place: str | None = arguments.output
    is_markdown = arguments.format == "md" or (arguments.format is None and (place or "").endswith(".md"))
    place = place or ("-" if is_markdown else "report.html")
    if place == "-" and arguments.json:
        raise UsageError("--json says what was written, and -o - writes there", hint="give a file with -o FILE")
    if place != "-" and not arguments.force and Path(place).exists():
        raise UsageError(f"{place} exists", hint="choose another file with -o FILE, or replace it with --force")
    if is_markdown and (arguments.text or arguments.panel):
        raise UsageError("--text and --panel are for pages", hint="choose a file that ends with .html")
    words = _words(arguments.text) if arguments.text else ""
    from stethos.view.finding import findings_of

    with open_target(arguments) as one:
        diagnosis = findings_of(one)
        if is_markdown:
            content, notes = _markdown(one, diagnosis)
        else:
            content, notes = _page(one, diagnosis, arguments.limit_bytes, words, arguments.panel)
        name, lost = one.name, one.summary()["rows_lost"]
    if place == "-":
        sys.stdout.flush()
        sys.stdout.buffer.write(content)
        sys.stdout.buffer.flush()
    else:
        _write(Path(place), content)
    if arguments.json:
        print_json({"run": name, "path": place, "format": "md" if is_markdown else "html", "size_bytes": len(content),
                    "notes": list(notes)})  # fmt: skip
    elif place != "-":
        sys.stdout.write(f"report of run {clean(name)}, {bytes_text(len(content))}: {clean(place)}\n")
    for note in () if arguments.json else notes:
        sys.stderr.write(f"{clean(note)}\n")
    if lost:
        sys.stderr.write(f"{count_text(lost)} rows of the run are lost; see `stethos doctor`\n")
    return 0


def _markdown(one: Run, diagnosis: Diagnosis) -> tuple[bytes, tuple[str, ...]]:
    from stethos.cli.screen.markdown import markdown_of

    return markdown_of(one, diagnosis).encode("utf-8", "replace"), ()


def _words(file: Path) -> str:
    """What somebody wrote for the report."""
    try:
        with open_named(file) as opened:
            text = opened.read(4 * _MOST_WORDS + 1).decode()  # a character has at most four bytes
    except (OSError, ValueError) as error:
        raise UsageError(f"cannot read {file}: {error}", hint="--text names a file of UTF-8 text") from None
    if len(text) > _MOST_WORDS:
        raise UsageError(f"{file} is too long", hint=f"at most {_MOST_WORDS:,} characters")
    return text


def _page(
    one: Run, diagnosis: Diagnosis, limit_bytes: int, words: str, chosen: list[str]
) -> tuple[bytes, tuple[str, ...]]:
    from stethos.cli.screen.markdown import markdown_of
    from stethos.web.page_files import PageFiles
    from stethos.web.panels import PANELS
    from stethos.web.report import gather
    from stethos.web.single_file import frame_bytes, page_of

    bundle, text = PageFiles(), markdown_of(one, diagnosis)
    room_bytes = limit_bytes - frame_bytes(bundle, text)
    if room_bytes < _LEAST_ROOM_BYTES:
        least = limit_bytes - room_bytes + _LEAST_ROOM_BYTES
        raise UsageError(f"--limit-bytes {limit_bytes} is too little for a page", hint=f"give at least {least}")
    with progress_bar("panels", len(PANELS)) as advance:
        report = gather(one, diagnosis.as_dict(), room_bytes=room_bytes, advance=advance, text=words, chosen=chosen)
    return page_of(report, bundle, text), report.notes


def _write(path: Path, content: bytes) -> None:
    from stethos.export.output import replacing

    try:
        with replacing(path) as temporary:
            temporary.write_bytes(content)
    except OSError as error:
        raise UsageError(
            f"cannot write to {path}: {error.strerror or error}", hint="choose another file with -o FILE"
        ) from None
