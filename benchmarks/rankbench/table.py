"""All jobs; importing this fills the table."""

from __future__ import annotations

from benchmarks.rankbench import calls, endings, healthy, replicas, slow
from benchmarks.rankbench.job import KINDS, Kind

__all__ = ["KINDS", "Kind", "calls", "endings", "healthy", "replicas", "slow"]
