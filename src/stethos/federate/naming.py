"""What a federation is called in a run that has several, and how its rounds are counted there."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from stethos.observe import boot
from stethos.observe.context import TURN


def place_of(name: str) -> tuple[str, int]:
    """What a federation is called in a run, and how many rounds of it went before.

    One inside of a client's turn is that of an edge server, which goes on with what it did in earlier turns. Another
    one of the same name, as of a program that trains with several seeds, gets a number.
    """
    session = boot.current_session()
    if session is None:
        return name, 0
    known = session.federations
    if TURN.get()[2] is not None:
        return name, known.setdefault(name, 0)
    free = next(one for one in _numbered(name) if one not in known)
    known[free] = 0
    return free, 0


def _numbered(name: str) -> Iterator[str]:
    yield name
    for number in itertools.count(2):
        yield f"{name}-{number}"
