"""The order in which people expect names."""

from __future__ import annotations

import re


def natural_key(name: str) -> tuple[tuple[int, int, str], ...]:
    """Sorts `c2` before `c10`."""
    parts = re.split(r"([0-9]{1,18})", name)
    return tuple((1, int(part), "") if place % 2 else (0, 0, part) for place, part in enumerate(parts))
