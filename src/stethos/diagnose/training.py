"""The trainings in a window: steps and layers of each, put together from their rows.

A training is what one optimizer did, or what many did that took turns on one
model, as clients of a federated loop do: each turn has an optimizer of its own
and begins with a jump of the loss, which is no trouble.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from stethos.diagnose.detector import CannotTell
from stethos.diagnose.finding import Subject
from stethos.diagnose.moving_goal import moving_goals
from stethos.diagnose.window import Window
from stethos.schema import NULL_F64
from stethos.store.frame import Array, Frame, is_null
from stethos.store.literal import literal

STEP_COLUMNS = frozenset(
    {"process", "rank", "client", "round", "optimizer", "step", "model", "loss", "lr", "grad_norm", "samples"}
)
LAYER_COLUMNS = frozenset(
    {"process", "client", "round", "optimizer", "step", "layer", "kind", "norm", "mean", "std", "min", "max",
     "zero_share", "nan", "inf", "drift", "size"}
)  # fmt: skip
STATISTICS = ("norm", "mean", "std", "min", "max", "zero_share", "nan", "inf", "drift", "size")

_LEAST_TURNS = 4
_LONGEST_TURN = 100
_MOST_POINTS = 60
_ODD_BATCH, _LEAST_BATCH = 0.25, 8  # of the usual size; from which size on one can be odd


@dataclass(frozen=True, slots=True, eq=False)
class LayerTrack:
    """One layer's statistics over the sampled steps of a training; `since` counts from its optimizer's first step."""

    layer: str
    step: Array
    since: Array
    numbers: dict[str, Array]

    def __getitem__(self, name: str) -> Array:
        return self.numbers[name]

    def __len__(self) -> int:
        return len(self.step)

    @property
    def size(self) -> float:
        return float(np.nanmax(self["size"])) if len(self) and np.isfinite(self["size"]).any() else 1.0

    @property
    def is_matrix(self) -> bool:
        """Whether it looks like a weight matrix; biases and scales of a norm are small or named so."""
        return self.size >= 32 and not self.layer.endswith("bias")


@dataclass(frozen=True, slots=True, eq=False)
class Training:
    """The steps of one model in order; `layers` are tracks by kind, in the order of the model.

    `is_relay`: many optimizers took turns. `has_rival`: another optimizer of the
    process works at the same time on another loss, so that a loss need not fall. `has_moving_goal`: a copy that
    follows the model sets the goals.
    """

    process: str
    rank: int | None
    model: str
    step: Array
    round: Array
    client: Array
    optimizer: Array
    loss: Array
    lr: Array
    grad_norm: Array
    is_relay: bool = False
    has_rival: bool = False
    has_moving_goal: bool = False
    layers: dict[str, list[LayerTrack]] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.step)

    @property
    def unit(self) -> str:
        return "round" if np.isfinite(self.round).any() else "step"

    @property
    def may_rise(self) -> bool:
        """Whether the loss says little about how good the model is, so that it may rise, swing or stay."""
        return self.has_rival or self.has_moving_goal

    @property
    def losses(self) -> Array:
        """The losses that were recorded, NaN and infinity among them."""
        return self.loss[~is_null(self.loss)]

    @property
    def fall(self) -> float:
        """The share of its first level by which the loss fell, negative if it rose; NaN if unknown."""
        known = self.losses
        finite = known[np.isfinite(known)]
        if len(finite) < 4:
            return np.nan
        first = level_at_start(finite)
        last = float(np.median(finite[-max(3, len(finite) // 10) :]))
        return (first - last) / max(abs(first), 1e-12)

    @property
    def turn_starts(self) -> tuple[Array, Array]:
        """The optimizers in order of their numbers, and the first step of each."""
        numbers, places = np.unique(self.optimizer, return_index=True)
        return numbers, self.step[places]

    @property
    def since(self) -> Array:
        """For each step how many its optimizer had taken before, as far as steps of others do not lie between."""
        numbers, starts = self.turn_starts
        gone: Array = self.step - starts[np.searchsorted(numbers, self.optimizer)]
        return gone

    @property
    def where(self) -> str:
        """The SQL condition that picks its rows."""
        chosen = sorted({int(one) for one in self.optimizer[np.isfinite(self.optimizer)].tolist()})
        text = f"process = {literal(self.process)}"
        return f"{text} AND optimizer = {chosen[0]}" if len(chosen) == 1 else text

    def place_of(self, step: float) -> int:
        """The place of a step number, of the next one if it has no row."""
        return min(int(np.searchsorted(self.step, step)), len(self.step) - 1)

    def subject(self, place: int, last: int | None = None, layers: Sequence[str] = ()) -> Subject:
        """What a finding from this place on is about: in rounds where there are any."""
        by_round = np.isfinite(self.round[place])
        position = self.round if by_round else self.step
        client = self.client[place] if len(self.client) else None
        return Subject(
            clients=(str(client),) if client is not None and client == client else (),
            ranks=(self.rank,) if self.rank is not None else (),
            layers=tuple(layers),
            process=self.process,
            first=int(position[place]) if np.isfinite(position[place]) else None,
            last=None if last is None or not np.isfinite(position[last]) else int(position[last]),
            unit="round" if by_round else "step",
        )


def trainings_of(window: Window) -> list[Training]:
    """All trainings of a window, in the order of their beginning; made once per window."""
    return window.derive(_trainings_of)


def trainings_to_judge(window: Window, least: int) -> Iterator[Training]:
    """The trainings with so many losses and no rival; `CannotTell` if there are only shorter ones."""
    trainings = [one for one in trainings_of(window) if not one.has_rival and len(one.losses)]
    chosen = [one for one in trainings if len(one.losses) >= least]
    if trainings and not chosen:
        raise CannotTell(f"{max(len(one.losses) for one in trainings)} steps with a loss, {least} needed")
    yield from chosen


def level_at_start(losses: Array) -> float:
    """The loss before anything was learned: the first few, or the very first if the second step threw it far up."""
    few = float(np.median(losses[: max(1, min(5, len(losses) // 20))]))
    first = float(losses[0])
    noise = float(np.median(np.abs(np.diff(losses)))) if len(losses) > 1 else 0.0
    return first if few > 2 * abs(first) and few - first > 5 * noise else few


def thinned(values: Array, most: int = _MOST_POINTS) -> tuple[float, ...]:
    """A series short enough to draw: means of equal parts, not finite where a part is not."""
    if len(values) <= most:
        return tuple(float(value) for value in values)
    return tuple(float(part.mean()) for part in np.array_split(values, most))


def until_broken(values: Array) -> Array:
    """The finite beginning of a series, which is what can be drawn; all of it if it does not begin so."""
    bad = np.flatnonzero(~np.isfinite(values))
    return values[: bad[0]] if len(bad) and bad[0] else values


def sureness(margin: float) -> float:
    """A confidence from how many times a threshold was exceeded: 0.75 at the threshold, 0.98 far beyond."""
    if not margin > 1:
        return 0.75
    return round(0.98 - 0.23 / math.sqrt(min(margin, 1e6)) ** 3, 3)


def column_of(frame: Frame, name: str) -> Array:
    """A numeric column, NULL throughout if the table lacks it."""
    if name in frame and frame[name].dtype.kind == "f":
        return frame[name]
    return np.full(len(frame), NULL_F64)


def texts_of(frame: Frame, name: str) -> Array:
    """A column of names, None throughout if the table lacks it."""
    if name in frame and frame[name].dtype.kind == "O":
        return frame[name]
    array = np.empty(len(frame), object)
    if name in frame:
        array[:] = [None if value != value else f"{value:g}" for value in frame[name].tolist()]
    return array


def _trainings_of(window: Window) -> list[Training]:
    frame = window.frame("steps")
    if not len(frame) or "step" not in frame:
        return []
    found: list[Training] = []
    for process, rows in _rows_by(texts_of(frame, "process")).items():
        courses = _courses(frame.where(rows), process)
        found.extend(_joined(courses))
    moving = moving_goals(window)
    found = [replace(one, has_moving_goal=True) if one.process in moving else one for one in found]
    layers = window.frame("layers")
    by_process = _rows_by(texts_of(layers, "process"))
    return [_with_layers(one, layers.where(by_process.get(one.process, np.array([], int)))) for one in found]


def _rows_by(names: Array) -> dict[str, Array]:
    """Places of each name, in the order of the names' first ones."""
    places: dict[str, list[int]] = {}
    for place, name in enumerate(names.tolist()):
        places.setdefault("" if name is None else str(name), []).append(place)
    return {name: np.array(found) for name, found in places.items()}


