"""What the fourth set is made of. None of these is in an earlier set."""

from __future__ import annotations

from benchmarks.wild.families import Families

FOURTH = Families(
    data={
        # real: scikit-learn's tests, networkx, the wheel of river, matplotlib, Unicode
        "penguins": "tables", "atlas": "tables", "water": "series", "membrane": "series", "characters": "text",
        # drawn: a triage with gaps and categories, accelerometers, shapes, DNA, calls an hour, insurance claims
        "ward": "tables", "gait": "signals", "shapes": "images", "reads": "text", "calls": "counts",
        "claims": "values",
    },
    models={
        "tables": ("maxout", "soft-tree", "cross", "prototypes", "random-features"),
        "images": ("dense-conv", "coord-conv", "prototypes"),
        "text": ("fourier-mix", "hashed-pairs", "elman"),
        "signals": ("residual-1d", "gru-attend", "causal"),
        "series": ("gru-attend", "causal", "basis"),
        "counts": ("log-rate", "cross", "maxout"),
        "values": ("quantile", "maxout", "cross"),
    },
    algorithms=(
        "fair", "clustered", "geometric-median", "server-decay", "dropouts", "bfloat16", "warm-restart", "alternating",
        "server-adagrad", "tail-average", "sharpness", "mime",
    ),
    # The first five deal samples out; in the others, which are clean, the first client is honest and unlike the rest:
    # ten times the data, a rare class of its own, another gain, mostly one class, three times the local epochs, or
    # another group of people or things.
    splits=(
        "even", "zipf", "one-class-less", "drifting", "near",
        "ten-times", "rare-alone", "gain", "own-mix", "more-epochs", "other-group",
    ),
    faults=(
        # labels and targets
        "encoder-reversed", "one-class-noisy", "half-merged", "pseudo-labels", "fahrenheit", "targets-logged",
        # inputs
        "rows-slipped", "clock-shifted", "decimal-comma", "inches", "min-max", "leaked-target", "thumbnails",
        "half-rate", "categories-recoded", "faint-trigger",
        # what a turn is fed with, and the client's training
        "prefetch-skew", "truncated-file", "clip-tiny", "l1-typo", "wrong-loss", "half-underflow", "adam-at-sgd-rate",
        "overtrained", "head-reset", "anchored",
        # what is sent
        "ema-sent", "one-digit", "unsigned", "biases-dropped", "pruned", "one-shot-boost", "against-trend",
    ),
)  # fmt: skip
