"""What a client's process needs to know to take part in a recording: carried in messages, or pickled.

The server writes an invitation per client and round; the client's process,
wherever it runs, opens it. If it can reach the run's directory it records
into it; if not, what it saw of the turn still goes back with the reply.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from stethos.errors import UsageError
from stethos.guard import attempt
from stethos.observe import boot
from stethos.observe.context import TURN, TurnTotals
from stethos.observe.spans import OPEN, ids_in, traceparent
from stethos.record.place import RunPlace, check_name
from stethos.settings import from_environment, parse_preset, site_dir

_CURRENT: ContextVar[Invitation | None] = ContextVar("stethos_invitation", default=None)


class _Guest:
    """The recording of this process that an invitation began, if any."""

    recording: boot.Recording | None = None


@dataclass(frozen=True, slots=True)
class Invitation:
    """A client's turn in a round, as plain strings and numbers; `run_dir` is "" where nothing is recorded."""

    federation: str
    client: str
    round: int
    run_dir: str = ""
    preset: str = "standard"
    overhead: float = 0.01
    traceparent: str = ""
    turn: int = 0

    def to_fields(self) -> dict[str, str]:
        """Itself as strings, to be sent along."""
        return {name: str(getattr(self, name)) for name in _FIELDS}

    @classmethod
    def from_fields(cls, values: Mapping[str, Any]) -> Invitation:
        """Read what `to_fields` wrote; fields of other versions are ignored."""
        given = {name: str(value) for name, value in values.items() if name in _FIELDS}
        numbers = {
            "round": int(given["round"]), "overhead": float(given.get("overhead", "0.01")),
            "turn": int(given.get("turn", "0")),
        }  # fmt: skip
        return cls(**{**given, **numbers})  # type: ignore[arg-type]

    def record(self) -> None:
        """Begin recording in this process, if it does not yet and the run's directory can be reached.

        A worker that outlives one federation and is invited to the next records into that one from then on.
        """
        known = boot.current()
        is_guest = known is not None and known is _Guest.recording
        run_dir = self._own_run_dir()
        if run_dir is None or (known is not None and not is_guest):
            return
        if known is not None and known.session.settings.run_dir != run_dir:
            known.session.guard.run("close", boot.end)
        if boot.current() is None:
            settings = replace(from_environment(), run_dir=run_dir)
            if site_dir() is None:  # a site's owner says what its recording may cost, not the server
                settings = replace(settings, preset=parse_preset(self.preset), overhead=self.overhead)
            recording = _Guest.recording = attempt(boot.begin, settings)
            if recording is not None:
                recording.session.guard.run("open", recording.session.open)

    def _own_run_dir(self) -> Path | None:
        """Where to record: at a site in its own directory, under the server's name of the run; else beside the server,
        if this process reaches that."""
        site, given = site_dir(), Path(self.run_dir)
        if not self.run_dir:
            return None
        if site is not None:
            with suppress(UsageError):
                return site / "runs" / check_name(given.name)
            return None
        return given if RunPlace(given).exists() else None

    def marked(self, tally: TurnTotals | None = None) -> ClientSpan:
        """For `with`: rows of this thread belong to the client and round, and its spans to the round's trace."""
        return ClientSpan(self, tally or TurnTotals())


class ClientSpan:
    """A piece of work on a client's turn; see `Invitation.marked`."""

    __slots__ = ("_invitation", "_tally", "_tokens")

    def __init__(self, invitation: Invitation, tally: TurnTotals) -> None:
        self._invitation = invitation
        self._tally = tally

    def __enter__(self) -> TurnTotals:
        invitation = self._invitation
        invitation.record()
        session = boot.current_session()
        number = session.name_id(invitation.client) if session is not None else 0
        self._tokens = (
            TURN.set((number, invitation.round, self._tally)),
            OPEN.set((invitation.traceparent != traceparent() and ids_in(invitation.traceparent)) or OPEN.get()),
            _CURRENT.set(invitation),
        )
        return self._tally

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(ValueError):  # left in another context than entered, as async generators may be
            TURN.reset(self._tokens[0])
            OPEN.reset(self._tokens[1])
            _CURRENT.reset(self._tokens[2])


_FIELDS = tuple(field.name for field in fields(Invitation))


def current_invitation() -> Invitation | None:
    """The turn that this thread or task works for, with its open span."""
    invitation = _CURRENT.get()
    return replace(invitation, traceparent=traceparent()) if invitation is not None else None
