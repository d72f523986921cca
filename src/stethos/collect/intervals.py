"""Sets of numbers as runs of them: which batches of a lane are stored takes one pair, unless some are missing."""

from __future__ import annotations

from bisect import bisect_right
from typing import Any

MOST_RUNS = 4096


class Intervals:
    """Numbers that were added; `runs` are pairs of first and last, in order."""

    __slots__ = ("runs",)

    def __init__(self, runs: Any = ()) -> None:
        self.runs: list[list[int]] = []
        for run in runs if isinstance(runs, list | tuple) else ():
            if isinstance(run, list | tuple) and len(run) == 2 and all(type(one) is int for one in run):
                self.runs.append([run[0], run[1]])
        self.runs.sort()

    def __contains__(self, number: int) -> bool:
        place = bisect_right(self.runs, number, key=lambda run: run[0]) - 1
        return place >= 0 and number <= self.runs[place][1]

    def add(self, number: int) -> None:
        """Add a number; ValueError if that would leave too many gaps."""
        if number in self:
            return
        place = bisect_right(self.runs, number, key=lambda run: run[0])
        touches_before = place > 0 and self.runs[place - 1][1] == number - 1
        touches_after = place < len(self.runs) and self.runs[place][0] == number + 1
        if touches_before and touches_after:
            self.runs[place - 1][1] = self.runs.pop(place)[1]
        elif touches_before:
            self.runs[place - 1][1] = number
        elif touches_after:
            self.runs[place][0] = number
        elif len(self.runs) >= MOST_RUNS:
            raise ValueError("too many gaps")
        else:
            self.runs.insert(place, [number, number])

    def discard(self, number: int) -> None:
        """Take a number out again."""
        place = bisect_right(self.runs, number, key=lambda run: run[0]) - 1
        if place < 0 or number > self.runs[place][1]:
            return
        first, last = self.runs.pop(place)
        parts = [[first, number - 1], [number + 1, last]]
        self.runs[place:place] = [part for part in parts if part[0] <= part[1]]
