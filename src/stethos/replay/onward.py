"""Carries a federation on from a recorded round with something changed, beside what was recorded."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from stethos.errors import CaptureError
from stethos.replay.bundle import Bundle
from stethos.replay.workshop import Sent, State, Workshop, past_of, recorded_sent

Edit = Callable[[State, State], State]  # of the global model and what the client sent: what it shall have sent


@dataclass(frozen=True, eq=False, slots=True)
class Change:
    """What is different: clients that take no part, and what others send instead. Both hold from the first round on."""

    without: frozenset[str] = frozenset()
    edits: Mapping[str, Edit] = field(default_factory=dict)

    def applied(self, current: State, sent: list[Sent]) -> list[Sent]:
        kept = []
        for one in sent:
            if one.client in self.without:
                continue
            edit = self.edits.get(one.client)
            kept.append(one if edit is None else replace(one, state=edit(current, one.state), delta=None))
        return kept


@dataclass(frozen=True, eq=False, slots=True)
class Carried:
    """One round of the changed history: the new global model and its numbers, beside those recorded."""

    round: int
    state: State
    numbers: Mapping[str, float]
    recorded: Mapping[str, float]
    is_retrained: bool


def carry_on(
    bundle: Bundle, workshop: Workshop, start: int, change: Change, *, until: int | None = None
) -> Iterator[Carried]:
    """Round `start` with its recorded updates, changed; from the next one on clients train again from new models."""
    recorded_past = past_of(bundle)
    made: dict[int, State] = {}

    def past(number: int) -> State:
        return made[number] if number in made else recorded_past(number)

    memory = bundle.server_state(start)
    for number in [one for one in bundle.rounds if one >= start and (until is None or one <= until)]:
        current = past(number - 1)
        is_retrained = number > start
        if is_retrained:
            clients = [client for client in bundle.clients(number) if client not in change.without]
            sent = [workshop.train(number, client, past) for client in clients]
        else:
            sent = recorded_sent(bundle, number, change.without)
        sent = change.applied(current, sent)
        if sent:
            made[number], memory = workshop.aggregate(number, current, sent, memory)
        else:
            made[number] = current
        made.pop(number - 32, None)
        yield Carried(
            number, made[number], workshop.evaluate(made[number]), evaluation_of(bundle, number), is_retrained
        )


def evaluation_of(bundle: Bundle, number: int) -> Mapping[str, float]:
    """The recorded numbers of the global model after a round."""
    found = bundle.manifest(number).get("evaluation")
    if not isinstance(found, dict):
        raise CaptureError(f"round {number} is damaged: no evaluation")
    return {str(name): float(value) for name, value in found.items() if isinstance(value, int | float)}
