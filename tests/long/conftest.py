"""Tests that take minutes: `make collectattack` runs them, `make test` does not."""

from __future__ import annotations

import os

collect_ignore_glob = [] if os.environ.get("LONG_TESTS") else ["test_*.py"]
