"""All programs of this package; importing this fills its table."""

from __future__ import annotations

from benchmarks.wildtraining.second import (
    SECOND,
    healthy_odd,
    healthy_rest,
    language,
    loops,
    making,
    tables,
    tuning,
    vision,
)

__all__ = ["SECOND", "healthy_odd", "healthy_rest", "language", "loops", "making", "tables", "tuning", "vision"]
