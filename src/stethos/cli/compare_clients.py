"""Compare two clients of a federated run: their training, their updates layer by layer, their output rows.

    stethos compare-clients c1 c7
    stethos compare-clients c1 c7 --round 3

Numbers are means over the rounds, or those of one round. The last column of each table says what differs. Cosine and
sign agreement are to the other clients of the round, norms relative to their median. The output rows are what the
update does to each class.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from stethos.cli.federated import (
    Record,
    add_federated_arguments,
    add_round,
    condition,
    is_there_anything,
    literal,
    records,
    say_nothing_found,
    show_sql,
)
from stethos.cli.grid import Heading, show_grid, without_empty
from stethos.cli.spark import ODD, two_way_bar
from stethos.cli.target import open_target
from stethos.cli.text import (
    bytes_text,
    clean,
    cosine_text,
    count_text,
    cut,
    ms_text,
    names_text,
    natural_key,
    short_text,
    times_text,
)
from stethos.errors import UsageError

if TYPE_CHECKING:
    from stethos.store.run import Run

NAMES_SQL = "SELECT DISTINCT federation, client FROM client_rounds WHERE {where}"

TOTALS_SQL = """\
SELECT client, count(*) AS turns,
       count(*) FILTER (status = 'ok') AS ok,
       count(*) FILTER (status = 'failed') AS failed,
       count(*) FILTER (status = 'dropped') AS dropped,
       count(*) FILTER (status = 'timeout') AS timeout,
       avg(samples) AS samples, avg(steps) AS steps, avg(entry_loss) AS entry_loss, avg(exit_loss) AS exit_loss,
       arg_max(loss, round) AS last_loss, arg_max(accuracy, round) AS last_accuracy,
       avg(duration_ms) AS duration_ms, avg(compute_ms) AS compute_ms, avg(wait_ms) AS wait_ms,
       avg(samples_per_s) AS samples_per_s, max(peak_bytes) AS peak_bytes,
       sum(coalesce(sent_bytes, raw_bytes))::BIGINT AS sent_bytes, arg_max(error, round) AS last_error
FROM client_rounds WHERE {where} AND client IN ({clients}) GROUP BY client"""

LAYERS_SQL = """\
SELECT layer, client, any_value(kind) AS kind,
       avg(norm) AS norm, avg(norm_ratio) AS norm_ratio, avg(cos_centre) AS cosine,
       avg(sign_agreement) AS sign_agreement, sum(nan + inf)::BIGINT AS nan
