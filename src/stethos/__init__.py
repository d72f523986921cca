"""Stethos: a stethoscope for federated and distributed PyTorch training.

These names are all there is to import:

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
    stethos.archive("s3://bucket/path").sql("SELECT run, max(step) FROM steps GROUP BY run")
    stethos.runs(), stethos.profile("runs/NAME"), stethos.compare("runs/A", "runs/B")

`Run` and `Diagnosis` are what `open_run` and `diagnose` return, for annotations.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from stethos.archive.api import archive
    from stethos.diagnose.api import diagnose
    from stethos.diagnose.diagnosis import Diagnosis
    from stethos.federate.federation import federation
    from stethos.observe.api import log, span, watch
    from stethos.profile.api import compare, profile
    from stethos.store.listing import runs
    from stethos.store.run import Run, open_run

__version__ = "0.1.0"
__all__ = [
    "Diagnosis", "Run", "archive", "compare", "diagnose", "federation", "log", "open_run", "profile", "runs", "span",
    "watch",
]  # fmt: skip

_HOMES = {
    "Diagnosis": "diagnose.diagnosis",
    "Run": "store.run",
    "archive": "archive.api",
    "compare": "profile.api",
    "diagnose": "diagnose.api",
    "federation": "federate.federation",
    "log": "observe.api",
    "open_run": "store.run",
    "profile": "profile.api",
    "runs": "store.listing",
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
