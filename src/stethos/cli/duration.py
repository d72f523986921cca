"""Times given on a command line."""

from __future__ import annotations

import argparse

_MOST_S = 1e6


def seconds(text: str, most_s: float = _MOST_S) -> float:
    """A time in seconds, above 0 and no longer than `most_s`; argparse makes a usage error of anything else."""
    try:
        value = float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"not a number of seconds: {text!r}") from None
    if not 0 < value <= most_s:
        raise argparse.ArgumentTypeError(f"a time is more than 0 and at most {most_s:,.0f} seconds")
    return value
