"""Screens draw: SQL is asked in `view` and below, and commands are told from their helpers by their place."""

from __future__ import annotations

from pathlib import Path

import stethos
from stethos.cli.main import COMMANDS

ROOT = Path(stethos.__file__).resolve().parent
# Where the word may stand, and how often: examples for users to type, and looking for it in what they typed.
ALLOWED = {
    "cli/demo.py": 1,  # its last lines: what to try next
    "cli/diagnose.py": 1,  # its help
    "cli/main.py": 1,  # the help of all
    "cli/query.py": 4,  # its help, and a hint where no SQL was given
    "cli/screen/verdict.py": 1,  # wraps a command at its SQL
    "web/app.py": 1,  # a hint where no SQL was sent
    "web/own_panels.py": 1,  # an example of a user's own panel
}


def test_no_screen_asks_sql_of_its_own() -> None:
    found = {
        str(path.relative_to(ROOT)): count
        for package in ("cli", "web", "export")
        for path in sorted((ROOT / package).rglob("*.py"))
        if (count := path.read_text(encoding="utf-8").count("SELECT"))
    }
    assert found == ALLOWED


def test_a_module_beside_main_is_a_command() -> None:
    modules = {path.stem for path in (ROOT / "cli").glob("*.py")} - {"__init__", "main"}
    assert modules == {module.rpartition(".")[2] for module in COMMANDS.values()}
