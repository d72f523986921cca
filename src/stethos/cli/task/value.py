"""Values given on a command line: argparse makes a usage error of what these complain about."""

from __future__ import annotations

import argparse
from collections.abc import Callable

from stethos.errors import StethosError
from stethos.settings import parse_bytes

_MOST_S = 1e6


def seconds(text: str, most_s: float = _MOST_S) -> float:
    """A time in seconds, above 0 and no longer than `most_s`."""
    try:
        value = float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"not a number of seconds: {text!r}") from None
    if not 0 < value <= most_s:
        raise argparse.ArgumentTypeError(f"a time is more than 0 and at most {most_s:,.0f} seconds")
    return value


def whole_number(least: int = 0, most: int = 2**63 - 1) -> Callable[[str], int]:
    """Reads a whole number of at least `least`; what is above `most` counts as `most`."""

    def read(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"not a whole number: {text!r}") from None
        if value < least:
            raise argparse.ArgumentTypeError(f"a whole number of at least {least} is needed, not {value}")
        return min(value, most)

    return read


def size_bytes(text: str) -> int:
    """A size as `500000`, `1MB` or `4GB`."""
    try:
        return parse_bytes(text)
    except StethosError as error:
        raise argparse.ArgumentTypeError(error.message) from None


def port(text: str) -> int:
    """A port of TCP; 0 is any free one."""
    value = whole_number()(text)
    if value > 65535:
        raise argparse.ArgumentTypeError(f"a port is between 0 and 65535, not {value}")
    return value
