"""House rules that a reader of the code may rely on."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import stethos

ROOT = Path(stethos.__file__).resolve().parent
# The guard, the callbacks that have its `try` inlined, and the door into other interpreters.
MAY_SWALLOW = {"guard.py", "observe/hotpath.py", "_site/sitecustomize.py"}
MAY_READ_THE_ENVIRONMENT = {"settings.py", "_site/sitecustomize.py"}


def nodes() -> Iterator[tuple[str, ast.AST]]:
    """Every node of the package with its file."""
    for path in sorted(ROOT.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            yield path.relative_to(ROOT).as_posix(), node


def test_public_names_are_the_promised_ones() -> None:
    assert stethos.__all__ == ["diagnose", "federation", "log", "open_run", "span", "watch"]
    assert all(callable(getattr(stethos, name)) for name in stethos.__all__)


def swallows(handler: ast.ExceptHandler) -> bool:
    """Whether a handler catches everything and does not raise it again."""
    caught = ast.unparse(handler.type) if handler.type is not None else "BaseException"
    is_broad = any(
        name in caught.replace("(", "").replace(")", "").split(", ") for name in ("Exception", "BaseException")
    )
    last = handler.body[-1]
    return is_broad and not (isinstance(last, ast.Raise) and last.exc is None)


def test_only_the_guard_swallows_exceptions() -> None:
    found = {file for file, node in nodes() if isinstance(node, ast.ExceptHandler) and swallows(node)}
    assert found - MAY_SWALLOW == set()


def test_only_the_settings_read_the_environment() -> None:
    words = ("os.environ", "os.getenv", "os.environb", "os.putenv")
    found = {file for file, node in nodes() if isinstance(node, ast.Attribute) and ast.unparse(node) in words}
    assert found - MAY_READ_THE_ENVIRONMENT == set()


def test_only_commands_write_to_stdout() -> None:
    found = {
        file
        for file, node in nodes()
        if isinstance(node, ast.Call)
        and (ast.unparse(node.func) == "print" or ast.unparse(node.func).startswith("sys.stdout.write"))
    }
    assert {file for file in found if not file.startswith("cli/")} == set()


def test_every_module_says_what_it_is_for() -> None:
    without = [
        path.relative_to(ROOT).as_posix()
        for path in sorted(ROOT.rglob("*.py"))
        if not ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))
    ]
    assert without == []
