"""Which families the rules were made with, and which were kept apart.

`DEVELOPMENT` and `OPENED` were written down on 16 November 2026, before a rule existed and before any federation was
played; `OPENED` was held out until 20:59 of that day and is for development since. `HELD_OUT` was written down at
22:57, before any of its federations was played. A federation with at least one member of `HELD_OUT` is looked at once,
when the rules are frozen; `docs/benchmarks/clients.md` says when, and what was changed afterwards.

`THIRD` was written down on 17 November 2026 at 10:42 UTC, before any of its federations was played, by somebody who had
not read the rules. Its federations share nothing with the others but plain averaging and two splits
(`benchmarks/wild/third`). A fourth and a fifth set have their lists beside them (`fourth/families.py`,
`fifth/families.py`).
"""

from __future__ import annotations

from typing import NamedTuple


class Families(NamedTuple):
    """The members of each axis; `tasks` of data sets are images, tables, text, values and series (regressions)."""

    data: dict[str, str]
    models: dict[str, tuple[str, ...]]  # by task
    algorithms: tuple[str, ...]
    splits: tuple[str, ...]
    faults: tuple[str, ...]


DEVELOPMENT = Families(
    data={
        "digits": "images", "breast": "tables", "fair": "tables", "weather": "tables", "diabetes": "values",
        "docs": "text",
    },
    models={
        "images": ("linear", "mlp", "cnn", "lora"),
        "tables": ("linear", "mlp", "batchnorm", "lora"),
        "values": ("linear", "mlp"),
        "text": ("bag", "transformer"),
    },
    algorithms=("fedavg", "fedprox", "momentum", "fedbn", "top-k", "dp", "partial"),
    splits=("iid", "dir0.3", "quantity", "foreign"),
    faults=(
        "label-flip", "label-noise", "feature-noise", "missing", "units", "unnormalised", "duplicates", "backdoor",
        "sign-flip", "scaling", "update-noise", "free-rider-zero", "free-rider-delta", "nan", "wrong-lr", "stale",
        "third-label-noise",
    ),
)  # fmt: skip
OPENED = Families(
    data={
        "randhie": "tables", "anes96": "tables", "patches": "images", "code": "text", "cars": "values",
        "sea": "values",
    },
    models={
        "images": ("residual", "layernorm"),
        "tables": ("layernorm", "tab-transformer"),
        "values": ("layernorm", "tab-transformer"),
        "text": ("gru", "text-cnn"),
    },
    algorithms=("fedadam", "adam", "personal", "int8", "scaffold", "deltas"),
    splits=("dir0.1",),
    faults=(
        "off-by-one", "target-units", "free-rider-noise", "third-sign-flip", "inf", "int8-wrap",
        # not foreseen by the rules: written down now, without a rule in mind
        "columns-shifted", "one-label", "no-zero-grad", "half-trained", "imputed", "reversed", "rounded", "sum-loss",
        "second-of-two", "labels-late",
    ),
)  # fmt: skip
HELD_OUT = Families(
    data={
        "segment": "tables", "banana": "tables", "phishing": "tables", "temperatures": "values", "scan": "images",
        "comments": "text",
    },
    models={
        "images": ("mixer", "highway"),
        "tables": ("highway", "squared"),
        "values": ("highway", "squared"),
        "text": ("lstm", "attention"),
    },
    algorithms=("fednova", "fedavgm", "rmsprop", "epochs", "qsgd", "clipped", "late"),
    # Honest: two classes each; neighbours in one direction; another sensor; one small client; another mix of classes.
    splits=("pairs", "sorted", "sensor", "tiny", "mix"),
    faults=(
        "swapped-columns", "labels-swapped", "shuffled", "saturated", "log-scale", "filled", "frozen-body", "ascent",
        "slow-lr", "double", "echo", "stuck-batch", "one-layer-turned",
    ),
)  # fmt: skip
THIRD = Families(
    data={
        "titanic": "tables", "chess": "tables", "yeast": "tables", "shuttle": "tables", "pigs": "values",
        "demand": "series", "eeg": "series", "glyphs": "images", "terrain": "images", "names": "text",
        "services": "text", "source": "text",
    },
    models={
        "images": ("vit", "depthwise", "weight-norm"),
        "tables": ("weight-norm", "deep-fm", "gated", "experts"),
        "values": ("weight-norm", "deep-fm", "gated", "experts"),
        "series": ("series-conv", "series-gru", "gated"),
        "text": ("glu-conv", "pooled", "bi-gru"),
    },
    algorithms=(
        "fedavg", "fedyogi", "feddyn", "nesterov", "lookahead", "adamw", "accumulate", "server-average", "buffered",
        "uneven-steps", "sign", "random-k", "schedules", "trimmed",
    ),
    # Honest: skewed sizes; neighbours in time or in the file; two populations; one client with a class of its own, with
    # another device, with four times the data, or from another group.
    splits=("iid", "dir0.2", "lognormal", "ordered", "populations", "extra", "device", "large", "foreign"),
    faults=(
        "pair-confused", "annotator", "merged-classes", "relabelled-midway", "targets-mirrored", "targets-lagged",
        "targets-capped", "inverted", "stuck-sensor", "turned", "channels-mixed", "half-dark", "truncated-text",
        "unknown-words", "vocabulary-shifted", "normalised-twice", "overflowed", "flaky-sensor", "few-copied",
        "stamped", "dropout-left", "frozen-head", "kept-momentum", "heavy-decay", "class-weights", "double-softmax",
        "layer-ascent", "runaway-lr", "smoothed-away", "sent-early", "never-syncs", "resent", "averaged",
        "layers-swapped", "two-bits", "coarse-weights", "torn", "layout", "bit-errors",
    ),
)  # fmt: skip
OF_LABELS = frozenset({"label-flip", "label-noise", "third-label-noise", "off-by-one", "one-label", "labels-late",
                       "labels-swapped", "pair-confused", "annotator", "merged-classes", "relabelled-midway",
                       "encoder-reversed", "one-class-noisy", "half-merged", "pseudo-labels", "graded-up",
                       "form-default", "rule-labels", "half-one-based", "translated-names", "sometimes-scrambled",
                       })  # fmt: skip
OF_VALUES = frozenset({"target-units"})  # faults that only a regression can have
NOT_OF_VALUES = OF_LABELS | {"backdoor"}
OF_NUMBERS = frozenset(
    {"units", "unnormalised", "imputed", "rounded", "saturated", "log-scale", "filled"}
)  # not of tokens


def has_member(families: Families, data: str, model: str, algorithm: str, split: str, fault: str | None) -> bool:
    """Whether a federation has a member of these."""
    return (
        data in families.data
        or any(model in models for models in families.models.values())
        or algorithm in families.algorithms
        or split in families.splits
        or fault in families.faults
    )
