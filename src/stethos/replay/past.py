"""What a federation was, round by round, and what it might have been: the seam between captures and proofs.

A `World` knows how to aggregate, examine and, if it can, train again: the lab's
own does all three. Models are state dicts of tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol

import numpy as np
import numpy.typing as npt

from stethos.errors import CaptureError
from stethos.replay.remedy import Remedy

if TYPE_CHECKING:
    from torch import Tensor

State = dict[str, "Tensor"]
Flags = npt.NDArray[np.bool_]


class Sent(Protocol):
    """What a client sent in a round."""

    @property
    def state(self) -> State: ...
    @property
    def samples(self) -> int | None: ...
    @property
    def weight(self) -> float | None: ...


class History(Protocol):
    """What is kept of a federation: a `Bundle` on disk, or one held in memory."""

    @property
    def settings(self) -> Mapping[str, Any]: ...
    @property
    def rounds(self) -> Sequence[int]: ...
    def clients(self, round: int) -> Sequence[str]: ...
    def kept(self, round: int) -> Sequence[str]: ...
    def global_state(self, round: int, when: Literal["before", "after"] = "before") -> State: ...
    def server_state(self, round: int) -> State: ...
    def remedy(self, round: int) -> Remedy: ...
    def update(self, round: int, client: str) -> Sent: ...


class World(Protocol):
    """Where models are made and examined."""

    @property
    def labels(self) -> npt.NDArray[np.int64]:
        """The true class of each sample of the test."""

    def combined(
        self, number: int, base: State, clients: Sequence[str], sent: Sequence[State], samples: Sequence[float]
    ) -> State:
        """The global model that the server makes of these updates in round `number`, corrected as it was then."""

    def right(self, state: State) -> Flags:
        """For each sample of the test, whether the model's answer is right."""

    def trained(
        self, first: int, last: int, without: frozenset[str], seed: int, tell: Callable[[int], None]
    ) -> State | None:
        """The global model after training rounds `first` to `last` again, with some clients never asked.

        Seed 0 repeats what was recorded. `tell` is given each round that is done. None where nothing can be trained.
        """


@dataclass(frozen=True, eq=False)
class Turnout:
    """The updates of a round: who sent what, with which weight."""

    number: int
    base: State
    clients: tuple[str, ...]
    sent: tuple[State, ...]
    samples: tuple[float, ...]
    is_rolled_back: bool = False

    @property
    def is_sound(self) -> bool:
        """Whether the global model that the round began with was finite, and what was made of it stayed."""
        return not self.is_rolled_back and all(
            bool(value.isfinite().all()) for value in self.base.values() if value.is_floating_point()
        )

    def combined(self, world: World, without: frozenset[str] = frozenset()) -> State:
        """The round's result without some of its clients; the model it began with if none are left."""
        left = [place for place, client in enumerate(self.clients) if client not in without]
        if not left:
            return self.base
        return world.combined(
            self.number, self.base, [self.clients[place] for place in left], [self.sent[place] for place in left],
            [self.samples[place] for place in left],
        )  # fmt: skip


def turnout_of(history: History, number: int) -> Turnout | None:
    """The updates of a captured round; None if not every client's was kept."""
    clients = history.clients(number)
    if not clients or set(history.kept(number)) != set(clients):
        return None
    updates = [history.update(number, client) for client in clients]
    known = all(update.weight is not None for update in updates)
    weights = [float((one.weight if known else one.samples) or 1) for one in updates]
    return Turnout(
        number, history.global_state(number), tuple(clients), tuple(update.state for update in updates),
        tuple(weights), history.remedy(number).is_rolled_back,
    )  # fmt: skip


def turnouts_of(
    history: History, first: int | None = None, last: int | None = None, *, is_needed: bool = True
) -> list[Turnout]:
    """All captured rounds of a range; if they are needed, CaptureError if there is none with every update."""
    chosen = [
        number for number in history.rounds if (first is None or number >= first) and (last is None or number <= last)
    ]
    found = [one for one in (turnout_of(history, number) for number in chosen) if one is not None]
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
