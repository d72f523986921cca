"""Times of processes at other sites, on the clock of their server.

A client cannot be in a round before its server has begun it, nor after now. Where its times say otherwise its clock is
off, and the times of all processes at its site are moved. Clocks that make sense are left alone, and nobody can move
the times of others.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from stethos.store.frame import Array, Frame

REMOTE = "@"  # in the name of a process that recorded elsewhere: behind the name of its site
_BEAT_NS = 5e9  # how often a server speaks
_BEHIND_NS, _AHEAD_NS = 2e9, 10e9  # by so much a clock may be off; rows of the server come a little late, too


def is_remote(processes: Array) -> Array:
    return np.array([REMOTE in str(one) for one in processes.tolist()], bool)


def now_of(*frames: Frame) -> float:
    """The newest time that a process on the server's own machine knows; 0 where there is none."""
    own = [frame["t_ns"][~is_remote(frame["process"])] for frame in frames if len(frame) and "t_ns" in frame]
    return max((float(times.max()) for times in own if len(times)), default=0.0)


def clock_shifts(legs: Frame, now_ns: float) -> dict[str, float]:
    """Nanoseconds to add to the times of a site whose clock is off."""
    least: dict[str, float] = {}
    most: dict[str, float] = {}
    for rows in legs.groups("federation").values():
        away = is_remote(rows["process"])
        rows, away = rows.where(np.isfinite(rows["round"])), away[np.isfinite(rows["round"])]
        server = rows.where((rows["side"] == "server") & ~away).sorted_by("t_ns")
        clients = rows.where((rows["side"] == "client") & away)
        if not len(server) or not len(clients):
            continue
        begun_ns = _begun_after(server, clients["round"])
        for process, low, high in zip(
            clients["process"].tolist(), begun_ns - clients["t_ns"], now_ns - clients["t_ns"], strict=True
        ):
            site = _site(process)
            least[site] = max(least.get(site, -np.inf), float(low))
            most[site] = min(most.get(site, np.inf), float(high))
    return {
        site: min(low + _BEAT_NS, max(low, most[site]))
        for site, low in least.items()
        if low > _BEHIND_NS or most[site] < -_AHEAD_NS
    }


def _begun_after(server: Frame, rounds: Array) -> Array:
    """For each round of a client a time at which its server had not begun that round yet."""
    times = server["t_ns"]
    places = np.searchsorted(np.maximum.accumulate(server["round"]), rounds, "left")
    return np.where(places > 0, times[np.maximum(places - 1, 0)], times[0] - _BEAT_NS)


def shifted(frame: Frame, shifts: Mapping[str, float]) -> Frame:
    """The rows with the times of these sites moved."""
    if not shifts or not len(frame) or "t_ns" not in frame:
        return frame
    by = np.array([shifts.get(_site(one), 0.0) for one in frame["process"].tolist()])
    return Frame({name: frame[name] + by if name == "t_ns" else frame[name] for name in frame.names})


def clock_words(shifts: Mapping[str, float], process: str) -> str:
    """How far the clock of a process's site is off; "" if it is not."""
    shift_s = shifts.get(_site(process), 0.0) * 1e-9
    return f"; its clock is about {abs(shift_s):,.0f} s {'behind' if shift_s > 0 else 'ahead'}" if shift_s else ""


def _site(process: object) -> str:
    """The name of the site, "" for a process of the server's own machine."""
    name, at, _ = str(process).partition(REMOTE)
    return name if at else ""
