"""The names that somebody who wrote an unknown one probably meant."""

from __future__ import annotations

from collections.abc import Iterable

_MOST = 4


def nearest(name: str, known: Iterable[str], most: int = _MOST) -> list[str]:
    """Known names that look like this one: by spelling, or because one contains the other."""
    import difflib

    names = {one.lower(): one for one in known}
    part = name.lower()
    close = difflib.get_close_matches(part, names, n=most, cutoff=0.6)
    close += [one for one in names if one not in close and len(part) > 2 and (part in one or one in part)]
    return [names[one] for one in close[:most]]


def did_you_mean(name: str, known: Iterable[str], otherwise: str = "", also: str = "") -> str:
    """A hint: `did you mean a, b?` and what is said `also`, or `otherwise` where no name is near."""
    near = nearest(name, known)
    return f"did you mean {', '.join(near)}? {also}".rstrip() if near else otherwise
