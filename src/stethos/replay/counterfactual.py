"""Carries a federation on from a recorded round with something changed, beside what was recorded."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from stethos.errors import CaptureError
from stethos.replay.bundle import Bundle
from stethos.replay.history import ClientUpdate, FederationHistory, State, past_of
from stethos.replay.trainer import Trainer

Edit = Callable[[State, State], State]  # of the global model and what the client sent: what it shall have sent


@dataclass(frozen=True, eq=False, slots=True)
class HistoryChange:
    """What is different: clients that take no part, and what others send instead. Both hold from the first round on."""

    without: frozenset[str] = frozenset()
    edits: Mapping[str, Edit] = field(default_factory=dict)

    def applied(self, current: State, updates: Sequence[ClientUpdate]) -> list[ClientUpdate]:
        kept = []
        for one in updates:
            if one.client in self.without:
                continue
            edit = self.edits.get(one.client)
            kept.append(one if edit is None else replace(one, state=edit(current, one.state), delta=None))
        return kept


@dataclass(frozen=True, eq=False, slots=True)
class ChangedRound:
    """One round of the changed history: the new global model and its numbers, beside those recorded."""

    round: int
    state: State
    numbers: Mapping[str, float]
    recorded: Mapping[str, float]
    is_retrained: bool


def carry_on(
    bundle: Bundle, trainer: Trainer, start: int, change: HistoryChange, *, until: int | None = None
) -> Iterator[ChangedRound]:
    """Round `start` with its recorded updates, changed; from the next one on clients train again from new models."""
    last = max((one for one in bundle.rounds if until is None or one <= until), default=start)
    for number, state in rounds_again(bundle, trainer, start, last, change, is_first_recorded=True):
        numbers = trainer.evaluate(state).numbers
        yield ChangedRound(number, state, numbers, evaluation_of(bundle, number), number > start)


def trained_again(
    history: FederationHistory, trainer: Trainer, first: int, last: int, without: frozenset[str] = frozenset(),
    seed: int = 0, tell: Callable[[int], None] = lambda number: None,
) -> State:  # fmt: skip
    """The global model after training rounds `first` to `last` again, with some clients never asked.

    Seed 0 repeats what was recorded. `tell` is given each round that is done.
    """
    state: State = {}
    for number, state in rounds_again(history, trainer, first, last, HistoryChange(without), seed):  # noqa: B007
        tell(number)
    return state


def rounds_again(
    history: FederationHistory, trainer: Trainer, first: int, last: int, change: HistoryChange, seed: int = 0, *,
    is_first_recorded: bool = False,
) -> Iterator[tuple[int, State]]:  # fmt: skip
    """The global model after each round, with clients trained again; those of the first one perhaps as recorded."""
    recorded_past = past_of(history)
    made: dict[int, State] = {}

    def past(number: int) -> State:
        return made[number] if number in made else recorded_past(number)

    memory = history.server_state(first)
    for number in [one for one in history.rounds if first <= one <= last]:
        current = past(number - 1)
        clients = [client for client in history.clients(number) if client not in change.without]
        if is_first_recorded and number == first:
            updates = [history.update(number, client) for client in clients]
        else:
            updates = trainer.train(number, clients, past, seed)
        updates = change.applied(current, updates)
        if updates:
            made[number], memory = trainer.aggregate(number, current, updates, memory)
        else:
            made[number] = current
        made.pop(number - 32, None)
        yield number, made[number]


def evaluation_of(bundle: Bundle, number: int) -> Mapping[str, float]:
    """The recorded numbers of the global model after a round."""
    found = bundle.manifest(number).get("evaluation")
    if not isinstance(found, dict):
        raise CaptureError(f"round {number} is damaged: no evaluation")
    return {str(name): float(value) for name, value in found.items() if isinstance(value, int | float)}
