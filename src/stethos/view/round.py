"""Rounds of a federation: what came out, who failed, and the one client that each round waited for."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from stethos.store.order import natural_key
from stethos.view.client import FEDERATION
from stethos.view.plain import printable
from stethos.view.query import Parameter, Query
from stethos.view.series import BY_ROUND, span_of

if TYPE_CHECKING:
    from stethos.store.rows import Record
    from stethos.store.run import Run

ROUND = Parameter(
    "round", "Round", "number",
    values="SELECT DISTINCT round FROM rounds WHERE round IS NOT NULL ORDER BY round DESC LIMIT 2000",
)  # fmt: skip
# The turn on the critical path of each round: the update that came last, told from how long the others waited for it.
# Where clients take turns nobody waits; there it is the longest turn.
CRITICAL = """\
SELECT DISTINCT ON (federation, round) *
FROM client_rounds WHERE client IS NOT NULL AND coalesce(status, 'ok') = 'ok'
ORDER BY federation, round, wait_ms NULLS LAST, duration_ms DESC NULLS LAST, client"""

# `turns` are what became of the clients, `broken` whose updates held NaN or infinite elements.
ROUNDS = Query(
    f"""\
WITH turns AS (
    SELECT federation, round,
           count(DISTINCT client) AS clients,
           count(DISTINCT client) FILTER (status = 'ok') AS ok,
           coalesce(sum(loss * samples) / nullif(sum(samples) FILTER (loss IS NOT NULL), 0), avg(loss)) AS client_loss,
           list({{'client': client, 'status': status, 'error': error}} ORDER BY client)
               FILTER (status <> 'ok') AS failures
    FROM client_rounds WHERE $only_federation GROUP BY federation, round
), critical AS (
    {CRITICAL}
), broken AS (
    SELECT federation, round, list(DISTINCT client ORDER BY client) AS nan_clients
    FROM updates
    WHERE $only_federation AND client IS NOT NULL AND (layer IS NULL OR kind = 'buffer') AND nan + inf > 0
    GROUP BY federation, round
)
SELECT done.federation, done.round, CASE WHEN is_last THEN 'ended' ELSE 'repeated' END AS state,
       done.t_ns, done.duration_ms, done.wait_ms, coalesce(selected, clients) AS selected,
       coalesce(ok, reported) AS ok, failed, done.loss, done.accuracy, client_loss, drift, global_nan, global_inf,
       critical.client AS critical, critical.duration_ms AS critical_ms, clients AS heard, failures, nan_clients
FROM (SELECT *, row_number() OVER (PARTITION BY federation, round ORDER BY t_ns DESC) = 1 AS is_last
      FROM rounds WHERE $only_federation) AS done
LEFT JOIN turns ON is_last AND done.federation = turns.federation AND done.round = turns.round
LEFT JOIN critical ON is_last AND done.federation = critical.federation AND done.round = critical.round
LEFT JOIN broken ON is_last AND done.federation = broken.federation AND done.round = broken.round
ORDER BY done.federation, done.round, done.t_ns""",
    (FEDERATION,),
)

# Clients of which something was heard in rounds that have not ended. A turn's span is written when it is over. A
# client is at work for the federation that it was in before, or the newest where that does not tell.
OPEN_ROUNDS = Query(
    r"""WITH ended AS (
    SELECT federation, arg_max(round, t_ns) AS round, max(t_ns) AS t_ns FROM rounds GROUP BY federation),
homes AS (SELECT client, any_value(federation) AS federation FROM client_rounds GROUP BY client
          HAVING count(DISTINCT federation) = 1)
