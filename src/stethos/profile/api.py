"""`stethos.profile` and `stethos.compare`: where a run's time and memory go, and how runs differ."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from stethos.errors import UsageError
from stethos.profile.comparison import PairList
from stethos.profile.comparison import compare as compare_measures
from stethos.profile.measure import Measures, read_measures
from stethos.profile.report import Profile, profile_of

if TYPE_CHECKING:
    from stethos.store.run import Run


def profile(run: Run | str | Path | None = None) -> Profile:
    """Where a run's time, memory and bytes go; `run` as for `open_run`."""
    from stethos.store.run import Run, open_run

    if isinstance(run, Run):
        return profile_of(run)
    with open_run(run) as opened:
        return profile_of(opened)


def compare(*runs: Run | str | Path) -> PairList:
    """Every further run against the first, with intervals and the setting that differs; each run as for `open_run`."""
    if len(runs) < 2:
        raise UsageError("one run alone cannot be compared", hint='stethos.compare("base", "new")')
    return PairList(compare_measures([_measures(run) for run in runs]))


def _measures(run: Run | str | Path) -> Measures:
    from stethos.store.run import Run, open_run

    if isinstance(run, Run):
        return read_measures(run)
    with open_run(run) as opened:
        return read_measures(opened)
