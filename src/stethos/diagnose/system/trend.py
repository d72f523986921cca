"""Where the memory of a process is going."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from stethos.store.frame import Frame

_STRETCHES = 10
_SHOWN = 60


@dataclass(frozen=True, slots=True)
class Trend:
    """Resident memory over the second half of what was sampled; `rising` is the share of stretches above the last."""

    start_bytes: float
    end_bytes: float
    bytes_per_s: float
    duration_s: float
    rising: float
    first_s: int
    series: tuple[float, ...]

    @property
    def grown_bytes(self) -> float:
        return self.end_bytes - self.start_bytes


def trend_of(frame: Frame, samples: int) -> Trend | None:
    """The trend of one process; None before there are so many samples."""
    frame = frame.sorted_by("t_ns")
    known = np.isfinite(frame["rss_bytes"])
    seconds, rss = (
        (frame["t_ns"][known] - np.nanmin(frame["t_ns"])) / 1e9 if known.any() else np.array([]),
        frame["rss_bytes"][known],
    )
    if len(rss) < samples:
        return None
    half = len(rss) // 2
    levels = np.array([np.median(part) for part in np.array_split(rss[half:], _STRETCHES)])
    times = np.array([np.median(part) for part in np.array_split(seconds[half:], _STRETCHES)])
    slopes = [
        (levels[late] - levels[early]) / (times[late] - times[early])
        for early in range(_STRETCHES)
        for late in range(early + 1, _STRETCHES)
        if times[late] > times[early]
    ]
    if not slopes:
        return None
    return Trend(
        float(levels[0]),
        float(levels[-1]),
        float(np.median(slopes)),
        float(times[-1] - times[0]),
        float((np.diff(levels) > 0).mean()),
        int(seconds[half]),
        tuple(float(part.mean()) for part in np.array_split(rss, min(_SHOWN, len(rss)))),
    )
