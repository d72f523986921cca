"""Panels about layers: how gradients flow, how weights move."""

from __future__ import annotations

from stethos.web.panel import Option, Panel, Parameter

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
_SPAN = "span AS (SELECT min(step) AS low, (max(step) - min(step)) // 240 + 1 AS width FROM layers WHERE kind = $kind)"
_THE_LAYER = "coalesce($layer, (SELECT layer FROM layers WHERE kind = 'weight' ORDER BY size DESC, layer LIMIT 1))"

LAYER_PANELS = (
    Panel(
        "gradient-flow", "layers", "Flow through the layers", "heat",
        f"WITH {_SPAN},\n"
        "first AS (SELECT layer, min(place) AS place FROM (\n"
        "            SELECT layer, row_number() OVER () AS place FROM layers\n"
        "            WHERE kind = $kind AND step = (SELECT low FROM span)) GROUP BY layer)\n"
        "SELECT layer, low + (step - low) // width * width AS step,\n"
        "       coalesce(avg($statistic), if(sum(nan + inf) > 0, 'nan'::DOUBLE, NULL)) AS value,\n"
        "       any_value(place) AS place\n"
        "FROM layers CROSS JOIN span LEFT JOIN first USING (layer) WHERE kind = $kind AND size > 0\n"
        "GROUP BY 1, 2 ORDER BY place NULLS LAST, layer, step",
        "From the first layer above to the last below, step by step. Gradients that fade towards the top vanish; "
        "a bright stripe to the right is an explosion. Click a layer to follow it.",
        x="step", y=("layer",), parameters=(KIND, STATISTIC), selects={"layer": "layer"}, needs=("layers",),
        marks="step", is_wide=True, is_optional=False,
    ),
    Panel(
        "layer-series", "layers", "One layer over time", "line",
        f"WITH chosen AS (SELECT * FROM layers WHERE layer = {_THE_LAYER}),\n"
        "span AS (SELECT min(step) AS low, (max(step) - min(step)) // 500 + 1 AS width FROM chosen)\n"
        "SELECT low + (step - low) // width * width AS step, kind, avg($statistic) AS value\n"
        "FROM chosen, span GROUP BY 1, 2 ORDER BY 2, 1",
        "The statistic chosen above, for the layer's gradient and its weight; the largest layer if none is chosen.",
        x="step", y=("value",), by="kind", scale="log", parameters=(LAYER, STATISTIC), needs=("layers",), marks="step",
    ),
    Panel(
        "update-ratio", "layers", "Update-to-weight ratio", "line",
        "WITH moves AS (\n"
        "  SELECT layer, step, abs(drift - lag(drift) OVER track) / nullif(step - lag(step) OVER track, 0)\n"
        "         / nullif(norm, 0) AS ratio\n"
        "  FROM layers WHERE kind = 'weight' AND drift IS NOT NULL\n"
        "  WINDOW track AS (PARTITION BY process, optimizer, layer ORDER BY step)),\n"
        "span AS (SELECT min(step) AS low, (max(step) - min(step)) // 300 + 1 AS width FROM moves)\n"
        "SELECT low + (step - low) // width * width AS step, median(ratio) AS middle,\n"
        "       quantile_cont(ratio, 0.1) AS low_end, quantile_cont(ratio, 0.9) AS high_end,\n"
        "       median(ratio) FILTER (layer = $layer) AS layer\n"
        "FROM moves, span WHERE ratio > 0 GROUP BY 1 ORDER BY 1",
        "How far the weights move in a step, relative to their norm: about 0.001 is usual. "
        "The middle of all layers, and four fifths of them in the band.",
        x="step", y=("middle", "layer"), band=("low_end", "high_end"), scale="log", parameters=(LAYER,),
        needs=("layers",), marks="step",
    ),
    Panel(
        "layer-updates", "layers", "How much each round moves each layer", "heat",
        "WITH span AS (SELECT min(round) AS low, (max(round) - min(round)) // 240 + 1 AS width FROM updates)\n"
        "SELECT layer, low + (round - low) // width * width AS round, median(norm / nullif(base_norm, 0)) AS value\n"
        "FROM updates, span WHERE layer IS NOT NULL AND client IS NOT NULL AND kind = 'weight'\n"
        "GROUP BY 1, 2 ORDER BY 1, 2",
        "Norm of the median client's update relative to the layer's own norm.",
        x="round", y=("layer",), scale="log", needs=("updates",), marks="round", is_wide=True,
    ),
    Panel(
        "layer-table", "layers", "Layers at the last sampled step", "table",
        "SELECT layer, kind, max(size) AS size, arg_max(norm, step) AS norm, arg_max(mean, step) AS mean,\n"
        "       arg_max(std, step) AS std, arg_max(min, step) AS min, arg_max(max, step) AS max,\n"
        "       arg_max(zero_share, step) AS zero_share, sum(nan) AS nan, sum(inf) AS inf,\n"
        "       arg_max(drift, step) AS drift, max(step) AS step\n"
        "FROM layers GROUP BY layer, kind ORDER BY layer, kind LIMIT 2000",
        "NaN and infinities are counted over all samples.",
        selects={"layer": "layer"}, needs=("layers",), is_wide=True,
    ),
)  # fmt: skip
