"""Runs on object storage: sealed Parquet files with a Delta log, read wherever they lie.

`stethos.archive(...)` works whether or not this package was imported before.
"""

from __future__ import annotations

import sys

from stethos.wiring import CallablePackage

sys.modules[__name__].__class__ = CallablePackage
