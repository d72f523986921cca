"""Looks at the calls of somebody else's function, while it stays the function that it is.

Its code is replaced by one with the same parameters, which calls a copy of it and then us. So it is compared, pickled,
inspected and looked up by tensor subclasses as ever, by whatever name a program took it earlier; and once it has its
own code again nothing of ours is left in its calls. Dynamo, which reads that code, finds the copy and inlines it.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from inspect import CO_VARARGS, CO_VARKEYWORDS
from types import CodeType, FunctionType
from typing import Any

import torch

Look = Callable[[Any, tuple[Any, ...], dict[str, Any]], object]  # the result and the arguments; it must not raise
Early = Callable[[tuple[Any, ...], dict[str, Any]], object]  # the arguments, before the call; it must not raise

# By the id of a function: itself, a copy with its own code, the code that stands in for that, and who looks, after and
# before. An entry stays, as a thread may just have begun such a call; there are as many as functions ever looked at.
WATCHED: dict[int, tuple[FunctionType, FunctionType, CodeType, list[Look], list[Early]]] = {}


def look_at_calls(function: FunctionType, look: Look, early: Early | None = None) -> Callable[[], None]:
    """Call `look` after each call of the function that is not just being compiled, and `early` before it.

    Returns what ends that.
    """
    if id(function) not in WATCHED:
        own = function.__code__
        inner = FunctionType(own, function.__globals__, function.__name__, function.__defaults__, function.__closure__)
        inner.__kwdefaults__ = function.__kwdefaults__
        WATCHED[id(function)] = function, inner, _code_around(own, id(function)), [], []
    _, inner, code, looks, earlies = WATCHED[id(function)]
    if function.__code__ not in (inner.__code__, code):
        return lambda: None  # somebody else does as we do: leave it to them
    looks.append(look)
    earlies += [early] if early is not None else []
    function.__code__ = code

    def restore() -> None:
        if look in looks:
            looks.remove(look)
        if early in earlies:
            earlies.remove(early)
        if not looks and function.__code__ is code:
            function.__code__ = inner.__code__

    return restore


def _code_around(own: CodeType, key: int) -> CodeType:
    names = iter(own.co_varnames)
    plain = list(itertools.islice(names, own.co_argcount))
    keywords = list(itertools.islice(names, own.co_kwonlyargcount))
    rest = [f"*{next(names)}"] if own.co_flags & CO_VARARGS else []
    others = [f"**{next(names)}"] if own.co_flags & CO_VARKEYWORDS else []
    leading = plain[: own.co_posonlyargcount]
    taken = [*leading, *(["/"] if leading else []), *plain[len(leading) :]]
    taken += [*(rest or (["*"] if keywords else [])), *keywords, *others]
    given = [*plain, *rest, *(f"{name}={name}" for name in keywords), *others]
    named = [*(f"{name!r}: {name}" for name in keywords), *others]
    source = f"""
def factory({", ".join(own.co_freevars)}):
  def function({", ".join(taken)}):
    from {__name__} import WATCHED as stethos_watched, is_compiling as stethos_is_compiling
    _, stethos_inner, _, stethos_looks, stethos_earlies = stethos_watched[{key}]
    if stethos_earlies and not stethos_is_compiling():
      for stethos_early in (*stethos_earlies,):
        stethos_early(({"".join(f"{name}, " for name in [*plain, *rest])}), {{{", ".join(named)}}})
    stethos_result = stethos_inner({", ".join(given)})
    if not stethos_is_compiling():
      for stethos_look in (*stethos_looks,):
        stethos_look(stethos_result, ({"".join(f"{name}, " for name in [*plain, *rest])}), {{{", ".join(named)}}})
    return stethos_result
    {"; ".join(own.co_freevars)}  # never reached: that it has as many cells
"""
    factory = _code_in(compile(source, own.co_filename, "exec"))
    return _code_in(factory).replace(
        co_name=own.co_name, co_qualname=own.co_qualname, co_firstlineno=own.co_firstlineno
    )


def _code_in(outer: CodeType) -> CodeType:
    return next(one for one in outer.co_consts if isinstance(one, CodeType))


is_compiling = torch.compiler.is_compiling
