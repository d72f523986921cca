"""NUM012: a recorded series that departs from its own past."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from stethos.diagnose.detector import Needs, threshold
from stethos.diagnose.finding import Evidence, Finding, Severity, Subject
from stethos.diagnose.program.inspected import COLUMNS, is_other_task
from stethos.diagnose.training import (
    STEP_COLUMNS,
    Training,
    column_of,
    level_at_start,
    sureness,
    texts_of,
    thinned,
    trainings_of,
)  # fmt: skip
from stethos.diagnose.window import Window
from stethos.store.frame import Array, is_null
from stethos.store.literal import literal

_A_WHILE = 10  # steps
_MOST_SPIKES = 3
_STILL = 0.8  # of the values are as the one before: a setting, such as a learning rate or an epoch


@dataclass(frozen=True, slots=True)
class SeriesAnomaly:
    """The loss or a logged number breaks with its own past: a spike, a new level, a new spread.

    What it looks at: the losses of the steps and every metric with enough values. A spike of the loss must go beyond
    the loss of the untrained model, one of a metric far beyond the range of its other values; a new level must be
    permanent, with all values on the other side; a new spread must be several times as wide, at a level that is no
    lower.
    Why it matters: something changed at that moment: a broken batch, new data, a new batch size, a restart.
    Not a fault when: it was changed on purpose. Losses that fall, metrics that drift slowly, and settings and counters
    (an epoch, a learning rate) are not reported.
    Next step: look at what happened at that step: the batch, the logs, the schedule.
    """

    code: ClassVar[str] = "NUM012"
    name: ClassVar[str] = "series-anomaly"
    severity: ClassVar[Severity] = Severity.WARNING
    needs: ClassVar[Needs] = {"steps": frozenset({"step"})}
    reads: ClassVar[Needs] = {
        "steps": STEP_COLUMNS,
        "metrics": frozenset({"process", "step", "name", "value", "client"}),
        "inspections": COLUMNS,
    }
    explains: ClassVar[frozenset[str]] = frozenset({"dead-units", "exploding-gradients", "plateau", "divergence"})

    spike: float = threshold(3.0, "times the first loss")
    spread: float = threshold(4.0, "times the spread of the loss before")
    shift: float = threshold(3.0, "standard deviations between two levels of the loss")
    metric_spike: float = threshold(5.0, "times the range of the logged number so far")
    metric_spread: float = threshold(8.0, "times the spread of the logged number before")
    least: int = threshold(60, "values of a series")
    most: int = threshold(20_000, "values of a series that are looked at; longer ones are thinned out")

    def check(self, window: Window) -> Iterator[Finding]:
        for one in trainings_of(window):
            if not one.is_relay and not one.may_rise:
                yield from self._loss(window, one)
        frame = window.frame("metrics")
        if not len(frame):
            return
        names, processes, clients = (texts_of(frame, column) for column in ("name", "process", "client"))
        rows: dict[tuple[str | None, str | None, str | None], list[int]] = {}
        for place, key in enumerate(zip(names.tolist(), processes.tolist(), clients.tolist(), strict=True)):
            rows.setdefault(key, []).append(place)
        at, values = column_of(frame, "step"), column_of(frame, "value")
        for key, places in rows.items():
            yield from self._metric(key, at[places], values[places])

    def _loss(self, window: Window, one: Training) -> Iterator[Finding]:
        known = np.flatnonzero(~is_null(one.loss) & np.isfinite(one.loss))
        known = known[:: max(1, len(known) // self.most)]
        losses = one.loss[known]
        if len(losses) < self.least:
            return
        sql = f"SELECT step, loss FROM steps WHERE {one.where} ORDER BY step"
        first = max(level_at_start(losses), float(losses[:5].max()))
        place, kind, margin, words = self._spike(losses, first) or self._rise(losses, first) or self._wider(losses)
        if not kind:
            return
        is_meant = kind == "spike" and _learns_anew(losses, place, first)
        is_meant = is_meant or is_other_task(window, one.process, float(one.step[known[place]]))
        yield Finding(
            self.code, self.name, kind, Severity.INFO if is_meant else self._severity(kind),
            f"the loss {words} at step {int(one.step[known[place]])}",
            one.subject(int(known[place])),
            sureness(margin),
            (Evidence(words, sql, thinned(losses), names=("loss",)),),
            f"look at the batch and the settings of step {int(one.step[known[place]])}",
            {"kind": kind, "step": int(one.step[known[place]])},
        )  # fmt: skip

    def _severity(self, kind: str) -> Severity:
        """Numbers that vary more are a remark: rare batches and policies that explore make them do so."""
        return Severity.INFO if kind == "variance-change" else self.severity

    def _spike(self, losses: Array, first: float) -> tuple[int, str, float, str] | None:
        """A short burst beyond the loss of the untrained model, from a level that was quiet."""
        start = max(20, len(losses) // 20)
        for place in np.flatnonzero(losses > 1.3 * abs(first)).tolist():
            past = losses[max(0, place - 100) : place]
            if place < start:
                continue
            far = float(losses[place]) / max(self.spike * abs(first), 3 * abs(float(past.max())))
            clear = (float(losses[place]) - float(past.max())) / max(5 * float(np.ptp(past)), 1e-12)
            if max(far, clear) > 1:
                words = f"jumps from {np.median(past):.3g} to {losses[place]:.3g}"
                return place, "spike", max(far, clear), words
        return None

    def _rise(self, losses: Array, first: float) -> tuple[int, str, float, str] | None:
        """A higher level from one step to the next, kept for the rest."""
        place, score = _break_of(losses, margin=max(20, len(losses) // 10))
        if place is None or score < self.shift:
            return None
        before, after = losses[max(0, place - 30) : place], losses[place:]
        low, high = float(np.median(before)), float(np.median(after))
        is_apart = float(np.quantile(after[:30], 0.1)) > float(np.quantile(before, 0.9))
        if high - low < max(0.4 * (abs(first) - low), 0.08 * abs(first)) or not is_apart:
            return None
        return place, "level-shift", score / self.shift, f"goes from {low:.3g} to {high:.3g} and stays"

    def _wider(self, losses: Array) -> tuple[int, str, float, str]:
        """Several times the spread at a level no lower."""
        rest = np.abs(np.diff(losses))
        edge = max(30, len(losses) // 10)
        first, last = float(np.median(losses[:5])), float(np.median(losses[-edge:]))
        best = (0, "", 0.0, "")
        for place in range(edge, len(rest) - edge, max(1, len(rest) // 200)):
            before, after = rest[max(0, place - 2 * edge) : place], rest[place : place + 2 * edge]
            ratio = float(np.median(after)) / max(float(np.median(before)), 1e-12)
            level = float(losses[place:].mean()) / max(float(losses[max(0, place - 2 * edge) : place].mean()), 1e-12)
            to_end = float(np.median(rest[place:])) / max(float(np.median(before)), 1e-12)
            untrained = float(np.median(losses[max(0, place - 2 * edge) : place])) > 0.9 * first > 0
            if untrained and last < 0.9 * first:
                continue  # a model that knows nothing answers all batches alike; what follows is learning
            if min(ratio, to_end) > max(self.spread, best[2] * self.spread) and ratio > 2 * level and level > 0.8:
                words = f"varies {ratio:.1f} times as much from step to step"
                best = place + 1, "variance-change", min(ratio, to_end) / self.spread, words
        return best

    def _metric(self, key: tuple[str | None, str | None, str | None], at: Array, values: Array) -> Iterator[Finding]:
        known = np.isfinite(values) & np.isfinite(at)
        order = np.argsort(at[known], kind="stable")
        at, values = at[known][order], values[known][order]
        name = str(key[0])
        if len(values) < self.least or "loss" in name.lower() or _is_setting(values):
            return
        found = self._metric_spike(values) or self._metric_level(values) or self._metric_spread(values)
        if found is None:
            return
        place, kind, margin, words = found
        where = "".join(
            f" AND {column} = {literal(one)}" for column, one in (("process", key[1]), ("client", key[2])) if one
        )
        yield Finding(
            self.code, self.name, kind, self._severity(kind), f"{name} {words} at step {int(at[place])}",
            Subject(clients=(key[2],) if key[2] else (), process=key[1], first=int(at[place]), unit="step"),
            sureness(margin),
            (
                Evidence(
                    words, f"SELECT step, value FROM metrics WHERE name = {literal(name)}{where} ORDER BY step",
                    thinned(values), names=(name,),
                ),
            ),
            f"look at what changed at step {int(at[place])}: `stethos query \"SELECT * FROM logs\"`",
            {"kind": kind, "metric": name, "step": int(at[place])},
        )  # fmt: skip

    def _metric_spike(self, values: Array) -> tuple[int, str, float, str] | None:
        """Up to three values many times the range of all others away from them; not at the start."""
        far = np.argsort(-np.abs(values - np.median(values)), kind="stable")[:_MOST_SPIKES]
        usual = np.delete(values, far)
        low, high = float(usual.min()), float(usual.max())
        away = np.maximum(values - high, low - values) / max(self.metric_spike * (high - low), 1e-12)
        away[: max(20, len(values) // 20)] = 0
        if not high > low or not (away > 1).any():
            return None
        place = int(np.argmax(away > 1))
        words = f"jumps from {np.median(values[max(0, place - 30) : place]):.4g} to {values[place]:.4g}"
        return place, "spike", float(away[place]), words

    def _metric_level(self, values: Array) -> tuple[int, str, float, str] | None:
        """Another level from one value to the next, kept for the rest."""
        place, score = _break_of(values, margin=max(15, len(values) // 10))
        if place is None or score < 2 * self.shift:
            return None
        before, after = values[:place], values[place:]
        is_apart = before.min() > after.max() or before.max() < after.min()
        if not is_apart or _is_gradual(values, place):
            return None
        words = f"goes from {np.median(before):.4g} to {np.median(after):.4g} and stays"
        return place, "level-shift", score / self.shift / 2, words

    def _metric_spread(self, values: Array) -> tuple[int, str, float, str] | None:
        """Many times the spread around the same level, from some value on to the end."""
        rest = np.abs(np.diff(values))
        edge = max(30, len(values) // 10)
        best: tuple[int, str, float, str] | None = None
        for place in range(edge, len(rest) - edge, max(1, len(rest) // 200)):
            before, after = float(np.median(rest[:place])), float(np.median(rest[place:]))
            margin = after / max(self.metric_spread * before, 1e-12)
            is_moved = abs(np.median(values[place:]) - np.median(values[:place])) > after
            if before > 0 and not is_moved and margin > max(1.0, best[2] if best else 0.0):
                best = place + 1, "variance-change", margin, f"varies {after / before:.1f} times as much"
        return best


def _is_setting(values: Array) -> bool:
    """Whether a number was set or counted, not measured: it goes one way only, or hardly ever changes."""
    steps = np.diff(values)
    return bool((steps >= 0).all() or (steps <= 0).all() or float((steps == 0).mean()) > _STILL)


def _learns_anew(losses: Array, place: int, first: float) -> bool:
    """Whether a loss that has jumped stays there for a while and is learned down again, as when other data come."""
    after, end = losses[place + 1 : place + 1 + _A_WHILE], losses[-max(_A_WHILE, len(losses) // 20) :]
    is_long = len(losses) - place > 4 * _A_WHILE and len(after) == _A_WHILE
    return is_long and float(np.median(after)) > 0.5 * abs(first) > float(np.median(end)) + 0.2 * abs(first)


def _break_of(values: Array, margin: int) -> tuple[int | None, float]:
    """Where a series is best cut into two levels, and how many standard deviations of one value they are apart."""
    count = len(values)
    if count < 2 * margin + 2:
        return None, 0.0
    clipped = np.clip(values, *np.quantile(values, [0.01, 0.99]))
    sums = np.concatenate([[0.0], np.cumsum(clipped)])
    places = np.arange(margin, count - margin)
    before, after = sums[places] / places, (sums[-1] - sums[places]) / (count - places)
    gain = np.abs(after - before) * np.sqrt(places * (count - places))
    place = int(places[int(np.argmax(gain))])
    noise = max(
        float(np.median(np.abs(np.diff(values[:place])))), float(np.median(np.abs(np.diff(values[place:])))), 1e-12
    )
    local = abs(float(np.median(values[place : place + 30])) - float(np.median(values[max(0, place - 30) : place])))
    return place, local / (noise / 0.954)


def _is_gradual(values: Array, place: int) -> bool:
    """Whether the way from one level to the other takes longer than a few values."""
    low, high = sorted((float(np.median(values[:place])), float(np.median(values[place:]))))
    between = (values > low + 0.25 * (high - low)) & (values < high - 0.25 * (high - low))
    return int(between.sum()) > max(3, len(values) // 20)
