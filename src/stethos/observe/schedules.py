"""The schedulers of a program: how often each has stepped, how long it is to last, and whose rate it sets."""

from __future__ import annotations

import weakref
from collections.abc import Container
from typing import Any

_MOST = 8
_LENGTHS = ("T_max", "total_steps", "total_iters")


class Schedules:
    """Remembers schedulers as they are made, as long as the program keeps them."""

    def __init__(self) -> None:
        self._made: list[weakref.ref[Any]] = []

    def made(self, scheduler: Any) -> None:
        if len(self._made) < _MOST and type(scheduler).__name__ not in ("SequentialLR", "ChainedScheduler"):
            self._made.append(weakref.ref(scheduler))

    def facts(self, optimizers: Container[int]) -> list[dict[str, Any]]:
        """Of each scheduler: its class, steps, length, first rates and present rate; `optimizers` are ids."""
        return [_facts_of(one, optimizers) for ref in self._made if (one := ref()) is not None]


def _facts_of(scheduler: Any, optimizers: Container[int]) -> dict[str, Any]:
    optimizer = getattr(scheduler, "optimizer", None)
    length = next((getattr(scheduler, name) for name in _LENGTHS if hasattr(scheduler, name)), None)
    rates = [group.get("lr") for group in getattr(optimizer, "param_groups", ())][:1]
    base = list(getattr(scheduler, "base_lrs", ()))[:1]
    return {
        "name": type(scheduler).__name__,
        "steps": int(getattr(scheduler, "last_epoch", 0)),
        "length": length if isinstance(length, int) else None,
        "base": float(base[0]) if base else None,
        "rate": float(rates[0]) if rates and isinstance(rates[0], float | int) else None,
        "is_stranger": id(optimizer) not in optimizers,
    }
