"""Passes over a training data loader, as spans named `epoch`."""

from __future__ import annotations

import os
import struct
from typing import Any

from stethos.observe.session import Session
from stethos.schema import SPANS

_NUMBERS = struct.Struct("<dd")
_BEGIN = "_stethos_begin"


def note_begin(session: Session, iterator: Any, start_ns: int) -> None:
    """The first batch of a pass has come: remember when it was asked for, and how many steps there had been."""
    setattr(iterator, _BEGIN, (start_ns, session.steps))


def note_end(session: Session, iterator: Any, end_ns: int) -> None:
    """The data has come to its end: a row, if optimizer steps were made on it; a pass to evaluate is none."""
    begin = iterator.__dict__.pop(_BEGIN, None)
    if begin is None or session.steps <= begin[1]:
        return
    start_ns, steps = begin
    session.put_frame(
        SPANS.number,
        session.name_id("epoch").to_bytes(4, "little", signed=True),
        _NUMBERS.pack((end_ns - start_ns) * 1e-6, 1.0),
        (os.urandom(16).hex(), os.urandom(8).hex(), "", f'{{"steps": {session.steps - steps}}}', ""),
        t_ns=start_ns + session.offset_ns,
    )