FROM (SELECT *, row_number() OVER () AS place FROM updates WHERE {where} AND client IN ({clients}))
GROUP BY layer, client ORDER BY min(place)"""

OUTPUT_SQL = """\
SELECT client, round, output_rows FROM updates
WHERE {where} AND client IN ({clients}) AND output_rows IS NOT NULL AND output_rows <> ''
ORDER BY round"""

Pair = tuple[Record, Record]
_SHOWN = 24
_BAR = 8
_TWICE = 2.0
_TURNED = 0.5  # cosines further apart than this differ
_DISAGREES = 0.2
_NOTICEABLE = 0.1  # of the largest change
_WIDEST_NAME = 16
_NUMBER = 6


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("a", metavar="A", help="a client's name")
    parser.add_argument("b", metavar="B", help="another client's name")
    add_round(parser)
    parser.add_argument("--all", action="store_true", help=f"every layer and class, also above {_SHOWN}")
    add_federated_arguments(parser)


def run(arguments: argparse.Namespace) -> int:
    if arguments.sql:
        return show_sql(_statements(arguments, (arguments.a, arguments.b)))
    with open_target(arguments) as one:
        if not is_there_anything(one, arguments):
            return say_nothing_found(one, as_json=arguments.json)
        names = _found_names(one, arguments)
        totals_sql, layers_sql, output_sql = _statements(arguments, names).values()
        totals = _pair(records(one, totals_sql), names)
        layers = _layers(records(one, layers_sql), names)
        classes = _classes(records(one, output_sql), names)
    if arguments.json:
        from stethos.cli.jsontext import print_json_rows

        print_json_rows(_as_objects(totals, layers, classes))
        return 0
    shown = tuple(cut(clean(name), _WIDEST_NAME) for name in names)
    which = f"round {arguments.round}" if arguments.round is not None else "means over the rounds"
    print(f"{shown[0]} and {shown[1]}, {which}\n")
    _show_totals(totals, shown)
    if layers:
        _show_layers(layers, shown, is_all=arguments.all)
    else:
        print("\nno updates of these clients were read, so there are no layers to compare")
    if classes:
        _show_classes(classes, shown, is_all=arguments.all)
    return 0


def _statements(arguments: argparse.Namespace, names: Sequence[str]) -> dict[str, str]:
    words = {"where": condition(arguments), "clients": ", ".join(map(literal, names))}
    statements = {"totals": TOTALS_SQL, "layers (NULL: the whole update)": LAYERS_SQL, "output rows": OUTPUT_SQL}
    return {what: sql.format(**words) for what, sql in statements.items()}


# Finding -----------------------------------------------------------------------------------------------


def _found_names(one: Run, arguments: argparse.Namespace) -> tuple[str, str]:
    rows = one.rows(NAMES_SQL.format(where=condition(arguments))).values
    federations = sorted({str(federation) for federation, _ in rows})
    together = [name for name in federations if {(name, arguments.a), (name, arguments.b)} <= {*map(tuple, rows)}]
    if len(together) == 1:
        (arguments.federation,) = federations = together
        rows = [row for row in rows if row[0] == together[0]]
    if not together and {arguments.a, arguments.b} <= {str(client) for _, client in rows}:
        raise UsageError(
            f"{clean(arguments.a)} and {clean(arguments.b)} take part in no federation together",
            hint="`stethos clients` shows who takes part in which",
        )
    if len(federations) > 1:
        raise UsageError(
            f"run {one.name} has {len(federations)} federations: {names_text(federations)}",
            hint=f"say which one with `--federation {(together or federations)[0]}`",
        )
    known = [str(client) for _, client in rows]
    first, second = _name_in(arguments.a, known), _name_in(arguments.b, known)
    if first == second:
        raise UsageError(f"{first!r} is compared with itself", hint="give the names of two clients: `stethos clients`")
    return first, second


def _name_in(given: str, known: Sequence[str]) -> str:
    """The client of this name, also if it is written as the screen shows it."""
    if given in known:
        return given
    alike = [name for name in known if clean(name) == given]
    if len(alike) == 1:
        return alike[0]
    from stethos.store.complaint import nearest

    shown = sorted((clean(name) for name in known), key=natural_key)
    near = nearest(given, shown)
    hint = f"did you mean {', '.join(near)}? " if near else ""
    raise UsageError(f"no client {given!r}", hint=f"{hint}clients: {names_text(shown, 8)}")


def _pair(rows: Sequence[Record], names: tuple[str, str]) -> Pair:
    by_client = {row["client"]: row for row in rows}
    nothing: Record = dict.fromkeys(rows[0]) if rows else {}
    first, second = (by_client.get(name, {**nothing, "client": name}) for name in names)
    return first, second


def _layers(rows: Sequence[Record], names: tuple[str, str]) -> dict[str | None, Pair]:
    """The rows of both clients by layer, in the order of the model; the whole update first."""
    by_layer: dict[str | None, list[Record]] = {}
    for row in rows:
        by_layer.setdefault(row["layer"], []).append(row)
    return {layer: _pair(by_layer[layer], names) for layer in sorted(by_layer, key=lambda one: one is not None)}


def _classes(rows: Sequence[Record], names: tuple[str, str]) -> dict[str, tuple[list[float], list[float]]]:
    """Mean change of every row of the output layer, and of its bias, for both; nothing unless both have them."""
    found: dict[str, tuple[list[float], list[float]]] = {}
    for measure in ("mean", "bias"):
        means = [_mean_rows([row for row in rows if row["client"] == name], measure) for name in names]
        if means[0] and means[1] and len(means[0]) == len(means[1]):
            found[measure] = (means[0], means[1])
    return found


def _mean_rows(rows: Sequence[Record], measure: str) -> list[float]:
    lists = [values for row in rows if (values := _numbers_in(row["output_rows"], measure))]
    same = [values for values in lists if len(values) == len(lists[-1])]
    return [math.fsum(column) / len(same) for column in zip(*same, strict=True)]


def _numbers_in(text: str, measure: str) -> list[float]:
    try:
        values: Any = json.loads(text).get(measure)
        return [float(value) for value in values or ()]
    except (ValueError, TypeError, AttributeError):  # written by another version, or damaged
        return []


# What differs ------------------------------------------------------------------------------------------


def _differences(a: Record, b: Record) -> list[str]:
    """What differs between two clients' updates of a layer, in words."""
    found = []
    if bool(a["nan"]) != bool(b["nan"]):
        found.append("NaN")
    if a["cosine"] is not None and b["cosine"] is not None and abs(b["cosine"] - a["cosine"]) >= _TURNED:
        found.append(f"cosine {b['cosine'] - a['cosine']:+.2f}")
    if factor := _factor(a["norm"], b["norm"]):
        found.append(f"norm {factor}")
    signs = a["sign_agreement"], b["sign_agreement"]
    if None not in signs and abs(signs[1] - signs[0]) >= _DISAGREES:
        found.append(f"signs {signs[1] - signs[0]:+.2f}")
    return found


