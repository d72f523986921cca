"""Runs side by side, as `stethos compare` judges them: what each was started with, and what came of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from stethos.errors import UsageError

if TYPE_CHECKING:
    from stethos.store.run import Run

MOST_RUNS = 8


def check_compared(names: Sequence[str]) -> Sequence[str]:
    """The names, if so many runs can be compared; else UsageError."""
    if not 2 <= len(set(names)) == len(names) <= MOST_RUNS:
        raise UsageError(
            f"{len(names)} runs cannot be compared", hint=f"name two to {MOST_RUNS} different ones: ?run=A&run=B"
        )
    return names


def compare_runs(runs: Sequence[Run]) -> dict[str, Any]:
    """Every further run against the first, and the settings of all."""
    from stethos.profile.comparison import compare
    from stethos.profile.measure import read_measures
    from stethos.profile.setting import differences_of

    measured = [read_measures(run) for run in runs]
    settings = [one.settings for one in measured]
    differing = {one.name for one in differences_of(settings)}
    every = dict.fromkeys(name for one in settings for name in one)
    return {
        "runs": [run.path.name for run in runs],
        "pairs": [{**pair.as_dict(), "cause": pair.cause} for pair in compare(measured)],
        "settings": [
            {"name": name, "values": [one.get(name) for one in settings], "differs": name in differing}
            for name in sorted(every, key=lambda name: name not in differing)
        ],
    }
