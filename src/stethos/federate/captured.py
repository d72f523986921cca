"""What a round hands to its federation's capture; without a capture every call does nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from stethos.federate.site import Site, Update
from stethos.federate.structure import State
from stethos.guard import attempt
from stethos.observe.session import number_in

if TYPE_CHECKING:
    from stethos.federate.federation import Federation
    from stethos.replay.capture import Capture

_TOLD = ("status", "error", "base_round", "steps", "label")


class RoundCapture:
    """One round's side of a capture; failures are counted and noted by the session's guard."""

    def __init__(self, federation: Federation, number: int) -> None:
        self._federation = federation
        self._number = number

    @property
    def is_on(self) -> bool:
        return self._federation.capture is not None

    @property
    def wants_traces(self) -> bool:
        capture = self._federation.capture
        return capture is not None and capture.keeps_updates

    def begin(self, state: Callable[[], State | None]) -> None:
        self._run(lambda capture: capture.begin_round(self._number, self._named(state())))

    def select(self, clients: Sequence[object]) -> None:
        self._run(lambda capture: capture.note_round({"selected": [str(client) for client in clients]}))

    def note(self, facts: Mapping[str, Any]) -> None:
        self._run(lambda capture: capture.note_round(facts))

    def begin_turn(self, site: Site) -> None:
        self._run(lambda capture: capture.begin_turn(site.client))

    def update(self, update: Update) -> None:
        self._run(lambda capture: self._update(capture, update))

    def server_state(self, state: State) -> None:
        self._run(lambda capture: capture.server_state(self._federation.named(state)))

    def end(
        self, sites: Sequence[Site], state: Callable[[], State | None], evaluation: Mapping[str, float],
        odd: Sequence[str],
    ) -> None:  # fmt: skip
        self._run(lambda capture: self._end(capture, sites, state, evaluation, odd))

    def _run(self, action: Callable[[Capture], None]) -> None:
        session, capture = self._federation.session, self._federation.capture
        if session is not None and capture is not None:
            session.guard.run("capture", action, capture)

    def _named(self, state: State | None) -> Mapping[str, Any] | None:
        return None if state is None else self._federation.named(state)

    def _update(self, capture: Capture, update: Update) -> None:
        facts = {
            "reported": True,
            "samples": update.samples,
            "loss": attempt(number_in, update.loss) if update.loss is not None else None,
            "metrics": {name: attempt(number_in, value) for name, value in update.metrics.items()},
            "weight": attempt(number_in, update.metrics["weight"]) if "weight" in update.metrics else None,
            "is_delta": update.is_delta,
        }
        capture.update(update.client, self._federation.named(update.state), facts)

    def _end(
        self, capture: Capture, sites: Sequence[Site], state: Callable[[], State | None],
        evaluation: Mapping[str, float], odd: Sequence[str],
    ) -> None:  # fmt: skip
        for site in sites:
            facts = {name: site.facts.get(name) for name in _TOLD}
            for name in ("samples", "loss"):  # told apart from the update, as adapters do
                if site.facts.get(name) is not None:
                    facts[name] = site.facts[name] if name == "loss" else int(site.facts[name])
            capture.note_turn(site.client, {**facts, **site.traces})
        capture.end_round(self._named(state()), list(dict.fromkeys(odd)), {"evaluation": dict(evaluation)})
