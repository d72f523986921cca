"""Panels about federated clients: who differs, since when, in what."""

from __future__ import annotations

from stethos.web.panel import Option, Panel, Parameter
from stethos.web.thinning import BY_ROUND, span_of

_WHOLE = "FROM updates WHERE layer IS NULL AND client IS NOT NULL"
_TURN = "FROM client_rounds WHERE client IS NOT NULL"
_STATUS = "CASE status WHEN 'ok' THEN 0 WHEN 'timeout' THEN 1 WHEN 'dropped' THEN 2 ELSE 3 END"
_CLIENTS = "SELECT DISTINCT client FROM client_reports WHERE client IS NOT NULL ORDER BY client"

_BROKEN = "if(nan + inf > 0, 'nan'::DOUBLE, {})"  # what an update with NaN in it has instead of a size or a direction

MEASURES = {
    "norm": Option(f"SELECT client, round, {_BROKEN.format('norm')} AS value {_WHOLE}", "Norm of the update", "log"),
    "cosine": Option(
        f"SELECT client, round, {_BROKEN.format('cos_centre')} AS value {_WHOLE}", "Cosine to the others", "diverging"
    ),
    "loss": Option(f"SELECT client, round, coalesce(entry_loss, loss) AS value {_TURN}", "Loss of the incoming model"),
    "time": Option(f"SELECT client, round, duration_ms AS value {_TURN}", "Duration of the turn", "log", "ms"),
    "status": Option(f"SELECT client, round, {_STATUS} AS value {_TURN}", "Status", "category"),
}
MEASURE = Parameter("measure", "Show", "choice", MEASURES)
CLIENT = Parameter("client", "Client", values=_CLIENTS)


def _beside(columns: str, source: str) -> str:
    """One client's value by round, beside the middle and the range of the others in its federations."""
    return (
        f"WITH every AS (SELECT coalesce(federation, '') AS federation, client, round, {columns} AS value {source}),\n"
        "turns AS (FROM every SEMI JOIN (FROM every WHERE client = $client) USING (federation)),\n"
        f"{span_of('round', 500, 'turns')}\n"
        f"SELECT {BY_ROUND},\n"
        "       avg(value) FILTER (client = $client) AS client,\n"
        "       median(value) FILTER (client IS DISTINCT FROM $client) AS others,\n"
        "       quantile_cont(value, 0.1) FILTER (client IS DISTINCT FROM $client) AS low_end,\n"
        "       quantile_cont(value, 0.9) FILTER (client IS DISTINCT FROM $client) AS high_end\n"
        "FROM turns, span WHERE value IS NOT NULL GROUP BY 1 ORDER BY 1"
    )


def _one(name: str, title: str, note: str, columns: str, source: str, unit: str = "") -> Panel:
    return Panel(
        name, "clients", title, "line", _beside(columns, source), note,
        x="round", y=("client", "others"), band=("low_end", "high_end"), unit=unit, parameters=(CLIENT,),
        needs=("client_reports",), marks="round",
    )  # fmt: skip


CLIENT_PANELS = (
    Panel(
        "client-map", "clients", "Every client in every round", "heat",
        "WITH cells AS ($measure),\n"
        f"{span_of('round', 300, 'cells')},\n"
        "middle AS (SELECT median(value) AS middle FROM cells WHERE isfinite(value)),\n"
        "shown AS (SELECT client FROM cells, middle GROUP BY client\n"
        "          ORDER BY max(abs(value - middle)) DESC NULLS LAST LIMIT 200)\n"
        f"SELECT client, {BY_ROUND}, avg(value) AS value,\n"
        "       (SELECT count(DISTINCT client) FROM cells) AS of_rows\n"
        "FROM cells, span WHERE client IN (FROM shown) GROUP BY ALL ORDER BY client, round",
        "A client that differs from its column is odd in that round; a row that differs is an odd client. "
        "Click a cell to see the client beside the others.",
        x="round", y=("client",), parameters=(MEASURE,), selects={"client": "client", "round": "round"},
        needs=("client_reports",), marks="round", is_wide=True, is_optional=False,
    ),
    _one(
        "client-norm", "Size of its update", "2-norm; the band holds four fifths of the others.",
        _BROKEN.format("norm"), _WHOLE,
    ),
    _one(
        "client-cosine", "Direction of its update",
        "Cosine to the robust centre of the others: 1 the same way, 0 unrelated, below 0 against them.",
        _BROKEN.format("cos_centre"), _WHOLE,
    ),
    _one(
        "client-loss", "Loss of the incoming model on its data",
        "High where its data or its labels differ from the others'.", "coalesce(entry_loss, loss)", _TURN,
    ),
    _one("client-time", "Duration of its turn", "From download to upload.", "duration_ms", _TURN, "ms"),
    Panel(
        "client-table", "clients", "Clients", "table",
        "WITH turns AS (\n"
        "  SELECT client, count(*) AS turns, count(*) FILTER (status <> 'ok') AS failed, median(samples) AS samples,\n"
        "         median(coalesce(entry_loss, loss)) AS loss, median(duration_ms) AS duration_ms,\n"
        "         sum(sent_bytes) AS sent_bytes, any_value(label) AS label\n"
        "  FROM client_rounds WHERE client IS NOT NULL GROUP BY client),\n"
        "shapes AS (\n"
        "  SELECT client, median(norm_ratio) AS norm_ratio, median(cos_centre) AS cosine,\n"
        "         sum(nan + inf) AS non_finite\n"
        f"  {_WHOLE} GROUP BY client)\n"
        "SELECT client, turns, failed, samples, loss, duration_ms, norm_ratio, cosine, non_finite, sent_bytes, label\n"
        "FROM turns LEFT JOIN shapes USING (client) ORDER BY non_finite > 0 DESC, cosine NULLS LAST, client LIMIT 1000",
        "Medians over all rounds; who sends NaN first, then the least alike.",
        selects={"client": "client"}, needs=("client_reports",), is_wide=True,
    ),
)  # fmt: skip
