"""Actions as rows of the run, and the requests to take them back that a person leaves in it."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from stethos.act.action import Action, Mode
from stethos.act.correction import Corrector
from stethos.errors import RecordingError, UsageError
from stethos.federate.row import put_row
from stethos.observe import boot
from stethos.record.border import append_file, read_file
from stethos.schema import ACTION_EVENTS

UNDO_FILE = "undo"  # one number of an action per line, appended by `stethos actions --undo`
_LARGEST = 65_536


def recorded_corrector(mode: Mode, federation: str, path: Path | None) -> Corrector:
    """A corrector whose actions become rows of the run at `path`, and can be taken back there."""
    return Corrector(mode, tell=teller(federation), undone=lambda: undo_requests(path) if path else set())


def teller(federation: str | None) -> Callable[[Action], None]:
    """Writes an action's news into the run that is being recorded, if there is one."""

    def tell(action: Action) -> None:
        session = boot.current_session()
        if session is not None:
            values = {
                "federation": federation, "action": action.number, "what": action.what, "mode": action.mode,
                "state": action.state, "kind": action.kind or None, "first": action.first, "last": action.last,
                "unit": action.unit, "times": action.times, "reason": action.reason, "effect": action.effect,
                "evidence": dict(action.evidence), "norm_before": action.norm_before, "norm_after": action.norm_after,
            }  # fmt: skip
            t_ns = time.monotonic_ns() + session.offset_ns
            put_row(session, ACTION_EVENTS, values, client=action.client, round=action.last, t_ns=t_ns)

    return tell


def undo_requests(path: Path) -> set[int]:
    """The numbers of the actions that were taken back; none if the file is not there or says nothing sensible."""
    try:
        words = read_file(path / UNDO_FILE, _LARGEST).decode().split()
    except (OSError, UnicodeDecodeError):
        return set()
    return {int(word) for word in words if word.isdecimal() and len(word) < 10}


def request_undo(path: Path, number: int) -> None:
    """Leave the request to take an action back; the training heeds it before its next round."""
    if number < 1:
        raise UsageError(f"no action {number}", hint="see `stethos actions`")
    try:
        append_file(path / UNDO_FILE, f"{number}\n".encode())
    except OSError as error:
        raise RecordingError(
            f"the request cannot be left in {path}: {error.strerror}", hint="make the run writable"
        ) from None
