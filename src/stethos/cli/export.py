"""Write a run for other tools: its tables, a time line, traces, or numbers.

    stethos export --to parquet -o DIR            tables as files, also --to csv
    stethos export --to perfetto -o run.json.gz   time line for ui.perfetto.dev
    stethos export --to otlp -o http://localhost:4318    traces; also --to otlp-metrics, --to otlp-logs

Existing files are kept unless --force is given; new ones appear only when they are complete. Time lines and series of
more than --limit rows of a table are thinned, and the command says so. Damaged blocks are left out and counted.
"""

from __future__ import annotations

import argparse
import sys
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from stethos.cli.screen.jsontext import print_json
from stethos.cli.screen.progress import progress_bar
from stethos.cli.screen.text import bytes_text, clean, count_text, plural_text
from stethos.cli.task.target import add_target, open_target
from stethos.errors import UsageError
from stethos.export.formats import FORMATS
from stethos.export.output import DEFAULT_LIMIT, ExportResult

if TYPE_CHECKING:
    from stethos.store.run import Run
    from stethos.view.stream import Advance


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_target(parser)
    listed = "; ".join(f"{name}: {format.what}" for name, format in FORMATS.items())
    parser.add_argument(
        "--to", choices=FORMATS, default="parquet", metavar="FORMAT", help=f"{listed} (default: parquet)"
    )
    parser.add_argument("-o", "--output", metavar="PLACE", required=True, help="the file, directory or address")
    parser.add_argument("--force", action="store_true", help="replace files that exist")
    parser.add_argument(
        "--limit",
        type=int,
        default=DEFAULT_LIMIT,
        metavar="N",
        help=f"rows of each table on a time line or in a series (default: {DEFAULT_LIMIT:,})",
    )
    parser.add_argument(
        "--header", action="append", default=[], metavar="NAME=VALUE", help="a header for an OTLP endpoint"
    )
    parser.add_argument("--json", action="store_true", help="print what was written as JSON")


def run(arguments: argparse.Namespace) -> int:
    if arguments.limit < 1:
        raise UsageError(f"--limit {arguments.limit} leaves nothing", hint="give 1 or more")
    place: str = arguments.output
    if place == "-":
        raise UsageError("an export is written to a file, not to stdout", hint="choose one with -o FILE")
    is_sent = arguments.to.startswith("otlp") and "://" in place
    if not is_sent and FORMATS[arguments.to].place != "uri":
        _refuse_existing(Path(place), arguments.to, force=arguments.force)
    with open_target(arguments) as one:
        rows = one.tables()
        reads = FORMATS[arguments.to].reads or tuple(rows)
        with progress_bar("rows", sum(rows.get(name, 0) for name in reads)) as advance:
            try:
                written = _send(one, arguments, advance) if is_sent else _write(one, arguments, advance)
            except OSError as error:
                raise UsageError(
                    f"cannot write to {place}: {error.strerror or error}", hint="choose another place with -o PLACE"
                ) from None
        lost = one.summary()["rows_lost"]
    _say(written, arguments, is_sent=is_sent)
    if lost:
        sys.stderr.write(f"{count_text(lost)} rows of the run are lost; see `stethos doctor`\n")
    return 0


def _refuse_existing(path: Path, to: str, *, force: bool) -> None:
    from stethos.export.table_file import paths_in, tables_to_write

    if force:
        return
    paths = paths_in(path, to, tables_to_write()).values() if to in ("parquet", "csv") else [path]
    existing = [one for one in paths if one.exists()]
    if existing:
        raise UsageError(f"{existing[0]} exists", hint="choose another place, or replace files with --force")


def _write(one: Run, arguments: argparse.Namespace, advance: Advance) -> ExportResult:
    format = FORMATS[arguments.to]
    if format.module is None:
        from stethos.export import table_file

        return table_file.write(one, Path(arguments.output), arguments.to, advance=advance)
    place = arguments.output if format.place == "uri" else Path(arguments.output)
    write = import_module(format.module).write
    written: ExportResult = write(one, place, limit=arguments.limit, advance=advance, **format.options)
    return written


def _send(one: Run, arguments: argparse.Namespace, advance: Advance) -> ExportResult:
    from stethos.cli.task.otlp_post import endpoint_of, headers_of, post
    from stethos.export.otlp import Otlp, Signal, protobuf_of

    headers = headers_of(arguments.header)
    signals: dict[str, Signal] = {"otlp": "traces", "otlp-metrics": "metrics", "otlp-logs": "logs"}
    signal = signals[arguments.to]
    endpoint = endpoint_of(arguments.output, signal)
    found = Otlp(one, signal, arguments.limit)
    for request in found.requests(advance):
        post(endpoint, protobuf_of(signal, request), headers)
    return found.result(endpoint)


def _say(written: ExportResult, arguments: argparse.Namespace, *, is_sent: bool) -> None:
    format = FORMATS[arguments.to]
    size = None if is_sent or format.place == "uri" else _size_of(Path(arguments.output), arguments.to)
    if arguments.json:
        print_json({"format": arguments.to, "path": written.path, "size_bytes": size, "counts": dict(written.counts),
                    "notes": list(written.notes), **written.details})  # fmt: skip
        return
    total = sum(written.counts.values())
    if format.module is None:
        said = f"{count_text(total)} rows in {len(written.counts)} files"
    else:
        said = ", ".join(_counted(kind, count) for kind, count in written.counts.items() if count) or "nothing"
    sys.stdout.write(f"{said}{'' if size is None else ', ' + bytes_text(size)}: {clean(written.path)}\n")
    for note in written.notes:
        sys.stderr.write(f"{clean(note)}\n")


def _counted(kind: str, count: int) -> str:
    return f"{count_text(count)} {kind}" if kind.endswith("s") else plural_text(count, kind)


def _size_of(path: Path, to: str) -> int:
    if path.is_dir():
        pattern = f"*.{to}" if to in ("parquet", "csv") else "**/*"
        return sum(file.stat().st_size for file in path.glob(pattern) if file.is_file())
    return path.stat().st_size if path.exists() else 0  # a run without numbers makes no event file
