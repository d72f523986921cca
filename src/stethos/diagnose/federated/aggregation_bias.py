"""FED012: one client, or a few, that make the model."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from stethos.diagnose.detector import Needs, threshold
from stethos.diagnose.finding import Evidence, Finding, Severity, Subject
from stethos.diagnose.turn import Grid, Turns, column_medians, listed, numbers, turns_of
from stethos.diagnose.window import Window
from stethos.profile.column import median_of


@dataclass(frozen=True, slots=True)
class AggregationBias:
    """One client or a small group decides where the global model goes: their updates outweigh all others.

    What it looks at: each client's weight in the average, samples x norm of its update, as a share of the round's
    total; and the smallest group that has most of it in the same rounds. It is a warning if the norm is the cause: the
    share is a multiple of what the samples explain.

    Why it matters: an average that follows one client is that client's model. A client that scales its update up takes
    over the federation without any loss looking wrong.

    Not a fault when: it holds most of the data. Then it is only reported as information; compare `quantity-skew`.

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
        "updates": frozenset({"layer", "federation"}),
    }
    explains: ClassVar[frozenset[str]] = frozenset()

    share: float = threshold(0.4, "share of what is aggregated in a round: samples times the norm of the update")
    excess: float = threshold(2.0, "times the share that its samples would give")
    rounds: int = threshold(3, "rounds")
    clients: int = threshold(3, "clients that take part in a round")
    group_share: float = threshold(0.8, "the same, for a small group of clients")
    group_size: float = threshold(0.2, "share of the clients that such a group has, at most")

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
            ruling = [place for place in range(len(share)) if (share[place] >= self.share).sum() >= self.rounds]
            for place in ruling:
                yield self._finding(turns, [place], share, fair, self.share)
            group = [] if ruling else self._group(share)
            if group:
                yield self._finding(turns, group, share, fair, self.group_share)

    def _group(self, share: Grid) -> list[int]:
        """The smallest group that has most of the weight over all rounds, if it is small; else nobody."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # a client that never took part
            typical = np.nan_to_num(np.nanmedian(share, axis=1))
        order = np.argsort(-typical)
        count = int(np.searchsorted(np.cumsum(typical[order]), self.group_share)) + 1
        group = sorted(order[:count].tolist())
        is_ruling = (np.nansum(share[group], axis=0) >= self.group_share).sum() >= self.rounds
        return group if 2 <= count <= self.group_size * len(share) and is_ruling else []

    def _finding(self, turns: Turns, places: list[int], shares: Grid, fairs: Grid, limit: float) -> Finding:
        share, fair = np.nansum(shares[places], axis=0), np.nansum(fairs[places], axis=0)
        clients, ruling = tuple(turns.clients[place] for place in places), share >= limit
        own, given = median_of(share[ruling]), median_of(fair[ruling])
        is_norm, is_one = own >= self.excess * given, len(places) == 1
        its, it_holds, who = (
            ("its", "it holds", "client") if is_one else ("their", "they hold", f"{len(places)} clients,")
        )
        why = f"{its} samples give {given:.0%}" if is_norm else f"{it_holds} {given:.0%} of the samples"
        at = np.flatnonzero(ruling)
        took_part = np.flatnonzero((~np.isnan(shares[places])).any(axis=0))
        is_open = bool(ruling[took_part[-self.rounds :]].any())
        return Finding(
            self.code,
            self.name,
            "norm" if is_norm else "samples",
            self.severity if is_norm else Severity.INFO,
            f"{who} {listed(clients)} {'has' if is_one else 'have'} {own:.0%} of the weight in the average; {why}",
            Subject(clients, first=turns.rounds[at[0]], last=None if is_open else turns.rounds[at[-1]]),
            confidence=0.9,
            evidence=(
                Evidence(
                    f"samples x norm of {its} update, as a share of the round's total, in {len(at)} rounds",
                    "SELECT round, client, samples, norm, norm_ratio "
                    "FROM client_rounds JOIN updates USING (federation, client, round) "
                    + turns.where("layer IS NULL")
                    + "ORDER BY round, samples * norm DESC",
                    numbers(share),
                    numbers(column_medians(np.delete(shares, places, axis=0))),
                ),
            ),
            next_step="clip the norm of updates before averaging, or use a robust strategy (median, trimmed mean)",
            detail={"share": own, "samples_share": given},
            is_open=is_open,
        )


def _norms(window: Window, turns: Turns) -> Grid:
    """The norm of each whole update, clients x rounds."""
    updates = window.frame("updates")
    if turns.federation is not None and "federation" in updates:
        updates = updates.where(np.array([name == turns.federation for name in updates["federation"].tolist()], bool))
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
