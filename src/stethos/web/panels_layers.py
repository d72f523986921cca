"""Panels about layers: how gradients flow, how weights move."""

from __future__ import annotations

from stethos.web.panel import Option, Panel, Parameter
from stethos.web.thinning import BY_ROUND, BY_STEP, span_of

_LAYERS = "SELECT layer FROM layers GROUP BY layer ORDER BY min(step), layer"

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
LAYER = Parameter("layer", "Layer", values=_LAYERS)
_LARGEST = "SELECT arg_max(layer, size) FROM (SELECT layer, size FROM layers WHERE kind = 'weight' LIMIT 5000)"
_THE_LAYER = f"coalesce($layer, ({_LARGEST}))"

LAYER_PANELS = (
    Panel(
        "gradient-flow", "layers", "Flow through the layers", "heat",
        f"WITH {span_of('step', 240, 'layers WHERE kind = $kind')},\n"
        "first AS (SELECT layer, min(place) AS place FROM (\n"
        "            SELECT layer, row_number() OVER () AS place FROM (\n"
        "              SELECT layer FROM layers WHERE kind = $kind LIMIT 5000)) GROUP BY layer),\n"
        f"cells AS (SELECT layer, {BY_STEP}, avg($statistic) AS value,\n"
        "                 max(nan + inf) AS broken\n"
        "          FROM layers, span WHERE kind = $kind GROUP BY 1, 2)\n"
        "SELECT layer, step, coalesce(value, if(broken > 0, 'nan'::DOUBLE, NULL)) AS value, place\n"
        "FROM cells LEFT JOIN first USING (layer) ORDER BY place NULLS LAST, layer, step",
        "From the first layer above to the last below, step by step. Gradients that fade towards the top vanish; "
        "a bright stripe to the right is an explosion. Click a layer to follow it.",
        x="step", y=("layer",), parameters=(KIND, STATISTIC), selects={"layer": "layer"}, needs=("layers",),
        marks="step", is_wide=True, is_optional=False,
    ),
    Panel(
        "layer-series", "layers", "One layer over time", "line",
        f"WITH chosen AS (SELECT step, kind, $statistic AS value FROM layers WHERE layer = {_THE_LAYER}),\n"
        f"{span_of('step', 500, 'chosen')}\n"
        f"SELECT {BY_STEP}, kind, avg(value) AS value\n"
        "FROM chosen, span GROUP BY 1, 2 ORDER BY 2, 1",
        "The statistic chosen above, for the layer's gradient and its weight; the largest layer if none is chosen.",
        x="step", y=("value",), by="kind", scale="log", parameters=(LAYER, STATISTIC), needs=("layers",), marks="step",
    ),
    Panel(
        "update-ratio", "layers", "Update-to-weight ratio", "line",
        f"WITH {span_of('step', 240, 'layers')},\n"
        "samples AS (\n"
        f"  SELECT process, optimizer, layer, {BY_STEP}, avg(step) AS middle,\n"
        "         avg(drift) AS drift, avg(norm) AS norm\n"
        "  FROM layers, span WHERE kind = 'weight' AND drift IS NOT NULL GROUP BY 1, 2, 3, 4),\n"
        "moves AS (\n"
        "  SELECT layer, step, abs(drift - lag(drift) OVER track) / nullif(middle - lag(middle) OVER track, 0)\n"
        "         / nullif(norm, 0) AS ratio\n"
        "  FROM samples WINDOW track AS (PARTITION BY process, optimizer, layer ORDER BY step))\n"
        "SELECT step, median(ratio) AS middle, quantile_cont(ratio, 0.1) AS low_end,\n"
        "       quantile_cont(ratio, 0.9) AS high_end, median(ratio) FILTER (layer = $layer) AS layer\n"
        "FROM moves WHERE ratio > 0 GROUP BY 1 ORDER BY 1",
        "How far the weights move in a step, relative to their norm: about 0.001 is usual. "
        "The middle of all layers, and four fifths of them in the band.",
        x="step", y=("middle", "layer"), band=("low_end", "high_end"), scale="log", parameters=(LAYER,),
        needs=("layers",), marks="step",
    ),
    Panel(
        "layer-updates", "layers", "How much each round moves each layer", "heat",
        f"WITH {span_of('round', 240, 'updates')}\n"
        f"SELECT layer, {BY_ROUND}, median(norm / nullif(base_norm, 0)) AS value\n"
        "FROM updates, span WHERE layer IS NOT NULL AND client IS NOT NULL AND kind = 'weight'\n"
        "GROUP BY 1, 2 ORDER BY 1, 2",
        "Norm of the median client's update relative to the layer's own norm.",
        x="round", y=("layer",), scale="log", needs=("updates",), marks="round", is_wide=True,
    ),
    Panel(
        "layer-table", "layers", "Layers at the last sampled step", "table",
        "WITH last AS (SELECT kind, max(step) AS step FROM layers GROUP BY kind)\n"
        "SELECT layer, kind, any_value(size) AS size, avg(norm) AS norm, avg(mean) AS mean, avg(std) AS std,\n"
        "       min(min) AS min, max(max) AS max, avg(zero_share) AS zero_share, sum(nan) AS nan, sum(inf) AS inf,\n"
        "       avg(drift) AS drift, step\n"
        "FROM layers SEMI JOIN last USING (kind, step) GROUP BY layer, kind, step ORDER BY layer, kind LIMIT 2000",
        "Gradients and weights of every layer as they were sampled last.",
        selects={"layer": "layer"}, needs=("layers",), is_wide=True,
    ),
)  # fmt: skip
