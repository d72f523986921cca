"""FED010: clients whose labels are distributed unlike the others'."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from stethos.diagnose.detector import Needs, threshold
from stethos.diagnose.finding import Evidence, Finding, Severity, Subject
from stethos.diagnose.turn import Grid, Turns, listed, turns_of
from stethos.diagnose.window import Window


@dataclass(frozen=True, slots=True)
class LabelSkew:
    """The clients hold different mixtures of classes.

    What it looks at: how often each class occurs among the labels that a client was seen to train on (the rows of
    `confusion`), and the distance (total variation) to the mixture of all clients together.

    Why it matters: local training pulls the model towards each client's own classes, so that updates disagree and
    progress is slow; and a client that alone holds a class looks suspicious to every method that compares clients.

    Not a fault when: always. It is reported so that an unusual but honest client is not taken for a faulty one.

    Next step: fewer local epochs, a proximal term (`lab.FedProx`), or a method made for skewed clients.
    """

    code: ClassVar[str] = "FED010"
    name: ClassVar[str] = "label-skew"
    severity: ClassVar[Severity] = Severity.INFO
    needs: ClassVar[Needs] = {"client_rounds": frozenset({"client", "round", "confusion"})}
    reads: ClassVar[Needs] = {"client_rounds": frozenset({"federation", "t_ns"})}
    explains: ClassVar[frozenset[str]] = frozenset()

    distance: float = threshold(
        0.3, "distance of the clients' mixtures of classes from that of all, from 0 to 1, in the mean"
    )
    clients: int = threshold(3, "clients")
    samples: int = threshold(10, "samples of a client")
    alone: float = threshold(0.9, "share of a class that one client holds alone")

    def check(self, window: Window) -> Iterator[Finding]:
        for turns in turns_of(window):
            names, counts = _label_counts(turns, self.samples)
            if len(names) < self.clients:
                continue
            shares = counts / counts.sum(axis=1, keepdims=True)
            distance = 0.5 * np.abs(shares - counts.sum(axis=0) / counts.sum()).sum(axis=1)
            if distance.mean() >= self.distance:
                yield self._finding(turns, names, counts, shares, distance)

    def _finding(self, turns: Turns, names: list[str], counts: Grid, shares: Grid, distance: Grid) -> Finding:
        order = np.argsort(-distance, kind="stable")
        far = [names[place] for place in order if distance[place] >= self.distance]
        alone = _alone(names, counts, self.alone)
        also = f"; class {alone[0][0]} is held by {alone[0][1]} alone" if alone else ""
        return Finding(
            self.code,
            self.name,
            self.name,
            self.severity,
            f"clients hold different mixtures of classes: {distance.mean():.0%} of their labels would have to change "
            "to make them alike",
            Subject(first=turns.rounds[0]),
            confidence=0.95,
            evidence=(
                Evidence(
                    f"farthest from the common mixture: {listed(far)}{also}",
                    f"SELECT client, round, confusion FROM client_rounds "
                    f"{turns.where(f'round = {turns.rounds[-1]}')}ORDER BY client",
                ),
            ),
            next_step="expect slower progress; try fewer local epochs or a proximal term",
            detail={
                "distance": float(distance.mean()),
                "clients": {names[place]: float(distance[place]) for place in order},
                "alone": {str(number): name for number, name in alone},
                "heat": {
                    "rows": names,
                    "columns": [str(one) for one in range(counts.shape[1])],
                    "cells": shares.tolist(),
                },
            },
        )


def _label_counts(turns: Turns, samples: int) -> tuple[list[str], Grid]:
    """How often each client was seen with each label, in the latest round it said so; clients with too few left out."""
    texts = turns.words("confusion")
    found: dict[str, Grid] = {}
    for place, client in enumerate(turns.clients):
        for text in reversed(texts[place].tolist()):
            counts = row_sums(text)
            if counts is not None and counts.sum() >= samples:
                found[client] = counts
                break
    classes = max((len(counts) for counts in found.values()), default=0)
    table = np.array([np.pad(counts, (0, classes - len(counts))) for counts in found.values()])
    return list(found), table


def row_sums(text: object) -> Grid | None:
    """Samples per label of a confusion matrix in JSON; None if it is none."""
    if not isinstance(text, str):
        return None
    try:
        matrix = np.array(json.loads(text), float)
    except (ValueError, TypeError):
        return None
    return matrix.sum(axis=1) if matrix.ndim == 2 and np.isfinite(matrix).all() else None


def _alone(names: list[str], counts: Grid, share: float) -> list[tuple[int, str]]:
    """Classes of which one client holds at least this share of the samples, and that client."""
    total = counts.sum(axis=0)
    holders = counts.argmax(axis=0)
    return [
        (number, names[holders[number]])
        for number in range(counts.shape[1])
        if total[number] > 0 and counts[holders[number], number] >= share * total[number]
    ]