SELECT heard.federation, heard.round, client, min(began_ns) AS began_ns, max(last_ns) AS last_ns, max(status) AS status
FROM (SELECT told.*, coalesce(homes.federation, (SELECT arg_max(federation, t_ns) FROM ended)) AS federation FROM (
    SELECT round, client, min(t_ns) AS began_ns, max(t_ns) AS last_ns, NULL AS status FROM steps GROUP BY round, client
    UNION ALL
    SELECT round, client, min(t_ns), max(t_ns), NULL FROM logs GROUP BY round, client
    UNION ALL
    SELECT round, client, t_ns, t_ns + TRY_CAST(duration_ms * 1e6 AS BIGINT),
           CASE WHEN name = 'client' THEN regexp_extract(fields, '"status": "(\w+)"', 1) END
    FROM spans
    UNION ALL
    SELECT round, client, t_ns, t_ns, status FROM client_reports
) AS told LEFT JOIN homes USING (client)) AS heard
LEFT JOIN ended ON heard.federation IS NOT DISTINCT FROM ended.federation
WHERE heard.round > coalesce(ended.round, -1) AND last_ns > coalesce(ended.t_ns, 0)
GROUP BY heard.federation, heard.round, client ORDER BY heard.federation, heard.round, client"""
)
LAST_CLIENTS = Query("""\
SELECT DISTINCT federation, client FROM client_rounds
SEMI JOIN (SELECT federation, arg_max(round, t_ns) AS round FROM rounds GROUP BY 1) USING (federation, round)""")


@dataclass(frozen=True, slots=True)
class RoundView:
    """A round of a federation; None is what was not measured.

    `state` is ended, repeated (by another server, later), running or unfinished. `critical` is the client whose
    update came last, `critical_ms` the duration of its turn. A round without an end has those who are `at_work`,
    and those of the round before that were `not_heard_of`.
    """

    federation: str | None
    round: int
    state: str
    t_ns: int
    duration_ms: float | None
    selected: int | None
    ok: int | None
    failed: int | None
    wait_ms: float | None = None
    loss: float | None = None
    accuracy: float | None = None
    client_loss: float | None = None
    drift: float | None = None
    global_nan: int | None = None
    global_inf: int | None = None
    critical: str | None = None
    critical_ms: float | None = None
    heard: int | None = None
    failures: Sequence[dict[str, Any]] | None = None
    nan_clients: Sequence[str] | None = None
    at_work: Sequence[str] | None = None
    not_heard_of: Sequence[str] | None = None


def rounds_of(run: Run, federation: str | None = None) -> list[RoundView]:
    """The rounds of a run, or of one federation: ended ones first, then those without an end."""
    ended = [RoundView(**row) for row in ROUNDS.records(run, federation=federation)]
    return ended + [one for one in _open_rounds(run) if federation in (None, one.federation)]


def _open_rounds(run: Run) -> list[RoundView]:
    heard: dict[tuple[str | None, int], list[Record]] = {}  # a federation's name comes with its first row
    for row in OPEN_ROUNDS.records(run):
        heard.setdefault((row["federation"], row["round"]), []).append(row)
    if not heard:
        return []
    before: dict[str | None, set[str]] = {}
    for federation, client in LAST_CLIENTS.ask(run).values:
        before.setdefault(federation, set()).add(str(client))
    is_live = run.is_live
    return [
        _open_round(federation, number, rows, before.get(federation, set()), is_live)
        for (federation, number), rows in heard.items()
    ]


def _open_round(
    federation: str | None, number: int, heard: Sequence[Record], before: set[str], is_live: bool
) -> RoundView:
    clients = [row for row in heard if row["client"] is not None]
    done = [row for row in clients if row["status"]]
    began_ns = min(row["began_ns"] for row in heard)
    until_ns = time.time_ns() if is_live else max(row["last_ns"] for row in heard)
    seen = {row["client"] for row in clients}
    failures = [
        {"client": row["client"], "status": row["status"], "error": None} for row in done if row["status"] != "ok"
    ]
    return RoundView(
        federation, number, "running" if is_live else "unfinished", began_ns, (until_ns - began_ns) / 1e6,
        selected=len(seen | before), ok=len(done) - len(failures), failed=len(failures), failures=failures or None,
        at_work=in_order(row["client"] for row in clients if not row["status"]), not_heard_of=in_order(before - seen),
    )  # fmt: skip


def in_order(names: Iterable[str]) -> list[str]:
    return sorted(names, key=lambda name: natural_key(printable(name)))


# One round across its clients --------------------------------------------------------------------------

# Where clients work side by side, durations alone place them: all end as long before the last one as they waited for
# it. Clocks of different machines, or of a simulation, are not compared.
TURNS = Query(
    f"""\
WITH one AS (
    SELECT federation, round, t_ns, duration_ms FROM rounds
    WHERE $only_federation AND $only_round ORDER BY t_ns DESC LIMIT 1
), critical AS (
    {CRITICAL}
), turns AS (
    SELECT turns.*, one.duration_ms AS round_ms, (turns.t_ns - one.t_ns) / 1e6 AS began_ms,
           coalesce(turns.client = critical.client AND turns.turn IS NOT DISTINCT FROM critical.turn, false)
               AS is_critical,
           greatest(turns.duration_ms, coalesce(turns.download_ms, 0) + coalesce(turns.compute_ms, 0)
                    + coalesce(turns.upload_ms, 0)) AS length_ms
    FROM client_rounds AS turns
    JOIN one ON turns.round = one.round AND turns.federation IS NOT DISTINCT FROM one.federation
    LEFT JOIN critical ON critical.round = one.round AND critical.federation IS NOT DISTINCT FROM one.federation
    WHERE turns.client IS NOT NULL
), placed AS (
    SELECT *, max(length_ms + wait_ms) OVER () AS last_ms,
           greatest(0, CASE WHEN wait_ms IS NOT NULL THEN last_ms - wait_ms - length_ms
                            WHEN last_ms IS NOT NULL THEN 0
                            ELSE least(began_ms, coalesce(round_ms, began_ms + length_ms) - length_ms) END) AS start_ms
    FROM turns
)
SELECT federation, client, round, start_ms, download_ms, compute_ms, upload_ms, duration_ms, wait_ms, status,
       is_critical
