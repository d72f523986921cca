"""The tables of `stethos profile --by`: a line per client, layer, module or rank."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from stethos.cli.screen.grid import Heading, show_grid, without_empty
from stethos.cli.screen.jsontext import print_json_rows
from stethos.cli.screen.spark import bar
from stethos.cli.screen.text import bytes_text, clean, ms_text, short_text
from stethos.store.order import natural_key

if TYPE_CHECKING:
    from stethos.store.run import Run

_BAR = 10
_MOST = 60
Record = dict[str, Any]


def statements(by: str | None) -> dict[str, str]:
    """The SQL behind a table, or behind the whole screen."""
    from stethos.profile import compression, memory_use, module_time, report, step_time, traffic

    every = {
        "client": {"clients": traffic.CLIENT_SQL},
        "layer": {
            "layers of updates of round 1": traffic.LAYER_SQL.format(round=1),
            "layers of a training without rounds": traffic.OWN_LAYER_SQL,
            "compression": compression.COMPRESSION_SQL,
        },
        "module": {"modules": module_time.MODULE_SQL},
        "rank": {"steps": step_time.STEP_SQL},
    }
    whole = {
        "rounds": report.ROUND_SQL, "round without an end": report.OPEN_SQL, "turns": report.TURN_SQL,
        "steps": step_time.STEP_SQL, "forward inside the model": step_time.INSIDE_SQL,
        "epochs": step_time.EPOCH_SQL, "modules": module_time.MODULE_SQL,
        "memory by class": memory_use.CLASS_SQL, "peak on a CPU": memory_use.CPU_PEAK_SQL,
        "processes": memory_use.HOST_SQL,
        "traffic": traffic.TRAFFIC_SQL, "layers of updates of round 1": traffic.LAYER_SQL.format(round=1),
    }  # fmt: skip
    return whole if by is None else every[by]


def show_by(run: Run, by: str, *, as_json: bool) -> int:
    """Print one of the tables; the exit status."""
    read = _READ[by]
    rows = read(run)
    if as_json:
        print_json_rows(rows)
        return 0
    if not rows:
        print(f"run {clean(run.name)}: nothing was recorded by {by}")
        print(f"hint: {_HINTS[by]}")
        return 0
    _SHOW[by](rows)
    return 0


# Clients -----------------------------------------------------------------------------------------------


def _clients(run: Run) -> list[Record]:
    from stethos.profile.column import records
    from stethos.profile.report import ROUND_SQL, TURN_SQL
    from stethos.profile.round_time import round_times
    from stethos.profile.traffic import CLIENT_SQL
    from stethos.profile.what_if import slowness_of
    from stethos.store.frame import select

    last: dict[tuple[str | None, str], int] = {}
    costs: dict[tuple[str | None, str], float] = {}
    for one in round_times(select(run, ROUND_SQL), select(run, TURN_SQL)):
        for (client, _), count in one.waited_for.items():
            last[one.federation, client] = last.get((one.federation, client), 0) + count
        for client in {client for client, _ in one.waited_for}:
            slow = slowness_of(one, client)
            costs[one.federation, client] = slow.share if slow is not None else 0.0
    rows = records(run, CLIENT_SQL)
    is_one = len({row["federation"] for row in rows}) < 2
    for row in rows:
        key = (None if is_one else row["federation"], row["client"])
        row["came_last"] = last.get(key, 0)
        row["what_if_share"] = costs.get(key)
    return sorted(rows, key=lambda row: (str(row["federation"]), -row["came_last"], natural_key(str(row["client"]))))


def _show_clients(rows: list[Record]) -> None:
    longest = max((row["duration_ms"] or 0.0 for row in rows), default=0.0) or 1.0
    headings = [
        Heading("client"), Heading("turns", True, 4), Heading("failed", True, 3), Heading("download", True, 2),
        Heading("compute", True), Heading("upload", True, 1), Heading("turn", True), Heading("", spare=7),
        Heading("came last", True), Heading("rounds shorter by", True), Heading("sent", True, 5),
        Heading("up/s", True, 6), Heading("peak", True, 8),
    ]  # fmt: skip
    cells = [
        [
            str(row["client"]), str(row["turns"]), str(row["turns"] - row["ok"]) if row["turns"] - row["ok"] else "",
            ms_text(row["download_ms"]), ms_text(row["compute_ms"]), ms_text(row["upload_ms"]),
            ms_text(row["duration_ms"]), bar((row["duration_ms"] or 0.0) / longest, _BAR),
            str(row["came_last"]) if row["came_last"] else "",
            f"{row['what_if_share']:.0%}" if (row["what_if_share"] or 0.0) >= 0.01 else "",
            _bytes(row["sent_bytes"]), _bytes(row["up_bytes_per_s"]), _bytes(row["peak_bytes"]),
        ]
        for row in rows
    ]  # fmt: skip
    _show(headings, cells)


# Layers, modules, ranks --------------------------------------------------------------------------------


def _layers(run: Run) -> list[Record]:
    from stethos.profile.compression import read_compression
    from stethos.profile.traffic import read_layer_sizes, read_own_layers

    methods: dict[tuple[Any, str], Record] = {}
    for one in read_compression(run):
        if one.layer is not None:
            facts = {"ratio": one.ratio, "error": one.error}
            methods.setdefault((one.federation, one.layer), {})[one.method] = facts
    return [
        {
            "federation": one.federation, "layer": one.layer, "kind": one.kind, "size": one.size,
            "share": one.share, "norm": one.norm, "zero_share": one.zero_share,
            "compression": methods.get((one.federation, one.layer), {}),
        }
        for one in read_layer_sizes(run) or read_own_layers(run)
    ]  # fmt: skip


def _show_layers(rows: list[Record]) -> None:
    names = list(dict.fromkeys(name for row in rows for name in row["compression"]))
    headings = [
        Heading("layer"), Heading("elements", True), Heading("of bytes", True), Heading("", spare=6),
        Heading("norm", True, 5), *(Heading(f"{name}: smaller, error", spare=4) for name in names),
    ]  # fmt: skip
    cells = []
    for row in rows:
        done = [row["compression"].get(name) for name in names]
        cells.append(
            [
                str(row["layer"]), f"{row['size']:,}", f"{row['share']:.1%}", bar(row["share"], _BAR),
                short_text(row["norm"]),
                *("-" if one is None else f"{one['ratio']:.1f}x, {short_text(one['error'])}" for one in done),
            ]
        )  # fmt: skip
    _show(headings, cells)


def _modules(run: Run) -> list[Record]:
    from stethos.profile.module_time import read_module_times

    return [one.as_dict() for one in read_module_times(run)]


def _show_modules(rows: list[Record]) -> None:
    headings = [
        Heading("module"), Heading("forward", True), Heading("backward", True), Heading("of compute", True),
        Heading("", spare=5), Heading("outputs", True, 4), Heading("samples", True, 6),
    ]  # fmt: skip
    cells = [
        [
            str(row["module"]), _ms(row["forward_ms"]), _ms(row["backward_ms"]), f"{row['share']:.1%}",
            bar(row["share"], _BAR), _bytes(row["allocated_bytes"]), str(row["samples"]),
        ]
        for row in rows
    ]  # fmt: skip
    _show(headings, cells)


def _ranks(run: Run) -> list[Record]:
    from stethos.profile.step_time import read_step_times

    times = sorted(read_step_times(run), key=lambda one: (one.rank is None, one.rank or 0, one.process))
    return [one.as_dict() for one in times]


def _show_ranks(rows: list[Record]) -> None:
    has_ranks = any(row["rank"] is not None for row in rows)
    headings = [
        Heading("rank", True), Heading("process", spare=6 if has_ranks else 0), Heading("steps", True, 4),
        Heading("step", True),
        Heading("data", True), Heading("forward", True), Heading("backward", True), Heading("optimizer", True, 1),
        Heading("other", True, 2), Heading("samples", True, 5), Heading("samples/s", True, 3),
    ]  # fmt: skip
    cells = [
        [
            "-" if row["rank"] is None else str(row["rank"]), str(row["process"]), f"{row['steps']:,}",
            ms_text(row["mean_ms"]), *(ms_text(value) for value in row["parts_ms"].values()),
            short_text(row["samples"]), short_text(row["samples_per_s"]),
        ]
        for row in rows
    ]  # fmt: skip
    _show(headings, cells)


def _show(headings: list[Heading], cells: list[list[str]]) -> None:
    shown, kept = without_empty(headings, cells[:_MOST])
    show_grid(shown, kept)
    if len(cells) > _MOST:
        print(f"{_MOST} of {len(cells):,} are shown; --json has all of them")


def _bytes(count: float | None) -> str:
    return "-" if count is None else bytes_text(round(count))


def _ms(milliseconds: float | None) -> str:
    """With more digits than `ms_text`: modules are fast."""
    return "-" if milliseconds is None else f"{milliseconds:.3g} ms"


_READ: dict[str, Callable[[Run], list[Record]]] = {
    "client": _clients, "layer": _layers, "module": _modules, "rank": _ranks,
}  # fmt: skip
_SHOW: dict[str, Callable[[list[Record]], None]] = {
    "client": _show_clients, "layer": _show_layers, "module": _show_modules, "rank": _show_ranks,
}  # fmt: skip
_HINTS = {
    "client": "`stethos.federation(...)` records the turns of clients",
    "layer": "layers are measured on sampled steps, and in federated updates; see `stethos doctor`",
    "module": "modules are timed on sampled steps; see `stethos doctor`",
    "rank": "steps are recorded under `stethos run`, or after `stethos.watch()`",
}
