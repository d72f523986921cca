"""TOML that people write: settings, policies, alerts and panels, within limits of time."""

from __future__ import annotations

import re
from typing import Any

_DEEP_KEY = re.compile(r"""(?<![\w-])(?:(?:[\w-]++|"[^"\n]*+"|'[^'\n]*+')[ \t]*+\.[ \t]*+){100}""")


def toml_in(text: str) -> dict[str, Any]:
    """What a text in TOML says; ValueError for whatever is wrong with it.

    The library takes time by the square of the parts of a key: a line of 30,000 dots holds it up for seconds.
    """
    import tomllib  # which few need

    if _DEEP_KEY.search(text):
        raise ValueError("a key has more than 100 parts")
    try:
        return tomllib.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
