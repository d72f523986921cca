"""What a client's reply may say of its turn, by its site's policy. Standard library only: the training imports this."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

from stethos.collect.policy import Policy
from stethos.schema import CLIENT_REPORTS

_TYPE = re.compile(r"(?:[A-Za-z_]\w{0,63}\.){0,8}([A-Za-z_]\w{0,63})")
_FRAME = re.compile(r'^\s*File "([^"\n]*)", line (\d{1,9}), in (\S+)', re.MULTILINE)
_ODD = re.compile(r"[^\w.<>-]")
_MOST_FRAMES = 40
_COLUMNS = frozenset(column.name for column in CLIENT_REPORTS.columns)


SOMETHING = "some"


def filtered_report(policy: Policy, report: Mapping[str, Any]) -> dict[str, Any]:
    """The columns of `client_reports` in a reply as they may leave; below L4 nothing else does."""
    given = report.get("samples")
    samples = given if isinstance(given, int | float) else 0
    told: dict[str, Any] = {}
    for name, value in report.items():
        if name not in _COLUMNS:
            if policy.level == "L4":
                told[name] = value
            continue
        rule = policy.rule(CLIENT_REPORTS.name, name)
        match rule.way:
            case "keep":
                told[name] = value
            case "bucket":
                bucket = power_of_two(value) if isinstance(value, int | float) else 0.0
                told[name] = int(bucket) if isinstance(value, int) else bucket
            case "round" if samples >= policy.least(rule) and isinstance(value, int | float):
                told[name] = rounded(float(value), rule.digits, rule.low, rule.high)
            case "error-type":
                told[name] = error_type(str(value))
            case "frames":
                told[name] = frames_of(str(value))
            case "whether":
                told[name] = SOMETHING
    return told


def power_of_two(value: float) -> float:
    """The value, rounded up to a power of two; 0 if it is not positive."""
    return 2.0 ** math.ceil(math.log2(value)) if value > 0 and math.isfinite(value) else 0.0


def rounded(value: float, digits: int, low: float, high: float) -> float:
    """To some significant digits, within bounds; what is not finite becomes NaN."""
    return float(f"{min(max(value, low), high):.{digits - 1}e}") if math.isfinite(value) else math.nan


def error_type(text: str) -> str:
    """The type of an exception that is told as `Type: message`."""
    found = _TYPE.fullmatch(text.partition(":")[0].strip())
    return found[1] if found else "error"


def frames_of(text: str) -> str:
    """The frames of a traceback without what they say: file names without directories, and no code."""
    frames = [
        f"{_ODD.sub('_', name)} ({_ODD.sub('_', path.rpartition('/')[2])[:80]}:{line})"
        for path, line, name in _FRAME.findall(text)[-_MOST_FRAMES:]
    ]
    return "\n".join(frames)
