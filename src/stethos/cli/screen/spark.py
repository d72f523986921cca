"""Numbers as characters: sparklines, bars, and bars that go both ways."""

from __future__ import annotations

import math
from collections.abc import Sequence

UNKNOWN = "·"  # not measured
ODD = "✗"  # NaN or infinite
_LEVELS = "▁▂▃▄▅▆▇█"
_EIGHTHS = " ▏▎▍▌▋▊▉█"


def sparkline(values: Sequence[float | None], width: int) -> str:
    """One character per value; of more than `width` values, neighbours share one.

    The lowest and the highest known value span the height; a line that never changes lies
    in the middle. A single NaN among neighbours is shown: it is what one looks for.
    """
    points = _shared(values, width)
    known = [point for point in points if point is not None and math.isfinite(point)]
    low, high = (min(known), max(known)) if known else (0.0, 0.0)
    return "".join(_level(point, low, high) for point in points)


def bar(share: float | None, width: int) -> str:
    """A bar over `share` (0 to 1) of `width` characters, in eighths; something above nothing always shows."""
    if share is None or not math.isfinite(share) or share <= 0:
        return ""
    eighths = max(1, round(min(share, 1.0) * width * 8))
    full, rest = divmod(eighths, 8)
    return "█" * full + _EIGHTHS[rest].strip()


def two_way_bar(share: float | None, width: int) -> str:
    """A bar from the middle to the left (below 0) or right, `width` characters on each side."""
    if share is None or not math.isfinite(share):
        return UNKNOWN.center(2 * width + 1)
    length = min(width, math.ceil(abs(share) * width - 0.5)) if abs(share) < 1 else width
    if share < 0:
        return ("█" * length).rjust(width) + "│" + " " * width
    return " " * width + "│" + ("█" * length).ljust(width)


def _shared(values: Sequence[float | None], width: int) -> list[float | None]:
    """At most `width` values: means of neighbours."""
    count = len(values)
    if count <= width:
        return list(values)
    return [_mean(values[count * place // width : count * (place + 1) // width]) for place in range(width)]


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    if not known:
        return None
    if not all(map(math.isfinite, known)):
        return math.nan
    return math.fsum(value / len(known) for value in known)


def _level(point: float | None, low: float, high: float) -> str:
    if point is None:
        return UNKNOWN
    if not math.isfinite(point):
        return ODD
    if high == low:
        return _LEVELS[len(_LEVELS) // 2 - 1]
    half = (point / 2 - low / 2) / (high / 2 - low / 2)  # halves: the span of two floats may overflow
    return _LEVELS[min(len(_LEVELS) - 1, int(half * len(_LEVELS)))]
