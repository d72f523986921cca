"""FED013: a server step that undoes what the clients achieved."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from stethos.diagnose.detector import Needs, threshold
from stethos.diagnose.finding import Evidence, Finding, Severity, Subject
from stethos.diagnose.turn import Turns, numbers, turns_of
from stethos.diagnose.window import Window
from stethos.store.frame import Array


@dataclass(frozen=True, slots=True)
class ServerInstability:
    """Clients improve the model locally, but the aggregated model is worse than before, again and again.

    What it looks at: the loss of the incoming global model on the clients' own data (`entry_loss`), for the same
    clients from one round to the next, against what their local training reached (`exit_loss`); and the length of the
    global model's steps (`rounds.drift`).

    Why it matters: local training works, so the server is at fault: its learning rate or momentum is too high (FedAdam,
    FedAvgM), weights are wrong, or an update is applied twice.

    Not a fault when: a faulty client poisons the average; then that client is the cause, and this follows from it.

    Next step: lower the server's learning rate; go back to plain averaging for comparison.
    """

    code: ClassVar[str] = "FED013"
    name: ClassVar[str] = "server-instability"
    severity: ClassVar[Severity] = Severity.WARNING
    needs: ClassVar[Needs] = {"client_rounds": frozenset({"client", "round", "entry_loss", "exit_loss"})}
    reads: ClassVar[Needs] = {
        "client_rounds": frozenset({"federation", "t_ns", "status"}),
        "rounds": frozenset({"round", "federation", "drift"}),
    }
    explains: ClassVar[frozenset[str]] = frozenset()

    worse: float = threshold(0.1, "rise of the loss by aggregating, as a share")
    above_best: float = threshold(0.3, "rise of the loss above its best, as a share")
    at_least: float = threshold(0.05, "rise of the loss")
    recent: int = threshold(6, "last rounds that are looked at")
    rounds: int = threshold(3, "such rounds among them")

    def check(self, window: Window) -> Iterator[Finding]:
        for turns in turns_of(window):
            entry, exit_ = turns.grid("entry_loss"), turns.grid("exit_loss")
            if len(turns.rounds) < self.rounds + 1:
                continue
            level, undone = self._undone(entry, exit_)
            late = np.flatnonzero(undone)
            best = np.fmin.accumulate(level)
            with np.errstate(invalid="ignore"):
                is_bad = level[-1] > (1 + self.above_best) * best[-1] + self.at_least
            if (late >= len(level) - self.recent).sum() >= self.rounds and is_bad:
                yield self._finding(window, turns, level, _mean(exit_), late)

    def _undone(self, entry: Array, exit_: Array) -> tuple[Array, Array]:
        """The mean entry loss per round, and the rounds that begin worse although the one before had trained well."""
        level = _mean(entry)
        undone = np.zeros(len(level), bool)
        for place in range(1, len(level)):
            both = np.isfinite(entry[:, place]) & np.isfinite(entry[:, place - 1]) & np.isfinite(exit_[:, place - 1])
            if both.sum() < 2:
                continue
            before, reached, now = (
                float(grid[both, at].mean()) for grid, at in ((entry, place - 1), (exit_, place - 1), (entry, place))
            )
            has_learned = reached < before
            undone[place] = has_learned and now > before * (1 + self.worse) and now > before + self.at_least
        return level, undone

    def _finding(self, window: Window, turns: Turns, level: Array, reached: Array, late: Array) -> Finding:
        drift = _drift(window, turns.federation)
        moved = f"; the last step of the global model was {drift[-1] / drift[0]:.1f} times its first" if drift else ""
        return Finding(
            self.code,
            self.name,
            self.name,
            self.severity,
            f"aggregation undoes what the clients learn: the global model got worse in {len(late)} rounds",
            Subject(first=turns.rounds[late[0]]),
            confidence=min(0.95, 0.7 + 0.05 * len(late)),
            evidence=(
                Evidence(
                    f"clients end round {turns.rounds[late[-1] - 1]} with a loss of {reached[late[-1] - 1]:.3g} "
                    f"and begin the next with {level[late[-1]]:.3g}{moved}",
                    "SELECT round, avg(entry_loss) AS entry_loss, avg(exit_loss) AS exit_loss, "
                    "any_value(drift) AS drift "
                    f"FROM client_rounds LEFT JOIN rounds USING (federation, round) {turns.where()}"
                    "GROUP BY round ORDER BY round",
                    numbers(level),
                    numbers(reached),
                    ("before", "after"),
                ),
            ),
            next_step="lower the server's learning rate or momentum; compare with plain averaging",
            detail={"rounds": [turns.rounds[place] for place in late]},
        )


def _mean(grid: Array) -> Array:
    """The mean of what is finite, per round; NaN where nothing is."""
    known = np.isfinite(grid)
    with np.errstate(invalid="ignore"):
        return np.asarray(np.where(known, grid, 0).sum(axis=0) / known.sum(axis=0))


def _drift(window: Window, federation: str | None) -> list[float]:
    rounds = window.frame("rounds")
    if federation is not None and "federation" in rounds:
        rounds = rounds.where(np.array([name == federation for name in rounds["federation"].tolist()], bool))
    if "drift" not in rounds or rounds["drift"].dtype.kind != "f":
        return []
    return [float(value) for value in rounds.sorted_by("round")["drift"] if np.isfinite(value) and value > 0]
