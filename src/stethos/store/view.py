"""The SQL of tables that are made of other tables."""

from __future__ import annotations

from stethos.schema import ACTIONS, CLIENT_REPORTS, CLIENT_ROUNDS, TORCH_TRACE

_TORCH_TRACE_SQL = (
    "SELECT {run} process, rank, step, module, stage, duration_ms / 1000 AS duration, "
    "alive_bytes / 1e6 AS allocated, allocated_bytes / 1e6 AS allocated_delta, t_ns FROM main.modules"
)
_ROUND = ("federation", "round")
_KEYS = ("client", *_ROUND, "turn")
# Rounds that were repeated by another server, as after a crash: who had the last word, and until when the others spoke.
_AGAIN_SQL = (
    "SELECT {run} federation, round, arg_max(process, last_ns) AS server, max(last_ns, 2)[2] AS until_ns "
    "FROM (SELECT {run} federation, round, process, max(t_ns) AS last_ns "
    "FROM main.client_reports WHERE side = 'server' GROUP BY {run} federation, round, process) "
    "GROUP BY {run} federation, round HAVING count(*) > 1"
)
# Rounds of which more is told than what one server says. All others have one row for each turn: servers count turns.
_SEVERAL_SQL = (
    "SELECT {run} federation, round FROM (SELECT DISTINCT {run} federation, round, side, process "
    "FROM main.client_reports) GROUP BY {run} federation, round "
    "HAVING count(*) > 1 OR min(side) IS DISTINCT FROM 'server'"
)


def _client_rounds_sql(run: str) -> str:
    """One row per turn: what the server knows, and where it knows nothing what the client's process knows.

    Of a round that another server process repeated, the last repetition counts.
    Of a failure the client's process knows best: a server may have heard of it through somebody else's words.
    """
    reported = {column.name for column in CLIENT_REPORTS.columns}
    parts = []
    for column in CLIENT_ROUNDS.columns:
        name = column.name
        if name in _KEYS:
            parts.append(name)
        elif name == "error":  # the one that the traceback belongs to, if there is one
            with_traceback = "traceback IS NOT NULL"
            parts.append(_first_known(name, f"side = 'client' AND {with_traceback}", with_traceback, "side = 'server'"))
        elif name == "status":  # a server may hear of a failure as of a client that is gone
            by_server, by_client = (f"any_value(status) FILTER (side = '{side}')" for side in ("server", "client"))
            has_failed = "bool_or(side = 'client' AND status = 'failed' AND traceback IS NOT NULL)"
            is_told = f"coalesce({by_server}, {by_client}) <> 'ok' AND {has_failed}"
            parts.append(f"CASE WHEN {is_told} THEN 'failed' ELSE coalesce({by_server}, {by_client}) END AS status")
        elif name == "traceback":
            parts.append(_first_known(name, "side = 'client'"))
        elif name in reported:
            parts.append(_first_known(name, "side = 'server'"))
        else:
            parts.append(f"min({name}) AS {name}")
    names = ", ".join(column.name for column in CLIENT_ROUNDS.columns)
    same = " AND ".join(f"told.{name} IS NOT DISTINCT FROM several.{name}" for name in (*run.split(",")[:-1], *_ROUND))
    return (
        f"WITH several AS MATERIALIZED ({_SEVERAL_SQL.format(run=run)}) "
        f"SELECT {run} {names} FROM main.client_reports AS told ANTI JOIN several ON {same} UNION ALL "
        f"SELECT {run} {', '.join(parts)} FROM (SELECT told.* FROM main.client_reports AS told "
        f"SEMI JOIN several ON {same}) "
        f"LEFT JOIN ({_AGAIN_SQL.format(run=run)}) AS again USING ({run} federation, round) "
        "WHERE again.server IS NULL OR CASE side WHEN 'server' THEN process = again.server "
        f"ELSE t_ns > again.until_ns END GROUP BY {run} {', '.join(_KEYS)}"
    )


def _first_known(name: str, *conditions: str) -> str:
    """A column's value in rows that meet the first condition, else the second, else in any row."""
    preferred = [f"any_value({name}) FILTER ({condition})" for condition in conditions]
    return f"coalesce({', '.join([*preferred, f'any_value({name})'])}) AS {name}"


def _actions_sql(run: str) -> str:
    """The newest event of each action, with the time of the first."""
    own = f"PARTITION BY {run} process, federation, action"
    names = ", ".join(
        {"t_ns": "began_ns AS t_ns", "updated_ns": "t_ns AS updated_ns"}.get(column.name, column.name)
        for column in ACTIONS.columns
    )
    return (
        f"SELECT {run} {names} FROM (SELECT *, row_number() OVER ({own} ORDER BY t_ns DESC) AS place, "
        f"min(t_ns) OVER ({own}) AS began_ns FROM main.action_events) WHERE place = 1"
    )


def _views(run: str) -> dict[str, str]:
    return {
        ACTIONS.qualified_name: _actions_sql(run),
        CLIENT_ROUNDS.qualified_name: _client_rounds_sql(run),
        TORCH_TRACE.qualified_name: _TORCH_TRACE_SQL.format(run=run),
    }


VIEWS = _views("")
FLEET_VIEWS = _views("run,")  # over the tables of many runs, which have a column `run` in front
