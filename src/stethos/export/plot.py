"""Figures of a run for notebooks and papers. Needs matplotlib: the package's extra `plot`.

Colours can be told apart by everybody (Okabe and Ito's palette, viridis and its kin). What was not measured is a gap,
never a zero. Figures belong to the caller alone: nothing of pyplot's global state is touched.
"""

from __future__ import annotations

import io
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from stethos.errors import QueryError, UsageError
from stethos.store.order import natural_key
from stethos.view.client import MEASURES, Measure, measured
from stethos.view.layer import VALUES, layer_grid
from stethos.view.metric import METRICS
from stethos.view.plain import printable
from stethos.view.round import RoundView, TurnView, rounds_of, turns_of
from stethos.view.step import by_step

try:
    import matplotlib
    from matplotlib.colors import LogNorm, Normalize
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch
    from matplotlib.ticker import MaxNLocator
except ImportError:
    raise UsageError("plots need the package matplotlib", hint='pip install "stethos[plot]"') from None

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from stethos.store.run import Run

LayerValue = Literal["norm", "mean", "std", "min", "max", "zero_share", "nan", "inf", "drift"]
LayerKind = Literal["gradient", "weight", "activation"]
ClientValue = Literal["cosine", "norm", "loss", "entry_loss", "duration", "samples"]

_BLUE, _ORANGE, _GREEN, _RED, _SKY, _PINK = "#0072b2", "#e69f00", "#009e73", "#d55e00", "#56b4e9", "#cc79a7"
_LINES = (_BLUE, _ORANGE, _GREEN, _PINK, _SKY, _RED)
_PHASES = {"download": _SKY, "compute": _BLUE, "upload": _ORANGE}
_GAP, _PALE = "#e8e8ec", "#f3d2c1"
_STYLE: Any = {
    "font.size": 9.0, "axes.titlesize": 10.0, "axes.titleweight": "bold", "axes.titlelocation": "left",
    "axes.spines.top": False, "axes.spines.right": False, "axes.grid": True, "axes.axisbelow": True,
    "grid.color": "#e3e3e8", "grid.linewidth": 0.7, "axes.edgecolor": "#999999", "lines.linewidth": 1.6,
    "legend.frameon": False, "figure.facecolor": "white", "axes.facecolor": "white", "savefig.dpi": 120,
}  # fmt: skip
_CLIENT_VALUES = ("cosine", "norm", "loss", "entry_loss", "duration", "samples")
_MOST_COLUMNS = 600
_MOST_METRICS = 12
_FEW_POINTS = 60  # that are shown as dots, too
_TALLEST_INCHES = 12.0


class RunFigure(Figure):
    """A figure that shows itself in a notebook."""

    def _repr_png_(self) -> bytes:
        data = io.BytesIO()
        self.savefig(data, format="png")
        return data.getvalue()


