"""The part of the hot path that is written in C, where it could be built; see `_hot.c`.

What is built is chosen once, when this module is loaded. Without it everything works the same, from the same classes,
at a higher price in every step; `STETHOS_NATIVE=0` asks for that.
"""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import TYPE_CHECKING

from stethos.settings import is_native_allowed

_INTERFACE = 3


def _load() -> tuple[ModuleType | None, str]:
    """The built module, or None and why not."""
    if not is_native_allowed():
        return None, "STETHOS_NATIVE=0"
    if not getattr(sys, "_is_gil_enabled", lambda: True)():
        return None, "this Python has no GIL"
    try:
        module = importlib.import_module("stethos._hot")
    except ImportError as error:
        return None, "not built here: no C compiler" if isinstance(error, ModuleNotFoundError) else str(error)[:200]
    if module.INTERFACE != _INTERFACE:
        return None, "built from another version: install Stethos again"
    return module, ""


NATIVE, WHY_NOT = _load()


class _Plain:
    """A class without fields of its own."""

    __slots__ = ()


# Bases with the fields that the callbacks in C read and write; in Python a class has its own attributes.
if TYPE_CHECKING or NATIVE is None:
    AlarmFields = _Plain
    IterationFields = _Plain
    IterationsFields = _Plain
    SessionFields = _Plain
    WatchFields = _Plain
    WatchedFields = _Plain
else:
    AlarmFields, WatchedFields = NATIVE.AlarmFields, NATIVE.WatchedFields
    IterationFields, IterationsFields = NATIVE.IterationFields, NATIVE.IterationsFields
    SessionFields, WatchFields = NATIVE.SessionFields, NATIVE.WatchFields


def described() -> str:
    """Which of the two is in use, in words."""
    return "C" if NATIVE is not None else f"Python ({WHY_NOT})"