def _courses(frame: Frame, process: str) -> list[Training]:
    """One training per optimizer, the steps in order."""
    optimizer, step = column_of(frame, "optimizer"), column_of(frame, "step")
    numbers = np.where(np.isfinite(optimizer), optimizer, 0)
    order = np.lexsort((step, numbers))
    step, numbers = step[order], numbers[order]
    round_, loss, lr, grad_norm = (column_of(frame, name)[order] for name in ("round", "loss", "lr", "grad_norm"))
    loss = _without_odd_batches(loss, column_of(frame, "samples")[order])
    client, model, rank = (texts_of(frame, name)[order] for name in ("client", "model", "rank"))
    edges = np.flatnonzero(np.diff(numbers)) + 1
    found = []
    for first, last in itertools.pairwise([0, *edges.tolist(), len(numbers)]):
        rows, ranked = slice(first, last), rank[first]
        found.append(
            Training(
                process, int(float(ranked)) if ranked is not None else None, str(model[first] or ""), step[rows],
                round_[rows], client[rows], numbers[rows], loss[rows], lr[rows], grad_norm[rows],
            )
        )  # fmt: skip
    return sorted(found, key=lambda one: float(one.step[0]))


def _without_odd_batches(loss: Array, samples: Array) -> Array:
    """Losses without those of the few samples that are left at the end of a pass: they are mostly chance."""
    usual = float(np.median(samples[samples > 0])) if (samples > 0).any() else 0.0
    is_odd = (samples > 0) & (samples <= _ODD_BATCH * usual) & np.isfinite(loss)
    return np.where(is_odd, NULL_F64, loss) if usual >= _LEAST_BATCH and is_odd.mean() < 0.25 else loss


