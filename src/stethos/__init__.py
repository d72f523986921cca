"""Stethos: a stethoscope for federated and distributed PyTorch training.

These six names are all there is to import:

    import stethos
    stethos.watch(model)            # or no code change at all: stethos run train.py
    stethos.log(accuracy=0.93)
    with stethos.span("evaluate"):
        ...
    with stethos.federation("digits", model=model) as fed:
        for rnd in fed.rounds(10):
            ...
    stethos.open_run("runs/NAME").sql("SELECT * FROM steps")
    stethos.diagnose("runs/NAME").findings
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from stethos.diagnose.api import diagnose
    from stethos.federate.federation import federation
    from stethos.observe.api import log, span, watch
    from stethos.store.run import open_run

__version__ = "0.1.0"
__all__ = ["diagnose", "federation", "log", "open_run", "span", "watch"]

_HOMES = {
    "diagnose": "diagnose.api",
    "federation": "federate.federation",
    "log": "observe.api",
    "open_run": "store.run",
    "span": "observe.api",
    "watch": "observe.api",
}


def __getattr__(name: str) -> Any:
    """Load a public name when it is first used: importing the package costs next to nothing."""
    if name not in _HOMES:
        raise AttributeError(f"module 'stethos' has no attribute {name!r}")
    from importlib import import_module

    value = getattr(import_module(f"stethos.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
