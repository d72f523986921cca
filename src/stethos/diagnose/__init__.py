"""What is wrong, who did it, since when, how sure, what next: detectors over the tables of a run.

Reads tables only: no torch, no sockets. The package has the name of the
function that everybody uses, so calling it is calling `stethos.diagnose.api.diagnose`.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any


class _Callable(ModuleType):
    """`stethos.diagnose(...)` works whether or not the package of that name was imported before."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        from stethos.diagnose.api import diagnose

        return diagnose(*args, **kwargs)


sys.modules[__name__].__class__ = _Callable