def _factor(a: float | None, b: float | None) -> str:
    """How many times `a` it is to `b`, if they differ by much."""
    if a is None or b is None or not (math.isfinite(a) and math.isfinite(b)) or a == b:
        return ""
    if a <= 0 or b <= 0:
        return "only one is 0" if a * b == 0 else ""
    return times_text(b / a) if max(a, b) / min(a, b) >= _TWICE else ""


def _distance(a: Record, b: Record) -> float:
    """How much two layers differ, to show the most different ones of a long list."""
    cosine = abs(float(b["cosine"] or 0.0) - float(a["cosine"] or 0.0))
    norms = float(a["norm"] or 0.0), float(b["norm"] or 0.0)
    size = abs(math.log(norms[1] / norms[0])) if min(norms) > 0 else 0.0
    return cosine + size + 9 * (bool(a["nan"]) != bool(b["nan"]))


# Showing -----------------------------------------------------------------------------------------------

_Format = Callable[[Any], str]
_TOTALS: tuple[tuple[str, str, _Format], ...] = (
    ("samples", "samples", lambda value: count_text(None if value is None else round(value))),
    ("local steps", "steps", lambda value: "-" if value is None else f"{value:.4g}"),
    ("entry loss", "entry_loss", short_text),
    ("exit loss", "exit_loss", short_text),
    ("last loss", "last_loss", short_text),
    ("last accuracy", "last_accuracy", short_text),
    ("duration", "duration_ms", ms_text),
    ("compute", "compute_ms", ms_text),
    ("wait", "wait_ms", ms_text),
    ("samples per s", "samples_per_s", short_text),
    ("peak memory", "peak_bytes", lambda value: "-" if value is None else bytes_text(value)),
    ("sent", "sent_bytes", lambda value: "-" if value is None else bytes_text(value)),
)


def _show_totals(totals: Pair, names: Sequence[str]) -> None:
    a, b = totals
    failures = [(row["turns"] or 0) - (row["ok"] or 0) for row in totals]
    rows = [
        ["turns", _turns_text(a), _turns_text(b), f"{ODD} failures" if bool(failures[0]) != bool(failures[1]) else ""]
    ]
    for title, column, text in _TOTALS:
        if a[column] is not None or b[column] is not None:
            nan = [isinstance(row[column], float) and math.isnan(row[column]) for row in totals]
            factor = _factor(a[column], b[column])
            odd = f"{ODD} NaN" if nan[0] != nan[1] else f"{ODD} {factor}" if factor else ""
            rows.append([title, text(a[column]), text(b[column]), odd])
    if a["last_error"] or b["last_error"]:
        rows.append(["last error", *(cut(clean(row["last_error"] or "-"), 40) for row in totals), ""])
    headings = [Heading(""), Heading(names[0], True), Heading(names[1], True), Heading("differs")]
    show_grid(*without_empty(headings, rows), ["red" if row[-1] else "" for row in rows])


