"""A client beside the others: what it did, how its updates lie to theirs, and what findings say about it.

All numbers about several rounds are medians over them, but for `loss`, which is the last one that it reported.
"""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from stethos.store.order import natural_key
from stethos.view.plain import printable
from stethos.view.query import Option, Parameter, Query, Scale
from stethos.view.series import BY_ROUND, span_of

if TYPE_CHECKING:
    from stethos.diagnose.finding import Finding
    from stethos.store.run import Run
    from stethos.view.finding import ClientMark

FEDERATION = Parameter(
    "federation",
    "Federation",
    values="SELECT DISTINCT federation FROM rounds WHERE federation IS NOT NULL ORDER BY federation",
)
ROUND = Parameter("round", "Round", "number")
# The rows of one federation, or one round, where that is asked for.
ONLY = "$only_federation AND $only_round"
_TIMEOUT_S = 120.0
CLIENT = Parameter(
    "client",
    "Client",
    values="SELECT DISTINCT client FROM client_reports WHERE client IS NOT NULL ORDER BY client",
)


# One number of a client in each round ------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Measure:
    """Something that is known about a client in a round: what it is, and where it stands."""

    title: str
    column: str
    table: str = "client_rounds"
    scale: Scale = "linear"
    unit: str = ""

    @property
    def sql(self) -> str:
        """`federation, client, round, value`; an update with NaN in it has neither size nor direction, but NaN."""
        if self.table == "updates":
            value = f"if(nan + inf > 0, 'nan'::DOUBLE, {self.column})"
            return f"SELECT federation, client, round, {value} AS value\n{_WHOLE_UPDATES}"
        return f"SELECT federation, client, round, {self.column} AS value\nFROM client_rounds WHERE client IS NOT NULL"


_WHOLE_UPDATES = "FROM updates WHERE layer IS NULL AND client IS NOT NULL"
_STATUS = "CASE status WHEN 'ok' THEN 0 WHEN 'timeout' THEN 1 WHEN 'dropped' THEN 2 WHEN 'failed' THEN 3 END"

MEASURES: dict[str, Measure] = {
    "norm": Measure("norm of its update", "norm", "updates", "log"),
    "cosine": Measure("cosine to the centre of the others' updates", "cos_centre", "updates", "diverging"),
    "signs": Measure("share of elements that move as the others' do", "sign_agreement", "updates"),
    "entry_loss": Measure("loss of the incoming model on its data", "entry_loss"),
    "exit_loss": Measure("loss on its data at the end of its turn", "exit_loss"),
    "loss": Measure("loss that it reported", "loss"),
    "duration": Measure("duration of its turn", "duration_ms", scale="log", unit="ms"),
    "compute": Measure("compute time", "compute_ms", unit="ms"),
    "upload": Measure("upload time", "upload_ms", unit="ms"),
    "memory": Measure("peak memory", "peak_bytes", unit="bytes"),
    "samples": Measure("samples", "samples"),
    "status": Measure("status", _STATUS, scale="category"),
}
_MAPPED = ("norm", "cosine", "entry_loss", "loss", "duration", "status")
_AGAINST = ("samples", "entry_loss", "exit_loss", "duration", "compute", "upload", "memory", "norm", "cosine", "signs")
_OPTIONS = {
    name: Option(MEASURES[name].sql, MEASURES[name].title.capitalize(), MEASURES[name].scale, MEASURES[name].unit)
    for name in _MAPPED
}
MEASURE = Parameter("measure", "Show", "choice", _OPTIONS)

# Of more clients than fit, those that differ most are shown, and the one that differs most comes first.
CLIENT_MAP = Query(
    "WITH cells AS ($measure),\n"
    f"{span_of('round', 300, 'cells')},\n"
    "middle AS (SELECT median(value) AS middle FROM cells WHERE isfinite(value)),\n"
    "differing AS (SELECT client, count(*) OVER () AS of_rows,\n"
    "                     row_number() OVER (ORDER BY max(abs(value - middle)) DESC NULLS LAST, client) AS place\n"
    "              FROM cells, middle GROUP BY client),\n"
    "shown AS (FROM differing WHERE place <= 100)\n"
    f"SELECT client, {BY_ROUND}, avg(value) AS value, of_rows, if(of_rows > 100, place, NULL) AS place\n"
    "FROM cells JOIN shown USING (client), span GROUP BY ALL ORDER BY place, client, round",
    (MEASURE,),
)


def measured(run: Run, measure: str, federation: str | None = None) -> list[tuple[str, int, float | None]]:
    """Client, round and value, of one federation or all; None where it was not measured."""
    rows = run.rows(MEASURES[measure].sql, timeout_s=_TIMEOUT_S).values
    return [
        (client, number, value)
        for name, client, number, value in rows
        if number is not None and federation in (None, name)
    ]


