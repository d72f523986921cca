"""Figures of a run for notebooks and papers. Needs matplotlib: the package's extra `plot`.

Colours can be told apart by everybody (Okabe and Ito's palette, viridis and its kin). What was not measured is a gap,
never a zero. Figures belong to the caller alone: nothing of pyplot's global state is touched.
"""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

from stethos.errors import QueryError, UsageError
from stethos.export.output import printable
from stethos.export.stream import stream
from stethos.export.timeline import Timeline

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

ClientValue = Literal["cosine", "norm", "loss", "entry_loss", "duration", "samples"]

_BLUE, _ORANGE, _GREEN, _RED, _SKY, _PINK = "#0072b2", "#e69f00", "#009e73", "#d55e00", "#56b4e9", "#cc79a7"
_LINES = (_BLUE, _ORANGE, _GREEN, _PINK, _SKY, _RED)
_PHASES = {"download": _SKY, "compute": _BLUE, "upload": _ORANGE}
_GAP = "#e8e8ec"
_STYLE: Any = {
    "font.size": 9.0, "axes.titlesize": 10.0, "axes.titleweight": "bold", "axes.titlelocation": "left",
    "axes.spines.top": False, "axes.spines.right": False, "axes.grid": True, "axes.axisbelow": True,
    "grid.color": "#e3e3e8", "grid.linewidth": 0.7, "axes.edgecolor": "#999999", "lines.linewidth": 1.6,
    "legend.frameon": False, "figure.facecolor": "white", "axes.facecolor": "white", "savefig.dpi": 120,
}  # fmt: skip
_CLIENT_VALUES: dict[str, tuple[str, str, str]] = {  # what it is, the column, the table
    "cosine": ("cosine to the other clients' centre", "cos_centre", "updates"),
    "norm": ("2-norm of the update", "norm", "updates"),
    "loss": ("loss the client reports", "loss", "client_rounds"),
    "entry_loss": ("loss of the incoming model on the client's data", "entry_loss", "client_rounds"),
    "duration": ("duration of the turn (s)", "duration_ms / 1000", "client_rounds"),
    "samples": ("samples", "samples", "client_rounds"),
}
_LAYER_VALUES = ("norm", "mean", "std", "min", "max", "zero_share", "nan", "inf", "drift")
_MOST_COLUMNS = 600
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
        query = """SELECT coalesce(federation, ''), round, loss, accuracy, duration_ms / 1000, failed FROM rounds
            ORDER BY 1, round"""
        by_federation: dict[str, list[tuple[Any, ...]]] = {}
        for federation, *row in stream(self._run, query):
            by_federation.setdefault(federation, []).append(tuple(row))
        if not by_federation:
            raise _nothing("rounds")
        names = ("loss", "accuracy", "duration (s)")
        shown = [
            place
            for place in range(3)
            if any(row[1 + place] is not None for rows in by_federation.values() for row in rows)
        ]
        with matplotlib.rc_context(_STYLE):
            figure = RunFigure(figsize=(7, 0.6 + 1.7 * max(1, len(shown))), layout="constrained")
            axes = figure.subplots(max(1, len(shown)), 1, sharex=True, squeeze=False)[:, 0]
            for axis, place in zip(axes, shown, strict=False):
                for number, (federation, rows) in enumerate(by_federation.items()):
                    label, colour = _words(federation) or None, _LINES[number % len(_LINES)]
                    _line(axis, [row[0] for row in rows], [row[1 + place] for row in rows], colour, label)
                    if place == 2:
                        _mark_failures(axis, rows)
                axis.set_ylabel(names[place])
            if 2 in shown:
                axes[-1].set_ylim(0, 1.05 * axes[-1].get_ylim()[1])
            axes[0].set_title(f"{_words(self._run.name)}: rounds")
            axes[-1].set_xlabel("round")
            axes[-1].xaxis.set_major_locator(MaxNLocator(integer=True))
            handles, labels = axes[-1].get_legend_handles_labels()
            if len(by_federation) > 1 or "clients failed" in labels:
                axes[-1].legend(handles, labels, loc="best", fontsize=8)
        return figure

    def clients(self, value: ClientValue | None = None, federation: str | None = None) -> Figure:
        """A heat map of clients by rounds; without a `value` the cosine of the updates, else the loss.

        A cross marks a turn that failed, red NaN or infinities; grey is a client that did not take part, or was not
        measured.
        """
        if value is not None and value not in _CLIENT_VALUES:
            raise UsageError(f"no value {value!r} of clients", hint=f"one of {', '.join(_CLIENT_VALUES)}")
        chosen = value or "cosine"
        found = self._client_values(chosen, federation)
        if value is None and not any(number is not None for *_, number in found):
            chosen = "loss"
            found = self._client_values(chosen, federation)
        query = "SELECT client, round, status FROM client_rounds WHERE client IS NOT NULL" + _of(federation)
        turns = list(stream(self._run, query))
        if not turns and not found:
            raise _nothing("client_rounds")
        clients = sorted({row[0] for row in (*turns, *found)}, key=_natural, reverse=True)
        rounds = sorted({row[1] for row in (*turns, *found) if row[1] is not None})
        rows, columns = (
            {name: place for place, name in enumerate(clients)},
            {name: place for place, name in enumerate(rounds)},
        )
        grid = [[math.nan] * len(rounds) for _ in clients]
        broken = []
        for client, number, amount in found:
            if amount is not None and number in columns:
                grid[rows[client]][columns[number]] = float(amount) if math.isfinite(amount) else math.nan
                if not math.isfinite(amount):
                    broken.append((columns[number], rows[client]))
        bad = [(columns[number], rows[client]) for client, number, status in turns if status not in ("ok", None)]
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
            figure.colorbar(image, ax=axis, label=_CLIENT_VALUES[chosen][0], pad=0.01)
        return figure

    def layers(self, value: str = "norm", kind: str = "gradient", process: str | None = None) -> Figure:
        """A heat map of layers by steps: how gradients flow. Red: NaN or infinite elements."""
        if value not in _LAYER_VALUES:
            raise UsageError(f"no value {value!r} of layers", hint=f"one of {', '.join(_LAYER_VALUES)}")
        of_kind = f"FROM layers WHERE kind = {_literal(kind)}"
        processes = f"SELECT process {of_kind} GROUP BY process ORDER BY count(*) DESC, process"
        name = process or next((name for (name,) in stream(self._run, processes)), "")
        of_kind += f" AND process = {_literal(name)}"
        query = f"""SELECT layer, step, avg("{value}"), sum(nan + inf) {of_kind} GROUP BY layer, step"""
        found = list(stream(self._run, query))
        if not found:
            raise _nothing("layers", f" of kind {kind!r}")
        order = f"SELECT layer {of_kind}"  # not sorted: as the model has them
        layers = list(dict.fromkeys(layer for (layer,) in stream(self._run, order)))[::-1]
        steps = sorted({row[1] for row in found})
        every = max(1, math.ceil(len(steps) / _MOST_COLUMNS))
        kept = {step: place // every for place, step in enumerate(steps)}
        rows = {layer: place for place, layer in enumerate(layers)}
        width = max(kept.values()) + 1
        sums = [[0.0] * width for _ in layers]
        counts = [[0] * width for _ in layers]
        bad = set()
        for layer, step, amount, odd in found:
            row, column = rows[layer], kept[step]
            if odd:
                bad.add((column, row))
            if amount is not None and math.isfinite(amount):
                sums[row][column] += amount
                counts[row][column] += 1
        grid = [
            [total / count if count else math.nan for total, count in zip(*pair, strict=True)]
            for pair in zip(sums, counts, strict=True)
        ]
        with matplotlib.rc_context({**_STYLE, "axes.grid": False}):
            figure = RunFigure(figsize=(7.5, min(_TALLEST_INCHES, 1.3 + 0.2 * len(layers))), layout="constrained")
            axis = figure.subplots()
            image = _heat(axis, grid, "viridis", _scale(grid, is_log=value in ("norm", "std", "drift")))
            if bad:
                axis.scatter([x for x, _ in bad], [y for _, y in bad], marker="s", s=16, color=_RED)
            _ticks(axis.yaxis, [_words(str(layer)) for layer in layers], 55)
            _ticks(axis.xaxis, [str(steps[place * every]) for place in range(width)], 12)
            note = f", each column {every} samples" if every > 1 else ""
            axis.set_xlabel(f"step{note}" + ("   (red: NaN or infinite)" if bad else ""))
            axis.set_title(f"{_words(self._run.name)}: {_words(kind)}s")
            figure.colorbar(image, ax=axis, label=f"{value} of the {_words(kind)}", pad=0.01)
        return figure

    def waterfall(self, round: int | None = None, federation: str | None = None) -> Figure:
        """One round across its clients, who waits for whom; without a number the last one."""
        query = "SELECT coalesce(federation, ''), round, t_ns, duration_ms FROM rounds WHERE round IS NOT NULL" + _of(
            federation
        )
        known = [row for row in stream(self._run, query) if round is None or row[1] == round]
        if not known:
            raise _nothing("rounds", "" if round is None else f" of round {round}")
        name, number, t_ns, duration_ms = max(known, key=lambda row: row[2])
        timeline = Timeline(self._run, limit=10**9)
        pieces = timeline.turns_of(name, number)
        turns = [one for one in pieces if one.kind == "turn"]
        if not turns:
            raise _nothing("client_rounds", f" of round {number}")
        tracks = [one.track for one in sorted(turns, key=lambda one: (one.start_ns, one.end_ns), reverse=True)]
        rows = {track: place for place, track in enumerate(dict.fromkeys(tracks))}
        last = max(turns, key=lambda one: one.end_ns)
        start_ns = min(t_ns, *(one.start_ns for one in turns))
        with matplotlib.rc_context({**_STYLE, "axes.grid.axis": "x"}):
            figure = RunFigure(figsize=(7.5, min(_TALLEST_INCHES, 1.4 + 0.24 * len(rows))), layout="constrained")
            axis = figure.subplots()
            for one in pieces:
                is_turn = one.kind == "turn"
                colour = _GAP if is_turn else _PHASES.get(one.name, _GREEN)
                is_bad = is_turn and one.args.get("status") not in ("ok", None)
                axis.barh(
                    rows[one.track], one.duration_ns / 1e9, left=(one.start_ns - start_ns) / 1e9, height=0.72,
                    color="#f3d2c1" if is_bad else colour, edgecolor=_RED if is_bad else "none", linewidth=1.0,
                    zorder=2 if is_turn else 3,
                )  # fmt: skip
            critical = (last.end_ns - start_ns) / 1e9
            axis.axvline(critical, color=_RED, linewidth=1.1, linestyle="--", zorder=4)
            if duration_ms is not None:
                axis.axvline((t_ns - start_ns) / 1e9 + duration_ms / 1e3, color="#555555", linewidth=1.1, zorder=4)
            _ticks(axis.yaxis, [_words(track.removeprefix("client ")) for track in rows], 55)
            axis.set_xlim(left=0)
            axis.set_xlabel(
                f"time since the round began (s)\ndashed: {_words(last.track)} is the last one; line: end of the round"
            )
            axis.set_title(f"{_words(self._run.name)}: round {number}")
            used = [phase for phase in _PHASES if any(one.name == phase for one in pieces)]
            handles = [Patch(color=_PHASES[phase], label=phase) for phase in used]
            if sum(one.duration_ns * (1 if one.kind == "turn" else -1) for one in pieces) > 0.01 * last.duration_ns:
                handles.append(Patch(color=_GAP, label="rest of the turn"))
            if any(one.args.get("status") not in ("ok", None) for one in turns):
                handles.append(Patch(facecolor="#f3d2c1", edgecolor=_RED, label="no update"))
            figure.legend(handles=handles, ncols=len(handles), loc="outside upper right", fontsize=8)
        return figure

    def _client_values(self, value: str, federation: str | None) -> list[tuple[Any, ...]]:
        _, column, table = _CLIENT_VALUES[value]
        whole = " AND layer IS NULL" if table == "updates" else ""
        if table == "updates":  # one with NaN in it has no size and no direction
            column = f"if(nan + inf > 0, 'nan'::DOUBLE, {column})"
        query = f"SELECT client, round, {column} FROM {table} WHERE client IS NOT NULL AND round IS NOT NULL{whole}"
        return list(stream(self._run, query + _of(federation)))


def _line(axis: Axes, x: Sequence[Any], y: Sequence[Any], colour: str, label: str | None) -> None:
    """A line with gaps where nothing was measured; lonely points are dots, red squares at its foot NaN or infinite."""
    values = [math.nan if value is None or not math.isfinite(value) else float(value) for value in y]
    marker = "o" if len(values) <= 60 or math.nan in values else None
    axis.plot(list(x), values, color=colour, marker=marker, markersize=3, label=label)
    broken = [place for place, value in zip(x, y, strict=True) if value is not None and not math.isfinite(value)]
    if broken:
        foot = axis.get_xaxis_transform()
        axis.scatter(broken, [0.03] * len(broken), marker="s", s=14, color=_RED, transform=foot, clip_on=False)


def _mark_failures(axis: Axes, rows: Sequence[tuple[Any, ...]]) -> None:
    bad = [(row[0], row[3]) for row in rows if row[4] and row[3] is not None]
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


def _natural(name: str) -> tuple[Any, ...]:
    digits = "".join(letter if letter.isdigit() else " " for letter in name).split()
    return ("".join(letter for letter in name if not letter.isdigit()), [int(number) for number in digits], name)


def _words(text: str) -> str:
    """Text as it is: a dollar sign begins no formula."""
    return printable(text).replace("$", r"\$")


def _of(federation: str | None) -> str:
    return "" if federation is None else f" AND federation = {_literal(federation)}"


def _literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def _nothing(table: str, what: str = "") -> QueryError:
    return QueryError(
        f"no rows in {table}{what}: nothing to plot", hint="`stethos doctor` says what was recorded, and why not more"
    )