def _turns_text(row: Record) -> str:
    parts = [f"{row[status]:,} {status}" for status in ("failed", "dropped", "timeout") if row[status]]
    return f"{row['ok'] or 0:,} ok" + "".join(f", {part}" for part in parts)


def _show_layers(layers: dict[str | None, Pair], names: Sequence[str], *, is_all: bool) -> None:
    chosen = list(layers)
    if len(chosen) > _SHOWN and not is_all:
        far = sorted(chosen[1:], key=lambda layer: -_distance(*layers[layer]))[: _SHOWN - 1]
        chosen = [layer for layer in chosen if layer is chosen[0] or layer in far]
    rows = []
    for layer in chosen:
        a, b = layers[layer]
        differs = _differences(a, b)
        rows.append([
            "all weights" if layer is None else cut(clean(layer), 32),
            _both(a["norm"], b["norm"], short_text), _both(a["cosine"], b["cosine"], cosine_text),
            _both(a["norm_ratio"], b["norm_ratio"], times_text),
            _both(a["sign_agreement"], b["sign_agreement"], short_text),
            _both(a["nan"], b["nan"], count_text) if a["nan"] or b["nan"] else "",
            f"{ODD} {', '.join(differs)}" if differs else "",
        ])  # fmt: skip
    headings = [
        Heading("layer"), Heading("norm", True, 1), Heading("cosine", True), Heading("to median", True, 2),
        Heading("signs agree", True, 3), Heading("NaN", True), Heading("differs"),
    ]  # fmt: skip
    print(f"\nupdates, {names[0]} | {names[1]}")
    show_grid(*without_empty(headings, rows), ["red" if row[-1] else "" for row in rows])
    if len(chosen) < len(layers):
        print(f"the {len(chosen) - 1} most different of {len(layers) - 1:,} layers are shown; --all shows every one")


def _both(a: Any, b: Any, text: _Format) -> str:
    return "-" if a is None and b is None else f"{text(a)} | {text(b):>{_NUMBER}}"


def _show_classes(classes: dict[str, tuple[list[float], list[float]]], names: Sequence[str], *, is_all: bool) -> None:
    measure = "bias" if "bias" in classes else "mean"
    a, b = classes[measure]
    scales = [max(map(abs, filter(math.isfinite, values)), default=0.0) or 1.0 for values in (a, b)]
    chosen = list(range(len(a)))
    if len(a) > _SHOWN and not is_all:
        chosen = sorted(sorted(chosen, key=lambda index: -abs(b[index] / scales[1] - a[index] / scales[0]))[:_SHOWN])
    rows = []
    for index in chosen:
        shares = a[index] / scales[0], b[index] / scales[1]  # each of its own largest: the sizes stand above
        is_opposed = shares[0] * shares[1] < 0 and min(map(abs, shares)) > _NOTICEABLE
        rows.append([
            str(index), f"{a[index]:+.2g}", two_way_bar(shares[0], _BAR), f"{b[index]:+.2g}",
            two_way_bar(shares[1], _BAR), f"{ODD} opposed" if is_opposed else "",
        ])  # fmt: skip
    what = "bias" if measure == "bias" else "mean weight"
    print(f"\noutput layer: change of the {what} of each class")
    headings = [
        Heading("class", True), Heading(names[0], True), Heading("", spare=1), Heading(names[1], True),
        Heading("", spare=1), Heading("differs"),
    ]  # fmt: skip
    show_grid(*without_empty(headings, rows), ["red" if row[-1] else "" for row in rows])
    if len(rows) < len(a):
        print(f"the {len(rows)} most different of {len(a):,} classes are shown; --all shows every one")


def _as_objects(
    totals: Pair, layers: dict[str | None, Pair], classes: dict[str, tuple[list[float], list[float]]]
) -> list[Record]:
    """One object per thing compared: the totals, each layer (null: all weights), each measure of the output rows."""
    found: list[Record] = [{"what": "totals", "layer": None, "a": totals[0], "b": totals[1], "differs": []}]
    for layer, (a, b) in layers.items():
        found.append({"what": "layer", "layer": layer, "a": a, "b": b, "differs": _differences(a, b)})
    for measure, (first, second) in classes.items():
        found.append({"what": f"output rows: {measure}", "layer": None, "a": first, "b": second, "differs": []})
    return found
