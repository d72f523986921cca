"""What keeps an object alive, in words: the name of the container it is in, and the line that fills it."""

from __future__ import annotations

import gc
import sys
from dataclasses import dataclass
from types import FrameType, ModuleType
from typing import Any

from stethos.observe.program_line import ProgramLines, filling_line

_CONTAINERS = ("list", "dict", "set", "deque", "defaultdict", "OrderedDict", "tuple")
_MOST_LEVELS = 4
_MOST_REFERRERS = 50


@dataclass(frozen=True, slots=True)
class Holder:
    """`text` names the container, `line` is `file:line` of the statement that fills it; "" where unknown."""

    text: str = ""
    line: str = ""


def holder_of(value: object, frame: FrameType | None, lines: ProgramLines) -> Holder:
    """Look for what holds an object, beginning with the program's frames above `frame`.

    It looks through all objects once for each level of nesting: tens of milliseconds. Called once for a leak.
    """
    frames = _own_frames(frame, lines)
    found: object = value
    for _ in range(_MOST_LEVELS):
        named = _named(found, frames, lines)
        if named is not None:
            return named
        inner, found = found, _container_of(found, frames)
        if found is None or found is inner:
            owner = _instance_with(inner)
            return Holder() if owner is None else _attribute(owner, inner, lines)
        owner = _owner_of(found)
        if owner is not None:
            return _attribute(owner, inner, lines)
    return Holder()


def _own_frames(frame: FrameType | None, lines: ProgramLines) -> list[FrameType]:
    frames: list[FrameType] = []
    while frame is not None:
        if lines.is_own(frame.f_code.co_filename):
            frames.append(frame)
        frame = frame.f_back
    return frames


def _named(value: object, frames: list[FrameType], lines: ProgramLines) -> Holder | None:
    """A local variable of a running function, or a variable of one of the program's modules."""
    if type(value).__name__ not in _CONTAINERS:
        return None
    for frame in frames:
        for name, other in list(frame.f_locals.items()):
            if other is value:
                code = frame.f_code
                is_module = code.co_name == "<module>"
                last = max((line for *_, line in code.co_lines() if line), default=code.co_firstlineno)
                span = (1, 1 << 30) if is_module else (code.co_firstlineno, last)
                return _described(name, value, code.co_filename, span, lines)
    for module in list(sys.modules.values()):
        file = getattr(module, "__file__", None) if isinstance(module, ModuleType) else None
        if isinstance(file, str) and lines.is_own(file):
            for name, other in list(vars(module).items()):
                if other is value:
                    return _described(name, value, file, (1, 1 << 30), lines)
    return None


def _container_of(value: object, frames: list[FrameType]) -> object | None:
    """A container that has the value in it; not one of our own making."""
    own = {id(frames), id(vars(sys.modules[__name__]))}
    for referrer in gc.get_referrers(value)[:_MOST_REFERRERS]:
        if id(referrer) not in own and type(referrer).__name__ in _CONTAINERS and referrer is not value:
            return referrer  # type: ignore[no-any-return]
    return None


def _instance_with(value: object) -> object | None:
    """The object that has a container as an attribute, where Python keeps attributes without a dict."""
    if type(value).__name__ not in _CONTAINERS:
        return None
    for referrer in gc.get_referrers(value)[:_MOST_REFERRERS]:
        attributes = getattr(referrer, "__dict__", None)
        if type(attributes) is dict and any(other is value for other in attributes.values()):
            return referrer  # type: ignore[no-any-return]
    return None


def _owner_of(container: object) -> object | None:
    """The object whose attributes the dict holds."""
    if type(container) is not dict:
        return None
    for referrer in gc.get_referrers(container)[:_MOST_REFERRERS]:
        if getattr(referrer, "__dict__", None) is container and not isinstance(referrer, ModuleType):
            return referrer  # type: ignore[no-any-return]
    return None


def _attribute(owner: object, value: object, lines: ProgramLines) -> Holder:
    name = next((key for key, other in list(vars(owner).items()) if other is value), "")
    kind = type(owner)
    file = getattr(sys.modules.get(kind.__module__), "__file__", None)
    if not name or not isinstance(file, str):
        return Holder(f"{kind.__name__}.{name}" if name else kind.__name__)
    return _described(name, value, file, (1, 1 << 30), lines, prefix=f"{kind.__name__}.")


def _described(
    name: str, value: Any, file: str, span: tuple[int, int], lines: ProgramLines, prefix: str = ""
) -> Holder:  # fmt: skip
    line = filling_line(file, name, *span)
    return Holder(f"{prefix}{name} ({type(value).__name__})", f"{lines.shown(file)}:{line}" if line else "")