class Plots:
    """The figures of one run."""

    def __init__(self, run: Run) -> None:
        self._run = run

    def rounds(self) -> Figure:
        """Loss, accuracy and duration by round; rounds in which clients failed are marked."""
        by_federation: dict[str, list[RoundView]] = {}
        for one in rounds_of(self._run):
            if one.state == "ended":
                by_federation.setdefault(one.federation or "", []).append(one)
        if not by_federation:
            raise _nothing("rounds")
        columns = {"loss": "loss", "accuracy": "accuracy", "duration_ms": "duration (s)"}
        every = [one for rounds in by_federation.values() for one in rounds]
        shown = [name for name in columns if any(getattr(one, name) is not None for one in every)]
        with matplotlib.rc_context(_STYLE):
            figure = RunFigure(figsize=(7, 0.6 + 1.7 * max(1, len(shown))), layout="constrained")
            axes = figure.subplots(max(1, len(shown)), 1, sharex=True, squeeze=False)[:, 0]
            for axis, column in zip(axes, shown, strict=False):
                for number, (federation, rounds) in enumerate(by_federation.items()):
                    label, colour = _words(federation) or None, _LINES[number % len(_LINES)]
                    scale = 1e-3 if column == "duration_ms" else 1.0
                    values = [None if (value := getattr(one, column)) is None else scale * value for one in rounds]
                    _line(axis, [one.round for one in rounds], values, colour, label)
                    if column == "duration_ms":
                        _mark_failures(axis, rounds)
                axis.set_ylabel(columns[column])
            if "duration_ms" in shown:
                axes[-1].set_ylim(0, 1.05 * axes[-1].get_ylim()[1])
            axes[0].set_title(f"{_words(self._run.name)}: rounds")
            axes[-1].set_xlabel("round")
            axes[-1].xaxis.set_major_locator(MaxNLocator(integer=True))
            handles, labels = axes[-1].get_legend_handles_labels()
            if len(by_federation) > 1 or "clients failed" in labels:
                axes[-1].legend(handles, labels, loc="best", fontsize=8)
        return figure

    def steps(self) -> Figure:
        """Loss, gradient norm, learning rate and duration by step, a line per process."""
        shown = {"loss": "loss", "grad_norm": "gradient norm", "lr": "learning rate", "step_ms": "step (ms)"}
        found = {name: by_step(name).records(self._run) for name in shown}
        return self._curves({shown[name]: _lines(rows, "step", name) for name, rows in found.items() if rows}, "step")

    def metrics(self, *names: str) -> Figure:
        """What the program logged, a panel per name; without `names` the first twelve."""
        wanted = [row for row in METRICS.records(self._run, x="step") if not row["name"].startswith("steps/")]
        label = "step" if all(row["x"] is not None for row in wanted) else "time (s)"
        if label != "step":
            wanted = [row for row in METRICS.records(self._run, x="time") if not row["name"].startswith("steps/")]
        rows = [row for row in wanted if not names or row["name"] in names]
        found = list(dict.fromkeys(row["name"] for row in rows))[: None if names else _MOST_METRICS]
        missing = [name for name in names if name not in found]
        if missing:
            raise UsageError(f"no metric {missing[0]!r}", hint="leave the names out to see which there are")
        panels = {name: _lines([row for row in rows if row["name"] == name], "x", "value") for name in found}
        return self._curves(panels, label)

    def _curves(self, panels: dict[str, dict[str, tuple[list[float], list[float]]]], label: str) -> Figure:
        if not panels:
            raise _nothing("steps and metrics")
        with matplotlib.rc_context(_STYLE):
            figure = RunFigure(figsize=(7, 0.6 + 1.6 * len(panels)), layout="constrained")
            axes = figure.subplots(len(panels), 1, squeeze=False)[:, 0]
            for axis, (title, lines) in zip(axes, panels.items(), strict=True):
                for place, (series, (x, y)) in enumerate(lines.items()):
                    colour, dots = _LINES[place % len(_LINES)], "." if len(x) < _FEW_POINTS else ""
                    axis.plot(x, y, color=colour, label=_words(series), marker=dots)
                axis.set_ylabel(_words(title))
                if len(lines) > 1:
                    axis.legend(loc="best", fontsize=8)
            axes[0].set_title(_words(self._run.name))
            axes[-1].set_xlabel(label)
        return figure

    def clients(self, value: ClientValue | None = None, federation: str | None = None) -> Figure:
        """A heat map of clients by rounds; without a `value` the cosine of the updates, else the loss.

        A cross marks a turn that failed, red NaN or infinities; grey is a client that did not take part, or was not
        measured.
        """
        if value is not None and value not in _CLIENT_VALUES:
            raise UsageError(f"no value {value!r} of clients", hint=f"one of {', '.join(_CLIENT_VALUES)}")
        chosen = value or "cosine"
        found = measured(self._run, chosen, federation)
        if value is None and not any(number is not None for *_, number in found):
            chosen = "loss"
            found = measured(self._run, chosen, federation)
        turns = measured(self._run, "status", federation)
        if not turns and not found:
            raise _nothing("client_rounds")
        clients = sorted({row[0] for row in (*turns, *found)}, key=natural_key, reverse=True)
        rounds = sorted({row[1] for row in (*turns, *found)})
        rows, columns = (
            {name: place for place, name in enumerate(clients)},
            {name: place for place, name in enumerate(rounds)},
        )
        grid = [[math.nan] * len(rounds) for _ in clients]
        broken = []
        for client, number, amount in found:
            if amount is not None:
                grid[rows[client]][columns[number]] = float(amount) if math.isfinite(amount) else math.nan
                if not math.isfinite(amount):
                    broken.append((columns[number], rows[client]))
        bad = [(columns[number], rows[client]) for client, number, status in turns if status]
        with matplotlib.rc_context({**_STYLE, "axes.grid": False}):
            figure = RunFigure(figsize=(7.5, min(_TALLEST_INCHES, 1.3 + 0.22 * len(clients))), layout="constrained")
            axis = figure.subplots()
            scale = Normalize(-1, 1) if chosen == "cosine" else _scale(grid, is_log=chosen == "norm")
            image = _heat(axis, grid, "PuOr" if chosen == "cosine" else "viridis", scale)
            if bad:
                axis.scatter([x for x, _ in bad], [y for _, y in bad], marker="x", s=22, color=_RED, linewidths=1.4)
            if broken:
                axis.scatter([x for x, _ in broken], [y for _, y in broken], marker="s", s=16, color=_RED)
            _ticks(axis.yaxis, [_words(str(name)) for name in clients], 55)
            _ticks(axis.xaxis, [str(number) for number in rounds], 15)
            notes = (
                *(["x: no update"] if bad else []),
                *(["red: NaN or infinite"] if broken else []),
                "grey: not measured",
            )
            axis.set_xlabel(f"round   ({', '.join(notes)})")
            axis.set_title(f"{_words(self._run.name)}: clients")
            figure.colorbar(image, ax=axis, label=_labelled(MEASURES[chosen]), pad=0.01)
        return figure

    def layers(self, value: LayerValue = "norm", kind: LayerKind = "gradient", process: str | None = None) -> Figure:
        """A heat map of layers by steps: how gradients flow. Red: NaN or infinite elements."""
        if value not in VALUES:
            raise UsageError(f"no value {value!r} of layers", hint=f"one of {', '.join(VALUES)}")
        found = layer_grid(self._run, value, kind, process, _MOST_COLUMNS)
        if not found.steps:
            raise _nothing("layers", f" of kind {kind!r}")
        height, every = len(found.layers), found.every
        bad = [(column, height - 1 - row) for column, row in found.broken]  # the first layer above
        with matplotlib.rc_context({**_STYLE, "axes.grid": False}):
            figure = RunFigure(figsize=(7.5, min(_TALLEST_INCHES, 1.3 + 0.2 * height)), layout="constrained")
            axis = figure.subplots()
            grid = found.values[::-1]
            image = _heat(axis, grid, "viridis", _scale(grid, is_log=value in ("norm", "std", "drift")))
            if bad:
                axis.scatter([x for x, _ in bad], [y for _, y in bad], marker="s", s=16, color=_RED)
            _ticks(axis.yaxis, [_words(str(layer)) for layer in found.layers[::-1]], 55)
            _ticks(axis.xaxis, [str(step) for step in found.steps], 12)
            note = f", each column {every} samples" if every > 1 else ""
            axis.set_xlabel(f"step{note}" + ("   (red: NaN or infinite)" if bad else ""))
            axis.set_title(f"{_words(self._run.name)}: {_words(kind)}s")
            figure.colorbar(image, ax=axis, label=f"{value} of the {_words(kind)}", pad=0.01)
        return figure

    def waterfall(self, round: int | None = None, federation: str | None = None) -> Figure:
        """One round across its clients, who waits for whom; without a number the last one."""
        turns = turns_of(self._run, federation, round)
        if not turns:
            raise _nothing("client_rounds", "" if round is None else f" of round {round}")
        number = turns[0].round
        (whole,) = [
            one
            for one in rounds_of(self._run, turns[0].federation)
            if one.round == number and one.state == "ended" and one.federation == turns[0].federation
        ]
        last = next((one for one in turns if one.is_critical), None)
        names = dict.fromkeys(one.client for one in sorted(turns, key=_end_ms, reverse=True))
        rows = {client: place for place, client in enumerate(names)}
        with matplotlib.rc_context({**_STYLE, "axes.grid.axis": "x"}):
            figure = RunFigure(figsize=(7.5, min(_TALLEST_INCHES, 1.4 + 0.24 * len(rows))), layout="constrained")
            axis = figure.subplots()
            for one in turns:
                _draw_turn(axis, one, rows[one.client])
            said = "line: end of the round"
            if last is not None:
                axis.axvline(_end_ms(last) / 1e3, color=_RED, linewidth=1.1, linestyle="--", zorder=4)
                said = f"dashed: {_words(last.client)} is the critical path; {said}"
            if whole.duration_ms is not None:
                axis.axvline(whole.duration_ms / 1e3, color="#555555", linewidth=1.1, zorder=4)
            _ticks(axis.yaxis, [_words(client) for client in rows], 55)
            axis.set_xlim(left=0)
            axis.set_xlabel(f"time since the round began (s)\n{said}")
            axis.set_title(f"{_words(self._run.name)}: round {number}")
            handles = [Patch(color=colour, label=name) for name, colour in _PHASES.items()
                       if any(name in one.phases_ms for one in turns)]  # fmt: skip
            if any(one.length_ms > 1.01 * sum(one.phases_ms.values()) for one in turns):
                handles.append(Patch(color=_GAP, label="rest of the turn"))
            if any(one.status not in ("ok", None) for one in turns):
                handles.append(Patch(facecolor=_PALE, edgecolor=_RED, label="no update"))
            figure.legend(handles=handles, ncols=len(handles), loc="outside upper right", fontsize=8)
        return figure


