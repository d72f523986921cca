"""A clock for the recorder that goes on by a tick at each look.

What samples cost, and so which of them are taken, is then the same on every machine, however busy it is.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable

from stethos import clock
from stethos.native import NATIVE

_START_NS, _TICK_NS = 10**12, 30_011


def begin_ticking(put: Callable[[object, str, object], None] = setattr) -> None:
    """From now on all of ours that look at the clock see it tick; `put` sets a name of a module."""
    now_ns = itertools.count(_START_NS, _TICK_NS).__next__
    if NATIVE is not None:
        NATIVE.let_tick(_START_NS, _TICK_NS)
        now_ns = NATIVE.now_ns
    true_ns = clock.monotonic_ns
    for name, module in list(sys.modules.items()):
        if name.startswith("stethos.") and getattr(module, "monotonic_ns", None) is true_ns:
            put(module, "monotonic_ns", now_ns)


def end_ticking() -> None:
    """What is left beside the names that were put: the clock of the callbacks in C."""
    if NATIVE is not None:
        NATIVE.let_tick(0, 0)
