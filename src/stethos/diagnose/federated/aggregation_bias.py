"""One client that makes the model."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from stethos.diagnose.detector import Needs
from stethos.diagnose.finding import Evidence, Finding, Severity, Subject
from stethos.diagnose.turn import Grid, Turns, column_medians, middle, numbers, turns_of
from stethos.diagnose.window import Window


@dataclass(frozen=True, slots=True)
class AggregationBias:
    """One client decides where the global model goes: its update outweighs all others.

    What it looks at: each client's weight in the average, samples x norm of its update, as a share of the round's
    total. It is a warning where the norm is to blame: the share is a multiple of what its samples give it.

    Why it matters: an average that follows one client is that client's model. One that scales its update up takes
    over the federation without anybody's loss looking wrong.

    Not a fault when: it holds most of the data. Then it is told as information only; compare `quantity-skew`.

    Next step: clip the norm of updates before averaging, or use a robust strategy (median, trimmed mean).
    """

    code: ClassVar[str] = "FED012"
    name: ClassVar[str] = "aggregation-bias"
    severity: ClassVar[Severity] = Severity.WARNING
    needs: ClassVar[Needs] = {
        "client_rounds": frozenset({"client", "round", "samples"}),
        "updates": frozenset({"client", "round", "norm"}),
    }
    reads: ClassVar[Needs] = {
        "client_rounds": frozenset({"federation", "t_ns", "status"}),
        "updates": frozenset({"layer"}),
    }
    explains: ClassVar[frozenset[str]] = frozenset()

    share: float = 0.4
    excess: float = 2.0
    rounds: int = 3
    clients: int = 3

    def check(self, window: Window) -> Iterator[Finding]:
        for turns in turns_of(window):
            if len(turns.clients) < self.clients:
                continue
            samples = np.where(turns.is_ok, turns.grid("samples"), np.nan)
            weight = samples * _norms(window, turns)
            with np.errstate(invalid="ignore", divide="ignore"):
                share = weight / np.nansum(weight, axis=0)
                fair = samples / np.nansum(samples, axis=0)
            share[:, (~np.isnan(weight)).sum(axis=0) < self.clients] = np.nan
            for place in range(len(share)):
                if (share[place] >= self.share).sum() >= self.rounds:
                    yield self._finding(turns, place, share, fair)

    def _finding(self, turns: Turns, place: int, share: Grid, fair: Grid) -> Finding:
        client, ruling = turns.clients[place], share[place] >= self.share
        own, given = middle(share[place][ruling]), middle(fair[place][ruling])
        is_norm = own >= self.excess * given
        why = f"its samples give it {given:.0%}" if is_norm else f"it holds {given:.0%} of the samples"
        at = np.flatnonzero(ruling)
        is_open = bool(ruling[np.flatnonzero(~np.isnan(share[place]))[-self.rounds :]].any())
        return Finding(
            self.code,
            self.name,
            "norm" if is_norm else "samples",
            self.severity if is_norm else Severity.INFO,
            f"client {client} has {own:.0%} of the weight in the average; {why}",
            Subject((client,), first=turns.rounds[at[0]], last=None if is_open else turns.rounds[at[-1]]),
            confidence=0.9,
            evidence=(
                Evidence(
                    f"samples x norm of its update, as a share of the round's total, in {len(at)} rounds",
                    "SELECT round, client, samples, norm, norm_ratio "
                    "FROM client_rounds JOIN updates USING (client, round) "
                    "WHERE layer IS NULL ORDER BY round, samples * norm DESC",
                    numbers(share[place]),
                    numbers(column_medians(np.delete(share, place, axis=0))),
                ),
            ),
            next_step="clip the norm of updates before averaging, or use a robust strategy (median, trimmed mean)",
            detail={"share": own, "samples_share": given},
            is_open=is_open,
        )


def _norms(window: Window, turns: Turns) -> Grid:
    """The norm of each whole update, clients x rounds."""
    updates = window.frame("updates")
    whole = (
        np.array([layer is None for layer in updates["layer"].tolist()], bool) if "layer" in updates else slice(None)
    )
    found = np.full((len(turns.clients), len(turns.rounds)), np.nan)
    rows = {client: place for place, client in enumerate(turns.clients)}
    columns = {number: place for place, number in enumerate(turns.rounds)}
    values = (updates[name][whole].tolist() for name in ("client", "round", "norm"))
    for client, number, norm in zip(*values, strict=True):
        if client in rows and number in columns:
            found[rows[client], columns[number]] = norm
    return found
