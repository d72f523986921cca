"""Compare the ranks of a live run: the steps each has made, and a hash of its parameters at the same step.

    stethos sync
    stethos RUN sync

Exit status 1 if a rank differs or is missing. Nothing is exchanged between the ranks: each computes its own hash
between its gradients and its optimizer, and goes on. Sharded parameters (FSDP) differ by nature and are not compared.
"""

from __future__ import annotations

import argparse
import sys
from typing import Any

from stethos.cli.screen.grid import Heading, show_grid
from stethos.cli.screen.jsontext import print_json
from stethos.cli.screen.text import clean, count_text
from stethos.cli.task.target import add_anywhere, add_live_target, live_target
from stethos.errors import StethosError

_WAIT_S = 10.0
_ATTEMPTS = 3


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_live_target(parser)
    add_anywhere(parser)
    parser.add_argument("--json", action="store_true", help="print one object")


def run(arguments: argparse.Namespace) -> int:
    from stethos.live.all_ranks import ask_all, meeting_step, missing_ranks
    from stethos.live.sync import out_of_step

    target = live_target(arguments)
    processes = [process for process in target.processes if process.rank is not None] or [target.one()]
    for _ in range(_ATTEMPTS):
        step = meeting_step(processes)
        question = {"wait_s": _WAIT_S, "at_step": step} if step is not None else {"wait_s": 1.0}
        answers = ask_all(processes, "sync", 2 * _WAIT_S, **question)
        if not any(_is_late(answer, step) for answer in answers):
            break
    missing = missing_ranks(target.run, processes)
    rows: list[dict[str, Any]] = []
    for process, answer in zip(processes, answers, strict=True):
        row: dict[str, Any] = {"rank": process.rank, "pid": process.pid, "host": process.host}
        if isinstance(answer, StethosError):
            rows.append({**row, "step": None, "hashes": None, "why": answer.message})
        else:
            rows.append({**row, **{name: answer.get(name) for name in ("step", "hashes", "why")}})
    odd = out_of_step({str(row["rank"]): row for row in rows})
    is_well = not odd and not missing and all(row["hashes"] for row in rows)
    if arguments.json:
        print_json({"step": step, "ranks": rows, "differ": odd, "missing": missing, "ok": is_well})
        return 0 if is_well else 1
    headings = (
        Heading("rank", True),
        Heading("host", spare=1),
        Heading("step", True),
        Heading("parameters"),
        Heading("note"),
    )
    show_grid(headings, [
        [
            count_text(row["rank"]), row["host"], count_text(row["step"]),
            ", ".join(row["hashes"].values()) if row["hashes"] else "-", row["why"] or "",
        ]
        for row in rows
    ])  # fmt: skip
    for name, what in odd.items():
        print(clean(f"rank {name} differs in its {what}"))
    for rank, why in missing.items():
        print(clean(f"rank {rank} is missing: it {why}"))
    if is_well:
        print("the ranks are in step" if len(rows) > 1 else "there is one rank")
    sys.stdout.flush()
    return 0 if is_well else 1


def _is_late(answer: dict[str, Any] | StethosError, step: int | None) -> bool:
    """Whether the question came to a rank only after the step that was meant for all."""
    return step is not None and not isinstance(answer, StethosError) and int(answer.get("step") or 0) > step
