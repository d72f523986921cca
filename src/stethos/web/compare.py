"""Runs side by side, as `stethos compare` judges them: what each was started with, and what came of it."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from stethos.errors import UsageError

if TYPE_CHECKING:
    from stethos.profile.measure import Measures
    from stethos.web.run_cache import RunCache

MOST_RUNS = 8


class Comparer:
    """Compares runs of one directory; what was read of a run is kept until the run changes. Thread-safe."""

    def __init__(self, cache: RunCache) -> None:
        self._cache = cache
        self._lock = threading.Lock()
        self._known: dict[str, tuple[str, Measures]] = {}

    def compare(self, names: Sequence[str]) -> dict[str, Any]:
        """Every further run against the first, and the settings of all; UsageError if there are not two or too many."""
        from stethos.profile.comparison import compare
        from stethos.profile.setting import differences_of

        if not 2 <= len(set(names)) == len(names) <= MOST_RUNS:
            raise UsageError(
                f"{len(names)} runs cannot be compared", hint=f"name two to {MOST_RUNS} different ones: ?run=A&run=B"
            )
        measured = [self._measures(name) for name in names]
        settings = [one.settings for one in measured]
        differing = {one.name for one in differences_of(settings)}
        every = dict.fromkeys(name for one in settings for name in one)
        return {
            "runs": list(names),
            "pairs": [{**pair.as_dict(), "cause": pair.cause} for pair in compare(measured)],
            "settings": [
                {"name": name, "values": [one.get(name) for one in settings], "differs": name in differing}
                for name in sorted(every, key=lambda name: name not in differing)
            ],
        }

    def _measures(self, name: str) -> Measures:
        from stethos.profile.measure import read_measures

        version = self._cache.version(name)
        with self._lock:
            known = self._known.get(name)
        if known is not None and known[0] == version:
            return known[1]
        opened = self._cache.opened(name)
        with opened.lock:
            found = read_measures(opened.run())
        with self._lock:
            self._known[name] = (version, found)
            while len(self._known) > 4 * MOST_RUNS:
                self._known.pop(next(iter(self._known)))
        return found
