"""What is wrong, who did it, since when, how sure, what next: detectors over the tables of a run.

Reads tables only: no torch, no sockets. `stethos.diagnose(...)` works whether or not this package was imported before.
"""

from __future__ import annotations

import sys

from stethos.wiring import CallablePackage

sys.modules[__name__].__class__ = CallablePackage
