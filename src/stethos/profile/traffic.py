"""Bytes between server and clients, how fast they went, and who was there to send them."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from stethos.profile.column import records

if TYPE_CHECKING:
    from stethos.store.run import Run

_TURNS = """\
       count(*) AS turns, count(DISTINCT client) AS clients, count(DISTINCT round) AS rounds,
       count(*) FILTER (status = 'ok') AS ok, count(*) FILTER (status = 'failed') AS failed,
       count(*) FILTER (status = 'dropped') AS dropped, count(*) FILTER (status = 'timeout') AS timed_out,
       sum(sent_bytes)::BIGINT AS sent_bytes, sum(received_bytes)::BIGINT AS received_bytes,
       sum(raw_bytes)::BIGINT AS raw_bytes, median(raw_bytes) AS update_bytes,
       sum(raw_bytes) FILTER (sent_bytes > 0)
           / nullif(sum(sent_bytes) FILTER (raw_bytes IS NOT NULL), 0) AS compression,
       median(sent_bytes * 1e3 / upload_ms) FILTER (upload_ms > 0) AS up_bytes_per_s,
       median(received_bytes * 1e3 / download_ms) FILTER (download_ms > 0) AS down_bytes_per_s"""
TRAFFIC_SQL = f"SELECT federation,\n{_TURNS}\nFROM client_rounds GROUP BY federation ORDER BY federation"
CLIENT_SQL = f"""\
SELECT federation, client,
{_TURNS},
       median(duration_ms) FILTER (duration_ms >= 0) AS duration_ms,
       median(download_ms) FILTER (download_ms >= 0) AS download_ms,
       median(compute_ms) FILTER (compute_ms >= 0) AS compute_ms,
       median(upload_ms) FILTER (upload_ms >= 0) AS upload_ms,
       median(wait_ms) FILTER (wait_ms >= 0) AS wait_ms, max(peak_bytes) AS peak_bytes, median(samples) AS samples
FROM client_rounds GROUP BY federation, client"""
# All updates have the same layers, so those of one round stand for all: a long run is not read as a whole.
LAYER_SQL = """\
SELECT federation, layer, any_value(kind) AS kind, max(size)::BIGINT AS size, count(*) AS updates,
       avg(norm) AS norm, avg(zero_share) AS zero_share
FROM updates
WHERE round = {round} AND client IS NOT NULL AND layer IS NOT NULL
GROUP BY federation, layer ORDER BY size DESC, layer"""
OWN_LAYER_SQL = """\
SELECT NULL AS federation, layer, 'weight' AS kind, arg_max(size, t_ns)::BIGINT AS size, arg_max(norm, t_ns) AS norm,
       arg_max(zero_share, t_ns) AS zero_share
FROM layers WHERE kind = 'weight' GROUP BY layer ORDER BY size DESC, layer"""
_LAST_SQL = "SELECT DISTINCT max(round) AS round FROM client_rounds WHERE status = 'ok' GROUP BY federation"
_ASKED_SQL = """SELECT federation, sum(selected)::BIGINT AS asked, sum(reported)::BIGINT AS answered
FROM rounds GROUP BY federation"""


@dataclass(frozen=True, slots=True)
class Traffic:
    """One federation's traffic and attendance; None where it was not recorded.

    `compression` is raw bytes per byte sent. `asked` and `answered` are over all rounds.
    """

    federation: str | None
    turns: int
    clients: int
    rounds: int
    ok: int
    failed: int
    dropped: int
    timed_out: int
    sent_bytes: int | None
    received_bytes: int | None
    raw_bytes: int | None
    update_bytes: float | None
    compression: float | None
    up_bytes_per_s: float | None
    down_bytes_per_s: float | None
    asked: int | None = None
    answered: int | None = None

    @property
    def availability(self) -> float | None:
        """Of the clients asked in all rounds, the share that answered."""
        if self.asked:
            return min(1.0, (self.answered or 0) / self.asked)
        return self.ok / self.turns if self.turns else None

    def per_round(self, count: float | None) -> float | None:
        return None if count is None or not self.rounds else count / self.rounds

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {**asdict(self), "availability": self.availability}


def read_traffic(run: Run) -> list[Traffic]:
    """The traffic of every federation of a run."""
    asked = {row["federation"]: row for row in records(run, _ASKED_SQL)}
    found = []
    for row in records(run, TRAFFIC_SQL):
        counts = asked.get(row["federation"], {})
        found.append(Traffic(**row, asked=counts.get("asked"), answered=counts.get("answered")))
    return found


@dataclass(frozen=True, slots=True)
class LayerSize:
    """One layer of the updates or of the model, with what compression would do to it, where that was measured."""

    federation: str | None
    layer: str
    kind: str
    size: int
    share: float
    norm: float | None
    zero_share: float | None


def read_layer_sizes(run: Run) -> list[LayerSize]:
    """The layers of the updates of each federation's last round, the largest first."""
    return _sizes(_updated(run))


def read_own_layers(run: Run) -> list[LayerSize]:
    """The layers that a training without a federation has sampled, as they were last, the largest first."""
    return _sizes(records(run, OWN_LAYER_SQL))


def _updated(run: Run) -> list[dict[str, Any]]:
    found: dict[tuple[Any, str], dict[str, Any]] = {}
    for last in records(run, _LAST_SQL):
        for row in records(run, LAYER_SQL.format(round=int(last["round"]))):
            found.setdefault((row["federation"], row["layer"]), row)
    return sorted(found.values(), key=lambda row: -(row["size"] or 0))


def _sizes(rows: list[dict[str, Any]]) -> list[LayerSize]:
    totals: dict[Any, int] = {}
    for row in rows:
        totals[row["federation"]] = totals.get(row["federation"], 0) + (row["size"] or 0)
    return [
        LayerSize(
            row["federation"], row["layer"], row["kind"], row["size"] or 0,
            (row["size"] or 0) / max(1, totals[row["federation"]]), row["norm"], row["zero_share"],
        )
        for row in rows
    ]  # fmt: skip
