"""Show the collectives of every rank: the last one begun, whether it is complete, and who is behind.

For a live run, the state is read from outside the processes, so a rank that hangs is shown too. For a finished run,
or with --calls, it shows the recorded calls by rank, group and operation.
"""

from __future__ import annotations

import argparse
import time
from typing import TYPE_CHECKING, Any

from stethos.cli.screen.grid import Heading, show_grid
from stethos.cli.screen.jsontext import print_json
from stethos.cli.screen.text import bytes_text, count_text, duration_text, ms_text
from stethos.cli.task.target import add_target, open_target
from stethos.view.machine import COLLECTIVES

if TYPE_CHECKING:
    from stethos.store.boards import Delay, RankBoard
    from stethos.store.run import Run


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_target(parser)
    parser.add_argument("--calls", action="store_true", help="the recorded calls by rank, group and operation")
    parser.add_argument("--json", action="store_true", help="print one object")


def run(arguments: argparse.Namespace) -> int:
    from stethos.store.boards import boards_of, delays_of

    with open_target(arguments) as one:
        boards = [] if arguments.calls else [board for board in boards_of(one.place) if board.groups]
        if not any(board.is_running for board in boards):
            return _show_calls(one, as_json=arguments.json)
        delays = delays_of(boards_of(one.place))
        if arguments.json:
            print_json({"run": one.name, **state_of(boards, delays)})
            return 0
    show_state(state_of(boards, delays))
    return 0


def state_of(boards: list[RankBoard], delays: list[Delay]) -> dict[str, Any]:
    """The state for JSON: a row per rank and group, and what is waited for."""
    return {
        "ranks": [
            {
                "rank": board.rank, "host": board.host, "pid": board.pid, "step": board.steps, **group._asdict(),
                "state": "waiting" if group.is_waiting else "complete",
            }
            for board in boards
            for group in board.groups
        ],
        "waits": [delay._asdict() for delay in delays],
    }  # fmt: skip


def show_state(state: dict[str, Any]) -> None:
    """Print where each rank is in each group, then who waits for whom."""
    headings = (
        Heading("group"), Heading("rank", True), Heading("host", spare=1), Heading("step", True), Heading("seq", True),
        Heading("op"), Heading("bytes", True), Heading("complete", True), Heading("state"),
    )  # fmt: skip
    now_ns = time.time_ns()
    order = sorted(state["ranks"], key=lambda row: (row["name"], row["rank"] if row["rank"] is not None else -1))
    rows = [
        [
            row["name"], str(row["rank"]), row["host"], count_text(row["step"]), count_text(row["begun"]), row["op"],
            bytes_text(row["bytes"]), count_text(row["complete"]),
            f"waiting for {duration_text((now_ns - row['begun_ns']) / 1e9)}" if row["state"] == "waiting" else "-",
        ]
        for row in order
    ]  # fmt: skip
    show_grid(headings, rows)
    for wait in state["waits"]:
        print(words_of(wait))
    if not state["waits"]:
        print("no rank waits")


def words_of(wait: dict[str, Any]) -> str:
    """What is waited for, in one line."""
    what = f"{wait['op']} {wait['seq']} of group {wait['group']}"
    waiting = f"{_ranks(wait['waiting'])} {'wait' if len(wait['waiting']) > 1 else 'waits'} in {what}"
    if wait["missing"]:
        return f"{waiting}: {_ranks(wait['missing'])} {'have' if len(wait['missing']) > 1 else 'has'} not begun it"
    if wait["mismatched"]:
        others = (f"rank {rank} called {call}" for rank, call in zip(wait["mismatched"], wait["instead"], strict=True))
        return f"{waiting}, {wait['bytes']:,} bytes: {'; '.join(others)}"
    if wait["unseen"]:
        return f"{waiting}: {_ranks(wait['unseen'])} cannot be seen from here"
    return f"{waiting}: all ranks have begun it"


def _ranks(ranks: Any) -> str:
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"


def _show_calls(one: Run, *, as_json: bool) -> int:
    calls = COLLECTIVES.records(one)
    if as_json:
        print_json({"run": one.name, "calls": calls})
        return 0
    if not calls:
        print("no collective was recorded")
        return 0
    headings = (
        Heading("rank", True), Heading("group"), Heading("op"), Heading("via"), Heading("calls", True),
        Heading("bytes", True), Heading("last seq", True), Heading("median", True), Heading("longest", True),
        Heading("unfinished", True),
    )  # fmt: skip
    show_grid(headings, [
        [
            "-" if row["rank"] is None else str(row["rank"]), *(row[name] or "-" for name in ("group", "op", "via")),
            count_text(row["calls"]), bytes_text(int(row["bytes"] or 0)), count_text(row["last_seq"]),
            ms_text(row["median_ms"]), ms_text(row["max_ms"]), count_text(row["unfinished"]),
        ]
        for row in calls
    ])  # fmt: skip
    return 0
