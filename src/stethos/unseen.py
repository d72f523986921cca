"""Marks in a text that show nothing or reorder what is around them: two names may look alike, or say something else.

One list for the terminal and for CSV files; the page spells the same ones out (`web/src/format.ts`). The same syntax
for Python and for RE2.
"""

from __future__ import annotations

import re

# Soft hyphen, grapheme joiner, Arabic letter mark, Hangul fillers, Khmer inherent vowels, Mongolian separator, spaces
# without width, marks and overrides of direction, line separators, byte order mark, annotations, shorthand, musical
# phrases, tags and selectors of variants of ideographs.
UNSEEN = (
    "\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\u3164\ufeff\uffa0"
    "\ufff0-\ufffb\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff"
)
# Joiners and selectors of variants, which Persian, Hindi, Mongolian and emoji need: no Latin, Greek or Cyrillic letter.
_JOINING = "[\u180b-\u180d\u180f\u200c\u200d\ufe00-\ufe0f]"
# What to replace with what, one after the other: joiners where nothing needs them, then more of them than two.
NEEDLESS = ((f"(^|[\\x00-\u058f]){_JOINING}+", "\\1"), (f"({_JOINING}{{2}}){_JOINING}+", "\\1"))
_NEEDLESS = tuple((re.compile(pattern), instead) for pattern, instead in NEEDLESS)


def without_needless(text: str) -> str:
    """Text, in which UNSEEN is gone already, without joiners that join nothing."""
    for pattern, instead in _NEEDLESS:
        text = pattern.sub(instead, text)
    return text
