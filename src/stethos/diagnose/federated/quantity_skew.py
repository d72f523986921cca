"""FED011: clients with very different numbers of samples."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from stethos.diagnose.detector import Needs, threshold
from stethos.diagnose.finding import Evidence, Finding, Severity, Subject
from stethos.diagnose.turn import Turns, numbers, turns_of
from stethos.diagnose.window import Window
from stethos.profile.column import median_of
from stethos.store.frame import Array


@dataclass(frozen=True, slots=True)
class ClientQuantitySkew:
    """The clients hold very different amounts of data.

    What it looks at: the samples each client says it trained on, the largest client against the median one.

    Why it matters: the average is weighted by samples, so the model becomes that of the few large clients, and the
    round waits for them.

    Not a fault when: always. It explains why a client is slow, or why its update is large.

    Next step: decide whether small clients should count for more; compare their accuracy.
    """

    code: ClassVar[str] = "FED011"
    name: ClassVar[str] = "quantity-skew"
    severity: ClassVar[Severity] = Severity.INFO
    needs: ClassVar[Needs] = {"client_rounds": frozenset({"client", "round", "samples"})}
    reads: ClassVar[Needs] = {"client_rounds": frozenset({"federation", "t_ns"})}
    explains: ClassVar[frozenset[str]] = frozenset()

    times: float = threshold(3.0, "times the samples of the median client")
    gini: float = threshold(0.35, "Gini coefficient of the clients' samples (0 even, 1 all at one)")
    clients: int = threshold(3, "clients")

    def check(self, window: Window) -> Iterator[Finding]:
        for turns in turns_of(window):
            samples = np.array([median_of(row) for row in turns.grid("samples")])
            known = samples > 0
            if known.sum() < self.clients:
                continue
            times = float(samples[known].max() / np.median(samples[known]))
            if times >= self.times or _gini(samples[known]) >= self.gini:
                yield self._finding(turns, samples, known, times)

    def _finding(self, turns: Turns, samples: Array, known: Array, times: float) -> Finding:
        most, least = int(np.nanargmax(samples)), int(np.nanargmin(np.where(known, samples, np.nan)))
        return Finding(
            self.code,
            self.name,
            self.name,
            self.severity,
            f"clients hold from {samples[least]:,.0f} to {samples[most]:,.0f} samples: "
            f"{turns.clients[most]} has {times:.1f} times the median",
            Subject(first=turns.rounds[0]),
            confidence=0.95,
            evidence=(
                Evidence(
                    f"samples of the clients, sorted; {turns.clients[least]} has the fewest",
                    f"SELECT client, median(samples) AS samples FROM client_rounds {turns.where()}"
                    "GROUP BY client ORDER BY samples DESC",
                    numbers(np.sort(samples[known])),
                    names=("samples by client",),
                ),
            ),
            next_step="compare the accuracy of small and large clients; should small ones count for more?",
            detail={"times": times, "gini": _gini(samples[known])},
        )


def _gini(samples: Array) -> float:
    """0: all have the same; towards 1: one has everything."""
    ordered = np.sort(samples)
    count = len(ordered)
    return float((2 * np.arange(1, count + 1) - count - 1) @ ordered / (count * ordered.sum()))
