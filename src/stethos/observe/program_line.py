"""Lines of the user's program: which one runs, and which one fills a container."""

from __future__ import annotations

import ast
import os
import re
import sys
import sysconfig
from pathlib import Path
from types import FrameType

_MOST_FRAMES = 200
_LARGEST_SOURCE = 2 << 20
_GROWS = frozenset({"append", "appendleft", "extend", "insert", "add", "update", "setdefault"})
_ESCAPE = re.compile(rb"\\(?:([\\'\"\r\n])|(.))")  # the first end no string and no line


class ProgramLines:
    """Tells the program's own files from the libraries'."""

    def __init__(self) -> None:
        paths = {sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")}
        torch_file = getattr(sys.modules.get("torch"), "__file__", None)
        packages = {
            Path(__file__).resolve().parents[1],
            *({Path(torch_file).resolve().parents[1]} if torch_file else ()),
        }
        self._libraries = (
            *(path + os.sep for path in paths if path),
            str(Path(__file__).resolve().parents[1]) + os.sep,
        )
        self._torch = tuple(str(path) + os.sep for path in packages)
        self._is_own: dict[str, bool] = {}

    def of(self, frame: FrameType | None) -> str:
        """`file:line` of the innermost frame of the program's own; "" if there is none."""
        own = self.frame_of(frame)
        return "" if own is None else f"{self.shown(own.f_code.co_filename)}:{own.f_lineno}"

    def frame_of(self, frame: FrameType | None) -> FrameType | None:
        for _ in range(_MOST_FRAMES):
            if frame is None or self.is_own(frame.f_code.co_filename):
                return frame
            frame = frame.f_back
        return None

    def is_own(self, file: str) -> bool:
        known = self._is_own.get(file)
        if known is None:
            is_library = file.startswith(("<frozen", *self._libraries, *self._torch))
            known = self._is_own[file] = not is_library and not file.startswith("<")
        return known

    def shown(self, file: str) -> str:
        """The path as its user would write it: from the working directory, if it lies below."""
        try:
            here = os.getcwd() + os.sep
        except OSError:  # it was deleted
            return file
        return file[len(here) :] if file.startswith(here) else file


def parsed_source(file: str, most_bytes: int) -> ast.Module | None:
    """The source of a program, if it is there, is no longer than that, and can be parsed.

    Escapes in its strings are gone: Python would warn of the wrong ones a second time, among what the program prints.
    """
    path = Path(file)
    try:
        if path.stat().st_size > most_bytes:
            return None
        return ast.parse(_ESCAPE.sub(lambda found: found[0] if found[1] else b"/" + found[2], path.read_bytes()))
    except (OSError, SyntaxError, ValueError, RecursionError):
        return None


def filling_line(file: str, name: str, first: int, last: int) -> int | None:
    """The line between two others on which something is put into the container of that name; None if none is found.

    Statements such as `name.append(x)`, `name[key] = x` and `name += [x]`, also for an attribute of that name.
    """
    tree = parsed_source(file, _LARGEST_SOURCE)
    if tree is None:
        return None
    lines = sorted(
        node.lineno
        for node in ast.walk(tree)
        if isinstance(node, ast.expr | ast.stmt) and first <= node.lineno <= last and _fills(node, name)
    )
    return lines[0] if lines else None


def _fills(node: ast.AST, name: str) -> bool:
    match node:
        case ast.Call(func=ast.Attribute(value=container, attr=method)):
            return method in _GROWS and _is_named(container, name)
        case ast.Assign(targets=targets):
            return any(isinstance(one, ast.Subscript) and _is_named(one.value, name) for one in targets)
        case ast.AugAssign(target=target):
            return _is_named(target, name) or (isinstance(target, ast.Subscript) and _is_named(target.value, name))
    return False


def _is_named(node: ast.AST, name: str) -> bool:
    """Whether an expression is that name, that attribute, or an element of such."""
    while isinstance(node, ast.Subscript):
        node = node.value
    return (isinstance(node, ast.Name) and node.id == name) or (isinstance(node, ast.Attribute) and node.attr == name)
