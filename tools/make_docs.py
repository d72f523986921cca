"""Write the pages of docs/ that follow from the code: tables.md from the schema, commands.md from the parsers.

python tools/make_docs.py            write them
python tools/make_docs.py --check    only say whether they are up to date
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

from stethos.cli import main as cli
from stethos.schema import TABLES, Column, Source, Table

DOCS = Path(__file__).resolve().parents[1] / "docs"
_NOTICE = "<!-- Generated from the code by `make docs`; do not edit. -->\n"


def pages() -> dict[str, str]:
    """Every generated page by its file name."""
    return {"tables.md": tables_page(), "commands.md": commands_page()}


# Tables ------------------------------------------------------------------------------------------


def tables_page() -> str:
    parts = [
        _NOTICE,
        "# Tables\n",
        "Everything recorded about a run is a row in one of these tables. A column's unit stands in its name. "
        "What was not measured is NULL, never 0; a NaN is a real NaN. "
        "`stethos tables` shows the same list for a run, with the rows it has.\n",
        "| table | one row per | what it says |\n|---|---|---|",
    ]
    for table in TABLES.values():
        anchor = table.qualified_name.replace(".", "")
        parts.append(f"| [`{table.qualified_name}`](#{anchor}) | {_cell(table.per)} | {_cell(table.doc)} |")
    parts.append("")
    for table in TABLES.values():
        parts.append(_table_section(table))
    return "\n".join(parts)


def _table_section(table: Table) -> str:
    origin = {
        Source.SLOT: "Written by the training process.",
        Source.FRAME: "Written by the training process.",
        Source.DRAINER: "Sampled by the drainer, from outside the training process.",
        Source.CATALOGUE: "Put together from the run directory when it is asked for.",
        Source.VIEW: "A view of another table.",
    }[table.source]
    bulk = " Its oldest rows go first when a run reaches its size limit." if table.is_bulk else ""
    lines = [f"## {table.qualified_name}\n", f"One row per {table.per}. {table.doc} {origin}{bulk}\n"]
    lines.append("| column | type | meaning |\n|---|---|---|")
    lines += [_column_line(column) for column in table.all_columns]
    return "\n".join(lines) + "\n"


def _column_line(column: Column) -> str:
    return f"| `{column.name}` | {column.kind.sql_type} | {_cell(column.doc)} |"


# Commands ----------------------------------------------------------------------------------------


def commands_page() -> str:
    parts = [_NOTICE, "# Commands\n", _prose(cli.__doc__ or "")]
    parts.append("| command | what it does |\n|---|---|")
    modules = {name: import_module(module) for name, module in cli.COMMANDS.items()}
    for name, module in modules.items():
        summary = (module.__doc__ or "").strip().partition("\n")[0]
        parts.append(f"| [`stethos {name}`](#stethos-{name}) | {_cell(summary)} |")
    parts.append("")
    for name, module in modules.items():
        parser = cli.parser_of(name, module)
        parts.append(f"## stethos {name}\n")
        parts.append(_prose(parser.description or ""))
        parts.append("| argument | meaning |\n|---|---|")
        parts += list(_argument_lines(parser))
        parts.append("")
    return "\n".join(parts)


def _argument_lines(parser: argparse.ArgumentParser) -> Iterator[str]:
    for action in parser._actions:
        if isinstance(action, argparse._HelpAction):
            continue
        metavar = action.metavar or (str(action.dest).upper() if action.nargs != 0 else "")
        if action.choices is not None:
            metavar = "{" + ",".join(map(str, action.choices)) + "}"
        if action.nargs == argparse.REMAINDER:
            metavar = f"{metavar} ..."
        names = " ".join(filter(None, (", ".join(action.option_strings), str(metavar))))
        text = (action.help or "").replace("%%", "%")
        if action.required and action.option_strings:
            text += " (required)"
        yield f"| `{_cell(names)}` | {_cell(text)} |"


def _prose(docstring: str) -> str:
    """A docstring as Markdown; its indented commands become console blocks."""
    lines: list[str] = []
    block: list[str] = []
    for line in [*docstring.strip().splitlines(), "end"]:
        if line.startswith("    "):
            block.append(_command_line(line.strip()))
            continue
        if block and line.strip():
            lines += ["```console", *block, "```", ""]
            block = []
        if not block:
            lines.append(line)
    return "\n".join(lines[:-1]).strip() + "\n"


def _command_line(text: str) -> str:
    """A command of a docstring, with what stands beside it as a comment."""
    command, _, remark = re.sub(r" {2,}", "\0", text).partition("\0")
    return f"$ {command}" + (f"  # {remark}" if remark else "")


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; exit with 1 if a page is stale")
    is_check = parser.parse_args().check
    stale = []
    for name, text in pages().items():
        path = DOCS / name
        if path.exists() and path.read_text(encoding="utf-8") == text:
            continue
        stale.append(name)
        if not is_check:
            path.write_text(text, encoding="utf-8")
    if stale and is_check:
        sys.stderr.write(f"stale: {', '.join(f'docs/{name}' for name in stale)}\nhint: run `make docs`\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