def _joined(courses: list[Training]) -> list[Training]:
    """Put the turns on one model together."""
    by_model: dict[str, list[Training]] = {}
    for one in courses:
        by_model.setdefault(one.model, []).append(one)
    found: list[Training] = []
    for group in by_model.values():
        in_turns = all(one.step[-1] < other.step[0] for one, other in itertools.pairwise(group))
        if len(group) > 1 and in_turns and (np.isfinite(group[0].round).any() or _is_relay(group)):
            found.append(_relay(group))
        else:
            found.extend(group)
    if len(found) < 2:
        return found
    return [_marked(one, found) for one in found]


def _is_relay(group: list[Training]) -> bool:
    """Whether optimizers that follow each other go on with one model, and do not begin anew each time."""
    if len(group) < _LEAST_TURNS or np.median([len(one) for one in group]) > _LONGEST_TURN:
        return False
    entries = np.array([one.losses[0] if len(one.losses) else np.nan for one in group])
    exits = np.array([one.losses[-1] if len(one.losses) else np.nan for one in group])
    if not np.isfinite(entries).all() or not np.isfinite(exits).all():
        return True
    does_learn = np.median(exits) < 0.6 * np.median(entries)
    return not (does_learn and np.median(entries[len(entries) // 2 :]) > 0.85 * entries[0])


def _relay(group: list[Training]) -> Training:
    first = group[0]
    step, round_, client, optimizer, loss, lr, grad_norm = (
        np.concatenate([getattr(one, name) for one in group])
        for name in ("step", "round", "client", "optimizer", "loss", "lr", "grad_norm")
    )
    return Training(
        first.process, first.rank, first.model, step, round_, client, optimizer, loss, lr, grad_norm, is_relay=True
    )


def _marked(one: Training, others: list[Training]) -> Training:
    """Note whether another training goes on at the same time with another loss."""
    for other in others:
        if other is one or other.step[0] > one.step[-1] or one.step[0] > other.step[-1]:
            continue
        count = min(len(one), len(other))
        if not np.allclose(one.loss[1:count], other.loss[1:count], equal_nan=True):
            return replace(one, has_rival=True)
    return one


def _with_layers(one: Training, frame: Frame) -> Training:
    """The training with its layers, of all those of its process."""
    if not len(frame) or "layer" not in frame:
        return one
    mine = frame.where(np.isin(np.nan_to_num(column_of(frame, "optimizer")), one.optimizer))
    kinds, names = texts_of(mine, "kind"), texts_of(mine, "layer")
    step, optimizer = column_of(mine, "step"), np.nan_to_num(column_of(mine, "optimizer"))
    known, starts = one.turn_starts
    since = step - starts[np.searchsorted(known, optimizer)] if len(mine) else step
    numbers = {name: column_of(mine, name) for name in STATISTICS}
    places: dict[tuple[str, str], list[int]] = {}
    for place, key in enumerate(zip(kinds.tolist(), names.tolist(), strict=True)):
        places.setdefault((str(key[0]), str(key[1])), []).append(place)
    layers: dict[str, list[LayerTrack]] = {}
    for (kind, name), listed in places.items():
        chosen = np.array(listed)
        chosen = chosen[np.argsort(step[chosen], kind="stable")]
        track = LayerTrack(name, step[chosen], since[chosen], {key: values[chosen] for key, values in numbers.items()})
        layers.setdefault(kind, []).append(track)
    return replace(one, layers=layers)
