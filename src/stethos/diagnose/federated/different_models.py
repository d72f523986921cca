"""FED018: clients of one round that were given different models."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from stethos.diagnose.detector import Needs, threshold
from stethos.diagnose.finding import Evidence, Finding, Severity, Subject
from stethos.diagnose.turn import listed
from stethos.diagnose.window import Window
from stethos.store.literal import literal


@dataclass(frozen=True, slots=True)
class DifferentModels:
    """In one round some clients received a different model from the others.

    What it looks at: the digest that each client makes of the model it received, where it received it (`legs`).

    Why it matters: a server that gives one client a model of its own can read that client's data out of its answer,
    secure aggregation or not; and a client that got a damaged or old model spoils the round.

    Not a fault when: models are personalised on purpose. If most clients have a model of their own, nothing is
    reported.

    Next step: ask the server's owner why these clients received a different model.
    """

    code: ClassVar[str] = "FED018"
    name: ClassVar[str] = "different-models"
    severity: ClassVar[Severity] = Severity.ERROR
    needs: ClassVar[Needs] = {"legs": frozenset({"client", "round", "federation", "digest", "work"})}
    reads: ClassVar[Needs] = {}
    explains: ClassVar[frozenset[str]] = frozenset()

    share: float = threshold(0.5, "share of the clients that received the same model")

    def check(self, window: Window) -> Iterator[Finding]:
        legs = window.frame("legs")
        given: dict[tuple[str, int], dict[str, str]] = {}
        columns = (legs[name].tolist() for name in ("federation", "round", "client", "digest", "work"))
        for federation, number, client, digest, work in zip(*columns, strict=True):
            if digest and client and work == "train" and number == number:
                given.setdefault((str(federation), int(number)), {})[str(client)] = str(digest)
        odd: dict[tuple[str, tuple[str, ...]], list[int]] = {}
        for (federation, number), digests in given.items():
            (most, count), *others = Counter(digests.values()).most_common()
            if others and count >= 2 and count > self.share * len(digests):
                clients = tuple(sorted(client for client, digest in digests.items() if digest != most))
                odd.setdefault((federation, clients), []).append(number)
        last = {federation: max(number for name, number in given if name == federation) for federation, _ in given}
        for (federation, clients), rounds in odd.items():
            yield self._finding(federation, clients, sorted(rounds), given, last[federation])

    def _finding(
        self, federation: str, clients: tuple[str, ...], rounds: list[int],
        given: dict[tuple[str, int], dict[str, str]], last: int,
    ) -> Finding:  # fmt: skip
        others = len(given[federation, rounds[0]]) - len(clients)
        times = f"in round {rounds[0]}" if len(rounds) == 1 else f"in {len(rounds)} rounds, first in {rounds[0]}"
        who = f"client {clients[0]} was" if len(clients) == 1 else f"clients {listed(clients)} were"
        return Finding(
            self.code, self.name, self.name, self.severity,
            f"{who} given another model than the {others} others {times}",
            Subject(clients=clients, first=rounds[0], last=None if rounds[-1] == last else rounds[-1], unit="round"),
            confidence=0.95,
            evidence=(
                Evidence(
                    f"the digests of the models that clients received in round {rounds[0]} differ",
                    "SELECT client, digest FROM legs WHERE digest IS NOT NULL AND work = 'train' AND federation = "
                    f"{literal(federation)} AND round = {rounds[0]} ORDER BY digest",
                ),
            ),
            next_step="ask the server's owner why; until then these clients should not answer",
            is_open=rounds[-1] == last,
        )  # fmt: skip
