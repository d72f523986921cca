"""What runs are compared by: series and numbers of one run."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from stethos.profile.column import Array, Columns, durations_in, numbers_in, records, select
from stethos.profile.memory_use import read_others_share
from stethos.profile.setting import read_settings

if TYPE_CHECKING:
    from stethos.store.run import Run

BINS = 200
_ROUND_SQL = """\
SELECT round, any_value(loss) AS loss, any_value(accuracy) AS accuracy, any_value(duration_ms) AS duration_ms
FROM rounds GROUP BY federation, round ORDER BY round"""
_BYTES_SQL = """\
SELECT round, coalesce(sum(sent_bytes), sum(raw_bytes))::DOUBLE AS sent_bytes,
       sum(loss * samples) / nullif(sum(samples) FILTER (loss IS NOT NULL), 0) AS client_loss
FROM client_rounds GROUP BY round ORDER BY round"""
# Steps in stretches of equal length over the whole training, so that runs of any length are read in one pass.
_STEP_SQL = """\
WITH span AS (SELECT greatest(1, ceil((max(local) + 1) / {bins}::DOUBLE)) AS width FROM ({local})),
binned AS (SELECT floor(local / width)::BIGINT AS bin, loss, step_ms, width FROM ({local}), span)
SELECT bin * any_value(width) AS step, avg(loss) FILTER (isfinite(loss)) AS loss,
       median(step_ms) FILTER (step_ms >= 0) AS step_ms
FROM binned GROUP BY bin ORDER BY bin"""
_LOCAL = "SELECT step AS local, loss, step_ms FROM steps"
_MEMORY_SQL = """\
SELECT (SELECT max(rss_bytes) FROM host) AS rss_bytes, (SELECT max(peak_bytes) FROM steps) AS peak_bytes,
       (SELECT max(peak_bytes) FROM client_rounds) AS client_bytes"""
# Whether the last losses there are, of rounds, of clients or of steps, are no numbers.
_LOST_SQL = """\
SELECT coalesce(
    (SELECT NOT isfinite(arg_max(loss, round)) FROM rounds WHERE loss IS NOT NULL),
    (SELECT NOT bool_or(isfinite(loss)) FROM client_rounds
     WHERE loss IS NOT NULL AND round = (SELECT max(round) FROM client_rounds WHERE loss IS NOT NULL)),
    (SELECT NOT bool_or(isfinite(loss))
     FROM (SELECT loss FROM steps WHERE loss IS NOT NULL ORDER BY step DESC LIMIT 20))) AS is_lost"""
_FINDINGS_SQL = """\
SELECT name, title, clients, ranks, layers FROM findings
WHERE cause IS NULL AND state = 'open' AND severity <> 'info'"""
# What a bottleneck says with its what-if, a finding of these names would say again.
_SAID_BY = {
    "slow-link": {"straggler"}, "slow-client": {"straggler"}, "more-data": {"straggler"},
    "missing-clients": {"client-timeout"}, "input-bound": {"data-loader-stall"}, "slow-rank": {"rank-straggler"},
    "leak": {"memory-growth"},
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Trouble:
    """A finding or a bottleneck; equal to its like in another run, however strong it is there."""

    key: str
    text: str = field(compare=False)


@dataclass(frozen=True)
class Measures:
    """One run: `at` are the rounds, or steps, of the series; what was not recorded is NaN."""

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
    troubles: tuple[Trouble, ...] = ()
    others_share: float = 0.0  # of the machine, kept busy by other programs
    is_lost: bool = False  # the last losses are not finite

    @property
    def has_virtual_rounds(self) -> bool:
        """Whether its rounds took the time of the lab's clock, and not the machine's."""
        return "timing.sample_ms" in self.settings

    @property
    def has_anything(self) -> bool:
        return len(self.at) > 0


def read_measures(run: Run) -> Measures:
    """Read what a run is compared by."""
    rounds, steps = select(run, _ROUND_SQL), select(run, _STEP_SQL.format(bins=BINS, local=_LOCAL))
    traffic = select(run, _BYTES_SQL)
    is_federated = len(rounds) > 0
    source: Columns = rounds if is_federated else steps
    at = numbers_in(source, "round" if is_federated else "step")
    loss = numbers_in(source, "loss")
    if is_federated and np.isnan(loss).all():
        loss = _matched(at, traffic, "client_loss")
    memory = records(run, _MEMORY_SQL)[0]
    return Measures(
        run.name,
        read_settings(run),
        "round" if is_federated else "step",
        at,
        loss,
        numbers_in(source, "accuracy"),
        durations_in(rounds, "duration_ms"),
        durations_in(steps, "step_ms"),
        _matched(at, traffic, "sent_bytes") if is_federated else np.array([]),
        {
            "tensors, peak": memory["peak_bytes"],
            "process, peak": memory["rss_bytes"],
            "client, peak": memory["client_bytes"],
        },
        _troubles(run),
        read_others_share(run) or 0.0,
        bool(records(run, _LOST_SQL)[0]["is_lost"]),
    )


def _matched(at: Array, columns: Columns, name: str) -> Array:
    """A column of another table, by round."""
    known = dict(zip(numbers_in(columns, "round").tolist(), numbers_in(columns, name).tolist(), strict=True))
    return np.array([known.get(number, math.nan) for number in at.tolist()])


def _troubles(run: Run) -> tuple[Trouble, ...]:
    from stethos.profile.report import find_bottlenecks

    slow = [one for one in find_bottlenecks(run) if not one.is_hint]
    said = set().union(*(_SAID_BY.get(one.kind, set()) for one in slow))
    rows = [row for row in records(run, _FINDINGS_SQL) if row["name"] not in said]
    return (
        *(Trouble(f"{row['name']} {row['clients']} {row['ranks']} {row['layers']}", f"{row['name']}: {row['title']}")
          for row in rows),
        *(Trouble(f"{one.kind} {one.clients} {one.ranks} {one.layers}", one.verdict) for one in slow),
    )  # fmt: skip