FROM placed ORDER BY is_critical DESC, start_ms + length_ms DESC NULLS LAST, client LIMIT 200""",
    (FEDERATION, ROUND),
)


@dataclass(frozen=True, slots=True)
class TurnView:
    """A client's turn in a round, from `start_ms` after the round's begin; None is what was not measured."""

    federation: str | None
    client: str
    round: int
    start_ms: float | None
    download_ms: float | None
    compute_ms: float | None
    upload_ms: float | None
    duration_ms: float | None
    wait_ms: float | None
    status: str | None
    is_critical: bool

    @property
    def phases_ms(self) -> dict[str, float]:
        """What is known about its parts, in their order."""
        every = {"download": self.download_ms, "compute": self.compute_ms, "upload": self.upload_ms}
        return {name: value for name, value in every.items() if value is not None}

    @property
    def length_ms(self) -> float:
        """As long as measured, or as its parts together: transfers that only the server saw come on top."""
        return max(self.duration_ms or 0.0, sum(self.phases_ms.values()))


def turns_of(run: Run, federation: str | None = None, round: int | None = None) -> list[TurnView]:
    """The turns of one round (default: the last one), the one on the critical path first."""
    return [TurnView(**row) for row in TURNS.records(run, federation=federation, round=round)]


# Many rounds -------------------------------------------------------------------------------------------

CRITICAL_CLIENTS = Query(
    f"WITH last AS (\n{CRITICAL})\n"
    "SELECT client, count(*) AS rounds FROM last GROUP BY client ORDER BY rounds DESC, client LIMIT 20"
)
ROUND_TIME = Query(
    f"WITH {span_of('round', 300, 'rounds')},\n"
    f"slowest AS (\n{CRITICAL})\n"
    f"SELECT {BY_ROUND.replace('round -', 'rounds.round -')},\n"
    "       avg(coalesce(slowest.download_ms, rounds.download_ms)) AS download_ms,\n"
    "       avg(coalesce(slowest.compute_ms, rounds.compute_ms)) AS compute_ms,\n"
    "       avg(coalesce(slowest.upload_ms, rounds.upload_ms)) AS upload_ms,\n"
    "       avg(aggregate_ms) AS aggregate_ms, avg(evaluate_ms) AS evaluate_ms, avg(observe_ms) AS observe_ms\n"
    "FROM rounds CROSS JOIN span LEFT JOIN slowest\n"
    "ON rounds.round = slowest.round AND rounds.federation IS NOT DISTINCT FROM slowest.federation\n"
    "GROUP BY 1 ORDER BY 1"
)
_SPAN = f"WITH {span_of('round', 600, 'rounds')}\n"
ROUND_CLIENTS = Query(
    f"{_SPAN}SELECT {BY_ROUND}, avg(reported) AS reported, avg(failed) AS failed\n"
    "FROM rounds, span WHERE coalesce(reported, failed) IS NOT NULL GROUP BY 1 ORDER BY 1"
)
GLOBAL_DRIFT = Query(
    f"{_SPAN}SELECT {BY_ROUND},\n"
    "       if(max(global_nan + global_inf) > 0, 'nan'::DOUBLE, avg(drift)) AS in_round,\n"
    "       if(max(global_nan + global_inf) > 0, 'nan'::DOUBLE, avg(start_drift)) AS since_start\n"
    "FROM rounds, span WHERE drift IS NOT NULL GROUP BY 1 ORDER BY 1"
)
ROUND_BYTES = Query(
    f"WITH {span_of('round', 300, 'client_reports')},\n"
    "totals AS (SELECT round, sum(sent_bytes) AS sent, sum(received_bytes) AS received\n"
    "           FROM client_rounds WHERE sent_bytes IS NOT NULL OR received_bytes IS NOT NULL GROUP BY round)\n"
    f"SELECT {BY_ROUND}, avg(sent) AS sent_bytes,\n"
    "       avg(received) AS received_bytes\n"
    "FROM totals, span GROUP BY 1 ORDER BY 1"
)


def by_round(value: str) -> Query:
    """A column of `rounds` over the rounds, one line per federation."""
    return Query(
        f"{_SPAN}SELECT {BY_ROUND}, federation, avg({value}) AS {value}\n"
        f"FROM rounds, span WHERE {value} IS NOT NULL GROUP BY 1, 2 ORDER BY 2, 1"
    )
