"""Imports point down: one table says which package may know which."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

import stethos

ROOT = Path(stethos.__file__).resolve().parent
BASE = frozenset({"errors", "schema", "settings", "clock", "guard", "native", "redact"})

# Each package and those it may import, beside the base modules and itself.
BELOW: dict[str, frozenset[str]] = {
    "record": frozenset(),
    "store": frozenset({"record"}),
    "observe": frozenset({"record"}),
    "federate": frozenset({"record", "observe"}),
    "profile": frozenset({"store"}),
    "diagnose": frozenset({"store", "profile"}),
    "export": frozenset({"store", "profile", "diagnose"}),
    "replay": frozenset({"record", "store", "observe", "federate", "diagnose"}),
    "act": frozenset({"store", "observe", "federate", "diagnose"}),
    "live": frozenset({"record", "store", "observe", "diagnose"}),
    "lab": frozenset({"federate", "observe", "record", "store", "replay", "act"}),
    "adapters": frozenset({"record", "store", "observe", "federate", "replay", "act"}),
    "web": frozenset({"record", "store", "diagnose", "profile", "export", "act", "live"}),
    "cli": frozenset(
        {"record", "store", "observe", "diagnose", "profile", "export", "replay", "act", "live", "lab", "web"}
    ),
}
# Inside a function, when it is called: what a handle offers beyond its own package.
LAZILY = {
    ("observe.api", "store"),
    ("observe.api", "act"),
    ("federate.federation", "store"),
    ("federate.federation", "replay"),
    ("federate.correcting", "act"),
    ("federate.reading", "diagnose"),
    ("store.run", "export"),
}

# The trainer loads these before torch: nothing but the standard library.
PLAIN = ("layout", "ring", "slots", "place", "spawn", "provenance", "segment", "whole_file")
HEAVY = ("numpy", "pyarrow", "duckdb", "psutil", "rich", "torch")


class Import(NamedTuple):
    """One import statement: in which module, of which, and whether it runs when the module is loaded."""

    module: str
    imported: str
    is_top: bool
    is_typing: bool


def module_name(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts)


def imports_of(path: Path) -> Iterator[Import]:
    module = module_name(path)

    def walk(node: ast.AST, is_top: bool, is_typing: bool) -> Iterator[Import]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.Import):
                for alias in child.names:
                    yield Import(module, alias.name, is_top, is_typing)
            elif isinstance(child, ast.ImportFrom):
                assert child.level == 0, f"{module} has a relative import"
                for alias in child.names:
                    yield Import(module, f"{child.module}.{alias.name}", is_top, is_typing)
            elif isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
                yield from walk(child, False, is_typing)
            elif isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
                yield from walk(child, is_top, True)
            else:
                yield from walk(child, is_top, is_typing)

    yield from walk(ast.parse(path.read_text(encoding="utf-8")), True, False)


def all_imports() -> list[Import]:
    return [found for path in sorted(ROOT.rglob("*.py")) for found in imports_of(path)]


def test_every_package_is_in_the_table() -> None:
    packages = {path.parent.name for path in ROOT.glob("*/__init__.py")}
    modules = {path.stem for path in ROOT.glob("*.py")} - {"__init__"}
    assert packages == set(BELOW) and modules == BASE


def test_imports_point_down() -> None:
    wrong = []
    for module, imported, is_top, is_typing in all_imports():
        if not imported.startswith("stethos.") or is_typing or module.startswith(("_site.", "__init__")):
            continue
        package, target = module.split(".")[0], imported.split(".")[1]
        allowed = BASE if package in BASE else BASE | BELOW[package] | {package}
        if target not in allowed and target != "__version__" and (is_top or (module, target) not in LAZILY):
            wrong.append(f"{module} imports {imported}")
    assert wrong == []


def test_torch_is_imported_where_it_may_be() -> None:
    found = {module.split(".")[0] for module, imported, _, _ in all_imports() if imported.split(".")[0] == "torch"}
    assert found == {"observe", "federate", "act", "lab", "live", "replay", "adapters"}


@pytest.mark.parametrize("name", PLAIN)
def test_what_the_trainer_loads_first_needs_the_standard_library_alone(name: str) -> None:
    mates = {f"stethos.record.{mate}" for mate in PLAIN}
    for _, imported, _, is_typing in imports_of(ROOT / "record" / f"{name}.py"):
        parts = imported.split(".")
        is_ours = parts[0] == "stethos" and (parts[1] in BASE | {"__version__"} or ".".join(parts[:3]) in mates)
        assert is_typing or is_ours or parts[0] in sys.stdlib_module_names, f"{name} imports {imported}"


def loaded_after(statement: str) -> list[str]:
    """Which heavy packages a fresh interpreter has after a statement."""
    code = f"import sys\n{statement}\nprint(*[name for name in {HEAVY!r} if name in sys.modules])"
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()


def test_importing_the_package_loads_nothing_heavy() -> None:
    assert loaded_after("import stethos") == []


@pytest.mark.parametrize("name", ["log", "span", "watch"])
def test_the_observing_functions_load_nothing_heavy(name: str) -> None:
    assert loaded_after(f"from stethos import {name}") == []


def test_an_observed_process_has_nothing_heavy_before_torch(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import logging, sys\n"
        "logging.warning('a row, so that the recording is open')\n"
        f"print(*[name for name in {HEAVY!r} if name in sys.modules])\n"
    )
    command = [sys.executable, "-m", "stethos.cli.main", "run", "--dir", str(tmp_path / "runs"), str(script)]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    assert result.stdout.split() == []
