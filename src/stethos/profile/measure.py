"""What runs are compared by: series and numbers of one run."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from stethos.profile.column import Array, Columns, durations_in, numbers_in, records, select
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
# What other programs took from the machine, second by second; the first sample of a process knows no share yet.
_OTHERS_SQL = """\
WITH at_once AS (
    SELECT host.t_ns // 1000000000, processes.host, sum(cpu_share) AS own, any_value(machine_cpu_share) AS used,
           any_value(machine_cores) AS cores
    FROM host JOIN processes USING (process) GROUP BY ALL)
SELECT median(greatest(0, used - own / cores)) AS others_share FROM at_once WHERE own > 0 AND cores > 0"""
_FINDINGS_SQL = "SELECT code, name, title FROM findings WHERE cause IS NULL AND state = 'open' AND severity <> 'info'"


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
    findings: tuple[str, ...]
    bottlenecks: tuple[str, ...] = field(default=())
    others_share: float = 0.0  # of the machine, kept busy by other programs

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
    findings = tuple(f"{row['name']}: {row['title']}" for row in records(run, _FINDINGS_SQL))
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
        findings,
        _bottlenecks(run),
        float(records(run, _OTHERS_SQL)[0]["others_share"] or 0.0),
    )


def _matched(at: Array, columns: Columns, name: str) -> Array:
    """A column of another table, by round."""
    known = dict(zip(numbers_in(columns, "round").tolist(), numbers_in(columns, name).tolist(), strict=True))
    return np.array([known.get(number, math.nan) for number in at.tolist()])


def _bottlenecks(run: Run) -> tuple[str, ...]:
    from stethos.profile.report import find_bottlenecks

    return tuple(one.verdict for one in find_bottlenecks(run) if not one.is_hint)
