"""What runs are compared by: series and numbers of one run."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from stethos.profile.column import durations_in, records
from stethos.profile.memory_use import read_others_share
from stethos.profile.part import BINS, TrainingSeries, federations_of, trainings_of
from stethos.profile.setting import read_settings
from stethos.store.frame import Array, select

if TYPE_CHECKING:
    from stethos.store.run import Run

_STEP_TIME_SQL = """\
WITH span AS (SELECT greatest(1, ceil((max(step) + 1) / {bins}::DOUBLE)) AS width FROM steps)
SELECT median(step_ms) FILTER (step_ms >= 0) AS step_ms
FROM (SELECT floor(step / width)::BIGINT AS bin, step_ms FROM steps, span) GROUP BY bin ORDER BY bin"""
_MEMORY_SQL = """\
SELECT (SELECT max(rss_bytes) FROM host) AS rss_bytes, (SELECT max(peak_bytes) FROM steps) AS peak_bytes,
       (SELECT max(peak_bytes) FROM client_rounds) AS client_bytes"""
_FINDINGS_SQL = """\
SELECT name, title, clients, ranks, layers FROM findings
WHERE cause IS NULL AND state = 'open' AND severity <> 'info'"""
# What a bottleneck says with its what-if, a finding of these names would say again.
_SAID_BY = {
    "slow-link": {"straggler"}, "slow-client": {"straggler"}, "more-data": {"straggler"},
    "missing-clients": {"missing-update"}, "input-bound": {"data-loader-stall"}, "slow-rank": {"rank-straggler"},
    "leak": {"memory-growth"},
}  # fmt: skip


_NOTHING = TrainingSeries(np.array([]), np.array([]), np.array([]))


@dataclass(frozen=True, slots=True)
class ComparedTrouble:
    """A finding or a bottleneck; equal to its like in another run, however strong it is there."""

    key: str
    text: str = field(compare=False)


@dataclass(frozen=True)
class Measures:
    """One run: `at` are the rounds, or steps, of the series; what was not recorded is NaN.

    Of a run with several `parts` the series are those of the longest.
    """

    run: str
    settings: dict[str, object]
    unit: str
    at: Array
    loss: Array
    accuracy: Array
    round_ms: Array
    step_ms: Array
    sent_bytes: Array
    peak_bytes: dict[str, float | None]
    troubles: tuple[ComparedTrouble, ...] = ()
    others_share: float = 0.0  # of the machine, kept busy by other programs
    is_lost: bool = False  # the last losses are not finite
    parts: dict[str, TrainingSeries] = field(default_factory=dict)  # federations, or models trained at once, by name

    @property
    def has_virtual_rounds(self) -> bool:
        """Whether its rounds took the time of the lab's clock, and not the machine's."""
        return "timing.sample_ms" in self.settings

    @property
    def has_anything(self) -> bool:
        return len(self.at) > 0

    def only(self, name: str) -> Measures:
        """One of its parts alone; what belongs to the whole run is left out."""
        part = self.parts[name]
        return replace(
            self, at=part.at, loss=part.loss, accuracy=part.accuracy, round_ms=part.round_ms,
            sent_bytes=part.sent_bytes, is_lost=part.is_lost, step_ms=np.array([]), peak_bytes={}, parts={},
        )  # fmt: skip

    def without_parts(self) -> Measures:
        """What belongs to the whole run alone."""
        return replace(self, round_ms=np.array([]), sent_bytes=np.array([]), parts={})


def read_measures(run: Run) -> Measures:
    """Read what a run is compared by."""
    federations = federations_of(run)
    parts = federations or trainings_of(run)
    chief = max(parts.values(), key=lambda part: len(part.at), default=_NOTHING)
    memory = records(run, _MEMORY_SQL)[0]
    return Measures(
        run.name,
        read_settings(run),
        "round" if federations else "step",
        chief.at,
        chief.loss,
        chief.accuracy,
        chief.round_ms,
        durations_in(select(run, _STEP_TIME_SQL.format(bins=BINS)), "step_ms"),
        chief.sent_bytes,
        {
            "tensors, peak": memory["peak_bytes"],
            "process, peak": memory["rss_bytes"],
            "client, peak": memory["client_bytes"],
        },
        _troubles(run),
        read_others_share(run) or 0.0,
        any(part.is_lost for part in parts.values()),
        parts,
    )


def _troubles(run: Run) -> tuple[ComparedTrouble, ...]:
    from stethos.profile.report import find_bottlenecks

    slow = [one for one in find_bottlenecks(run) if not one.is_hint]
    said = set().union(*(_SAID_BY.get(one.kind, set()) for one in slow))
    rows = [row for row in records(run, _FINDINGS_SQL) if row["name"] not in said]
    return (
        *(ComparedTrouble(f"{row['name']} {row['clients']} {row['ranks']} {row['layers']}",
                          f"{row['name']}: {row['title']}")
          for row in rows),
        *(ComparedTrouble(f"{one.kind} {one.clients} {one.ranks} {one.layers}", one.verdict) for one in slow),
    )  # fmt: skip
