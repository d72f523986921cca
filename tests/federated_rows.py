"""Federated runs made by hand: a server and clients' processes, each with a clock of its own."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from builders import MS_NS, T0_NS, ProcessBuilder, RunBuilder

from stethos.record.layout import SLOT_PACKERS
from stethos.schema import CLIENT_REPORTS, NULL_F64, NULL_I32, ROUNDS, SPANS, STEPS, Kind, Table

EVIL = '\x1b[31m<script>"c\\3"\x1b[0m\n'
CLIENTS = ("c1", "c2", EVIL)
SKEW_NS = {"c1": 5_000 * MS_NS, "c2": -3_000 * MS_NS, EVIL: 0}  # by which the clients' clocks are wrong
ROUND_MS, TURN_MS = 1000.0, 400.0


def put_row(
    process: ProcessBuilder, table: Table, t_ns: int, *, client: str | None = None, round: int | None = None,
    **values: Any,
) -> None:  # fmt: skip
    """One row of a table of frames; what is not given is NULL."""
    names = [process.name_id(values.get(column.name)) for column in table.of_kind(Kind.NAME)]
    numbers = [values.get(column.name) for column in table.of_kind(Kind.I32, Kind.I64, Kind.F64, Kind.BOOL)]
    body = np.array(names, "<i4").tobytes()
    body += np.array([NULL_F64 if number is None else float(number) for number in numbers], "<f8").tobytes()
    texts = [_text(values.get(column.name)) for column in table.of_kind(Kind.TEXT)]
    process.ring.put_frame(
        table.number, 1, body, texts, client=process.name_id(client),
        round=NULL_I32 if round is None else round, t_ns=t_ns,
    )  # fmt: skip


def _text(value: Any) -> bytes:
    return (json.dumps(value) if isinstance(value, Mapping) else str(value or "")).encode("utf-8", "surrogatepass")


def put_steps(process: ProcessBuilder, count: int, end_ns: int, *, client: str, round: int, first: int) -> None:
    """Steps of 10 ms that end at a time; the first one's phases alone are known."""
    for place in range(count):
        t_ns = end_ns - (count - 1 - place) * 10 * MS_NS
        process.ring.put(
            SLOT_PACKERS[STEPS.number].pack_into, STEPS.number, 0, process.name_id(client), round, 1, first + place,
            t_ns, place, process.name_id("Net"), 1.0 / (place + 1), 0.1, NULL_F64, 10.0 if place else NULL_F64, 1.0,
            4.0, 3.0, 1.0, 32, 1, 0, 4096, 8192,
        )  # fmt: skip


def hexadecimal(kind: int, number: int, digits: int) -> str:
    return f"{kind * 1_000_000 + number:0{digits}x}"


def build_federation(path: Path, rounds: int = 3, clients: tuple[str, ...] = CLIENTS) -> None:
    """Rounds of a second, in which clients one after the other begin a turn of 0.4 s, 0.1 s apart.

    The last round's last client fails. Each client is a process on a machine of its own whose clock is wrong.
    """
    with RunBuilder(path) as run:
        server = run.process("server", is_alive=False, host="server")
        others = {
            client: run.process(f"client-{place}", is_alive=False, host=f"host-{place}", rank=None)
            for place, client in enumerate(clients)
        }
        for number in range(1, rounds + 1):
            start_ns = T0_NS + int((number - 1) * (ROUND_MS + 100) * MS_NS)
            trace, whole = hexadecimal(1, number, 32), hexadecimal(2, number, 16)
            put_row(server, SPANS, start_ns, round=number, name="round", duration_ms=ROUND_MS + 1, ok=True, trace=trace,
                    span=whole, fields={"federation": "wards", "round": number})  # fmt: skip
            put_row(server, SPANS, start_ns + int(950 * MS_NS), round=number, name="aggregate", duration_ms=20.0,
                    ok=True, trace=trace, span=hexadecimal(3, number, 16), parent=whole)  # fmt: skip
            for place, client in enumerate(clients):
                turn_ns = start_ns + (100 + place * 100 % 400) * MS_NS + SKEW_NS.get(client, 0)
                has_failed = number == rounds and place == len(clients) - 1
                own = hexadecimal(4, number * 1000 + place, 16)
                common: dict[str, Any] = {"federation": "wards", "turn": 0, "duration_ms": TURN_MS}
                put_row(others[client], SPANS, turn_ns, client=client, round=number, name="client", duration_ms=TURN_MS,
                        ok=not has_failed, trace=trace, span=own, parent=whole,
                        exception="ValueError: no" if has_failed else "")  # fmt: skip
                put_row(others[client], CLIENT_REPORTS, turn_ns, client=client, round=number, side="client",
                        status="failed" if has_failed else "ok", compute_ms=TURN_MS, **common)  # fmt: skip
                put_row(server, CLIENT_REPORTS, start_ns + 990 * MS_NS, client=client, round=number, side="server",
                        status="failed" if has_failed else "ok", samples=32, loss=1.0 / number, download_ms=50.0,
                        upload_ms=30.0, compute_ms=TURN_MS, **common)  # fmt: skip
                put_steps(others[client], 3, turn_ns + 300 * MS_NS, client=client, round=number, first=3 * (number - 1))
            put_row(server, ROUNDS, start_ns, round=number, federation="wards", duration_ms=ROUND_MS,
                    selected=len(clients), reported=len(clients) - (number == rounds), failed=int(number == rounds),
                    aggregate_ms=20.0, loss=float("nan") if number == 2 else 1.0 / number, accuracy=0.5)  # fmt: skip
            for process in (server, *others.values()):
                process.drain()
        for process in (server, *others.values()):
            process.finish()
