"""The names that evaluated code sees: those of the training, as they are now.

A name is looked up among those the code has made itself, then in the locals
of the functions that lead to the optimizer's step (the user's own before
those of libraries, the innermost first), then in the globals of `__main__`
and of these functions' modules.

An assignment takes effect in the training where the name is one of its own:
a global of `__main__`, or a local of the training's function when the code
runs at a step boundary. Names that are new belong to the code alone, and so
do those of loops, imports, `with`, `except`, functions and classes, so that
reading changes nothing: `for i in ...` leaves the training's own `i` alone.
`global x` makes a new global on purpose.
"""

from __future__ import annotations

import ast
import builtins
import contextlib
import ctypes
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

_OUR_DIRECTORY = str(Path(__file__).resolve().parents[1]) + "/"
_LIBRARIES = tuple(
    {f"{sysconfig.get_path(name)}/" for name in ("stdlib", "platstdlib", "purelib", "platlib")} | {"<frozen "}
)
_MOST_FRAMES = 200
_ATTEMPTS = 20


class Namespace(dict[str, Any]):
    """Globals for `exec`: the dict itself holds only what `global` statements store; see `finish`."""

    def __init__(
        self, code: ast.Module, frames: list[FrameType], made: dict[str, Any], known: dict[str, Any], *, is_still: bool
    ) -> None:
        super().__init__(__builtins__=builtins, __name__="__main__")
        self._made = made
        self._main: dict[str, Any] = sys.modules["__main__"].__dict__
        self._frames = sorted(frames, key=is_library) if is_still else []
        self._is_still = is_still
        self._locals = [dict(frame.f_locals) for frame in sorted(frames, key=is_library)]
        self._globals = [frame.f_globals for frame in sorted(frames, key=is_library)]
        self._known = known
        self._private = private_names(code)
        self.notes: list[str] = []

    def __missing__(self, name: str) -> Any:
        for names in (self._made, *self._locals, self._main, *self._globals, self._known):
            if name in names:
                return names[name]
        raise KeyError(name)

    def __setitem__(self, name: str, value: Any) -> None:
        if name in self._private or name in self._made:
            self._made[name] = value
            return
        for position, names in enumerate(self._locals):
            if name in names:
                if self._is_still and _set_local(self._frames[position], name, value):
                    names[name] = value
                else:
                    self._made[name] = value
                    self.notes.append(
                        f"{name} is a local of the training and keeps its value there: "
                        "only at a step boundary can it be set"
                    )
                return
        if name in self._main:
            self._main[name] = value
        else:
            self._made[name] = value

    def __delitem__(self, name: str) -> None:
        if name in self._made:
            del self._made[name]
        elif name in self._main:
            del self._main[name]
        else:
            raise KeyError(name)

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and (dict.__contains__(self, name) or self._has(name))

    def _has(self, name: str) -> bool:
        try:
            self.__missing__(name)
        except KeyError:
            return False
        return True

    def finish(self) -> None:
        """Hand over what `global` statements stored, and let go of the training's frames."""
        for name, value in self.items():
            if name not in ("__builtins__", "__name__"):
                self._main[name] = value
        self._frames, self._is_still = [], False


def parsed(code: str, filename: str) -> ast.Module:
    """The tree of a piece of code, tried again where threads were in each other's way.

    Python 3.11 counts the depth of trees for all threads together: of two that parse at once, one may get a
    SystemError for no fault of the code.
    """
    for _ in range(_ATTEMPTS):
        with contextlib.suppress(SystemError):
            return ast.parse(code, filename)
    return ast.parse(code, filename)


def private_names(code: ast.Module) -> set[str]:
    """Names that the code binds by anything but an assignment."""
    found: set[str] = set()
    for node in ast.walk(code):
        match node:
            case ast.For() | ast.AsyncFor() | ast.comprehension():
                found |= set(_stored(node.target))
            case ast.Import() | ast.ImportFrom():
                found |= {(alias.asname or alias.name).partition(".")[0] for alias in node.names}
            case ast.With() | ast.AsyncWith():
                found |= {name for item in node.items if item.optional_vars for name in _stored(item.optional_vars)}
            case ast.ExceptHandler(name=str(name)):
                found.add(name)
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                found.add(node.name)
            case ast.NamedExpr():
                found |= set(_stored(node.target))
    return found


def _stored(node: ast.AST) -> Iterator[str]:
    return (one.id for one in ast.walk(node) if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Store))


def frames_from(frame: FrameType | None) -> list[FrameType]:
    """The functions that led to a frame, innermost first, without our own, the hooks of torch and module level."""
    found = []
    for _ in range(_MOST_FRAMES):
        if frame is None:
            break
        code = frame.f_code
        is_hook = code.co_filename.endswith(("torch/optim/optimizer.py", "torch/optim/lr_scheduler.py"))
        if not code.co_filename.startswith(_OUR_DIRECTORY) and not is_hook and frame.f_locals is not frame.f_globals:
            found.append(frame)
        frame = frame.f_back
    return found


def is_library(frame: FrameType) -> bool:
    """Whether a function belongs to an installed package rather than to the user's program."""
    return frame.f_code.co_filename.startswith(_LIBRARIES)


def _set_local(frame: FrameType, name: str, value: Any) -> bool:
    """Set a local of a function that waits for this very thread to return."""
    if name not in frame.f_code.co_varnames + frame.f_code.co_cellvars + frame.f_code.co_freevars:
        return False
    frame.f_locals[name] = value
    if sys.version_info < (3, 13):  # since then `f_locals` writes through
        ctypes.pythonapi.PyFrame_LocalsToFast(ctypes.py_object(frame), ctypes.c_int(0))
    return True
