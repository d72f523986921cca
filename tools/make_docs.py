"""Write the pages of docs/ that follow from the code: tables, commands, and a page per detector with an example.

python tools/make_docs.py            write them
python tools/make_docs.py --check    only say whether they are up to date
"""

from __future__ import annotations

import argparse
import inspect
import json
import re
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

from detector_cases import CASES

import stethos
from stethos.cli import main as cli
from stethos.cli.screen.verdict import report_lines
from stethos.collect.policy import FACTS, MEANS, leaves_page
from stethos.diagnose.detectors import DETECTORS
from stethos.diagnose.engine import examine
from stethos.diagnose.page import Page, page_of
from stethos.schema import TABLES, Column, Source, Table

DOCS = Path(__file__).resolve().parents[1] / "docs"
_NOTICE = "<!-- Generated from the code by `make docs`; do not edit. -->\n"


def pages() -> dict[str, str]:
    """Every generated page by its file name."""
    return {
        "tables.md": tables_page(),
        "commands.md": commands_page(),
        "python.md": python_page(),
        "privacy-levels.md": levels_page(),
        "detectors/INDEX.md": detectors_page(),
        **{f"detectors/{code}.md": detector_page(code) for code in DETECTORS},
    }


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
        Source.LIVE: "Never stored: the live processes are looked at when a query asks.",
    }[table.source]
    bulk = " Its oldest rows go first when a run reaches its size limit." if table.is_bulk else ""
    lines = [f"## {table.qualified_name}\n", f"One row per {table.per}. {table.doc} {origin}{bulk}\n"]
    lines.append("| column | type | meaning |\n|---|---|---|")
    lines += [_column_line(column) for column in table.all_columns]
    return "\n".join(lines) + "\n"


def _column_line(column: Column) -> str:
    return f"| `{column.name}` | {column.kind.sql_type} | {_cell(column.doc)} |"


# Privacy -----------------------------------------------------------------------------------------


def levels_page() -> str:
    ways = "\n".join(f"- `{way}`: {words}" for way, words in MEANS.items() if way != "drop")
    facts = ", ".join(f"`{name}` ({rule.way})" for name, rule in FACTS.items())
    return "\n".join(
        [
            _NOTICE,
            "# What leaves a site at each level\n",
            "See [privacy](privacy.md). A column that is not listed stays; `-` means it stays at that level.\n",
            f"{ways}\n",
            leaves_page(),
            f"Below L4, these facts of a process leave with its rows: {facts}. Host, command line, working directory "
            "and configuration stay.\n",
        ]
    )


# Commands ----------------------------------------------------------------------------------------


def commands_page() -> str:
    parts = [_NOTICE, "# Commands\n", _prose(cli.__doc__ or "")]
    parts.append("| for | command | what it does |\n|---|---|---|")
    modules = {name: import_module(module) for name, module in cli.COMMANDS.items()}
    for title, commands in cli.GROUPS.items():
        for place, name in enumerate(commands):
            summary = (modules[name].__doc__ or "").strip().partition("\n")[0]
            purpose = "" if place else cli.GROUP_TITLES[title]
            parts.append(f"| {purpose} | [`stethos {name}`](#stethos-{name}) | {_cell(summary)} |")
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
        if isinstance(action, argparse._HelpAction) or action.help == argparse.SUPPRESS:
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


# Python ------------------------------------------------------------------------------------------


def python_page() -> str:
    parts = [
        _NOTICE,
        "# Python\n",
        "Everything to import stands in `stethos`. Runs, diagnoses, profiles and comparisons show themselves as tables "
        "in a notebook, and so do the Arrow tables that `Run.sql` returns.\n",
    ]
    for name in sorted(stethos.__all__, key=str.lower):
        one = getattr(import_module(f"stethos.{stethos._HOMES[name]}"), name)
        parts += _reference(f"stethos.{name}", one, "##")
        if inspect.isclass(one):
            for member, value in vars(one).items():
                function = value.fget if isinstance(value, property) else value
                if not member.startswith("_") and inspect.isfunction(function) and function.__doc__:
                    parts += _reference(f"{name}.{member}", value, "###")
    return "\n".join(parts)


def _reference(name: str, one: object, level: str) -> list[str]:
    """The heading of a function, class or property, its signature and its docstring."""
    shown = ""
    if inspect.isfunction(one):
        signature = str(inspect.signature(one)).replace("'", "")
        shown = f"```text\n{name}{signature.replace('(self, ', '(').replace('(self)', '()')}\n```\n"
    text = inspect.getdoc(one.fget if isinstance(one, property) and one.fget else one) or ""
    return [f"{level} {name}\n", *filter(None, [shown]), _prose(text)]


# Detectors ---------------------------------------------------------------------------------------

EXAMPLES = json.loads((Path(__file__).parent / "examples.json").read_text(encoding="utf-8"))
FAMILIES = {
    "FED": "Federated trainings",
    "NUM": "Numbers",
    "CON": "Convergence",
    "PRG": "Bugs in the program",
    "RNK": "Ranks",
    "SYS": "Machines, links, processes, and the recording",
    "PRF": "Performance",
}


