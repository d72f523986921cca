"""Stands in for the drainer's Python: -c CODE ROOT RUN. The function its run is named after raises."""

from __future__ import annotations

import sys
from pathlib import Path

_, _, _, root, run = sys.argv
sys.path[:0] = [root, str(Path(__file__).resolve().parents[1])]

from injection import broken, functions_in, modules_under  # noqa: E402

from stethos.record import drainer  # noqa: E402

sys.argv = ["drainer", run]
with broken(functions_in(modules_under("stethos.record"))[Path(run).name], RuntimeError):
    drainer.main()