def _end_ms(turn: TurnView) -> float:
    return (turn.start_ms or 0.0) + turn.length_ms


def _draw_turn(axis: Axes, turn: TurnView, row: int) -> None:
    """The whole turn, and its phases on top of it."""
    is_bad = turn.status not in ("ok", None)
    at_ms = turn.start_ms or 0.0
    whole = {"color": _PALE if is_bad else _GAP, "edgecolor": _RED if is_bad else "none", "linewidth": 1.0}
    axis.barh(row, turn.length_ms / 1e3, left=at_ms / 1e3, height=0.72, zorder=2, **whole)  # type: ignore[arg-type]
    for name, length_ms in turn.phases_ms.items():
        axis.barh(row, length_ms / 1e3, left=at_ms / 1e3, height=0.72, color=_PHASES[name], zorder=3)
        at_ms += length_ms


def _line(axis: Axes, x: Sequence[Any], y: Sequence[Any], colour: str, label: str | None) -> None:
    """A line with gaps where nothing was measured; lonely points are dots, red squares at its foot NaN or infinite."""
    values = [math.nan if value is None or not math.isfinite(value) else float(value) for value in y]
    marker = "o" if len(values) <= 60 or math.nan in values else None
    axis.plot(list(x), values, color=colour, marker=marker, markersize=3, label=label)
    broken = [place for place, value in zip(x, y, strict=True) if value is not None and not math.isfinite(value)]
    if broken:
        foot = axis.get_xaxis_transform()
        axis.scatter(broken, [0.03] * len(broken), marker="s", s=14, color=_RED, transform=foot, clip_on=False)