def detectors_page() -> str:
    parts = [
        _NOTICE,
        "# Detectors\n",
        "What `stethos diagnose` looks for. Each page has an example: the report for rows made by hand, and on many "
        "pages that of a program with a known bug. "
        "`stethos diagnose --explain CODE` shows the same text. See [diagnosing](../diagnosing.md).\n",
    ]
    families: dict[str, list[Page]] = {}
    for detector in DETECTORS.values():
        families.setdefault(detector.code[:3], []).append(page_of(detector))
    for family, members in families.items():
        parts.append(f"## {FAMILIES.get(family, family)}\n")
        parts.append("| code | name | severity | what is wrong |\n|---|---|---|---|")
        parts += [
            f"| [{page.code}]({page.code}.md) | `{page.name}` | {page.severity} | {_cell(page.summary)} |"
            for page in sorted(members, key=lambda page: page.code)
        ]
        parts.append("")
    return "\n".join(parts)


def detector_page(code: str) -> str:
    page = page_of(DETECTORS[code])
    parts = [_NOTICE, f"# {page.code} {page.name}\n", f"{page.summary} Severity: {page.severity}.\n"]
    for paragraph in page.paragraphs:
        opening, _, rest = paragraph.partition(": ")
        parts.append(f"**{opening}.** {rest[:1].upper()}{rest[1:]}\n")
    if code in CASES:
        diagnosis = examine(CASES[code](), [DETECTORS[code]()])
        lines = [line.text.rstrip() for line in report_lines(diagnosis, "RUN")]
        parts += ["## Example\n", "```text", *lines, "```\n"]
    if code in EXAMPLES:
        parts += _real_example(EXAMPLES[code])
    parts.append("## Settings\n")
    if page.thresholds:
        parts.append("| threshold | default | what it is |\n|---|---|---|")
        parts += [
            f"| `{name}` | {value:g} | {_cell(page.meanings.get(name, ''))} |"
            for name, value in page.thresholds.items()
        ]
        name, value = next(iter(page.thresholds.items()))
        parts.append("\nWhere nothing else is said, a number is the least that is needed.")
        parts.append(f"Set one with `--set {page.name}.{name}={value:g}` or in `stethos.toml`. ")
    parts.append(f"Leave the detector out with `--silence {page.name}`.\n")
    tables = {**page.reads, **page.needs}
    needed = [f"`{table}.{column}`" for table, columns in page.needs.items() for column in columns]
    parts.append(
        f"Without {_listed(needed)} it is reported as not checked. It reads {_listed([*map(_table_link, tables)])}."
    )
    if page.explains:
        follow = _listed([f"`{name}`" for name in page.explains])
        parts.append(f"\nFindings of {follow} that come no earlier are shown as following from it.")
    return "\n".join(parts) + "\n"


def _real_example(example: dict[str, Any]) -> list[str]:
    """What was said of a program with a known bug; `python -m benchmarks.wildtraining.examples` runs it again."""
    source = f", after {example['source']}" if example["source"] else ""
    opening = f"From a program with a known bug, `{example['program']}`{source}:\n"
    return [opening, "```text", *example["lines"], "```\n"]


def _table_link(name: str) -> str:
    return f"[`{name}`](../tables.md#{name.replace('.', '')})"


def _listed(words: list[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}" if words else "nothing"


# Words of commands that need a live training, a capture, a person or another machine.
_ALIVE = frozenset({
    "all", "attach", "backtrace", "checkpoint", "clip", "detach", "eval", "gateway", "gc", "inspect", "lr", "repl",
    "sync", "replay", "debug", "serve", "demo", "prove", "blame", "bisect", "compare", "alert", "flame", "otlp",
    "--undo", "--trace-steps", "RUN", "TARGET", "PID", "SITE", "collect",
})  # fmt: skip


def _prose(docstring: str) -> str:
    """A docstring as Markdown; its indented commands become console blocks, which a test runs if it can."""
    lines: list[str] = []
    block: list[str] = []
    for line in [*docstring.strip().splitlines(), "end"]:
        if line.startswith("    "):
            block.append(_command_line(line.strip()))
            continue
        if block and line.strip():
            kind = "text" if any(_ALIVE & set(command.split()) for command in block) else "console"
            lines += [f"```{kind}", *block, "```", ""]
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
    pages_now = pages()
    for name, text in pages_now.items():
        path = DOCS / name
        if path.exists() and path.read_text(encoding="utf-8") == text:
            continue
        stale.append(name)
        if not is_check:
            path.parent.mkdir(exist_ok=True)
            path.write_text(text, encoding="utf-8")
    for path in (DOCS / "detectors").glob("*.md"):
        if f"detectors/{path.name}" not in pages_now:  # of a detector that is no more
            stale.append(f"detectors/{path.name}")
            if not is_check:
                path.unlink()
    if stale and is_check:
        sys.stderr.write(f"stale: {', '.join(f'docs/{name}' for name in stale)}\nhint: run `make docs`\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
