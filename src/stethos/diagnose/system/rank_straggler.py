"""SYS002: a rank that the others of a distributed job wait for."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np

from stethos.diagnose.detector import Needs, threshold
from stethos.diagnose.finding import Evidence, Finding, Severity, Subject
from stethos.diagnose.training import column_of, texts_of
from stethos.diagnose.turn import numbers
from stethos.diagnose.window import Window
from stethos.profile.column import median_of
from stethos.store.frame import Array, Frame, is_null

_PARTS_SQL = (
    "SELECT rank, median(data_ms) AS data_ms, median(forward_ms) AS forward_ms, median(backward_ms) AS backward_ms, "
    "median(step_ms) AS step_ms FROM steps GROUP BY rank ORDER BY rank"
)
_ARRIVALS_SQL = 'SELECT "group", seq, op, rank, t_ns FROM collectives ORDER BY "group", seq, t_ns'


class _Held(NamedTuple):
    """Who holds the others up, by how much of a step, and what shows it."""

    culprit: int
    victims: list[int]
    score: float
    part: str
    text: str
    sql: str
    own: Array  # by step or call: of the culprit
    usual: Array  # of the others


@dataclass(frozen=True, slots=True)
class RankStraggler:
    """One rank of a distributed job does its own part of a step more slowly, and the others wait for it in the
    all-reduce.

    What it looks at: per rank the time before the gradients are exchanged (data, forward) and the optimizer, and the
    time in backward, which contains the waiting. The culprit has more of the first, its victims more of the second. If
    that is inconclusive, it looks at which rank of a machine arrives last at the collectives; this finds a rank that is
    slow inside backward. It examines all steps, and the last quarter of them.

    Why it matters: every rank runs at the pace of the slowest.

    Not a fault when: the ranks have different work on purpose, as in pipeline parallelism.

    Next step: compare the machines of the ranks (clock, other jobs, disk); if `data_ms` is the part that is longer,
    look at its data loader.
    """

    code: ClassVar[str] = "SYS002"
    name: ClassVar[str] = "rank-straggler"
    severity: ClassVar[Severity] = Severity.WARNING
    needs: ClassVar[Needs] = {"steps": frozenset({"rank", "step_ms", "forward_ms", "backward_ms"})}
    reads: ClassVar[Needs] = {
        "steps": frozenset({"step", "data_ms", "optimizer_ms", "process"}),
        "collectives": frozenset({"rank", "group", "seq", "op", "t_ns"}),
        "processes": frozenset({"rank", "host"}),
    }
    explains: ClassVar[frozenset[str]] = frozenset({"low-utilisation"})

    share: float = threshold(0.1, "share of a step by which a rank is late")
    steps: int = threshold(20, "steps")
    last: float = threshold(0.7, "share of the collectives at which a late rank arrives last")
    least_ms: float = threshold(5.0, "milliseconds that ranks of short steps may differ by, as on a busy machine")
    short_share: float = threshold(0.3, "share of a short step by which a rank is late in any case")

    def check(self, window: Window) -> Iterator[Finding]:
        ranks = {int(rank): _in_order(frame) for rank, frame in window.frame("steps").groups("rank").items()}
        if len(ranks) < 2 or min(map(len, ranks.values())) < self.steps:
            return
        late = {
            rank: frame.where(np.arange(len(frame)) >= len(frame) - max(self.steps, len(frame) // 4))
            for rank, frame in ranks.items()
        }
        held = self._by_parts(ranks) or self._by_parts(late) or self._by_arrival(window, ranks)
        if held is not None:
            yield self._finding(held, ranks)

    def _finding(self, held: _Held, ranks: dict[int, Frame]) -> Finding:
        culprit, since = held.culprit, _change_in(held.own, held.usual)
        first = _first(ranks[culprit])
        steps = ranks[culprit]["step"] if _is_number(ranks[culprit], "step") else None
        words = ""
        if since is not None and steps is not None:
            first = int(steps[min(int(since * len(steps)), len(steps) - 1)])
            words = f" since about step {first:,}"
        return Finding(
            self.code, self.name, self.name, self.severity,
            f"rank {culprit} holds the other ranks up{words}: they wait for it {held.score:.0%} of each step",
            Subject(ranks=(culprit,), first=first, unit="step"),
            min(0.97, 0.75 + held.score / 2),
            (Evidence(held.text, held.sql, numbers(held.own), numbers(held.usual)),),
            f"compare the machine of rank {culprit} with the others: clock, other jobs, disk, data loader",
            {"score": held.score, "victims": held.victims, "part": held.part, "since": first if words else None},
        )  # fmt: skip

    def _matters(self, lag_ms: float, step_ms: float) -> bool:
        """Whether so much waiting is worth a word; of short steps a larger share is."""
        return step_ms > 0 and lag_ms >= max(self.share * step_ms, min(self.least_ms, self.short_share * step_ms))

    def _by_parts(self, ranks: dict[int, Frame]) -> _Held | None:
        own = {rank: median_of(_own_ms(frame)) for rank, frame in ranks.items()}
        backward = {rank: median_of(frame["backward_ms"]) for rank, frame in ranks.items()}
        culprit = max(own, key=lambda rank: own[rank])
        victims = [rank for rank in own if rank != culprit]
        usual, waited = median_of(np.array([own[rank] for rank in victims])), min(backward[rank] for rank in victims)
        step_ms = median_of(np.concatenate([frame["step_ms"] for frame in ranks.values()]))
        lag_ms = min(own[culprit] - usual, waited - backward[culprit])
        if not self._matters(lag_ms, step_ms):
            return None
        score = lag_ms / step_ms
        part, own_ms, usual_ms = _longest_part(ranks, culprit)
        text = (
            f"rank {culprit} needs {own_ms:.1f} ms for {part}, the others {usual_ms:.1f} ms; they spend "
            f"{waited:.1f} ms in backward, rank {culprit} {backward[culprit]:.1f} ms"
        )
        series = _own_ms(ranks[culprit]), _own_ms(ranks[victims[0]])
        return _Held(culprit, victims, score, part, text, _PARTS_SQL, *series)

    def _by_arrival(self, window: Window, ranks: dict[int, Frame]) -> _Held | None:
        """The rank that comes last to most collectives, so late that it matters."""
        arrivals, members = _arrivals_ms(window)
        if len(arrivals) < self.steps:
            return None
        step_ms = median_of(np.concatenate([frame["step_ms"] for frame in ranks.values()]))
        for calls in (arrivals, arrivals[-max(self.steps, len(arrivals) // 4) :]):
            others = np.array([np.median(np.delete(row, np.argmax(row))) for row in calls])
            last = np.bincount(calls.argmax(axis=1), minlength=len(members))
            place = int(last.argmax())
            late = calls[:, place] - others
            late_ms = float(np.median(late))
            lag_ms = min(late_ms * _calls_a_step(len(arrivals), ranks), step_ms)
            if last[place] >= self.last * len(calls) and self._matters(lag_ms, step_ms):
                score = lag_ms / step_ms
                culprit, victims = members[place], [rank for rank in members if rank != members[place]]
                text = (
                    f"rank {culprit} is the last to arrive at {last[place]} of {len(calls)} collectives, "
                    f"{late_ms:.1f} ms after the others"
                )
                series = arrivals[:, place] - arrivals.min(axis=1), np.zeros(len(arrivals))
                return _Held(culprit, victims, score, "its way to the exchange", text, _ARRIVALS_SQL, *series)
        return None


def _in_order(frame: Frame) -> Frame:
    return frame.sorted_by("step") if _is_number(frame, "step") else frame


def _arrivals_ms(window: Window) -> tuple[Array, list[int]]:
    """When each rank came to each collective that all of them made, in order; none where ranks are on several machines,
    whose clocks differ."""
    frame, processes = window.frame("collectives"), window.frame("processes")
    hosts = {host for host, rank in zip(texts_of(processes, "host").tolist(), column_of(processes, "rank").tolist(),
                                        strict=True) if rank == rank}  # fmt: skip
    empty: Array = np.zeros((0, 0))
    if len(hosts) > 1 or not len(frame) or "rank" not in frame or "t_ns" not in frame:
        return empty, []
    rank, seq, at = column_of(frame, "rank"), column_of(frame, "seq"), column_of(frame, "t_ns")
    groups = texts_of(frame, "group")
    known = ~is_null(rank) & ~is_null(seq) & ~is_null(at)
    members = sorted({int(one) for one in rank[known].tolist()})
    calls: dict[tuple[str, int], dict[int, float]] = {}
    for place in np.flatnonzero(known).tolist():
        calls.setdefault((str(groups[place]), int(seq[place])), {})[int(rank[place])] = float(at[place])
    whole = [[times[one] for one in members] for times in calls.values() if len(times) == len(members)]
    if len(members) < 2 or not whole:
        return empty, []
    found: Array = np.array(sorted(whole, key=min))
    return (found - found.min()) / 1e6, members


def _calls_a_step(calls: int, ranks: dict[int, Frame]) -> float:
    """How often a step waits: once at most, however many calls are on their way together."""
    return min(calls / max(min(map(len, ranks.values())), 1), 1.0)


def _change_in(own: Array, usual: Array) -> float | None:
    """Where a rank became slow, as a share of its steps; None if it was so all the time."""
    count = min(len(own), len(usual))
    excess = np.nan_to_num(own[:count] - usual[:count])
    if count < 16:
        return None
    excess = np.minimum(excess, np.percentile(excess, 90))
    total, places = np.cumsum(excess), np.arange(1, count)
    before, after = total[:-1] / places, (total[-1] - total[:-1]) / (count - places)
    weight = (after - before) * np.sqrt(places * (count - places))
    at = int(weight[4:-4].argmax()) + 4
    return (at + 1) / count if after[at] > 0 and before[at] < 0.3 * after[at] else None


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
