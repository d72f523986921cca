"""SYS002: a rank that the others of a distributed job wait for."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from stethos.diagnose.detector import Needs
from stethos.diagnose.finding import Evidence, Finding, Severity, Subject
from stethos.diagnose.turn import numbers
from stethos.diagnose.window import Window
from stethos.profile.column import median_of
from stethos.store.frame import Array, Frame


@dataclass(frozen=True, slots=True)
class RankStraggler:
    """One rank of a distributed job does its own part of a step more slowly, and the others wait for it in the
    all-reduce.

    What it looks at: per rank the time before the gradients are exchanged (data, forward) and the optimizer, and the
    time in backward, which contains the waiting. The culprit has more of the first, its victims more of the second.

    Why it matters: every rank runs at the pace of the slowest.

    Not a fault when: the ranks have different work on purpose, as in pipeline parallelism. A rank that is slow inside
    backward alone cannot be told from the others: the exchange makes all of them equally long.

    Next step: compare the machines of the ranks (clock, other jobs, disk); if `data_ms` is the part that is longer,
    look at its data loader.
    """

    code: ClassVar[str] = "SYS002"
    name: ClassVar[str] = "rank-straggler"
    severity: ClassVar[Severity] = Severity.WARNING
    needs: ClassVar[Needs] = {"steps": frozenset({"rank", "step_ms", "forward_ms", "backward_ms"})}
    reads: ClassVar[Needs] = {"steps": frozenset({"step", "data_ms", "optimizer_ms", "process"})}
    explains: ClassVar[frozenset[str]] = frozenset({"low-utilisation"})

    share: float = 0.1
    steps: int = 20

    def check(self, window: Window) -> Iterator[Finding]:
        ranks = {int(rank): frame for rank, frame in window.frame("steps").groups("rank").items()}
        if len(ranks) < 2 or min(map(len, ranks.values())) < self.steps:
            return
        own = {rank: median_of(_own_ms(frame)) for rank, frame in ranks.items()}
        backward = {rank: median_of(frame["backward_ms"]) for rank, frame in ranks.items()}
        culprit = max(own, key=lambda rank: own[rank])
        victims = [rank for rank in own if rank != culprit]
        usual, waited = median_of(np.array([own[rank] for rank in victims])), min(backward[rank] for rank in victims)
        step_ms = median_of(np.concatenate([frame["step_ms"] for frame in ranks.values()]))
        score = min(own[culprit] - usual, waited - backward[culprit]) / step_ms if step_ms > 0 else 0.0
        if score < self.share:
            return
        part, own_ms, usual_ms = _longest_part(ranks, culprit)
        yield Finding(
            self.code,
            self.name,
            self.name,
            self.severity,
            f"rank {culprit} holds the other ranks up: they wait for it {score:.0%} of each step",
            Subject(ranks=(culprit,), first=_first(ranks[culprit]), unit="step"),
            confidence=min(0.97, 0.75 + score / 2),
            evidence=(
                Evidence(
                    f"rank {culprit} needs {own_ms:.1f} ms for {part}, the others {usual_ms:.1f} ms; they spend "
                    f"{waited:.1f} ms in backward, rank {culprit} {backward[culprit]:.1f} ms",
                    "SELECT rank, median(data_ms) AS data_ms, median(forward_ms) AS forward_ms, median(backward_ms) AS "
                    "backward_ms, median(step_ms) AS step_ms FROM steps GROUP BY rank ORDER BY rank",
                    numbers(_own_ms(ranks[culprit])),
                    numbers(_own_ms(ranks[victims[0]])),
                ),
            ),
            next_step=f"compare the machine of rank {culprit} with the others: clock, other jobs, disk, data loader",
            detail={"score": score, "victims": victims, "part": part},
        )


def _own_ms(frame: Frame) -> Array:
    """What a rank does by itself in each step: everything but backward, where it waits for the others."""
    parts = [np.nan_to_num(frame[name]) for name in ("data_ms", "optimizer_ms") if _is_number(frame, name)]
    return np.asarray(sum(parts, start=frame["forward_ms"]))


def _longest_part(ranks: dict[int, Frame], culprit: int) -> tuple[str, float, float]:
    """The part of a step in which the culprit exceeds the others most: its name, its time, theirs."""
    found = []
    for column, words in (("data_ms", "its data"), ("forward_ms", "forward"), ("optimizer_ms", "the optimizer")):
        if all(_is_number(frame, column) for frame in ranks.values()):
            own = median_of(ranks[culprit][column])
            usual = median_of(np.array([median_of(frame[column]) for rank, frame in ranks.items() if rank != culprit]))
            if np.isfinite(own - usual):
                found.append((own - usual, words, own, usual))
    _, words, own, usual = max(found)
    return words, own, usual


def _is_number(frame: Frame, name: str) -> bool:
    return name in frame and frame[name].dtype.kind == "f"


def _first(frame: Frame) -> int | None:
    return int(frame["step"].min()) if _is_number(frame, "step") else None
