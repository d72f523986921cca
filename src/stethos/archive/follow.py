"""Archives a run while it goes on, and notes in its directory how that goes, for whoever started it.

RUN/archiver-HOST.json    where it is archived to, when that was last done, and why it fails
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from stethos.archive.address import Address
from stethos.archive.committer import Outcome, archive_run
from stethos.errors import ArchiveError, RecordingError
from stethos.record.border import read_json
from stethos.record.place import RunPlace, host_key, write_json
from stethos.store.find import is_live

AFTER_S = 600.0  # the run is over: so long its last rows are waited for, and a store that fails is tried again
_LOOK_S = 1.0
_LONGEST_REASON = 1_000


@dataclass(frozen=True, slots=True)
class ArchiverNote:
    """How an archiver of this machine gets on: `reason` says why its last attempt failed, None that it did not."""

    t_ns: int
    address: str
    reason: str | None


def note_of(place: RunPlace) -> ArchiverNote | None:
    """What the archiver of a run has noted last; None if there is none, or it has not got that far."""
    facts = read_json(_file_of(place))
    t_ns, address, reason = facts.get("t_ns"), facts.get("address"), facts.get("reason")
    if not isinstance(address, str) or not isinstance(t_ns, int):
        return None
    return ArchiverNote(t_ns, address, reason[:_LONGEST_REASON] if isinstance(reason, str) else None)


def follow(
    place: RunPlace,
    archive: Address,
    every_s: float,
    *,
    tell: Callable[[int, int], None] | None,
    done: Callable[[Outcome, bool], None],
    failed: Callable[[ArchiveError], None],
) -> None:
    """Archive the run every so often until it is over and all of it is there.

    `done` hears of each copy and whether the run goes on, `failed` of each attempt that is followed by another. Once
    the run is over, what fails is tried again for AFTER_S seconds. ArchiveError after that, or at once if the run was
    over from the beginning.
    """
    last_alive: float | None = None
    while True:
        is_going = is_live(place)
        if is_going:
            last_alive = time.monotonic()
        is_late = last_alive is None or time.monotonic() - last_alive > AFTER_S
        has_failed = False
        try:
            outcome = archive_run(place, archive, tell)
        except ArchiveError as error:
            _note(place, archive, str(error.message))
            if is_late:
                raise
            has_failed = True
            failed(error)
        else:
            _note(place, archive, None)
            done(outcome, is_going)
            if not is_going and (outcome.is_complete or is_late):
                return
        _pause(place, every_s if is_going or has_failed else min(every_s, _LOOK_S), is_going=is_going)


def _pause(place: RunPlace, seconds: float, *, is_going: bool) -> None:
    """Wait; the end of the run is noticed soon."""
    until = time.monotonic() + seconds
    while (left := until - time.monotonic()) > 0:
        time.sleep(min(left, _LOOK_S))
        if is_going and not is_live(place):
            return


def _note(place: RunPlace, archive: Address, reason: str | None) -> None:
    with suppress(OSError, RecordingError):  # the directory is read-only, full or gone
        if place.exists():
            write_json(_file_of(place), {"t_ns": time.time_ns(), "address": str(archive), "reason": reason})


def _file_of(place: RunPlace) -> Path:
    return place.path / f"archiver-{host_key()}.json"
