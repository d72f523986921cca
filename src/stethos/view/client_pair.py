"""Two clients of a federation beside each other: their training, their updates layer by layer, their output rows."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from stethos.errors import UsageError
from stethos.view.client import CLIENTS, FEDERATION, ONLY, ROUND
from stethos.view.query import Parameter, Query

if TYPE_CHECKING:
    from stethos.store.rows import Record
    from stethos.store.run import Run

_PARAMETERS = (FEDERATION, ROUND, Parameter("a", "A client"), Parameter("b", "Another client"))
_BOTH = f"{ONLY} AND client IN ($a, $b)"
NAMES = Query(f"SELECT DISTINCT federation, client FROM client_rounds WHERE {ONLY}", (FEDERATION, ROUND))
LAYERS = Query(
    f"""\
SELECT layer, client, any_value(kind) AS kind,
       median(norm) AS norm, median(norm_ratio) AS norm_ratio, median(cos_centre) AS cosine,
       median(sign_agreement) AS sign_agreement, sum(nan + inf)::BIGINT AS nan
FROM (SELECT *, row_number() OVER () AS place FROM updates WHERE {_BOTH})
GROUP BY layer, client ORDER BY min(place)""",
    _PARAMETERS,
)
OUTPUT_ROWS = Query(
    f"""\
SELECT client, round, output_rows FROM updates
WHERE {_BOTH} AND output_rows IS NOT NULL AND output_rows <> ''
ORDER BY round""",
    _PARAMETERS,
)
_TWICE = 2.0
_TURNED = 0.5  # cosines further apart than this differ
_DISAGREES = 0.2


@dataclass(frozen=True, slots=True)
class LayerPair:
    """A layer (None: the whole update) in both clients' updates, medians over the rounds, and in what they differ."""

    layer: str | None
    a: Record
    b: Record

    @property
    def differs(self) -> dict[str, str]:
        """What differs, and by how much."""
        a, b = self.a, self.b
        found = {}
        if bool(a["nan"]) != bool(b["nan"]):
            found["NaN"] = ""
        if a["cosine"] is not None and b["cosine"] is not None and abs(b["cosine"] - a["cosine"]) >= _TURNED:
            found["cosine"] = f"{b['cosine'] - a['cosine']:+.2f}"
        if factor := factor_text(a["norm"], b["norm"]):
            found["norm"] = factor
        signs = a["sign_agreement"], b["sign_agreement"]
        if None not in signs and abs(signs[1] - signs[0]) >= _DISAGREES:
            found["signs"] = f"{signs[1] - signs[0]:+.2f}"
        return found

    @property
    def distance(self) -> float:
        """How much both differ, to show the most different ones of a long list."""
        a, b = self.a, self.b
        cosine = abs(float(b["cosine"] or 0.0) - float(a["cosine"] or 0.0))
        norms = float(a["norm"] or 0.0), float(b["norm"] or 0.0)
        size = abs(math.log(norms[1] / norms[0])) if min(norms) > 0 else 0.0
        return cosine + size + 9 * (bool(a["nan"]) != bool(b["nan"]))


@dataclass(frozen=True, slots=True)
class ClientPair:
    """Two clients: `a` and `b` are their totals; `classes` the mean change of each row of the output layer for both."""

    a: Record
    b: Record
    layers: tuple[LayerPair, ...]
    classes: dict[str, tuple[list[float], list[float]]]

    def as_objects(self) -> list[Record]:
        """One object per thing compared: the totals, each layer (null: all weights), each measure of output rows."""
        found: list[Record] = [{"what": "totals", "layer": None, "a": self.a, "b": self.b, "differs": []}]
        for one in self.layers:
            words = [f"{name} {text}".strip() for name, text in one.differs.items()]
            found.append({"what": "layer", "layer": one.layer, "a": one.a, "b": one.b, "differs": words})
        for measure, (first, second) in self.classes.items():
            found.append({"what": f"output rows: {measure}", "layer": None, "a": first, "b": second, "differs": []})
        return found


def factor_text(a: float | None, b: float | None) -> str:
    """How many times `a` it is to `b`, if they differ by much: `3.2x`."""
    if a is None or b is None or not (math.isfinite(a) and math.isfinite(b)) or a == b:
        return ""
    if a <= 0 or b <= 0:
        return "only one is 0" if a * b == 0 else ""
    if max(a, b) / min(a, b) < _TWICE:
        return ""
    times = b / a
    return f"{times:.2f}x" if times < 0.995 else f"{times:.1f}x" if times < 9.95 else f"{times:.3g}x"


def federation_of(run: Run, a: str, b: str, federation: str | None, round: int | None) -> tuple[str, list[str]]:
    """The federation in which both take part, and the names of its clients; UsageError if it cannot be told."""
    rows = NAMES.ask(run, federation=federation, round=round).values
    federations = sorted({str(name) for name, _ in rows})
    together = [name for name in federations if {(name, a), (name, b)} <= {*map(tuple, rows)}]
    if not together and {a, b} <= {str(client) for _, client in rows}:
        raise UsageError(
            f"{a!r} and {b!r} take part in no federation together",
            hint="`stethos clients` shows who takes part in which",
        )
    if len(together) != 1 and len(federations) > 1:
        raise UsageError(
            f"run {run.name} has {len(federations)} federations: {', '.join(federations[:5])}",
            hint=f"say which one with `--federation {(together or federations)[0]}`",
        )
    chosen = (together or federations or [""])[0]
    return chosen, [str(client) for name, client in rows if str(name) == chosen]


def statements(a: str, b: str, federation: str | None, round: int | None) -> dict[str, str]:
    """The SQL behind a pair."""
    asked = {"federation": federation, "round": round}
    updates = {"layers (NULL: the whole update)": LAYERS, "output rows": OUTPUT_ROWS}
    return {"totals": CLIENTS(**asked), **{what: query(a=a, b=b, **asked) for what, query in updates.items()}}


def client_pair(run: Run, a: str, b: str, federation: str | None = None, round: int | None = None) -> ClientPair:
    """Two clients as they are in all rounds, or in one."""
    asked = {"a": a, "b": b, "federation": federation, "round": round}
    names = a, b
    by_layer: dict[str | None, list[Record]] = {}
    for row in LAYERS.records(run, **asked):
        by_layer.setdefault(row["layer"], []).append(row)
    layers = sorted(by_layer, key=lambda layer: layer is not None)  # the whole update first, then as the model has them
    first, second = _pair(CLIENTS.records(run, federation=federation, round=round), names)
    return ClientPair(
        first,
        second,
        tuple(LayerPair(layer, *_pair(by_layer[layer], names)) for layer in layers),
        _classes(OUTPUT_ROWS.records(run, **asked), names),
    )


def _pair(rows: Sequence[Record], names: tuple[str, str]) -> tuple[Record, Record]:
    by_client = {row["client"]: row for row in rows}
    nothing: Record = dict.fromkeys(rows[0]) if rows else {}
    first, second = (by_client.get(name, {**nothing, "client": name}) for name in names)
    return first, second


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
