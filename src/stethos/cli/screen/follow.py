"""Follows a growing run: looks again as rows arrive, says what opens and what is over."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from stethos.cli.screen.verdict import Line, event_line
from stethos.diagnose.api import look
from stethos.diagnose.detector import Detector
from stethos.diagnose.diagnosis import Diagnosis
from stethos.diagnose.finding import Finding

if TYPE_CHECKING:
    from stethos.store.run import Run

EVERY_S = 2.0
_PATIENCE = 4  # so many times as long as a look takes is waited before the next one
Key = tuple[object, ...]


class Follower:
    """What is known so far of a run that goes on."""

    def __init__(self, run: Run, detectors: Sequence[Detector], say: Callable[[Line], None]) -> None:
        self._run = run
        self._detectors = detectors
        self._say = say
        self._known: dict[Key, Finding] = {}
        self._seen: object = None
        self.diagnosis = Diagnosis()

    def look(self) -> bool:
        """Examine the run if it has grown, and say what is new; return whether it was examined."""
        seen = _size(self._run)
        if seen == self._seen:
            return False
        self._seen = seen
        self.diagnosis = look(self._run, self._detectors)
        self._tell({one.key: one for one in self.diagnosis.findings})
        return True

    def _tell(self, found: dict[Key, Finding]) -> None:
        clock = time.strftime("%H:%M:%S")
        for key, one in found.items():
            old = self._known.get(key)
            if old is None:
                self._say(event_line("opened" if one.is_open else "over", one, clock))
            elif old.is_open and not one.is_open:
                self._say(event_line("over", one, clock))
            elif old.severity != one.severity or (one.is_open and not old.is_open):
                self._say(event_line("changed", one, clock))
        checked = set(self.diagnosis.checked)
        effects = {effect.key for one in found.values() for effect in one.consequences}
        for key, old in self._known.items():
            if key not in found and key not in effects and old.is_open and old.code in checked:
                self._say(event_line("over", old, clock))
        self._known = found


def follow(
    run: Run,
    follower: Follower,
    keep: Callable[[Diagnosis], None],
    *,
    sleep: Callable[[float], None] = time.sleep,
    every_s: float = EVERY_S,
) -> Diagnosis:
    """Look until the run ends or Ctrl-C is pressed; the last diagnosis."""
    try:
        while True:
            is_live = run.is_live
            began = time.monotonic()
            if follower.look():
                keep(follower.diagnosis)
            if not is_live:
                break
            wait_s = max(every_s, _PATIENCE * (time.monotonic() - began))
            while wait_s > 0 and run.is_live:
                sleep(min(every_s, wait_s))
                wait_s -= every_s
    except KeyboardInterrupt:
        pass
    return follower.diagnosis


def _size(run: Run) -> list[tuple[Any, ...]]:
    return [(row["process"], row["state"], row["rows_stored"], row["rows_lost"]) for row in run.processes()]
