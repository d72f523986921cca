"""FED016: a global model that has become NaN or infinite."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from stethos.diagnose.detector import Needs
from stethos.diagnose.finding import Evidence, Finding, Severity, Subject
from stethos.diagnose.turn import listed
from stethos.diagnose.window import Window
from stethos.store.frame import Frame, is_null


@dataclass(frozen=True, slots=True)
class NonFiniteModel:
    """The global model, or its loss, is NaN or infinite.

    What it looks at: NaN and infinite elements of the global model after each round, its loss on the evaluation data,
    and which clients sent such elements in the first of these rounds.

    Why it matters: every client starts from it, so every later round is lost.

    Not a fault when: never.

    Next step: go back to the model before that round. If clients sent NaN, leave them out and look at their training;
    if none did, the aggregation made it: weights that add up to 0, half precision, a division.
    """

    code: ClassVar[str] = "FED016"
    name: ClassVar[str] = "non-finite-model"
    severity: ClassVar[Severity] = Severity.ERROR
    needs: ClassVar[Needs] = {"rounds": frozenset({"round"})}
    reads: ClassVar[Needs] = {
        "rounds": frozenset({"federation", "global_nan", "global_inf", "loss"}),
        "updates": frozenset({"client", "round", "layer", "federation", "nan", "inf"}),
    }
    explains: ClassVar[frozenset[str]] = frozenset({"divergence", "plateau", "slow-progress", "series-anomaly"})

    def check(self, window: Window) -> Iterator[Finding]:
        rounds = window.frame("rounds")
        names = rounds["federation"].tolist() if "federation" in rounds else [None] * len(rounds)
        for name in dict.fromkeys(names):
            mine = rounds.where(np.array([one == name for one in names])).sorted_by("round")
            elements = _counts(mine, "global_nan") + _counts(mine, "global_inf")
            loss = mine["loss"] if "loss" in mine and mine["loss"].dtype.kind == "f" else np.zeros(len(mine))
            broken = (elements > 0) | (~np.isfinite(loss) & ~is_null(loss))
            if broken.any():
                yield self._finding(window, name, mine["round"], elements, loss, np.flatnonzero(broken))

    def _finding(self, window: Window, name: Any, rounds: Any, elements: Any, loss: Any, broken: Any) -> Finding:
        first, last = int(rounds[broken[0]]), int(rounds[broken[-1]])
        is_open = bool(broken[-1] == len(rounds) - 1)
        sent = _sent(window, name, first)
        senders = tuple(client for client, is_odd in sent.items() if is_odd)
        if len(senders) == len(sent) > 1:  # then it is no client's fault
            senders = ()
        count = int(elements[broken[0]])
        what = f"has {count:,} NaN or infinite elements" if count else f"has a loss of {loss[broken[0]]:g}"
        if senders:
            why, todo = f"sent by {listed(senders)}", f"leave {listed(senders)} out, and look at the training there"
        elif sent and all(sent.values()):
            why, todo = (
                f"sent by all {len(sent)} clients",
                "look at what they began from, their learning rate, half precision",
            )
        elif sent and count:
            why, todo = "and no client sent any", "look at the aggregation: weights that add up to 0, half precision"
        else:
            why, todo = "", "look at the evaluation data, and at the updates of that round"
        return Finding(
            self.code,
            self.name,
            self.name,
            self.severity,
            f"the global model {what} after round {first}{', ' if why else ''}{why}",
            Subject(clients=senders, first=first, last=None if is_open else last),
            confidence=0.99,
            evidence=(
                Evidence(
                    f"{len(broken)} of {len(rounds)} rounds end with NaN or infinite values",
                    "SELECT round, loss, accuracy, global_nan, global_inf FROM rounds ORDER BY round",
                ),
                Evidence(
                    "what each client sent",
                    "SELECT round, client, nan, inf FROM updates WHERE layer IS NULL AND nan + inf > 0 "
                    "ORDER BY round, client",
                ),
            ),
            next_step=f"go back to the model before round {first}; {todo}",
            detail={"elements": count, "rounds": len(broken)},
            is_open=is_open,
        )


def _counts(frame: Frame, column: str) -> Any:
    """A column of counts, 0 where nothing was recorded."""
    if column not in frame or frame[column].dtype.kind != "f":
        return np.zeros(len(frame))
    return np.nan_to_num(frame[column], nan=0.0)


def _sent(window: Window, name: Any, number: int) -> dict[str, bool]:
    """The clients that sent an update in a round, and whether it had NaN or infinities; empty if none was recorded."""
    updates = window.frame("updates")
    if not len(updates) or "client" not in updates:
        return {}
    facts = [updates[column].tolist() if column in updates else [None] * len(updates)
             for column in ("client", "round", "layer", "federation")]  # fmt: skip
    odd = _counts(updates, "nan") + _counts(updates, "inf")
    turns = [
        (str(client), bool(count > 0))
        for client, at, layer, federation, count in zip(*facts, odd, strict=True)
        if client is not None and layer is None and at == number and federation == name
    ]
    return dict(sorted(turns))
