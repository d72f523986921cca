"""Imports point down: one table says which package may know which."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

import stethos
from stethos import wiring

ROOT = Path(stethos.__file__).resolve().parent
BASE = frozenset(
    {"errors", "schema", "settings", "clock", "guard", "native", "nearest", "outlier", "redact", "secret_forms"}
    | {"toml_text", "turn_facts", "unseen", "wiring", "cluster"}
)

# Each package and those it may import, beside the base modules and itself.
BELOW: dict[str, frozenset[str]] = {
    "record": frozenset(),
    "store": frozenset({"record"}),
    "observe": frozenset({"record"}),
    "federate": frozenset({"record", "observe"}),
    "profile": frozenset({"store"}),
    "diagnose": frozenset({"store", "profile"}),
    "view": frozenset({"store", "diagnose"}),
    "archive": frozenset({"record", "store", "diagnose", "view"}),
    "export": frozenset({"store", "view"}),
    "replay": frozenset({"record", "store", "profile"}),
    "act": frozenset({"record", "store", "observe", "federate", "diagnose"}),
    "live": frozenset({"record", "store", "observe", "diagnose", "replay"}),
    "lab": frozenset({"federate", "observe", "replay", "act"}),
    "testing": frozenset({"store", "diagnose"}),  # one module, public
    "adapters": frozenset({"record", "observe", "federate", "replay", "act", "collect"}),
    "web": frozenset({"record", "store", "profile", "live", "diagnose", "view", "export"}),
    "collect": frozenset({"record", "web"}),
    "cli": frozenset(
        {
            "record",
            "store",
            "diagnose",
            "profile",
            "export",
            "replay",
            "act",
            "live",
            "lab",
            "view",
            "web",
            "adapters",
            "archive",
            "collect",
        }
    ),
}
# Inside a function, when it is called: what a handle offers beyond its own package.
LAZILY = {
    ("observe.api", "store"),
    ("observe.api", "act"),
    ("federate.federation", "replay"),
    ("federate.correcting", "act"),
    ("federate.screening", "diagnose"),
    ("store.run", "export"),
    ("store.run", "archive"),
    ("store.find", "archive"),
}

# The trainer loads these before torch: nothing but the standard library.
PLAIN = ("layout", "ring", "border", "place", "spawn", "provenance", "whole_file")
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
    assert packages | {"testing"} == set(BELOW) and modules - {"testing"} == BASE


def edges() -> Iterator[tuple[str, str, bool]]:
    """Each import of ours that runs: the module, the package or base module it imports, and whether at the top."""
    for module, imported, is_top, is_typing in all_imports():
        if imported.startswith("stethos.") and not is_typing and not module.startswith(("_site.", "__init__")):
            yield module, imported.split(".")[1], is_top


def allowed_to(package: str) -> frozenset[str]:
    return BASE | BELOW.get(package, frozenset()) | {package, "__version__"}


def test_imports_point_down() -> None:
    wrong = [
        f"{module} imports {target}"
        for module, target, is_top in edges()
        if target not in allowed_to(module.split(".")[0]) | {"__version__"}
        and (is_top or (module, target) not in LAZILY)
    ]
    assert wrong == []


def test_every_allowance_is_used() -> None:
    found = {  # those of types alone count as well
        (module.split(".")[0], imported.split(".")[1])
        for module, imported, _, _ in all_imports()
        if imported.startswith("stethos.")
    }
    unused = {(package, target) for package, targets in BELOW.items() for target in targets} - found
    assert unused == set()
    lazy = {(module, target) for module, target, is_top in edges() if not is_top}
    assert LAZILY - lazy == set()


# Names of modules in strings: an import by name, a program for `python -m` or `python -c`. The table is `wiring.py`.

LINKS = {name: link for name, link in vars(wiring).items() if isinstance(link, wiring.Link)}
NAMED = re.compile(r"\bstethos((?:\.[A-Za-z_]\w*)+)")


def strings_of(path: Path) -> Iterator[str]:
    """The strings of a module that are values; of an f-string, what is written out."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    prose = {
        id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            yield "".join(str(one.value) if isinstance(one, ast.Constant) else "*" for one in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in prose:
            yield node.value


def module_in(dotted: str) -> str | None:
    """The package or base module of ours that a dotted name begins with, if there is one."""
    first = dotted.strip(".").split(".")[0]
    return first if first in BELOW or first in BASE else None


def string_edges(path: Path) -> Iterator[tuple[str, str]]:
    for text in strings_of(path):
        for found in NAMED.finditer(text):
            target = module_in(found[1])
            if target is not None:
                yield module_name(path), target


def test_module_names_in_strings_point_down() -> None:
    wrong = [
        f"{module} names {target} in a string"
        for path in sorted(ROOT.rglob("*.py"))
        if path != ROOT / "wiring.py" and path.parent != ROOT / "_site"
        for module, target in string_edges(path)
        if target not in allowed_to(module.split(".")[0])
    ]
    assert wrong == []


@pytest.mark.parametrize(
    "source",
    [
        'import_module("stethos.cli.main")',
        'run([sys.executable, "-m", "stethos.cli.main"])',
        '_START = "import sys; from stethos.cli.main import main; main()"',
        'import_module(f"stethos.cli.{name}")',
    ],
)
def test_a_module_name_in_a_string_is_found(source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "record" / "sample.py"
    path.parent.mkdir()
    path.write_text(source)
    monkeypatch.setattr(sys.modules[__name__], "ROOT", tmp_path)
    assert ("record.sample", "cli") in set(string_edges(path))


def test_the_wiring_is_used_by_those_it_names_and_by_nobody_else_above() -> None:
    users: dict[str, set[str]] = {name: set() for name in LINKS}
    for module, imported, _, _ in all_imports():
        if imported.startswith("stethos.wiring."):
            name = imported.rpartition(".")[2]
            name = "COMMAND_LINE" if name == "command_line" else name
            if name in LINKS and LINKS[name].module.split(".")[1] not in allowed_to(module.split(".")[0]):
                users[name].add(module)
    assert users == {name: set(link.users) for name, link in LINKS.items()}


@pytest.mark.parametrize("name", LINKS)
def test_what_the_wiring_names_exists(name: str) -> None:
    path = ROOT.joinpath(*LINKS[name].module.split(".")[1:]).with_suffix(".py")
    defined = ast.parse(path.read_text(encoding="utf-8")).body
    assert LINKS[name].name in {getattr(node, "name", "") for node in defined}


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


def test_counting_the_rows_of_segments_loads_nothing_heavy() -> None:
    assert loaded_after("import stethos.record.segment") == []


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
