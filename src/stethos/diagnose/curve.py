"""How a loss went over a whole training: per step, per turn or per round, in blocks that even out the noise."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from stethos.diagnose.detector import CannotTell, Needs
from stethos.diagnose.finding import Evidence, Subject
from stethos.diagnose.training import STEP_COLUMNS, Training, column_of, level_at_start, texts_of, thinned, trainings_of
from stethos.diagnose.window import Window
from stethos.store.frame import Array, is_null
from stethos.store.literal import literal

CURVE_READS: Needs = {
    "steps": STEP_COLUMNS,
    "rounds": frozenset({"federation", "round", "loss"}),
    "client_rounds": frozenset({"federation", "round", "client", "entry_loss"}),
}
_BLOCKS = 20
_LOOKED_AT = 5_000  # steps of clients, to see how they train


@dataclass(frozen=True, eq=False)
class Curve:
    """A loss over a training; `at` are its steps or rounds.

    `training` is the one it was made of, None for rounds. `is_of_others`: each round it is that of other clients, so
    that it also moves with who takes part. `is_of_rivals`: clients train two models against each other, as a GAN does.
    """

    process: str | None
    unit: str
    at: Array
    values: Array
    sql: str
    training: Training | None = None
    is_of_others: bool = False
    is_of_rivals: bool = False

    @cached_property
    def finite(self) -> Array:
        return self.values[np.isfinite(self.values)]

    @cached_property
    def blocks(self) -> list[Array]:
        """The finite losses in equal parts, a few values each."""
        count = len(self.finite)
        return np.array_split(self.finite, count if count < 40 else min(_BLOCKS, count // 10)) if count else []

    @cached_property
    def levels(self) -> Array:
        """The median of each block: a broken batch does not move it."""
        return np.array([float(np.median(block)) for block in self.blocks])

    @cached_property
    def noise(self) -> float:
        """The standard deviation of one value around its neighbours."""
        bends = np.abs(np.diff(self.finite, 2))  # a slope bends nowhere
        return float(np.median(bends)) / 1.652 if len(bends) else 0.0

    @property
    def level_noise(self) -> float:
        """The standard error of a level."""
        return 1.25 * self.noise / math.sqrt(max(1.0, len(self.finite) / max(1, len(self.levels))))

    @cached_property
    def start(self) -> float:
        return level_at_start(self.finite)

    @cached_property
    def end(self) -> float:
        """The level of the last tenth."""
        return float(np.median(self.finite[-max(1, min(len(self.finite), max(3, len(self.finite) // 10))) :]))

    @cached_property
    def best(self) -> float:
        return float(self.levels.min())

    @property
    def scale(self) -> float:
        """What a change is compared with: the first loss, or how far the curve moved if that is more."""
        return max(abs(self.start), self.start - self.best, 1e-12)

    @property
    def fall(self) -> float:
        """The share of its scale by which the curve has come down in the end."""
        return (self.start - self.end) / self.scale

    @property
    def is_by_step(self) -> bool:
        """Whether each value is one step's, not a turn's or a round's."""
        return self.unit == "step" and not (self.training is not None and self.training.is_relay)

    @property
    def value_unit(self) -> str:
        """What each value stands for: a step, a round, or the turn of an optimizer that has made several steps."""
        return "turn" if self.unit == "step" and not self.is_by_step else self.unit

    @property
    def length_text(self) -> str:
        """How long it is, in what a user counts: `300 steps`, `20 rounds`."""
        if self.training is not None and self.value_unit == "turn":
            return f"{len(self.training):,} steps"
        return f"{len(self.values):,} {self.unit}s"

    @property
    def may_rise(self) -> bool:
        return self.is_of_rivals or (self.training is not None and self.training.may_rise)

    def position_of(self, block: int) -> int:
        """The step or round at which a block begins."""
        finite = self.at[np.isfinite(self.values)]
        sizes = [len(one) for one in self.blocks[:block]]
        return int(finite[min(sum(sizes), len(finite) - 1)])

    def subject(self, first: int | None, last: int | None = None) -> Subject:
        rank = self.training.rank if self.training is not None else None
        return Subject(
            process=self.process, ranks=() if rank is None else (rank,), first=first, last=last, unit=self.unit
        )

    def evidence(self, text: str) -> Evidence:
        return Evidence(text, sql=self.sql, series=thinned(self.values))


def curves_of(window: Window) -> list[Curve]:
    """One curve per federation or training; made once per window."""
    return window.derive(_curves_of)


def curves_to_judge(window: Window, steps: int, rounds: int | None = None) -> Iterator[Curve]:
    """The curves with so many steps, or rounds or turns; `CannotTell` if there are only shorter ones."""
    curves = curves_of(window)
    least = {True: steps, False: steps if rounds is None else rounds}
    chosen = [curve for curve in curves if len(curve.finite) >= least[curve.is_by_step]]
    if curves and not chosen:
        longest = max(curves, key=lambda curve: len(curve.finite))
        raise CannotTell(f"{len(longest.finite)} {longest.value_unit}s with a loss, {least[longest.is_by_step]} needed")
    yield from chosen


