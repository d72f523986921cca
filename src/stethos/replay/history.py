"""What is kept of a federation, round by round: the seam between captures and all that repeats them.

Models are state dicts of tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol

from stethos.errors import CaptureError
from stethos.replay.corrections import RoundCorrections

if TYPE_CHECKING:
    from torch import Tensor

State = dict[str, "Tensor"]
Past = Callable[[int], State]  # the global model after a round; 0 is before the first


@dataclass(frozen=True, eq=False, slots=True)
class ClientUpdate:
    """What a client sent in a round, recorded or trained again, and what is known of its turn.

    `state` is its model as sent; where it sent a change, the global model before
    the round plus that change, and `delta` is the change. `losses` are those of its steps, `order` a digest of the
    order of its samples, where they are known.
    """

    client: str
    state: State
    samples: int | None = None
    losses: tuple[float, ...] | None = None
    order: str | None = None
    weight: float | None = None
    delta: State | None = None
    loss: float | None = None
    base_round: int | None = None
    metrics: Mapping[str, float] = field(default_factory=dict)


class FederationHistory(Protocol):
    """What is kept of a federation: a `Bundle` on disk, or one held in memory."""

    @property
    def settings(self) -> Mapping[str, Any]: ...
    @property
    def rounds(self) -> Sequence[int]: ...
    def clients(self, round: int) -> Sequence[str]: ...
    def kept(self, round: int) -> Sequence[str]: ...
    def global_state(self, round: int, when: Literal["before", "after"] = "before") -> State: ...
    def server_state(self, round: int) -> State: ...
    def corrections(self, round: int) -> RoundCorrections: ...
    def update(self, round: int, client: str) -> ClientUpdate: ...


@dataclass(frozen=True, eq=False)
class RecordedRound:
    """A round of which every update was kept: what the server began with, and what it received."""

    number: int
    base: State
    memory: State
    updates: tuple[ClientUpdate, ...]
    is_rolled_back: bool = False

    @property
    def clients(self) -> tuple[str, ...]:
        return tuple(one.client for one in self.updates)

    @property
    def weights(self) -> dict[str, float]:
        """By client, how much its update counts."""
        return {one.client: float(one.samples or 1) for one in self.updates}

    @property
    def is_sound(self) -> bool:
        """Whether the global model that the round began with was finite, and what was made of it stayed."""
        return not self.is_rolled_back and is_finite(self.base)

    def sent_by(self, client: str) -> State:
        """What this client sent."""
        return self.updates[self.clients.index(client)].state


def is_finite(state: State) -> bool:
    return all(bool(value.isfinite().all()) for value in state.values() if value.is_floating_point())


def recorded_round(history: FederationHistory, number: int) -> RecordedRound | None:
    """A captured round; None if not every client's update was kept."""
    clients = history.clients(number)
    if not clients or set(history.kept(number)) != set(clients):
        return None
    return RecordedRound(
        number, history.global_state(number), history.server_state(number),
        tuple(history.update(number, client) for client in clients), history.corrections(number).is_rolled_back,
    )  # fmt: skip


def recorded_rounds(
    history: FederationHistory, first: int | None = None, last: int | None = None, *, is_needed: bool = True
) -> list[RecordedRound]:
    """All captured rounds of a range; if they are needed, CaptureError if there is none with every update."""
    chosen = [
        number for number in history.rounds if (first is None or number >= first) and (last is None or number <= last)
    ]
    found = [one for one in (recorded_round(history, number) for number in chosen) if one is not None]
    if not found and is_needed:
        mode = history.settings.get("mode")
        kept = f": capture={mode!r}" if mode else ""
        raise CaptureError(
            f"no round was captured with all of its updates{kept}",
            hint="capture='all' keeps the updates of every client"
            if mode != "all"
            else "none has ended yet, or they were dropped: a larger capture_bytes keeps more",
        )
    return found


def past_of(history: FederationHistory) -> Past:
    """The recorded global models."""

    def past(number: int) -> State:
        rounds = history.rounds
        return history.global_state(number + 1) if number + 1 in rounds else history.global_state(number, "after")

    return past
