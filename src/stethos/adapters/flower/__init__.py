"""Flower: two lines in an app, one on each side.

    app = ClientApp(mods=[client_mod])             # client
    strategy = observe_strategy(FedAvg())          # server

Works with strategies of the Message API and with legacy ones, on the Ray
engine and in deployment. An own server loop takes an `ObservedGrid` instead.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from stethos.adapters.flower.grid import ObservedGrid
    from stethos.adapters.flower.mod import client_mod
    from stethos.adapters.flower.strategy import observe_strategy

__all__ = ["ObservedGrid", "client_mod", "observe_strategy"]

_HOMES = {"ObservedGrid": "grid", "client_mod": "mod", "observe_strategy": "strategy"}


def __getattr__(name: str) -> Any:
    """Load a name when it is first used: in deployment a client's process lives for one message only."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    value = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = value
    return value