def _curves_of(window: Window) -> list[Curve]:
    curves = [*_round_curves(window)]
    if curves:
        return curves
    for training in trainings_of(window):
        curve = _turn_curve(training) if training.is_relay else _step_curve(training)
        if len(curve.finite):
            curves.append(curve)
    return curves


def _round_curves(window: Window) -> list[Curve]:
    """The evaluated loss per round, else what the incoming model makes of the clients' data."""
    for table, name in (("rounds", "loss"), ("client_rounds", "entry_loss")):
        frame = window.frame(table)
        if not len(frame):
            continue
        value, at = column_of(frame, name), column_of(frame, "round")
        federations = texts_of(frame, "federation")
        curves = []
        for federation in dict.fromkeys(federations.tolist()):
            rows = (federations == federation) & ~is_null(value) & np.isfinite(at)
            rounds = np.unique(at[rows])
            if len(rounds) < 3:
                continue
            means = np.array([value[rows & (at == one)].mean() for one in rounds])
            where = f" AND federation = {literal(str(federation))}" if federation is not None else ""
            sql = (
                f"SELECT round, avg({name}) AS loss FROM {table} WHERE {name} IS NOT NULL{where} "
                "GROUP BY round ORDER BY round"
            )
            of_others = table == "client_rounds" and _do_clients_change(texts_of(frame, "client")[rows], at[rows])
            of_rivals = table == "client_rounds" and window.derive(_do_clients_train_rivals)
            curves.append(Curve(None, "round", rounds, means, sql, None, of_others, of_rivals))
        if curves:
            return curves
    return []


def _do_clients_change(clients: Array, at: Array) -> bool:
    """Whether typically less than half of a round's clients took part in the round before."""
    present: dict[float, set[object]] = {}
    for client, number in zip(clients.tolist(), at.tolist(), strict=True):
        present.setdefault(number, set()).add(client)
    rounds = [present[number] for number in sorted(present)]
    shares = [len(one & other) / max(len(one), len(other)) for one, other in itertools.pairwise(rounds)]
    return bool(shares) and float(np.median(shares)) < 0.5


def _do_clients_train_rivals(window: Window) -> bool:
    """Whether in most turns several optimizers work at the same time, with a loss of their own each."""
    frame = window.frame("steps")
    if not len(frame) or "client" not in frame:
        return False
    clients = texts_of(frame, "client")
    rows = np.flatnonzero([client is not None for client in clients.tolist()])[:_LOOKED_AT]
    keys = zip(texts_of(frame, "process")[rows], clients[rows], column_of(frame, "round")[rows].tolist(), strict=True)
    turns: dict[tuple[object, ...], dict[float, list[int]]] = {}
    for key, number, row in zip(keys, column_of(frame, "optimizer")[rows].tolist(), rows.tolist(), strict=True):
        turns.setdefault(key, {}).setdefault(number, []).append(row)
    step, loss = column_of(frame, "step"), column_of(frame, "loss")
    return bool(turns) and sum(_has_rivals(turn, step, loss) for turn in turns.values()) > len(turns) / 2


def _has_rivals(turn: dict[float, list[int]], step: Array, loss: Array) -> bool:
    for one, other in itertools.combinations(list(turn.values())[:4], 2):
        is_apart = step[one].max() < step[other].min() or step[other].max() < step[one].min()
        count = min(len(one), len(other))
        are_known = np.isfinite(loss[one]).any() and np.isfinite(loss[other]).any()
        if not is_apart and are_known and not np.allclose(loss[one[:count]], loss[other[:count]], equal_nan=True):
            return True
    return False


def _step_curve(training: Training) -> Curve:
    known = ~is_null(training.loss)
    sql = f"SELECT step, loss FROM steps WHERE {training.where} ORDER BY step"
    return Curve(training.process, "step", training.step[known], training.loss[known], sql, training)


def _turn_curve(training: Training) -> Curve:
    """The mean loss of each turn, or of each round where rounds are known."""
    known = ~is_null(training.loss)
    by_round = np.isfinite(training.round).any()
    keys = training.round if by_round else training.optimizer
    rows = known & np.isfinite(keys)
    found, first, place = np.unique(keys[rows], return_index=True, return_inverse=True)
    at = found if by_round else training.step[rows][first]
    values = np.bincount(place, training.loss[rows], len(found)) / np.maximum(
        np.bincount(place, minlength=len(found)), 1
    )
    group = "round" if by_round else "optimizer"
    sql = (
        f"SELECT {group}, min(step) AS step, avg(loss) AS loss FROM steps WHERE {training.where} "
        f"GROUP BY {group} ORDER BY {group}"
    )
    unit = "round" if by_round else "step"
    return Curve(training.process, unit, at, values, sql, training)
