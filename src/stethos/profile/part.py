"""What a run consists of where it is more than one training: its federations, or models that are trained at once.

Their losses have nothing to do with each other: a mean over both optimizers of a generative adversarial network, or
over two federations of a run, is nobody's. What many optimizers do in turn on one model, as clients do in a loop of
one's own, is one training.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from stethos.profile.column import durations_in, numbers_in, records
from stethos.store.frame import Array, Frame, select
from stethos.store.literal import literal

if TYPE_CHECKING:
    from stethos.store.run import Run

BINS = 200
_ROUND_SQL = """\
SELECT coalesce(federation, '') AS name, round, arg_max(loss, t_ns) AS loss, arg_max(accuracy, t_ns) AS accuracy,
       arg_max(duration_ms, t_ns) AS duration_ms
FROM rounds GROUP BY federation, round ORDER BY federation, round"""
_TURN_SQL = """\
SELECT coalesce(federation, '') AS name, round, coalesce(sum(sent_bytes), sum(raw_bytes))::DOUBLE AS sent_bytes,
       sum(loss * samples) / nullif(sum(samples) FILTER (loss IS NOT NULL), 0) AS client_loss
FROM client_rounds GROUP BY federation, round ORDER BY federation, round"""
# Whether the last losses there are, of rounds or of clients, are no numbers.
_LOST_ROUNDS_SQL = """\
SELECT coalesce(federation, '') AS name, NOT isfinite(arg_max(loss, round)) AS is_lost
FROM rounds WHERE loss IS NOT NULL GROUP BY federation"""
_LOST_TURNS_SQL = """\
SELECT coalesce(federation, '') AS name, NOT bool_or(isfinite(loss)) AS is_lost
FROM (SELECT federation, loss FROM client_rounds WHERE loss IS NOT NULL
      QUALIFY rank() OVER (PARTITION BY federation ORDER BY round DESC) = 1) GROUP BY federation"""
_OPTIMIZER_SQL = """\
SELECT process, optimizer, coalesce(any_value(model), '') AS model, min(step) AS first, max(step) AS last
FROM steps GROUP BY process, optimizer ORDER BY process, first"""
# Steps in stretches of equal length over the whole training, so that runs of any length are read in one pass.
_STEP_SQL = """\
WITH span AS (SELECT greatest(1, ceil((max(step) + 1) / {bins}::DOUBLE)) AS width FROM ({steps})),
binned AS (SELECT name, floor(step / width)::BIGINT AS bin, loss, width FROM ({steps}), span)
SELECT name, bin * any_value(width) AS step, avg(loss) FILTER (isfinite(loss)) AS loss
FROM binned GROUP BY name, bin ORDER BY name, bin"""
_LOST_STEPS_SQL = """\
SELECT name, NOT bool_or(isfinite(loss)) AS is_lost
FROM (SELECT * FROM ({steps}) WHERE loss IS NOT NULL
      QUALIFY row_number() OVER (PARTITION BY name ORDER BY step DESC) <= 20) GROUP BY name"""


@dataclass(frozen=True)
class TrainingSeries:
    """One training: `at` are the rounds, or steps, of the series; what was not recorded is NaN."""

    at: Array
    loss: Array
    accuracy: Array
    round_ms: Array = field(default_factory=lambda: np.array([]))
    sent_bytes: Array = field(default_factory=lambda: np.array([]))
    is_lost: bool = False  # the last losses are not finite


def federations_of(run: Run) -> dict[str, TrainingSeries]:
    """The federations of a run by name; none where it has no rounds."""
    rounds, turns = select(run, _ROUND_SQL), select(run, _TURN_SQL)
    lost = {**_lost(run, _LOST_TURNS_SQL), **_lost(run, _LOST_ROUNDS_SQL)}
    found: dict[str, TrainingSeries] = {}
    for name, rows in _rows_by_name(rounds).items():
        mine = rounds.where(rows)
        at, loss = numbers_in(mine, "round"), numbers_in(mine, "loss")
        told = turns.where(_rows_by_name(turns).get(name, np.array([], int)))
        if np.isnan(loss).all():
            loss = _matched(at, told, "client_loss")
        found[name] = TrainingSeries(
            at, loss, numbers_in(mine, "accuracy"), durations_in(mine, "duration_ms"),
            _matched(at, told, "sent_bytes"), lost.get(name, False),
        )  # fmt: skip
    return found


def trainings_of(run: Run) -> dict[str, TrainingSeries]:
    """The trainings that a run's steps belong to, by what tells them apart; "" where there is only one."""
    names = _named_trainings(records(run, _OPTIMIZER_SQL))
    if not names:
        return {}
    if len(set(names.values())) == 1:
        steps = "SELECT '' AS name, step, loss FROM steps"
    else:
        listed = ", ".join(
            f"({literal(process)}, {'NULL' if number is None else int(number)}, {literal(name)})"
            for (process, number), name in names.items()
        )
        steps = (
            f"SELECT name, step, loss FROM steps JOIN (VALUES {listed}) AS known(process, optimizer, name) "
            "ON steps.process = known.process AND steps.optimizer IS NOT DISTINCT FROM known.optimizer"
        )
    rows = select(run, _STEP_SQL.format(bins=BINS, steps=steps))
    lost = _lost(run, _LOST_STEPS_SQL.format(steps=steps))
    found: dict[str, TrainingSeries] = {}
    for name, places in _rows_by_name(rows).items():
        mine = rows.where(places)
        at = numbers_in(mine, "step")
        nothing = np.full(len(at), math.nan)
        found[name] = TrainingSeries(at, numbers_in(mine, "loss"), nothing, is_lost=lost.get(name, False))
    return found


def _named_trainings(optimizers: list[dict[str, Any]]) -> dict[tuple[str, int | None], str]:
    """The training of each optimizer: those that take turns on models of one class share one.

    Optimizers of one class of model that work at the same time are told apart by the number of the first of them.
    """
    lanes: dict[tuple[str, str], list[tuple[int, int]]] = {}  # of a process and class: number of the first, last step
    found: dict[tuple[str, int | None], tuple[str, int]] = {}
    for row in optimizers:
        process, number, model = row["process"], row["optimizer"], str(row["model"])
        mine = lanes.setdefault((process, model), [])
        place = next((place for place, (_, last) in enumerate(mine) if last < row["first"]), len(mine))
        first = mine[place][0] if place < len(mine) else int(number or 0)
        mine[place : place + 1] = [(first, row["last"])]
        found[process, number] = model, first
    together = Counter(model for model, _ in set(found.values()))
    return {
        key: (f"{model or 'model'} (optimizer {first})" if together[model] > 1 else model or "model")
        if len(set(found.values())) > 1
        else ""
        for key, (model, first) in found.items()
    }


def _lost(run: Run, sql: str) -> dict[str, bool]:
    return {str(row["name"]): bool(row["is_lost"]) for row in records(run, sql)}


def _rows_by_name(columns: Frame) -> dict[str, Array]:
    if not len(columns):
        return {}
    names = columns["name"]
    return {str(name): np.flatnonzero(names == name) for name in dict.fromkeys(names.tolist())}


def _matched(at: Array, columns: Frame, name: str) -> Array:
    """A column of another table, by round."""
    known = dict(zip(numbers_in(columns, "round").tolist(), numbers_in(columns, name).tolist(), strict=True))
    return np.array([known.get(number, math.nan) for number in at.tolist()])