def beside_others(measure: str) -> Query:
    """One client's value by round, beside the middle and the range of the others in its federations."""
    return Query(
        f"WITH every AS ({MEASURES[measure].sql}),\n"
        "turns AS (SELECT every.* FROM every SEMI JOIN (FROM every WHERE client = $client) AS own\n"
        "          ON every.federation IS NOT DISTINCT FROM own.federation),\n"
        f"{span_of('round', 500, 'turns')}\n"
        f"SELECT {BY_ROUND},\n"
        "       avg(value) FILTER (client = $client) AS client,\n"
        "       median(value) FILTER (client IS DISTINCT FROM $client) AS others,\n"
        "       quantile_cont(value, 0.1) FILTER (client IS DISTINCT FROM $client) AS low_end,\n"
        "       quantile_cont(value, 0.9) FILTER (client IS DISTINCT FROM $client) AS high_end\n"
        "FROM turns, span WHERE value IS NOT NULL GROUP BY 1 ORDER BY 1",
        (CLIENT,),
    )


# All clients -------------------------------------------------------------------------------------------

CLIENTS = Query(
    f"""\
WITH turns AS (
    SELECT federation, client,
           arg_max(label, round) AS label,
           count(*) AS turns,
           count(*) FILTER (status = 'ok') AS ok,
           count(*) FILTER (status = 'failed') AS failed,
           count(*) FILTER (status = 'dropped') AS dropped,
           count(*) FILTER (status = 'timeout') AS timeout,
           median(samples) AS samples, median(steps) AS steps,
           median(entry_loss) FILTER (isfinite(entry_loss)) AS entry_loss,
           median(exit_loss) FILTER (isfinite(exit_loss)) AS exit_loss,
           arg_max(loss, round) AS loss, arg_max(accuracy, round) AS accuracy,
           count(*) FILTER (isnan(loss) OR isnan(entry_loss) OR isnan(exit_loss)) AS nan_losses,
           median(duration_ms) AS duration_ms, median(compute_ms) AS compute_ms, median(wait_ms) AS wait_ms,
           median(samples_per_s) AS samples_per_s, max(peak_bytes) AS peak_bytes,
           sum(coalesce(sent_bytes, raw_bytes))::BIGINT AS sent_bytes,
           arg_max(error, round) AS last_error,
           list({{'round': round, 'entry_loss': entry_loss, 'loss': loss}} ORDER BY round, turn) AS course
    FROM client_rounds WHERE client IS NOT NULL AND {ONLY} GROUP BY federation, client
), sent AS (
    SELECT federation, client,
           median(cos_centre) FILTER (layer IS NULL AND coalesce(nan + inf, 0) = 0) AS cosine,
           median(norm_ratio) FILTER (layer IS NULL AND coalesce(nan + inf, 0) = 0) AS norm_ratio,
           sum(nan + inf)::BIGINT AS non_finite
    FROM updates WHERE client IS NOT NULL AND (layer IS NULL OR kind = 'buffer') AND {ONLY}
    GROUP BY federation, client
)
SELECT turns.*, sent.cosine, sent.norm_ratio, sent.non_finite
FROM turns LEFT JOIN sent
ON turns.client = sent.client AND turns.federation IS NOT DISTINCT FROM sent.federation
ORDER BY turns.federation, turns.client""",
    (FEDERATION, ROUND),
)


@dataclass(frozen=True, slots=True)
class ClientView:
    """A client of a federation; None is what was not measured.

    Numbers are medians over its rounds: `entry_loss` of the incoming model on its data, `cosine` of its update to the
    centre of the others', `norm_ratio` to their median. But `loss` and `accuracy` are the last ones that it reported,
    `peak_bytes` is the largest, `sent_bytes` the sum. `course` has its losses round by round, `mark` the gravest
    finding that names it.
    """

    federation: str | None
    client: str
    label: str | None
    turns: int
    ok: int
    failed: int
    dropped: int
    timeout: int
    samples: float | None
    steps: float | None
    entry_loss: float | None
    exit_loss: float | None
    loss: float | None
    accuracy: float | None
    nan_losses: int
    duration_ms: float | None
    compute_ms: float | None
    wait_ms: float | None
    samples_per_s: float | None
    peak_bytes: int | None
    sent_bytes: int | None
    last_error: str | None
    course: tuple[dict[str, Any], ...]
    cosine: float | None
    norm_ratio: float | None
    non_finite: int | None
    mark: ClientMark | None = None

    def as_dict(self) -> dict[str, Any]:
        """For JSON: the mark in words, and whether it accuses the client."""
        found = {name: getattr(self, name) for name in self.__slots__ if name != "mark"}
        mark = self.mark
        return {**found, "mark": mark.text if mark else None, "is_accused": mark is not None and mark.is_accused}


