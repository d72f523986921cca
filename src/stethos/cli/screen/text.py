"""Text for terminals: made safe, and numbers in units people read."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Sequence

from stethos.unseen import UNSEEN, without_needless

# Escape sequences (CSI, OSC and other strings, two-character ones), then every control character that is left,
# then marks that reorder text or show nothing. Text from a run can hold anything, also commands to the terminal.
_SEQUENCE = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]?|\x9b[0-?]*[ -/]*[@-~]?"
    r"|(?:\x1b[\]PX^_]|[\x90\x98\x9d-\x9f])[^\x07\x1b\x9c]*(?:\x07|\x1b\\|\x9c)?"
    r"|\x1b[ -/]*[0-~]?"
)
_CONTROL = re.compile(rf"[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff{UNSEEN}]")
_SPACE = re.compile(r"[\t\n]+")


def clean(text: str, *, keep_lines: bool = False) -> str:
    """Text without escape sequences and control characters; line ends and tabs become a space unless kept."""
    text = _CONTROL.sub("", _SEQUENCE.sub("", text.replace("\r\n", "\n").replace("\r", "\n")))
    text = text if text.isascii() else without_needless(text)
    return text if keep_lines else _SPACE.sub(" ", text)


def cut(text: str, width: int) -> str:
    """At most `width` characters, with a mark where something is missing."""
    return text if len(text) <= width else text[: max(0, width - 1)] + "…"


def bytes_text(count: int) -> str:
    """`3.2 MB`."""
    size = float(count)
    for unit in ("B", "kB", "MB", "GB"):
        if abs(size) < 1000:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} TB"


def count_text(count: int | None) -> str:
    """`12,345`; `-` if unknown."""
    return "-" if count is None else f"{count:,}"


def duration_text(seconds: float | None) -> str:
    """`850 ms`, `12.3 s`, `4 m 05 s`, `3 h 12 m`, `2 d 5 h`."""
    if seconds is None:
        return "-"
    if seconds < 1:
        return f"{max(0.0, seconds) * 1000:.0f} ms"
    if seconds < 60:
        return f"{seconds:.1f} s"
    whole = int(seconds)
    if whole < 3600:
        return f"{whole // 60} m {whole % 60:02d} s"
    if whole < 86_400:
        return f"{whole // 3600} h {whole % 3600 // 60:02d} m"
    return f"{whole // 86_400} d {whole % 86_400 // 3600} h"


def share_text(share: float | None) -> str:
    """`0.84%`."""
    return "-" if share is None else f"{share * 100:.2f}%"


def time_text(t_ns: int | None) -> str:
    """Local time to the second."""
    return "-" if not t_ns else time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(t_ns / 1e9))


def number_text(value: float | None) -> str:
    """Six significant digits."""
    return "-" if value is None else f"{value:.6g}"


def short_text(value: float | None) -> str:
    """Three significant digits for narrow columns: `0.0312`, `12.5`, `25,340`, `1.2e+06`, `NaN`; `-` if unknown."""
    if value is None:
        return "-"
    if math.isnan(value):
        return "NaN"
    if 1e3 <= abs(value) < 1e6:
        return f"{value:,.0f}"
    return f"{value:#.3g}".rstrip(".") if value and 1e-3 <= abs(value) < 1e3 else f"{value:.2g}"


def cosine_text(value: float | None) -> str:
    """`+0.83`, `-0.12`."""
    return "-" if value is None else "NaN" if math.isnan(value) else f"{value:+.2f}"


def times_text(value: float | None) -> str:
    """How many times something is something else: `0.07x`, `1.2x`, `38x`."""
    if value is None or math.isnan(value):
        return "-" if value is None else "NaN"
    return f"{value:.2f}x" if abs(value) < 0.995 else f"{value:.1f}x" if abs(value) < 9.95 else f"{value:.3g}x"


def ms_text(milliseconds: float | None) -> str:
    """`0.4 ms`, then as `duration_text`."""
    if milliseconds is None or not math.isfinite(milliseconds):
        return "-"
    return f"{milliseconds:.1f} ms" if 0 < milliseconds < 9.95 else duration_text(milliseconds / 1000)


def plural_text(count: int, noun: str) -> str:
    """`1 round`, `1,000 clients`."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def names_text(names: Sequence[str], most: int = 3) -> str:
    """`c1, c2, c3 and 7 more`; each name cleaned and cut."""
    shown = ", ".join(cut(clean(name), 24) for name in names[:most])
    return f"{shown} and {len(names) - most:,} more" if len(names) > most else shown
