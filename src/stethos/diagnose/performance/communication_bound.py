"""Rounds that mostly send and receive."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from stethos.diagnose.detector import Needs
from stethos.diagnose.finding import Finding, Severity
from stethos.diagnose.performance.path import ROUNDS_READ, finding_of, rounds_in
from stethos.diagnose.turn import numbers
from stethos.diagnose.window import Window
from stethos.profile.bottleneck import link_bottleneck
from stethos.profile.round_time import RoundTime


@dataclass(frozen=True, slots=True)
class CommunicationBound:
    """Most of a round goes into sending and receiving, at the typical client.

    What it looks at: download and upload of the client with the median turn, against the duration of the round. Where
    one layer makes up most of an update's elements, it is named.

    Why it matters: faster clients change nothing; smaller updates, or fewer rounds with more local work, do.

    Not a fault when: links are slow by nature and the model is as small as it can be.

    Next step: `stethos.federation(..., measure_compression=True)` measures what fp16, int8, top-k and low rank
    would save and lose; more local epochs spread the same traffic over more training.
    """

    code: ClassVar[str] = "PRF002"
    name: ClassVar[str] = "communication-bound"
    severity: ClassVar[Severity] = Severity.INFO
    needs: ClassVar[Needs] = {
        "rounds": frozenset({"round", "duration_ms"}),
        "client_rounds": frozenset({"client", "round", "upload_ms"}),
    }
    reads: ClassVar[Needs] = {**ROUNDS_READ, "updates": frozenset({"client", "layer", "size", "round"})}
    explains: ClassVar[frozenset[str]] = frozenset()

    share: float = 0.6
    at_least_ms: float = 20.0
    rounds: int = 3

    def check(self, window: Window) -> Iterator[Finding]:
        for one in rounds_in(window):
            if len(one.numbers) < self.rounds:
                continue
            if link_bottleneck(one, (), self.share, self.at_least_ms) is None:
                continue  # before the sizes are looked up: updates are many
            found = link_bottleneck(one, _sizes(window), self.share, self.at_least_ms)
            if found is not None:
                links = np.nan_to_num(one.parts["download"]) + np.nan_to_num(one.parts["upload"])
                yield finding_of(
                    self, found, first=one.numbers[0], unit="round", series=numbers(links), others=_durations(one)
                )


def _durations(one: RoundTime) -> tuple[float, ...]:
    return numbers(one.duration_ms)


def _sizes(window: Window) -> list[tuple[str, float]]:
    """The layers of an update with their share of its elements, the largest first."""
    frame = window.frame("updates")
    if not len(frame) or "size" not in frame or frame["size"].dtype.kind != "f":
        return []
    sizes: dict[str, float] = {}
    for layer, client, size in zip(frame["layer"].tolist(), frame["client"].tolist(), frame["size"], strict=True):
        if layer is not None and client is not None and size == size:
            sizes[str(layer)] = float(size)
    total = sum(sizes.values()) or 1.0
    return sorted(((name, size / total) for name, size in sizes.items()), key=lambda item: -item[1])