def clients_of(
    run: Run, federation: str | None = None, round: int | None = None, *, findings: Sequence[Finding] | None = None
) -> list[ClientView]:
    """The clients of a run, or of one federation or round: accused ones first, then those that findings remark.

    `findings` are those of the run where they are known; else it is diagnosed, unless that was kept.
    """
    rows = CLIENTS.records(run, federation=federation, round=round)
    if not rows:
        return []
    from stethos.view.finding import client_marks, findings_of

    known = findings_of(run).findings if findings is None else findings
    marks = {name: client_marks(known, name) for name in dict.fromkeys(row["federation"] for row in rows)}
    found = [
        ClientView(**{**row, "course": tuple(row["course"])}, mark=marks[row["federation"]].get(row["client"]))
        for row in rows
    ]
    places = {name: {client: place for place, client in enumerate(own)} for name, own in marks.items()}

    def key(one: ClientView) -> tuple[object, ...]:
        place = places[one.federation].get(one.client, len(places[one.federation]))
        return one.federation or "", place, natural_key(printable(one.client))

    return sorted(found, key=key)


CLIENT_TABLE = Query(
    "SELECT client, turns, turns - ok AS failed, samples, entry_loss, loss, duration_ms, norm_ratio, cosine,\n"
    f"       non_finite, sent_bytes, label\nFROM ({CLIENTS()})\n"
    "ORDER BY non_finite > 0 DESC NULLS LAST, cosine NULLS LAST, client LIMIT 1000"
)
CLIENT_MEMORY = Query(
    "SELECT client, max(peak_bytes) AS peak_bytes FROM client_rounds WHERE peak_bytes IS NOT NULL\n"
    "GROUP BY client ORDER BY peak_bytes DESC, client LIMIT 20"
)
# The last confusion matrix of a client, or of all together: the share of each label's samples that got each answer. One
# with noise is an object around its counts.
CONFUSION = Query(
    """\
WITH told AS (
    SELECT federation, round, t_ns, TRY_CAST(regexp_extract(confusion, '[[].*[]]') AS DOUBLE[][]) AS counts
    FROM client_rounds
    WHERE confusion IS NOT NULL AND ($client IS NULL OR client = $client)
), last AS (
    SELECT federation, round FROM told WHERE len(counts) BETWEEN 1 AND 200 ORDER BY t_ns DESC LIMIT 1
), rows AS (
    SELECT unnest(counts) AS counts, generate_subscripts(counts, 1) - 1 AS label
    FROM told SEMI JOIN last ON told.round = last.round AND told.federation IS NOT DISTINCT FROM last.federation
), cells AS (
    SELECT label, unnest(counts) AS samples, generate_subscripts(counts, 1) - 1 AS answer FROM rows
)
SELECT label::VARCHAR AS label, answer, sum(samples) / nullif(sum(sum(samples)) OVER (PARTITION BY label), 0) AS value,
       sum(samples) AS samples
FROM cells GROUP BY label, answer ORDER BY cells.label, answer""",
    (CLIENT,),
)


# One client against the others -------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class AgainstOthers:
    """One measure of a client: its median over its rounds, the others', its place among them, and its course."""

    measure: str
    federation: str | None
    unit: str
    client: float | None
    others: float | None
    rank: int
    of: int
    course: tuple[float, ...]
    sql: str

    def as_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)


STATUSES = Query("SELECT federation, client, status, count(*) AS turns FROM client_rounds GROUP BY ALL")


def against_others(run: Run, client: str) -> list[AgainstOthers]:
    """Every measure of a client in each federation that it takes part in."""
    found: list[AgainstOthers] = []
    for measure in (MEASURES[name] for name in _AGAINST):
        values: dict[str | None, dict[str, list[float]]] = {}
        for federation, owner, number, value in run.rows(f"{measure.sql} ORDER BY round").values:
            if number is not None and value is not None:
                values.setdefault(federation, {}).setdefault(str(owner), []).append(float(value))
        found += [
            _against(measure, federation, client, courses)
            for federation, courses in values.items()
            if client in courses
        ]
    return found


def _against(measure: Measure, federation: str | None, client: str, courses: dict[str, list[float]]) -> AgainstOthers:
    typical = {owner: median_of_known(course) for owner, course in courses.items()}
    own = typical[client]
    others = [value for owner, value in typical.items() if owner != client and value is not None]
    return AgainstOthers(
        measure.title, federation, measure.unit, own, median_of_known(others),
        1 + sum(own is not None and value > own for value in others), len(typical), tuple(courses[client]),
        measure.sql,
    )  # fmt: skip


def median_of_known(values: Iterable[float | None]) -> float | None:
    """The median of what is known and finite; None if nothing is."""
    known = [value for value in values if value is not None and math.isfinite(value)]
    return statistics.median(known) if known else None