def _mark_failures(axis: Axes, rounds: Sequence[RoundView]) -> None:
    bad = [(one.round, one.duration_ms / 1e3) for one in rounds if one.failed and one.duration_ms is not None]
    if bad:
        label = None if "clients failed" in axis.get_legend_handles_labels()[1] else "clients failed"
        axis.scatter([x for x, _ in bad], [y for _, y in bad], marker="x", color=_RED, s=28, zorder=3, label=label)


def _heat(axis: Axes, grid: list[list[float]], colours: str, scale: Normalize) -> Any:
    palette = matplotlib.colormaps[colours].with_extremes(bad=_GAP)
    return axis.imshow(grid, aspect="auto", origin="lower", interpolation="nearest", cmap=palette, norm=scale)


def _scale(grid: list[list[float]], *, is_log: bool) -> Normalize:
    """From the lowest to the highest value, by orders of magnitude where there are any."""
    values = [value for row in grid for value in row if math.isfinite(value)]
    positive = [value for value in values if value > 0]
    if is_log and positive and max(positive) > 10 * min(positive):
        return LogNorm(max(min(positive), max(positive) * 1e-12), max(positive))
    return Normalize(min(values, default=0.0), max(values, default=1.0))


def _ticks(axis: Any, names: Sequence[str], most: int) -> None:
    every = max(1, math.ceil(len(names) / most))
    places = list(range(0, len(names), every))
    axis.set_ticks(places, [names[place] if len(names[place]) <= 28 else names[place][:27] + "…" for place in places])


def _labelled(measure: Measure) -> str:
    return f"{measure.title} ({measure.unit})" if measure.unit else measure.title


def _lines(rows: Sequence[Mapping[str, Any]], x: str, y: str) -> dict[str, tuple[list[float], list[float]]]:
    """The points of each series; what is not a number leaves a gap."""
    found: dict[str, tuple[list[float], list[float]]] = {}
    for row in rows:
        xs, ys = found.setdefault(str(row.get("series") or ""), ([], []))
        xs.append(float(row[x]))
        ys.append(math.nan if row[y] is None else float(row[y]))
    return found


def _words(text: str) -> str:
    """Text as it is: a dollar sign begins no formula."""
    return printable(text).replace("$", r"\$")


def _nothing(table: str, what: str = "") -> QueryError:
    return QueryError(
        f"no rows in {table}{what}: nothing to plot", hint="`stethos doctor` says what was recorded, and why not more"
    )
