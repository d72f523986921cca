"""One request as an operation sees it."""

from __future__ import annotations

import socket
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from stethos.errors import LiveError, UsageError
from stethos.live.boundary import Boundary
from stethos.observe.boot import Recording
from stethos.observe.session import Session
from stethos.record.border import has_input

if TYPE_CHECKING:
    from stethos.live.steer import Steering
    from stethos.observe.optimizers import Watched


@dataclass(frozen=True, slots=True)
class Request:
    """What was asked, by whom, of which recording; `kept` lives as long as the connection."""

    content: dict[str, Any]
    recording: Recording
    boundary: Boundary
    steering: Steering
    connection: socket.socket | None
    pid: int
    uid: int
    kept: dict[str, Any]

    @property
    def op(self) -> str:
        return str(self.content.get("op"))

    @property
    def session(self) -> Session:
        return self.recording.session

    @property
    def who(self) -> str:
        """Whom a gateway asks for; empty for a local user."""
        return str(self.content.get("who") or "")[:200]

    def watched(self) -> list[Watched]:
        """Every optimizer that has been seen and is still there."""
        watch = self.recording.torch_hooks
        return (
            [one for one in watch.steps.optimizers.seen() if one.optimizer() is not None] if watch is not None else []
        )

    def text(self, name: str, default: str = "") -> str:
        value = self.content.get(name, default)
        if not isinstance(value, str):
            raise UsageError(f"{self.op}: {name} is not a text")
        return value

    def seconds(self, name: str, default: float, most: float = 3600.0) -> float:
        value = self.content.get(name, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= most:
            raise UsageError(f"{self.op}: {name} is not a number of seconds up to {most:g}: {value!r}")
        return float(value)

    @property
    def at_step(self) -> int:
        """The step at which all ranks are to act together; 0: the next one."""
        return int(self.seconds("at_step", 0, most=2**53))

    def too_late(self) -> LiveError:
        """What is said where the step at which all ranks were to act has passed."""
        return LiveError(f"step {self.at_step} had passed already when it came: nothing was done", hint="try again")

    def has_hung_up(self) -> bool:
        """Whether nobody waits for the reply any more."""
        if self.connection is None:
            return False
        try:
            return has_input(self.connection, 0.0) and not self.connection.recv(1, socket.MSG_PEEK)
        except (OSError, ValueError):
            return True
