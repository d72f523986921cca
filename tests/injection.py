"""Breaking functions of ours, wherever they are called from."""

from __future__ import annotations

import builtins
import contextlib
import importlib
import inspect
import mmap
import pkgutil
from collections.abc import Iterable, Iterator
from types import FunctionType, ModuleType
from typing import Any


class Unspeakable(RuntimeError, MemoryError):
    """Something is wrong, there is no memory, and no words either."""

    def __str__(self) -> str:
        raise RuntimeError("no words")

    __repr__ = __str__


KINDS: dict[str, type[BaseException]] = {
    "Unspeakable": Unspeakable,
    "KeyboardInterrupt": KeyboardInterrupt,
}


class Calls:
    """A counter that forked children share."""

    def __init__(self) -> None:
        self._map = mmap.mmap(-1, 8)

    def append(self, _: int) -> None:
        self._map[:] = (len(self) + 1).to_bytes(8, "little")

    def __len__(self) -> int:
        return int.from_bytes(self._map, "little")


def modules_under(package: str) -> list[str]:
    paths = importlib.import_module(package).__path__
    return [f"{package}.{info.name}" for info in pkgutil.iter_modules(paths)]


def functions_in(modules: Iterable[str]) -> dict[str, FunctionType]:
    """Every function and method of these modules by its name, found by looking: a new one cannot be missed."""
    found: dict[str, FunctionType] = {}
    for name in modules:
        module = importlib.import_module(name)
        for function in _functions_of(module, module):
            found.setdefault(f"{name.removeprefix('stethos.')}.{function.__qualname__}", function)
    return found


def _functions_of(owner: Any, module: ModuleType) -> Iterator[FunctionType]:
    for value in list(vars(owner).values()):
        if isinstance(value, staticmethod | classmethod):
            value = value.__func__
        if isinstance(value, property):
            value = value.fget
        value = inspect.unwrap(value) if inspect.isfunction(value) else value
        if inspect.isfunction(value) and value.__code__.co_filename == module.__file__:
            yield value
        elif inspect.isclass(value) and value.__module__ == module.__name__:
            yield from _functions_of(value, module)


@contextlib.contextmanager
def broken(function: FunctionType, kind: type[BaseException]) -> Iterator[Calls]:
    """The function raises, however it is reached: its code is exchanged, so that every alias is broken, too."""
    calls = Calls()
    builtins.injected_calls, builtins.injected_kind = calls, kind  # type: ignore[attr-defined]
    original = function.__code__
    variables = ", ".join(original.co_freevars)
    source = (
        f"def outer({variables}):\n def raiser(*args, **kwargs):\n  [{variables}]\n"
        "  injected_calls.append(1)\n  raise injected_kind('injected')\n return raiser"
    )
    space: dict[str, Any] = {}
    exec(source, space)
    function.__code__ = space["outer"](*[None] * len(original.co_freevars)).__code__
    try:
        yield calls
    finally:
        function.__code__ = original
