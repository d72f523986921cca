"""Layers over the run: how gradients flow, how weights move."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from stethos.view.query import Option, Parameter, Query
from stethos.view.series import BY_ROUND, BY_STEP, span_of

if TYPE_CHECKING:
    from stethos.store.run import Run

STATISTICS = {
    "norm": Option("norm / sqrt(size)", "Size (root mean square)", "log"),
    "std": Option("std", "Standard deviation", "log"),
    "mean": Option("mean", "Mean", "diverging"),
    "zeros": Option("zero_share", "Share of zeros"),
    "broken": Option("(nan + inf) / size", "Share of NaN and infinities"),
}
KINDS = {
    "gradient": Option("'gradient'", "Gradients"),
    "weight": Option("'weight'", "Weights"),
    "activation": Option("'activation'", "Activations"),
}
KIND = Parameter("kind", "Of", "choice", KINDS)
STATISTIC = Parameter("statistic", "Show", "choice", STATISTICS)
LAYER = Parameter("layer", "Layer", values="SELECT layer FROM layers GROUP BY layer ORDER BY min(step), layer")
_LARGEST = "SELECT arg_max(layer, size) FROM (SELECT layer, size FROM layers WHERE kind = 'weight' LIMIT 5000)"

LAYER_MAP = Query(
    f"WITH {span_of('step', 240, 'layers WHERE kind = $kind')},\n"
    "first AS (SELECT layer, min(place) AS place FROM (\n"
    "            SELECT layer, row_number() OVER () AS place FROM (\n"
    "              SELECT layer FROM layers WHERE kind = $kind LIMIT 5000)) GROUP BY layer),\n"
    f"cells AS (SELECT layer, {BY_STEP}, avg($statistic) AS value,\n"
    "                 max(nan + inf) AS broken\n"
    "          FROM layers, span WHERE kind = $kind GROUP BY 1, 2)\n"
    "SELECT layer, step, coalesce(value, if(broken > 0, 'nan'::DOUBLE, NULL)) AS value, place\n"
    "FROM cells LEFT JOIN first USING (layer) ORDER BY place NULLS LAST, layer, step",
    (KIND, STATISTIC),
)
LAYER_SERIES = Query(
    f"WITH chosen AS (SELECT process, step, kind, $statistic AS value, nan + inf AS broken FROM layers\n"
    f"                WHERE layer = coalesce($layer, ({_LARGEST}))),\n"
    f"{span_of('step', 500, 'chosen')}\n"
    f"SELECT {BY_STEP}, kind, coalesce(avg(value), if(max(broken) > 0, 'nan'::DOUBLE, NULL)) AS value,\n"
    "       if(kind = (SELECT min(kind) FROM chosen), count(DISTINCT (process, chosen.step)), 0) AS sampled,\n"
    "       (SELECT count(*) FROM steps) AS of_steps, (SELECT max(overhead_budget) FROM processes) AS budget\n"
    "FROM chosen, span GROUP BY 1, 2 ORDER BY 2, 1",
    (LAYER, STATISTIC),
)
UPDATE_RATIO = Query(
    f"WITH {span_of('step', 240, 'layers')},\n"
    "samples AS (\n"
    f"  SELECT process, optimizer, layer, {BY_STEP}, avg(step) AS middle,\n"
    "         avg(drift) AS drift, avg(norm) AS norm, count(DISTINCT layers.step) AS taken\n"
    "  FROM layers, span WHERE kind = 'weight' AND drift IS NOT NULL GROUP BY 1, 2, 3, 4),\n"
    "moves AS (\n"
    "  SELECT layer, step, abs(drift - lag(drift) OVER track) / nullif(middle - lag(middle) OVER track, 0)\n"
    "         / nullif(norm, 0) AS ratio, taken\n"
    "  FROM samples WINDOW track AS (PARTITION BY process, optimizer, layer ORDER BY step))\n"
    "SELECT step, median(ratio) AS middle, quantile_cont(ratio, 0.1) AS low_end,\n"
    "       quantile_cont(ratio, 0.9) AS high_end, median(ratio) FILTER (layer = $layer) AS layer,\n"
    "       max(taken) AS sampled, (SELECT count(*) FROM steps) AS of_steps,\n"
    "       (SELECT max(overhead_budget) FROM processes) AS budget\n"
    "FROM moves WHERE ratio > 0 GROUP BY 1 ORDER BY 1",
    (LAYER,),
)
_COUNTS = ", ".join(f"b{number:02d}" for number in range(1, 17))
_BUCKETS, _LAST = 32, 31  # of the map: what one sample in fifty exceeds counts in the outermost ones
_SPREAD = {kind: Option(f"'{kind}'", f"Share of the {kind}'s elements") for kind in ("gradient", "weight")}
# Each histogram has a range of its own: its counts are spread over buckets that are the same for all steps. These are
# narrow around 0 and wide far from it (logarithmic beyond `small`), so that gradients that shrink stay visible.
LAYER_HISTOGRAMS = Query(
    f"WITH chosen AS (SELECT step, low AS first, (high - low) / 16 AS own, [{_COUNTS}] AS counts FROM histograms\n"
    f"                WHERE kind = $spread AND layer = coalesce($layer, ({_LARGEST}))),\n"
    f"{span_of('step', 160, 'chosen')},\n"
    "ends AS (SELECT quantile_cont(first, 0.02) AS bottom, quantile_cont(first + 16 * own, 0.98) AS top,\n"
    "                coalesce(2 * quantile_cont(nullif(own, 0), 0.02), 1) AS small FROM chosen),\n"
    "logs AS (SELECT small, sign(bottom) * log10(1 + abs(bottom) / small) AS bottom,\n"
    "                sign(top) * log10(1 + abs(top) / small) AS top FROM ends),\n"
    f"places AS (SELECT bucket, small, bottom + bucket * if(top > bottom, top - bottom, 1) / {_BUCKETS} AS y\n"
    f"           FROM logs, (SELECT unnest(range({_BUCKETS + 1})) AS bucket)),\n"
    "edges AS (SELECT bucket, sign(y) * small * (10 ** abs(y) - 1) AS edge FROM places),\n"
    "buckets AS (SELECT bucket, edge, lead(edge) OVER (ORDER BY bucket) AS next FROM edges),\n"
    "common AS (SELECT bucket, round(edge, least(300, 2 - floor(log10(next - edge))::INTEGER)) AS edge,\n"
    "                  if(bucket = 0, '-inf'::DOUBLE, edge) AS starts,\n"
    f"                  if(bucket = {_LAST}, 'inf'::DOUBLE, next) AS stops FROM buckets WHERE bucket < {_BUCKETS}),\n"
    f"parts AS (SELECT {BY_STEP}, unnest(counts) AS count, first + own * unnest(range(16)) AS begins, own\n"
    "          FROM chosen, span),\n"
    "shares AS (SELECT step, bucket, edge, count *\n"
    "             if(own > 0, greatest(0, least(begins + own, stops) - greatest(begins, starts)) / own,\n"
    "                (begins >= starts AND begins < stops)::INTEGER) AS inside\n"
    "           FROM parts, common)\n"
    "SELECT step, edge::VARCHAR AS bucket, -any_value(bucket) AS place,\n"
    "       sum(inside) / nullif(sum(sum(inside)) OVER (PARTITION BY step), 0) AS value\n"
    "FROM shares GROUP BY step, edge ORDER BY place, step",
    (LAYER, Parameter("spread", "Elements of", "choice", _SPREAD)),
)
LAYER_UPDATES = Query(
    f"WITH {span_of('round', 240, 'updates')}\n"
    f"SELECT layer, {BY_ROUND}, median(norm / nullif(base_norm, 0)) AS value\n"
    "FROM updates, span WHERE layer IS NOT NULL AND client IS NOT NULL AND kind = 'weight'\n"
    "GROUP BY 1, 2 ORDER BY 1, 2"
)
LAYER_TABLE = Query(
    "WITH last AS (SELECT kind, max(step) AS step FROM layers GROUP BY kind)\n"
    "SELECT layer, kind, any_value(size) AS size, avg(norm) AS norm, avg(mean) AS mean, avg(std) AS std,\n"
    "       min(min) AS min, max(max) AS max, avg(zero_share) AS zero_share, sum(nan) AS nan, sum(inf) AS inf,\n"
    "       avg(drift) AS drift, step\n"
    "FROM layers SEMI JOIN last USING (kind, step) GROUP BY layer, kind, step ORDER BY layer, kind LIMIT 2000"
)


# Layers of one process at the steps at which they were sampled -----------------------------------------

VALUES = ("norm", "mean", "std", "min", "max", "zero_share", "nan", "inf", "drift")
_OF = "FROM layers WHERE kind = $kind_name"
_KIND_NAME, _PROCESS = Parameter("kind_name", "Of"), Parameter("process", "Process")
_PROCESSES = Query(f"SELECT process {_OF} GROUP BY process ORDER BY count(*) DESC, process LIMIT 1", (_KIND_NAME,))
_ORDER = Query(f"SELECT layer {_OF} AND process = $process", (_KIND_NAME, _PROCESS))  # as the model has them
_SAMPLES = Query(
    f"SELECT layer, step, avg($value) AS value, sum(nan + inf) AS broken {_OF} AND process = $process\n"
    "GROUP BY layer, step",
    (_KIND_NAME, _PROCESS, Parameter("value", "Value", "choice", {name: Option(f'"{name}"', name) for name in VALUES})),
)


@dataclass(frozen=True, slots=True)
class LayerGrid:
    """A value of each layer, as the model has them, over the sampled steps; each column is `every` of them.

    NaN is what was not measured; `broken` are places (column, row) where elements were NaN or infinite.
    """

    layers: tuple[str, ...]
    steps: tuple[int, ...]
    every: int
    values: list[list[float]]
    broken: frozenset[tuple[int, int]]


def layer_grid(run: Run, value: str, kind: str, process: str | None, most_columns: int) -> LayerGrid:
    """The layers of a process (default: the one with the most samples), empty if nothing was sampled."""
    names = [process] if process else [name for (name,) in _PROCESSES.ask(run, kind_name=kind).values]
    asked: dict[str, Any] = {"kind_name": kind, "process": names[0] if names else ""}
    found = _SAMPLES.ask(run, value=value, **asked).values
    layers = tuple(dict.fromkeys(layer for (layer,) in _ORDER.ask(run, **asked).values)) if found else ()
    steps = sorted({row[1] for row in found})
    every = max(1, math.ceil(len(steps) / most_columns))
    column_of = {step: place // every for place, step in enumerate(steps)}
    row_of = {layer: place for place, layer in enumerate(layers)}
    cells: dict[tuple[int, int], list[float]] = {}
    broken = set()
    for layer, step, amount, odd in found:
        place = column_of[step], row_of[layer]
        if odd:
            broken.add(place)
        if amount is not None and math.isfinite(amount):
            cells.setdefault(place, []).append(amount)
    width = math.ceil(len(steps) / every)
    means = {place: math.fsum(amounts) / len(amounts) for place, amounts in cells.items()}
    values = [[means.get((column, row), math.nan) for column in range(width)] for row in range(len(layers))]
    return LayerGrid(layers, tuple(steps[::every]), every, values, frozenset(broken))
